"""Dividing a stream to match a master table in shards: which task each tuple goes to.

    stream ─► divider ─┬─► tuples of shard 0 ─► task 0
                       ├─► tuples of shard 1 ─► task 1
                       └─► tuples of a hot key: to each task in turn

A tuple goes to the task of its shard. If a large part of the stream has one key, the task of that
shard would get most of the work; so the tuples of such a *hot* key go to all tasks in turn. Each
tuple carries the number of its shard, so that the task that gets it knows where to look. A tuple
without a key matches nothing, so it may go to any task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.types import IntegerType, StructField, StructType

from semistream.arrow_arrays import to_arrow
from semistream.keys import Codes, KeyCodec
from semistream.relation import shard_of
from semistream.spark.columns import PREFIX

__all__ = ["DESTINATION_COLUMNS", "NO_SHARD", "Divider", "HotKeys", "KeyShards", "divided"]

NO_SHARD: Final = -1
"""In place of a shard: the key is null, or no master row can have it."""
DESTINATION_COLUMNS: Final = 2
"""Columns at the end of a divided stream: a tuple's shard, and the task it was sent to."""
_FEWEST_HOT: Final = 64
"""A key with fewer tuples is not hot, even if they are a large part of a short stream."""
_Shards = NDArray[np.int32]


@dataclass(frozen=True)
class KeyShards:
    """Finds the shards of stream tuples; needs the master's codec, not its pages."""

    codec: KeyCodec
    key: tuple[str, ...]
    """The stream's key columns, in the order of the master's."""
    count: int
    """Shards of the master table."""

    def of(self, batch: pa.RecordBatch) -> tuple[Codes, _Shards]:
        """The codes of a batch's keys, and their shards or `NO_SHARD`."""
        columns = [batch.column(name) for name in self.key]
        codes, valid = self.codec.codes(self.codec.align(columns, self.key))
        shards = shard_of(codes, self.count)
        if valid is not None:
            shards[~valid] = NO_SHARD
        return codes, shards


class HotKeys:
    """Counts codes, and says which are hot: those of more than 1 / (2 × tasks) of all tuples.

    Only the 4 × `tasks` most frequent codes have counts, in the manner of Misra and Gries (1982): a
    count may be too low by 1 / (4 × tasks) of all tuples, and is never too high. So a key that does
    not count as hot adds at most three quarters of a fair share to its task.
    """

    def __init__(self, tasks: int) -> None:
        """Nothing counted yet."""
        self._tasks = tasks
        self._total = 0
        self._codes: Codes = np.empty(0, np.int64)
        self._counts: NDArray[np.int64] = np.empty(0, np.int64)

    def __len__(self) -> int:
        """How many codes have counts now."""
        return len(self._codes)

    def count(self, codes: Codes) -> NDArray[np.bool_]:
        """Count these codes, and say which are hot by all counts so far. O(n log n)."""
        found, places, counts = np.unique(codes, return_inverse=True, return_counts=True)
        self._total += len(codes)
        known = np.isin(found, self._codes, assume_unique=True)
        counts[known] += self._counts[np.searchsorted(self._codes, found[known])]
        hot = (counts * (2 * self._tasks) > self._total) & (counts >= _FEWEST_HOT)
        gone = ~np.isin(self._codes, found, assume_unique=True)
        self._keep(
            np.concatenate([found, self._codes[gone]]),
            np.concatenate([counts, self._counts[gone]]),
        )
        marked: NDArray[np.bool_] = hot[places]
        return marked

    def _keep(self, codes: Codes, counts: NDArray[np.int64]) -> None:
        """Keep the most frequent; subtract the highest count among the rest from theirs."""
        most = 4 * self._tasks
        if len(codes) > most:
            counts = counts - np.partition(counts, len(counts) - most - 1)[-most - 1]
            codes, counts = codes[counts > 0], counts[counts > 0]
        order = np.argsort(codes)
        self._codes, self._counts = codes[order], counts[order]


class Divider:
    """Adds a destination to each tuple of one task: its shard, and the task that it goes to."""

    def __init__(self, keys: KeyShards, names: tuple[str, str], turn: int = 0) -> None:
        """`names` are those of the two columns; `turn` is the task whose turn it is."""
        self._keys = keys
        self._names = names
        self._hot = HotKeys(keys.count)
        self._turn = turn

    def addressed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with `DESTINATION_COLUMNS` at its end."""
        codes, shards = self._keys.of(batch)
        keyless = shards == NO_SHARD
        spread = keyless.copy()
        spread[~keyless] = self._hot.count(codes[~keyless])
        tasks = shards.copy()
        count = int(np.count_nonzero(spread))
        # In turn and not at random: a task that runs again must send each tuple where it did.
        tasks[spread] = (self._turn + np.arange(count)) % self._keys.count
        self._turn = (self._turn + count) % self._keys.count
        shards[keyless] = tasks[keyless]
        for name, column in zip(self._names, (shards, tasks), strict=True):
            field = pa.field(name, pa.int32(), nullable=False)
            batch = batch.append_column(field, to_arrow(column.astype(np.int32, copy=False)))
        return batch


def divided(df: DataFrame, keys: KeyShards) -> DataFrame:
    """The frame with `DESTINATION_COLUMNS` at its end, shuffled into a task for each shard."""
    names = _free_names(df)
    added = [StructField(name, IntegerType(), nullable=False) for name in names]
    addressed = df.mapInArrow(_operator(keys, names), StructType([*df.schema.fields, *added]))
    task = addressed[names[1]]
    if hasattr(addressed, "repartitionById"):
        return addressed.repartitionById(keys.count, task)
    # Before Spark 4.1, some tasks get the tuples of several shards and others none.
    return addressed.repartition(keys.count, task)


def _free_names(df: DataFrame) -> tuple[str, str]:
    """Names that no column has."""
    taken, prefix = {name.lower() for name in df.columns}, PREFIX
    while f"{prefix}shard" in taken or f"{prefix}task" in taken:
        prefix += "_"
    return f"{prefix}shard", f"{prefix}task"


def _operator(
    keys: KeyShards, names: tuple[str, str]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that Spark ships; `explain` and Spark's UI show its name."""

    def semistream_divide(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        # Each begins with another task, or short streams would all favour the first.
        divider = Divider(keys, names, 0 if context is None else context.partitionId())
        return (divider.addressed(batch) for batch in batches if batch.num_rows)

    return semistream_divide
