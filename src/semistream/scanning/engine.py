"""The engine of a join by a condition.

for each window of stream tuples:
    put them in order
    for each block of R:
        pairs of the two, a bounded number at a time ─► output
    tuples without a pair ─► output, if they are wanted
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.algorithms.engine import Engine
from semistream.algorithms.options import check_master
from semistream.algorithms.planner import Occasion
from semistream.algorithms.registry import AUTO
from semistream.arrow_arrays import no_rows, to_arrow
from semistream.budget import MemoryBudget, parse_memory
from semistream.errors import BudgetError, OptionError, StreamSchemaError
from semistream.metrics import Clock, Recorder
from semistream.parts.output import Output
from semistream.parts.shedding import Shedding
from semistream.parts.stream_buffer import Arrivals
from semistream.relation import MasterTable
from semistream.relation.reader import IO_MODES
from semistream.scanning.conditions import Condition
from semistream.scanning.matcher import matcher_of
from semistream.scanning.rows import Block, MasterRows
from semistream.scanning.shape import HOWS, ScanShape
from semistream.scanning.sizing import ALGORITHM, ScanPlan, Sizing, scan_plan
from semistream.scanning.windows import Window, windows

__all__ = ["ScanEngine", "scan_engine"]

_END: Final = object()


class _ScanPlanner:
    """Divides the memory of a scan."""

    name = ALGORITHM

    def __init__(self, master: MasterTable) -> None:
        self._master = master

    def plan(self, occasion: Occasion) -> ScanPlan:
        """The sizes for a stream that begins so."""
        shape = occasion.shape
        assert isinstance(shape, ScanShape)
        sizing = Sizing(self._master, shape, occasion.first, matcher_of(shape).needs)
        return scan_plan(sizing, occasion.memory)


class _Scan:
    """The parts of a join by a condition, and how a window is joined with them."""

    def __init__(
        self,
        plan: ScanPlan,
        master: MasterTable,
        shape: ScanShape,
        budget: MemoryBudget,
        recorder: Recorder,
        io: str,
    ) -> None:
        self.plan, self.shape, self.moment = plan, shape, master.moment
        self.matcher = matcher_of(shape)
        self.rows = MasterRows(master, shape, self.matcher, plan, budget, io, recorder)
        budget.grant("waiting tuples").take(plan.parts["waiting tuples"])
        widest = master.widest_row if shape.payload else 0
        self.output = Output(
            shape, widest, plan.fragment_bytes, plan.pairs, budget.grant("output"), recorder, True
        )
        self._recorder = recorder
        self._nothing = no_rows(shape.plain_schema)

    def suits(self, first: pa.RecordBatch) -> bool:
        """Whether a stream that begins so can be joined with these parts."""
        shape = self.shape
        if not first.schema.equals(shape.stream_schema):
            return False
        wide = shape.tuple_bytes(shape.plain(first)) if first.num_rows else 0
        return wide <= self.plan.widest_tuple

    def joined(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join a stream to its end."""
        for window in windows(batches, self.shape, self.matcher, self.plan, self._recorder):
            if window.batch.num_rows:
                yield from self._window(window)
            else:
                yield from self.output.flush()
        yield from self.output.flush()

    def _window(self, window: Window) -> Iterator[pa.RecordBatch]:
        recorder, how = self._recorder, self.shape.how
        no_codes: NDArray[np.int64] = np.empty(0, np.int64)
        yield from self.output.arrived(
            Arrivals(self._nothing, no_codes, self._nothing, window.widest)
        )
        self.matcher.begin(self.shape.values(window.batch))
        pairs = self.output.pairs if how in ("inner", "left") else None
        for block in self.rows.blocks():
            recorder.iterations += 1
            recorder.probes += block.rows.num_rows
            for count in self.matcher.pairs(block.keys, pairs):
                yield from self._pairs(window.batch, block, count)
        matched = self.matcher.matched()
        if how != "inner":
            yield from self._alone(window.batch, matched if how == "semi" else ~matched)
        self._done(window, int(np.count_nonzero(matched)))

    def _pairs(self, stream: pa.RecordBatch, block: Block, count: int) -> Iterator[pa.RecordBatch]:
        """Result rows of the pairs that were found last."""
        self._recorder.matches += count
        tuples, rows = (places[:count] for places in self.output.pairs)
        for start, stop in self.output.cuts(count, lambda: block.row_bytes[rows]):
            yield from self.output.matched(
                stream.take(to_arrow(tuples[start:stop])),
                block.rows.take(to_arrow(rows[start:stop])),
            )

    def _alone(self, stream: pa.RecordBatch, chosen: NDArray[np.bool_]) -> Iterator[pa.RecordBatch]:
        """Tuples that go out without a master row."""
        places = np.flatnonzero(chosen).astype(np.int32)
        for start in range(0, len(places), self.output.most_rows):
            part = stream.take(to_arrow(places[start : start + self.output.most_rows]))
            if self.shape.how == "left":
                yield from self.output.unmatched(part)
            else:
                yield from self.output.matched(part, part.select([]))

    def _done(self, window: Window, joined: int) -> None:
        recorder, now = self._recorder, self._recorder.clock()
        for since, count in window.since:
            recorder.processing.add(max(0.0, now - since), count)
        recorder.joined += joined
        recorder.unmatched += window.batch.num_rows - joined
        recorder.deletes += window.batch.num_rows


class ScanEngine(Engine):
    """An engine whose tuples and rows meet by a condition, on a scan of R."""

    def __init__(
        self,
        master: MasterTable,
        condition: Condition,
        *,
        memory: int,
        how: str,
        columns: Sequence[str] | None,
        io: str,
        clock: Clock,
    ) -> None:
        """Nothing is opened or allocated until `run`."""
        planner = _ScanPlanner(master)
        super().__init__(
            master, planner, on={}, memory=memory, how=how, columns=columns, io=io, clock=clock
        )
        self._condition = condition
        self._scan: _Scan | None = None

    def run_timed(
        self,
        arrivals: Iterable[tuple[float, pa.RecordBatch]],
        *,
        shedding: Shedding | None = None,
    ) -> Generator[pa.RecordBatch, None, None]:
        """Not for conditions: a window waits for a whole scan, whatever the time."""
        raise OptionError(
            f"A join on {self._condition} reads its stream by itself. Use run, not run_timed."
        )

    def _run(self, batches: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
        with self._alone(), self._master.held():
            self._start(timed=False)
            ended = False
            try:
                first = next(batches, _END)
                if first is not _END:
                    if not isinstance(first, pa.RecordBatch):
                        raise StreamSchemaError(
                            f"The stream gave a {type(first).__name__}; it must give "
                            "pyarrow.RecordBatch. A pa.Table gives them with to_batches()."
                        )
                    yield from self._opened(first).joined(chain([first], batches))
                ended = True
            finally:
                self._recorder.stop()
                if not ended:
                    self._let_go()
        self._check_conserved()

    def _opened(self, first: pa.RecordBatch) -> _Scan:
        """The parts of the last run if they suit this stream, else new ones."""
        scan = self._scan
        if scan is not None and scan.moment == self._master.moment and scan.suits(first):
            return scan
        self._let_go()
        plan = self.planned(first)
        assert isinstance(plan, ScanPlan)
        shape = self._shape_of(first.schema)
        try:
            self._scan = self._parts(plan, shape)
        except BudgetError:
            if not plan.kept:
                raise
            # Rows that are wider in memory than on their pages: go without keeping them.
            self._replace_budget(self._memory)
            sizing = Sizing(self._master, shape, first, matcher_of(shape).needs)
            self._scan = self._parts(scan_plan(sizing, self._memory, may_keep=False), shape)
        return self._scan

    def _parts(self, plan: ScanPlan, shape: ScanShape) -> _Scan:
        scan = _Scan(plan, self._master, shape, self._budget, self._recorder, self._io)
        self.plans.append(plan)
        return scan

    def _let_go(self, keep_learned: bool = False) -> None:
        """Close the files and forget the parts; nothing is learned."""
        if self._scan is not None:
            self._scan.rows.close()
            self._scan = None
        self._replace_budget(self._memory)

    def _shape_of(self, schema: pa.Schema) -> ScanShape:
        return ScanShape(schema, self._master, self._condition, self._how, self._columns)


def scan_engine(
    master: MasterTable,
    *,
    on: Condition,
    memory: int | str,
    how: str = "inner",
    algorithm: str = AUTO,
    columns: Sequence[str] | None = None,
    io: str = "buffered",
    clock: Clock = time.perf_counter,
    **options: Any,
) -> ScanEngine:
    """An engine for a condition, as `semistream.engine` makes it."""
    check_master(master)
    if algorithm not in (AUTO, ALGORITHM):
        raise OptionError(
            f"algorithm={algorithm!r} looks for equal keys. A join on {on} is MESHJOIN's scan: "
            f'leave algorithm out, or use "{ALGORITHM}".'
        )
    if how not in HOWS:
        raise OptionError(f"how={how!r} is not known. Use one of: {', '.join(HOWS)}.")
    if io not in IO_MODES:
        raise OptionError(f"io={io!r} is not known. Use one of: {', '.join(IO_MODES)}.")
    unknown = sorted(name for name, value in options.items() if value not in (None, False))
    if unknown:
        raise OptionError(
            f"A join on {on} has no option {', '.join(unknown)}. It sizes its parts by the memory."
        )
    return ScanEngine(
        master, on, memory=parse_memory(memory), how=how, columns=columns, io=io, clock=clock
    )
