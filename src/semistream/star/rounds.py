"""Rounds: a stream is joined with several masters, so many tuples at a time.

The look-ups of a round follow one another. Those that can drop tuples come first, so that the
others have fewer to look for. What they find is held until the end of the round:

    collect ─► look-up ─► look-up ─► … ─► results
                  │ more rows than it may hold
                  └─► those go through the rest first, then it goes on

So a key with many master rows takes no more memory than others. If results are to come in stream
order, such a look-up is made again for fewer rows at a time instead.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.arrow_arrays import to_numpy
from semistream.metrics import Clock, Metrics
from semistream.star.lookup import named
from semistream.star.rows import BYTES_AT_WORK, BYTES_PER_ROW, Chunks, Rows, matched_tuples
from semistream.star.shape import NUMBER, LookupShape, StarShape

__all__ = ["FEWEST_TUPLES", "Joining", "Rounds", "StarMetrics", "round_bytes"]

FEWEST_TUPLES: Final = 64
"""A round has at least so many."""
_MOST_ROWS: Final = 16384
"""Rows of a result batch."""
_PARTS_AT_ONCE: Final = 4
"""A round's results are copied in so many parts, so that its rows are not there twice."""
_SLACK: Final = 1.25
"""Found rows may be so much wider than they are on average."""
_LARGEST_HELD: Final = 1 << 30
"""Bytes that a look-up may hold; a column of strings has at most 2 GB."""


class Joining(Protocol):
    """What looks tuples up in one master: an engine, or something that runs several."""

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join a stream without pauses, yielding result batches as they come."""

    def metrics(self) -> Metrics:
        """Of the last run."""


@dataclass(frozen=True)
class StarMetrics:
    """A frozen snapshot of a run of several look-ups.

    `arrived` = `joined` + `unmatched` at the end of a run. A tuple is joined if every look-up has
    found a master row for it, or none if that is what it asks for ("anti"), else unmatched.
    """

    arrived: int
    joined: int
    unmatched: int
    outputs: int
    """Result rows."""
    seconds: float
    lookups: dict[str, Metrics]
    """Those of each look-up, by name: a tuple that an earlier one has dropped does not arrive."""
    peak_memory: int
    """The most bytes that were held at a time."""
    budget: int

    @property
    def service_rate(self) -> float:
        """Stream tuples finished per second."""
        return (self.joined + self.unmatched) / self.seconds if self.seconds > 0 else 0.0

    def joint(self) -> Metrics:
        """As if all look-ups were one: their counters are added up, tuples count once."""
        return replace(
            Metrics.merge(self.lookups.values()),
            algorithm="star",
            arrived=self.arrived,
            joined=self.joined,
            unmatched=self.unmatched,
            outputs=self.outputs,
            seconds=self.seconds,
            peak_memory=self.peak_memory,
            budget=self.budget,
        )


def round_bytes(tuple_bytes: float, row_bytes: Sequence[float]) -> float:
    """What a tuple of a round takes: itself, found rows, their numbers, and copies on the way."""
    held = tuple_bytes + _SLACK * sum(row_bytes)
    copies = held / _PARTS_AT_ONCE + max(row_bytes)
    return held + copies + BYTES_PER_ROW * len(row_bytes) + BYTES_AT_WORK


class Rounds:
    """Joins a stream with several masters."""

    def __init__(
        self,
        shape: StarShape,
        joinings: Sequence[Joining],
        held: int,
        memory: int,
        clock: Clock = time.perf_counter,
        ordered: bool = False,
    ) -> None:
        """Each look-up of the shape has its joining: an inner join of row numbers and keys.

        A round holds at most `held` bytes of all the `memory`. `ordered`: results come in the order
        of the stream.
        """
        self._ordered = ordered
        self._shape = shape
        self._joinings = joinings
        self._held = held
        self._memory = memory
        self._clock = clock
        # Those that drop tuples come first; the sort keeps the order of the others.
        lookups = shape.lookups
        self._order = sorted(range(len(lookups)), key=lambda i: lookups[i].lookup.keeps)
        self._places = [self._order.index(i) for i in range(len(lookups))]
        self._tuples = FEWEST_TUPLES
        self._runs: list[Metrics | None] = []
        self._stopped: float | None = None
        self._restart()

    def run(self, batches: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
        """Join the batches of a stream. An empty one ends a round: nothing waits then."""
        with ExitStack() as moments:
            for one in self._shape.lookups:
                moments.enter_context(one.lookup.master.held())
            yield from self._run(batches)

    def _run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        self._restart()
        collected: list[pa.RecordBatch] = []
        count = 0
        try:
            for batch in batches:
                self._arrived += batch.num_rows
                for piece in self._pieces(self._shape.plain(batch)):
                    if collected and count + piece.num_rows > self._tuples:
                        yield from self._round(collected)
                        collected, count = [], 0
                    collected.append(piece)
                    count += piece.num_rows
                if collected and not batch.num_rows:
                    yield from self._round(collected)
                    collected, count = [], 0
            if collected:
                yield from self._round(collected)
        finally:
            self._stopped = self._clock()

    def metrics(self) -> StarMetrics:
        """Of the current or last run."""
        names = [one.lookup.name for one in self._shape.lookups]
        runs = zip(names, self._runs, strict=True)
        known = {name: run for name, run in runs if run is not None}
        now = self._clock() if self._stopped is None else self._stopped
        return StarMetrics(
            arrived=self._arrived,
            joined=self._joined,
            unmatched=self._unmatched,
            outputs=self._outputs,
            seconds=now - self._began,
            lookups=known,
            peak_memory=self._held + sum(run.peak_memory for run in known.values()),
            budget=self._memory,
        )

    def _restart(self) -> None:
        self._arrived = self._joined = self._unmatched = self._outputs = 0
        self._runs = [None] * len(self._joinings)
        self._began = self._clock()
        self._stopped = None

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The batch, cut into even pieces if it is too long for one round.

        The memory for rounds says how many tuples like these may be in one.
        """
        if not batch.num_rows:
            return
        found = [one.row_bytes for one in self._shape.lookups]
        width = round_bytes(batch.nbytes / batch.num_rows, found)
        self._tuples = max(FEWEST_TUPLES, int(self._held / width))
        count = -(-batch.num_rows // self._tuples)
        size = -(-batch.num_rows // count)
        yield from (batch.slice(start, size) for start in range(0, batch.num_rows, size))

    def _round(self, collected: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = Rows.of(collected)
        count = len(rows)
        marks = np.zeros(count, np.bool_)
        most = max(FEWEST_TUPLES, min(_MOST_ROWS, self._tuples // _PARTS_AT_ONCE))
        for some in self._looked_up(0, rows):
            marks[matched_tuples(some)] = True
            self._outputs += len(some)
            yield from some.results(self._shape.output_schema, self._places, most)
        joined = int(np.count_nonzero(marks))
        self._joined += joined
        self._unmatched += count - joined

    def _looked_up(self, at: int, rows: Rows) -> Iterator[Rows]:
        """The rows after all look-ups from number `at` on; several times if they are many."""
        if at == len(self._order) or not len(rows):
            yield rows
            return
        number = self._order[at]
        one, joining = self._shape.lookups[number], self._joinings[number]
        if one.lookup.filters:
            yield from self._looked_up(at + 1, rows.filtered(self._stays(number, rows)))
            return
        absent = np.ones(len(rows), np.bool_) if one.lookup.keeps else None
        limit = min(_LARGEST_HELD, self._tuples * (_SLACK * one.row_bytes + BYTES_PER_ROW))
        # Rows of one tuple may come in any order.
        in_order = self._ordered and len(rows) > 1
        held: list[pa.RecordBatch] = []
        size = 0.0
        for batch in _run(one, joining, rows):
            if absent is not None:
                absent[to_numpy(batch.column(0))] = False
            added = batch.num_rows * BYTES_PER_ROW
            added += sum(column.nbytes for column in batch.columns[len(one.schema) :])
            # The batch counts as the engine's own until the engine goes on.
            if held and size + added > limit and not in_order:
                yield from self._looked_up(at + 1, _found(one, rows, held, None))
                held, size = [], 0
            size += added
            if in_order and size > limit:
                # They are too many. The engine goes on, so that it is not interrupted.
                held = []
                continue
            held.append(batch)
            if size > limit:
                yield from self._looked_up(at + 1, _found(one, rows, held, None))
                held, size = [], 0
        if size > limit:
            step = max(1, int(len(rows) * limit / (2 * size)))
            for start in range(0, len(rows), step):
                yield from self._looked_up(at, rows.part(start, start + step))
            return
        self._note_run(number)
        if held or absent is not None:
            yield from self._looked_up(at + 1, _found(one, rows, held, absent))

    def _stays(self, number: int, rows: Rows) -> NDArray[np.bool_]:
        """Which rows stay after a look-up that adds no columns."""
        one, joining = self._shape.lookups[number], self._joinings[number]
        has_row = np.zeros(len(rows), np.bool_)
        for batch in _run(one, joining, rows):
            has_row[to_numpy(batch.column(0))] = True
        self._note_run(number)
        return has_row if one.lookup.how == "semi" else ~has_row

    def _note_run(self, number: int) -> None:
        """Add up what a look-up has counted."""
        run, before = self._joinings[number].metrics(), self._runs[number]
        self._runs[number] = run if before is None else Metrics.merge([before, run])


def _run(one: LookupShape, joining: Joining, rows: Rows) -> Iterator[pa.RecordBatch]:
    """What a look-up finds; its errors say which one it is, and it ends when nobody asks on."""
    run = joining.run(rows.keys(one.given, NUMBER))
    try:
        with named(one.lookup):
            yield from run
    finally:
        close = getattr(run, "close", None)
        if close is not None:
            close()


def _found(
    one: LookupShape,
    rows: Rows,
    held: list[pa.RecordBatch],
    absent: NDArray[np.bool_] | None,
) -> Rows:
    """The rows with what a look-up has found for them."""
    numbers = [to_numpy(batch.column(0)) for batch in held]
    chunks = Chunks(held, len(one.schema), [field.type for field in one.fields])
    return rows.with_found(chunks, np.concatenate([*numbers, np.empty(0, np.int32)]), absent)
