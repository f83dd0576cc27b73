"""INLJ: look every stream tuple up through the index, one page read per look-up.

The index nested loop join of the papers' comparisons (Naeem et al. 2011, §3). It needs next to
no memory and never makes a tuple wait, but shares no read between tuples.

     S ─► tuple ─► index ─► page(s) of R ─► output

| paper | here |
| --- | --- |
| one tuple of S | a run of neighbouring tuples that need the same page |
| R through its index | the pages of the tuple's key |

The disk buffer holds the page just read, so that neighbouring tuples with the same page cost
one read; nothing else is shared. A page's rows are set aside, page by page, until a few can
go to the output together.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.algorithms.assembly import Assembly
from semistream.algorithms.sizing import Needs
from semistream.kernels import match_codes
from semistream.metrics import Recorder
from semistream.parts.disk_buffer import DiskBuffer, Partition
from semistream.parts.join_shape import JoinShape
from semistream.parts.output import Output
from semistream.parts.recent_keys import RecentKeys
from semistream.parts.stream_buffer import Arrivals, TupleSource

TUPLES_PER_STEP = 65536


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
    ) -> None:
        """From its parts; the disk buffer has `frames` frames, at least two."""
        self._recent = recent
        self._most_reads = frames - 1
        self.tuples_per_step = TUPLES_PER_STEP
        self._reads = 0
        self.stream = stream
        self.disk = disk
        self.waiting: tuple[()] = ()
        self._shape = shape
        self._output = output
        self._recorder = recorder
        self._page: Partition | None = None
        self._aside: list[pa.RecordBatch] = []
        self._aside_tuples: list[NDArray[np.int32]] = []

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
        )

    def step(self) -> Iterator[pa.RecordBatch]:
        """Look up the tuples of one chunk of the stream."""
        for arrivals in self.stream.read(self.tuples_per_step):
            yield from self._output.arrived(arrivals)
            yield from self._look_up(arrivals)

    def check(self) -> None:
        """Assert that nothing is left behind between steps."""
        assert not self._aside

    def _look_up(self, arrivals: Arrivals) -> Iterator[pa.RecordBatch]:
        started = self._recorder.clock()
        missed = np.ones(len(arrivals.codes), np.bool_)
        if self._recent is not None:
            self._recent.arrived(arrivals.codes)
        first, last = self.disk.spans(arrivals.codes)
        for start, stop in _runs(first, last):
            for page in range(first[start], last[start] + 1):
                if self._reads == self._most_reads:
                    yield from self._send(arrivals, missed)
                yield from self._match(arrivals, start, stop, self._read(page), missed)
        yield from self._send(arrivals, missed)
        lonely = int(np.count_nonzero(missed))
        recorder = self._recorder
        recorder.joined += len(missed) - lonely
        recorder.unmatched += lonely
        recorder.processing.add(recorder.clock() - started, len(missed))
        if lonely:
            yield from self._output.unmatched(arrivals.batch.filter(pa.array(missed)))

    def _read(self, page: int) -> Partition:
        if self._page is None or self._page.number != page:
            self._page = self.disk.read(page)
            self._reads += 1
        return self._page

    def _match(
        self, arrivals: Arrivals, start: int, stop: int, page: Partition, missed: NDArray[np.bool_]
    ) -> Iterator[pa.RecordBatch]:
        output = self._output
        codes = arrivals.codes[start:stop]
        cursor = np.zeros(2, np.int64)
        self._recorder.probes += stop - start
        while cursor[0] < len(codes):
            found = match_codes(codes, page.codes, cursor, output.slots, output.rows)
            rows = output.rows[:found]
            if not found:
                break
            if self._recent is not None:
                self._recent.offer(page, output.slots[:found] + np.int32(start), rows)
            for begin, end in output.cuts(found, partial(page.sizes, rows)):
                tuples = output.slots[begin:end] + np.int32(start)
                if end - begin == 1:
                    self._aside.append(page.batch.slice(int(rows[begin]), 1))
                else:
                    self._aside.append(page.batch.take(pa.array(rows[begin:end])))
                self._aside_tuples.append(tuples)
                if end - begin > 1 or len(self._aside) >= output.most_rows:
                    yield from self._send(arrivals, missed)

    def _send(self, arrivals: Arrivals, missed: NDArray[np.bool_]) -> Iterator[pa.RecordBatch]:
        """Copy the rows set aside out of the disk buffer and join them with their tuples."""
        self._reads = 0
        if not self._aside:
            return
        tuples = np.concatenate(self._aside_tuples)
        stream = arrivals.batch.take(pa.array(tuples))
        master = pa.concat_batches(self._aside)
        agree = self._shape.true_matches(stream, master)
        if agree is not None:
            keep = pa.array(agree)
            stream, master, tuples = stream.filter(keep), master.filter(keep), tuples[agree]
        self._aside, self._aside_tuples = [], []
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
