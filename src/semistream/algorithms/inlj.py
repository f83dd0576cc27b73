"""INLJ: look every stream tuple up through the index, one page read per look-up.

The index nested loop join of the papers' comparisons (Naeem et al. 2011, §3). It needs next to
no memory and never makes a tuple wait, but shares no read between tuples.

     S ─► tuple ─► index ─► page(s) of R ─► output

| paper | here |
| --- | --- |
| one tuple of S | a run of neighbouring tuples that need the same page |
| R through its index | the pages of the tuple's key |

The disk buffer holds the page just read, so that neighbouring tuples with the same page cost
one read; nothing else is shared. Rows stay on their pages until a few can go to the output
together (`PageStaging`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import partial
from typing import ClassVar, Final, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.algorithms.assembly import Assembly
from semistream.algorithms.sizing import Needs
from semistream.arrow_arrays import to_arrow
from semistream.errors import RowRoomError
from semistream.kernels import match_codes
from semistream.metrics import Recorder
from semistream.parts.disk_buffer import DiskBuffer, Partition
from semistream.parts.index_steps import IndexSteps
from semistream.parts.join_shape import JoinShape
from semistream.parts.output import Output
from semistream.parts.page_staging import PageStaging
from semistream.parts.recent_keys import RecentKeys
from semistream.parts.stream_buffer import Arrivals, TupleSource

TUPLES_PER_STEP = 65536
"""A step takes at most so many tuples."""
_UNKNOWN: Final[NDArray[np.float64]] = np.empty(0, np.float64)
"""How often keys come, where nobody counts."""


class IndexNestedLoopJoin:
    """Each step looks one chunk of arrivals up, page by page."""

    needs: ClassVar = Needs("inlj", waiting=False, most_frames=16, most_pages=1, options=())

    def __init__(
        self,
        stream: TupleSource,
        disk: DiskBuffer,
        shape: JoinShape,
        output: Output,
        recorder: Recorder,
        frames: int,
        recent: RecentKeys | None = None,
        steps: IndexSteps | None = None,
    ) -> None:
        """From its parts; the disk buffer has `frames` frames, at least two.

        With `steps`, compiled code looks up all tuples of a chunk.
        """
        self.stream = stream
        self.disk = disk
        self.waiting: tuple[()] = ()
        self.tuples_per_step = TUPLES_PER_STEP
        self._staging = PageStaging(disk, frames)
        self._shape = shape
        self._output = output
        self._recorder = recorder
        self._recent = recent
        self._steps = steps

    @classmethod
    def assemble(cls, assembly: Assembly) -> Self:
        """From an assembly."""
        return cls(
            assembly.stream,
            assembly.disk,
            assembly.shape,
            assembly.output,
            assembly.recorder,
            assembly.plan.frames,
            assembly.recent_keys(),
            assembly.index_steps(),
        )

    def step(self) -> Iterator[pa.RecordBatch]:
        """Look up the tuples of one chunk of the stream."""
        for arrivals in self.stream.read(self.tuples_per_step):
            yield from self._output.arrived(arrivals)
            yield from self._look_up(arrivals)

    def check(self) -> None:
        """Assert that nothing is left behind between steps."""
        assert not len(self._staging)
        self._staging.check()

    def _look_up(self, arrivals: Arrivals) -> Iterator[pa.RecordBatch]:
        started = self._recorder.clock()
        if self._recent is not None:
            self._recent.arrived(arrivals.codes)
        if self._steps is not None and len(arrivals.codes):
            frequency = _UNKNOWN if self._recent is None else self._recent.frequency
            missed = yield from self._steps.look_up(arrivals, frequency)
        else:
            missed = yield from self._look_up_pages(arrivals)
        lonely = int(np.count_nonzero(missed))
        recorder = self._recorder
        recorder.joined += len(missed) - lonely
        recorder.unmatched += lonely
        recorder.processing.add(recorder.clock() - started, len(missed))
        if lonely:
            yield from self._output.unmatched(arrivals.batch.filter(to_arrow(missed)))

    def _look_up_pages(
        self, arrivals: Arrivals
    ) -> Generator[pa.RecordBatch, None, NDArray[np.bool_]]:
        """Join the arrivals page by page; returns which of them have no row."""
        missed = np.ones(len(arrivals.codes), np.bool_)
        if most := self.disk.most_codes:
            yield from self._look_up_keys(arrivals, missed, most)
            return missed
        first, last = self.disk.spans(arrivals.codes)
        for start, stop in _runs(first, last):
            for page in range(first[start], last[start] + 1):
                if self._staging.is_full:
                    yield from self._send(arrivals, missed)
                read = self._staging.read(page)
                yield from self._match(arrivals, start, stop, read, missed)
        yield from self._send(arrivals, missed)
        return missed

    def _look_up_keys(
        self, arrivals: Arrivals, missed: NDArray[np.bool_], most: int
    ) -> Iterator[pa.RecordBatch]:
        """Ask for the rows of many tuples at a time: a round trip costs more than all else."""
        start = 0
        while start < len(arrivals.codes):
            stop = min(start + most, len(arrivals.codes))
            try:
                lots = iter([self.disk.rows_of(arrivals.codes[start:stop])])
            except RowRoomError:
                if most > 1:
                    most = max(1, most // 2)
                    continue
                lots = self.disk.load_key(int(arrivals.codes[start]))
            for rows in lots:
                yield from self._match(arrivals, start, stop, rows, missed)
                yield from self._send(arrivals, missed)
            start = stop

    def _match(
        self, arrivals: Arrivals, start: int, stop: int, page: Partition, missed: NDArray[np.bool_]
    ) -> Iterator[pa.RecordBatch]:
        output, pairs, staging = self._output, self._output.pairs, self._staging
        codes = arrivals.codes[start:stop]
        cursor = np.zeros(2, np.int64)
        self._recorder.probes += stop - start
        while cursor[0] < len(codes):
            found = match_codes(codes, page.codes, cursor, *pairs)
            if not found:
                break
            tuples, rows = pairs.tuples[:found] + np.int32(start), pairs.rows[:found]
            if self._recent is not None:
                self._recent.offer(page, tuples, rows)
            for begin, end in output.cuts(found, partial(page.sizes, rows)):
                staging.add(page, rows[begin:end], tuples[begin:end])
                if end - begin > 1 or len(staging) >= output.most_rows:
                    yield from self._send(arrivals, missed)

    def _send(self, arrivals: Arrivals, missed: NDArray[np.bool_]) -> Iterator[pa.RecordBatch]:
        """Join the rows set aside with their tuples."""
        staged = self._staging.take()
        if staged is None:
            return
        tuples, master = staged
        stream = arrivals.batch.take(to_arrow(tuples))
        stream, master, tuples = self._shape.true_pairs(stream, master, tuples)
        missed[tuples] = False
        self._recorder.matches += len(tuples)
        yield from self._output.matched(stream, master)


def _runs(first: NDArray[np.int64], last: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Neighbouring tuples whose keys lie on the same pages; those without a page are left out."""
    changes = np.flatnonzero((np.diff(first) != 0) | (np.diff(last) != 0)) + 1
    starts = np.concatenate([[0], changes]) if len(first) else changes
    stops = np.concatenate([changes, [len(first)]]) if len(first) else changes
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        if first[start] <= last[start]:
            yield start, stop
