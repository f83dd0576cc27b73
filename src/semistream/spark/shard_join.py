"""Joining with a master table in shards, inside one task and its memory.

Each shard is a master table to an engine. What stands here looks like an engine to the task that
runs it, and shares the task's memory among the engines it runs:

    OneShard    the stream comes divided: own tuples ─► engine of the own shard
                                          others, of hot keys ─► set aside ─► look-ups
    AllShards   the stream comes as it is: collected ─► engine of each shard in turn

`OneShard` has its engine pull tuples until as many of others are set aside as fit. Then the
engine finishes what waits, and the others are looked up, ordered by key, with one INLJ per
shard, one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final, NamedTuple, Protocol, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.algorithms import Engine
from semistream.algorithms.inlj import IndexNestedLoopJoin
from semistream.algorithms.sizing import Sizing
from semistream.errors import BudgetError
from semistream.metrics import Metrics
from semistream.parts.join_shape import JoinShape
from semistream.relation import MasterTable
from semistream.spark.engine_runs import EngineRuns
from semistream.spark.rows_by_shard import RowsByShard, pieces_of
from semistream.spark.shard_routes import ROUTE_COLUMNS, KeyShards

__all__ = ["AllShards", "EngineMaker", "OneShard", "OneShardMemory", "all_shards_memory"]

_SMALL_SHARE: Final = 16
"""Of a task with one shard, 1 / 16 is for tuples set aside, and at least 1 / 16 for look-ups."""
_COLLECTED_SHARE: Final = 4
"""Of a task with all shards, a quarter is for the tuples of a round."""
_PIECE: Final = 8
"""A batch is divided in pieces of at most 1 / 8 of the share of tuples set aside. So there is room
for the copy of a piece, and for one piece more, when the share counts as full at 3 / 4."""


class EngineMaker(Protocol):
    """Makes the engines of a join, on one shard or another."""

    def engine(self, master: MasterTable, memory: int) -> Engine:
        """One of the join's algorithm and options."""

    def look_up_engine(self, master: MasterTable, memory: int) -> Engine:
        """An INLJ that gives the same columns."""


class OneShardMemory(NamedTuple):
    """The shares of a task with one shard; together they are the task's memory."""

    own: int
    """Of the engine of the own shard."""
    others: int
    """Of the look-ups in other shards, and of all shards' indices."""
    aside: int
    """Of tuples that wait for look-ups, and of copies while a batch is divided."""

    @classmethod
    def of(
        cls, memory: int, shards: list[MasterTable], shape: JoinShape, sample: pa.RecordBatch
    ) -> Self:
        """The shares of `memory`, when stream tuples are as wide as those of `sample`."""
        index = sum(shard.index_bytes for shard in shards)
        # The least depends on the longest page, and on little else of a shard.
        longest = max(shards, key=lambda shard: shard.pages.max_length)
        least = Sizing(IndexNestedLoopJoin.needs, longest, shape, sample).least_memory({})
        # Twice, since later tuples may be wider than the sample's.
        others = max(memory // _SMALL_SHARE, index + 2 * least)
        aside = memory // _SMALL_SHARE
        if others + aside >= memory:
            raise BudgetError(
                f"memory={memory:,} bytes is too little for a task that joins with one of "
                f"{len(shards)} shards: look-ups in the others take {others:,} of them, tuples "
                f"set aside for that {aside:,}. Give more memory."
            )
        return cls(memory - others - aside, others, aside)


def all_shards_memory(memory: int, shards: int) -> int:
    """The memory of each engine of a task with all shards."""
    return (memory - memory // _COLLECTED_SHARE) // shards


class AllShards:
    """Joins a stream with every shard, in rounds: collect, then each shard's engine in turn."""

    def __init__(
        self, make: EngineMaker, shards: list[MasterTable], keys: KeyShards, memory: int
    ) -> None:
        """Nothing is opened or allocated until `run`."""
        self._make = make
        self._shards = shards
        self._keys = keys
        self._memory = memory
        self._engines: dict[int, Engine] = {}
        self._runs = EngineRuns()

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join a stream without pauses, yielding result batches as they come."""
        self._runs = EngineRuns()
        for shard, kept in self._engines.items():
            self._runs.hold(f"shard {shard}", kept.memory()["peak"])
        share = self._memory // _COLLECTED_SHARE
        collected = RowsByShard()
        for piece in (piece for batch in batches for piece in pieces_of(batch, share // _PIECE)):
            shards = np.maximum(self._keys.of(piece)[1], 0)
            collected.add(piece, shards, np.argsort(shards, kind="stable"))
            if _is_full(collected, share):
                yield from self._round(collected)
        yield from self._round(collected)

    def metrics(self) -> Metrics:
        """Of all engines together, in the last run."""
        return self._runs.metrics(self._memory)

    def memory(self) -> dict[str, int]:
        """The share of each part in the task's memory: engines, and the tuples of a round."""
        engines = {f"shard {i}": each.memory()["budget"] for i, each in self._engines.items()}
        return engines | {"collected": self._memory // _COLLECTED_SHARE}

    def close(self) -> None:
        """Close the files and give back the memory that are kept for another run."""
        while self._engines:
            self._engines.popitem()[1].close()

    def _round(self, collected: RowsByShard) -> Iterator[pa.RecordBatch]:
        self._runs.hold("collected", collected.bytes)
        for shard in collected.shards:
            joining = self._engine(shard)
            yield from joining.run(collected.of(shard))
            self._runs.add(f"shard {shard}", joining.metrics())
        collected.clear()

    def _engine(self, shard: int) -> Engine:
        if shard not in self._engines:
            each = all_shards_memory(self._memory, len(self._shards))
            self._engines[shard] = self._make.engine(self._shards[shard], each)
        return self._engines[shard]


class OneShard:
    """Joins the tuples of one shard with an engine, and looks those of hot keys elsewhere up."""

    def __init__(
        self,
        make: EngineMaker,
        shards: list[MasterTable],
        number: int,
        keys: KeyShards,
        memory: int,
    ) -> None:
        """`number` is the own shard's. Nothing is opened or allocated until `run`."""
        self._make = make
        self._shards = shards
        self._number = number
        self._keys = keys
        self._memory = memory
        self._index = sum(shard.index_bytes for shard in shards)
        self._own: Engine | None = None
        self._shares = OneShardMemory(0, 0, memory // _SMALL_SHARE)
        self._widest = 0
        self._aside = RowsByShard()
        self._runs = EngineRuns()
        self._ended = False

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join a divided stream without pauses; its route columns are not in the result."""
        self._runs, self._ended = EngineRuns(), False
        self._aside.clear()
        most = self._shares.aside // _PIECE
        pieces = (piece for batch in batches for piece in pieces_of(batch, most))
        first = next(pieces, None)
        if first is None:
            return
        own, rest = self._sized(_tuples(first)), chain([first], pieces)
        self._runs.hold("indices", self._index - self._shards[self._number].index_bytes)
        while not self._ended:
            yield from own.run(self._own_tuples(rest))
            self._runs.add("own", own.metrics())
            yield from self._look_up()

    def metrics(self) -> Metrics:
        """Of all engines together, in the last run."""
        return self._runs.metrics(self._memory)

    def memory(self) -> dict[str, int]:
        """The share of each part in the task's memory."""
        return self._shares._asdict()

    def close(self) -> None:
        """Close the files and give back the memory that are kept for another run."""
        if self._own is not None:
            self._own.close()
            self._own = None
        self._aside.clear()

    def _sized(self, sample: pa.RecordBatch) -> Engine:
        """The own engine, made anew with less memory if look-ups of such tuples need more."""
        own = self._shards[self._number]
        shape = self._make.engine(own, self._memory).shape(sample.schema)
        widest = shape.tuple_bytes(shape.plain(sample))
        if self._own is not None and widest <= self._widest:
            return self._own
        shares = OneShardMemory.of(self._memory, self._shards, shape, sample)
        if self._own is None or shares.others > self._shares.others:
            self.close()
            self._shares = shares
            self._own = self._make.engine(own, shares.own)
        self._widest = widest
        return self._own

    def _own_tuples(self, pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The own tuples, until the others fill their share or the stream has ended."""
        for piece in pieces:
            tuples, shards = _tuples(piece), piece.column(piece.num_columns - 2).to_numpy()
            others = shards != self._number
            if others.any():
                self._set_aside(tuples, shards, np.flatnonzero(others))
                tuples = tuples.filter(pa.array(~others))
            # To an engine an empty batch is a pause.
            if tuples.num_rows:
                yield tuples
            if _is_full(self._aside, self._shares.aside):
                return
        self._ended = True

    def _set_aside(
        self, tuples: pa.RecordBatch, shards: NDArray[np.int32], numbers: NDArray[np.int64]
    ) -> None:
        """In the order of keys, so that a look-up reads a page once for all tuples of a key."""
        codes = self._keys.of(tuples)[0][numbers]
        order = np.lexsort((codes, shards[numbers]))
        self._aside.add(tuples, shards, numbers[order])

    def _look_up(self) -> Iterator[pa.RecordBatch]:
        self._runs.hold("aside", self._aside.bytes)
        for number in self._aside.shards:
            shard = self._shards[number]
            # Its index is there already, among those of all shards.
            memory = self._shares.others - self._index + shard.index_bytes
            looking = self._make.look_up_engine(shard, memory)
            try:
                yield from looking.run(self._aside.of(number))
                self._runs.add("others", looking.metrics(), elsewhere=shard.index_bytes)
            finally:
                looking.close()
        self._aside.clear()


def _is_full(rows: RowsByShard, share: int) -> bool:
    return rows.bytes > share // 4 * 3


def _tuples(piece: pa.RecordBatch) -> pa.RecordBatch:
    """The stream tuples of a divided stream, without their route."""
    return piece.select(list(range(piece.num_columns - ROUTE_COLUMNS)))
