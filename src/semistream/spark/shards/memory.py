"""How engines on shards share the memory of a task, and so whether the stream is divided.

Dividing the stream by shard costs a shuffle: every stream tuple moves once, and passes through
Python twice. In return a task needs memory for one shard only. Without it a task joins with all of
R. So a shuffle pays when R is far larger than the memory of a task, and only costs time when most
of R is in memory anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, Self

import pyarrow as pa

from semistream.algorithms import Engine
from semistream.algorithms.inlj import IndexNestedLoopJoin
from semistream.algorithms.sizing import Sizing
from semistream.arrow_arrays import no_rows
from semistream.errors import BudgetError
from semistream.parts.join_shape import JoinShape
from semistream.relation import MasterTable

__all__ = ["AllShardsMemory", "EngineMaker", "OneShardMemory", "is_divided"]

_SMALL_SHARE: Final = 16
"""Of a task with one shard, 1 / 16 is for tuples set aside, and at least 1 / 16 for look-ups."""
_COLLECTED_SHARE: Final = 4
"""Of a task with all shards, a quarter is for the tuples of a round."""
_PAYS_FROM: Final = 4
"""A shuffle pays if the master is larger than this many times the memory of a task."""
_MOST_MEMORY: Final = 1 << 50
"""If even this many bytes do not fit, memory is not what is wrong."""


class EngineMaker(Protocol):
    """Makes the engines of a join, on any shard."""

    def engine(self, master: MasterTable, memory: int) -> Engine:
        """One of the join's algorithm and options."""

    def look_up_engine(self, master: MasterTable, memory: int) -> Engine:
        """An INLJ that gives the same columns."""


class AllShardsMemory(NamedTuple):
    """The shares of a task that joins with all shards."""

    collected: int
    """For the tuples of a round."""
    each: int
    """For the engine of each shard."""

    @classmethod
    def of(cls, memory: int, shards: int) -> Self:
        """The shares of `memory`."""
        collected = memory // _COLLECTED_SHARE
        return cls(collected, (memory - collected) // shards)


class OneShardMemory(NamedTuple):
    """The shares of a task that joins with one shard; together they are the task's memory."""

    own: int
    """For the engine of the task's own shard."""
    others: int
    """For look-ups in other shards, and for the indices of all shards."""
    aside: int
    """For tuples that wait for look-ups, and for copies while a batch is divided."""

    @classmethod
    def unsized(cls, memory: int) -> Self:
        """What is known before a sample of the stream is: the share of tuples set aside."""
        return cls(0, 0, memory // _SMALL_SHARE)

    @classmethod
    def of(
        cls, memory: int, shards: list[MasterTable], shape: JoinShape, sample: pa.RecordBatch
    ) -> Self:
        """The shares of `memory`, when stream tuples are as wide as those of `sample`."""
        index = sum(shard.index_bytes for shard in shards)
        # The least depends on the longest page, and on little else of a shard.
        longest = max(shards, key=lambda shard: shard.pages.max_length)
        least = Sizing(IndexNestedLoopJoin.needs, longest, shape, sample).least_memory({})
        # Twice the least, since later tuples may be wider than those of the sample.
        others = max(memory // _SMALL_SHARE, index + 2 * least)
        aside = cls.unsized(memory).aside
        if others + aside >= memory:
            raise BudgetError(
                f"memory={memory:,} bytes is too little for a task that joins with one of "
                f"{len(shards)} shards: look-ups in the others take {others:,} of them, tuples "
                f"set aside for that {aside:,}. Give more memory."
            )
        return cls(memory - others - aside, others, aside)


def is_divided(
    make: EngineMaker, master: MasterTable, shape: JoinShape, memory: int, shuffle: bool | None
) -> bool:
    """Whether to divide the stream; `BudgetError` if the memory is too little for the choice.

    Unless `shuffle` says, it is divided if R is larger than 4 times the memory, or if an engine for
    each shard does not fit.
    """
    if master.shard_count == 1:
        return False
    pays = int(master.pages.length.sum()) > _PAYS_FROM * memory
    trial = _Trial(make, [master.shard(i) for i in range(master.shard_count)], shape)
    if shuffle is None:
        shuffle = pays or not _passes(trial.all_shards, memory)
    if shuffle:
        what = f"a task that joins with one of {master.shard_count} shards"
        _demand(trial.one_shard, memory, what, "")
    else:
        what = f"a task that joins with all {master.shard_count} shards, an engine for each"
        remedy = ", or use shuffle=True, so that a task joins with one shard"
        _demand(trial.all_shards, memory, what, remedy)
    return shuffle


class _Trial(NamedTuple):
    """Raises `BudgetError` if the engines of a task do not fit its memory."""

    make: EngineMaker
    shards: list[MasterTable]
    shape: JoinShape

    def all_shards(self, memory: int) -> None:
        """An engine for each shard."""
        each = AllShardsMemory.of(memory, len(self.shards)).each
        for shard in self.shards:
            self.make.engine(shard, max(each, 1)).shape(self.shape.stream_schema)

    def one_shard(self, memory: int) -> None:
        """An engine for any one shard, and look-ups in the others."""
        schema = self.shape.stream_schema
        none = no_rows(schema)
        shares = OneShardMemory.of(memory, self.shards, self.shape, none)
        for shard in self.shards:
            self.make.engine(shard, shares.own).shape(schema)


_Fits = Callable[[int], None]


def _passes(fits: _Fits, memory: int) -> bool:
    try:
        fits(memory)
    except BudgetError:
        return False
    return True


def _demand(fits: _Fits, memory: int, what: str, remedy: str) -> None:
    """Raise `BudgetError`, with the least that works, unless the memory is enough."""
    if _passes(fits, memory):
        return
    low, high = memory, 2 * memory
    while not _passes(fits, high):
        low, high = high, 2 * high
        if high > _MOST_MEMORY:
            fits(memory)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _passes(fits, middle) else (middle, high)
    raise BudgetError(
        f"memory={memory:,} bytes is too little for {what}: the least is {high:,} bytes. Give "
        f"more memory{remedy}.",
        least=high,
    )
