"""Whether a stream is divided to match the shards of a master table, and whether memory suffices.

A shuffle moves every stream tuple once, and passes it through Python twice; then a task needs the
memory for one shard only. Without it a task joins with all of R. So a shuffle pays when R is far
larger than a task's memory, and costs when much of R is in memory anyhow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa

from semistream.errors import BudgetError
from semistream.parts.join_shape import JoinShape
from semistream.relation import MasterTable
from semistream.spark.shard_join import EngineMaker, OneShardMemory, all_shards_memory

__all__ = ["is_divided"]

_PAYS_FROM: Final = 4
"""A master of more than so many times the memory of a task is worth a shuffle."""
_NO_MEMORY: Final = 1 << 50


def is_divided(
    make: EngineMaker, master: MasterTable, shape: JoinShape, memory: int, shuffle: bool | None
) -> bool:
    """Whether to divide the stream; `BudgetError` if the memory is too little for that way.

    By default it is divided if R is larger than 4 times the memory, or if an engine for each
    shard does not fit.
    """
    if master.shard_count == 1:
        return False
    pays = int(master.pages.length.sum()) > _PAYS_FROM * memory
    shards = [master.shard(i) for i in range(master.shard_count)]
    fits_all = _AllFit(make, shards, shape)
    if shuffle is None:
        shuffle = pays or not _passes(fits_all, memory)
    if shuffle:
        _demand(_OneFits(make, shards, shape), memory, "")
    else:
        _demand(fits_all, memory, ", or use shuffle=True, so that a task joins with one shard")
    return shuffle


class _AllFit:
    """Raises `BudgetError` unless an engine for each shard fits a task's memory."""

    def __init__(self, make: EngineMaker, shards: list[MasterTable], shape: JoinShape) -> None:
        self._make, self._shards, self._shape = make, shards, shape

    def __call__(self, memory: int) -> None:
        each = all_shards_memory(memory, len(self._shards))
        for shard in self._shards:
            self._make.engine(shard, max(each, 1)).shape(self._shape.stream_schema)

    def __str__(self) -> str:
        return f"a task that joins with all {len(self._shards)} shards, an engine for each"


class _OneFits:
    """Raises `BudgetError` unless an engine and look-ups in other shards fit a task's memory."""

    def __init__(self, make: EngineMaker, shards: list[MasterTable], shape: JoinShape) -> None:
        self._make, self._shards, self._shape = make, shards, shape

    def __call__(self, memory: int) -> None:
        schema = self._shape.stream_schema
        none = pa.RecordBatch.from_pylist([], schema)
        shares = OneShardMemory.of(memory, self._shards, self._shape, none)
        for shard in self._shards:
            self._make.engine(shard, shares.own).shape(schema)

    def __str__(self) -> str:
        return f"a task that joins with one of {len(self._shards)} shards"


_Fits = Callable[[int], None]


def _passes(fits: _Fits, memory: int) -> bool:
    try:
        fits(memory)
    except BudgetError:
        return False
    return True


def _demand(fits: _Fits, memory: int, remedy: str) -> None:
    """Raise `BudgetError`, with the least that works, unless the memory is enough."""
    if _passes(fits, memory):
        return
    low, high = memory, 2 * memory
    while not _passes(fits, high):
        low, high = high, 2 * high
        if high > _NO_MEMORY:
            fits(memory)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _passes(fits, middle) else (middle, high)
    raise BudgetError(
        f"memory={memory:,} bytes is too little for {fits}: the least is {high:,} bytes. Give "
        f"more memory{remedy}."
    )
