"""Joining with a master table in shards, inside one task and its memory.

To an engine, a shard is a master table. To the task that runs them, the two classes here look like
an engine. They run one engine or several, which share the task's memory:

    OneShard    the stream is divided:      own tuples ─► engine of the task's own shard
                                            tuples of other shards ─► set aside ─► look-ups
    AllShards   the stream is not divided:  collected ─► engine of each shard in turn

The engine of `OneShard` pulls its own tuples, while tuples of other shards, those of hot keys, are
set aside until they fill their share. Then the engine finishes what waits, and the others are
looked up in the order of their keys, with an INLJ on one shard after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.algorithms import Engine
from semistream.arrow_arrays import to_arrow, to_numpy
from semistream.metrics import Metrics
from semistream.parts.learned import Learned, Legacy
from semistream.relation import MasterTable, shard_of
from semistream.spark.shards.division import DESTINATION_COLUMNS, KeyShards
from semistream.spark.shards.engine_runs import EngineRuns
from semistream.spark.shards.memory import AllShardsMemory, EngineMaker, OneShardMemory
from semistream.spark.shards.rows import RowsByShard, pieces_of

__all__ = ["AllShards", "OneShard"]

_PIECE: Final = 8
"""Batches are cut into pieces of at most 1 / 8 of the share that collects tuples. The share counts
as full at 3 / 4, so there is always room for one more piece and for the copy of a piece."""


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
        self._shares = AllShardsMemory.of(memory, len(shards))
        self._engines: dict[int, Engine] = {}
        self._runs = EngineRuns()

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join a stream without pauses, yielding result batches as they come."""
        self._runs = EngineRuns()
        for shard, kept in self._engines.items():
            self._runs.hold(f"shard {shard}", kept.memory()["peak"])
        share = self._shares.collected
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
        return engines | {"collected": self._shares.collected}

    def learned(self, most: int | None = None) -> Learned:
        """Of all shards together, the most frequent keys first."""
        parts = [each.learned(most) for each in self._engines.values()] or [Learned.nothing()]
        joint = Learned(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        order = np.argsort(-joint.frequency, kind="stable")[:most]
        return Learned(joint.codes[order], joint.frequency[order])

    def leave(self) -> Legacy:
        """Close it; the codes of the keys it has learned."""
        learned = self.learned()
        self.close()
        return Legacy(learned)

    def inherit(self, legacy: Legacy) -> None:
        """Let each shard's engine begin with the keys that are in its shard."""
        shards = shard_of(legacy.learned.codes, len(self._shards))
        for shard in range(len(self._shards)):
            self._engine(shard).inherit(Legacy(legacy.learned.chosen(shards == shard)))

    def close(self) -> None:
        """Close the files and free the memory that were kept for another run."""
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
            self._engines[shard] = self._make.engine(self._shards[shard], self._shares.each)
        return self._engines[shard]


class OneShard:
    """Joins the tuples of one shard with an engine, and looks up those of other shards."""

    def __init__(
        self,
        make: EngineMaker,
        shards: list[MasterTable],
        number: int,
        keys: KeyShards,
        memory: int,
    ) -> None:
        """`number` is that of the task's own shard. Nothing is opened or allocated until `run`."""
        self._make = make
        self._shards = shards
        self._number = number
        self._keys = keys
        self._memory = memory
        self._index = sum(shard.index_bytes for shard in shards)
        self._own: Engine | None = None
        self._legacy: Legacy | None = None
        self._shares = OneShardMemory.unsized(memory)
        self._widest = 0
        self._aside = RowsByShard()
        self._runs = EngineRuns()
        self._ended = False

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join a divided stream without pauses; its destinations are not in the result."""
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

    def learned(self, most: int | None = None) -> Learned:
        """Of the own shard."""
        return Learned.nothing() if self._own is None else self._own.learned(most)

    def leave(self) -> Legacy:
        """Close it; the codes of the keys it has learned."""
        learned = self.learned()
        self.close()
        return Legacy(learned)

    def inherit(self, legacy: Legacy) -> None:
        """Let the engine of the own shard begin with these keys."""
        self._legacy = legacy

    def close(self) -> None:
        """Close the files and free the memory that were kept for another run."""
        if self._own is not None:
            self._own.close()
            self._own = None
        self._aside.clear()

    def _sized(self, sample: pa.RecordBatch) -> Engine:
        """The engine of the own shard, made anew if wider tuples leave it less memory."""
        own = self._shards[self._number]
        shape = self._make.engine(own, self._memory).shape(sample.schema)
        widest = shape.tuple_bytes(shape.plain(sample))
        if self._own is not None and widest <= self._widest:
            return self._own
        shares = OneShardMemory.of(self._memory, self._shards, shape, sample)
        if self._own is None or shares.others > self._shares.others:
            legacy, self._legacy = self._legacy if self._own is None else self._own.leave(), None
            self.close()
            self._shares = shares
            self._own = self._make.engine(own, shares.own)
            if legacy is not None:
                self._own.inherit(legacy)
        self._widest = widest
        return self._own

    def _own_tuples(self, pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Tuples of the own shard, until the others fill their share or the stream has ended."""
        for piece in pieces:
            tuples, shards = _tuples(piece), to_numpy(piece.column(piece.num_columns - 2))
            others = shards != self._number
            if others.any():
                self._set_aside(tuples, shards, np.flatnonzero(others))
                tuples = tuples.filter(to_arrow(~others))
            # To an engine an empty batch would mean a pause.
            if tuples.num_rows:
                yield tuples
            if _is_full(self._aside, self._shares.aside):
                return
        self._ended = True

    def _set_aside(
        self, tuples: pa.RecordBatch, shards: NDArray[np.int32], numbers: NDArray[np.int64]
    ) -> None:
        """Keep these tuples in key order, so that a page is read once for all tuples of a key."""
        codes = self._keys.of(tuples)[0][numbers]
        order = np.lexsort((codes, shards[numbers]))
        self._aside.add(tuples, shards, numbers[order])

    def _look_up(self) -> Iterator[pa.RecordBatch]:
        self._runs.hold("aside", self._aside.bytes)
        for number in self._aside.shards:
            shard = self._shards[number]
            # Its index is counted among those of all shards already.
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
    """The stream tuples of a divided stream, without their destinations."""
    return piece.select(list(range(piece.num_columns - DESTINATION_COLUMNS)))
