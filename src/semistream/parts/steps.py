"""Steps: many iterations of HYBRIDJOIN, of MESHJOIN and of their kin in one call of compiled code.

An iteration takes arrivals in, reads the oldest tuple's partition, or the next one of a scan, joins
it and lets go of what is done. In Python that costs more than the work itself when partitions are
small. The kernels do it in the same order, on the same stream table, queue or window, and frame,
until they need one of these:

    arrivals            the next chunk of the stream
    room                the results so far go out
    an opinion          the front stage looks at the frequent keys of a partition
    a reader            a page that compiled code cannot read, or that is broken
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from semistream.errors import InternalError
from semistream.kernels import scan_steps as scan_kernels
from semistream.kernels import step_state as state
from semistream.kernels import steps as kernels
from semistream.metrics import Recorder
from semistream.parts.disk_buffer import DiskBuffer
from semistream.parts.frame_finder import followable, searchable
from semistream.parts.front_stage import FrontStage
from semistream.parts.join_shape import JoinShape
from semistream.parts.output import Output
from semistream.parts.result_columns import ResultColumns
from semistream.parts.scan_window import ScanWindow
from semistream.parts.step_calls import StepCalls
from semistream.parts.stream_buffer import Arrivals, TupleSource
from semistream.parts.tuple_store import KeptColumn, TupleLayout
from semistream.parts.waiting import WaitingTuples
from semistream.relation import MasterTable

Batches = Iterator[pa.RecordBatch]

_ANY: Final = 1 << 62
_LARGE_PARTITION: Final = 256 << 10
_LARGE_SCANNED: Final = 128 << 10
"""Bytes of a partition above which waiting for the disk costs more than some work in Python: for
look-ups, and for scans, where that is only a call for each partition."""


def can_step(
    master: MasterTable,
    shape: JoinShape,
    disk: DiskBuffer,
    waiting: WaitingTuples | ScanWindow,
    front: FrontStage | None,
) -> bool:
    """Whether compiled code can do all of it, with files that it can read."""
    scans = isinstance(waiting, ScanWindow)
    return (
        disk.partitions > 0
        and is_for_steps(master, shape, disk.per_partition, scans=scans)
        # A front stage needs the memory of the frame that is read ahead for copies of rows.
        and not (scans and front is not None and _reads_ahead(disk))
        and waiting.table.store.is_flat
        and disk.readable_in_kernels
    )


def is_for_steps(
    master: MasterTable, shape: JoinShape, partition_pages: int, *, scans: bool
) -> bool:
    """Whether a join is plain enough for compiled steps, and whether they pay.

    A scan needs no order of keys. Look-ups of large partitions are better done by Python, where a
    thread reads the next one meanwhile.
    """
    if not shape.codec.exact or len(TupleLayout(shape).varying):
        return False
    if scans:
        return followable(master, shape.code_column)
    small = partition_pages * master.page_bytes <= _LARGE_PARTITION
    return small and searchable(master, shape.code_column)


def scans_ahead(partition_bytes: int, *, direct: bool) -> bool:
    """Whether a thread should read a scan's next partition: past the cache nobody else does."""
    return direct and partition_bytes > _LARGE_SCANNED


def _reads_ahead(disk: DiskBuffer) -> bool:
    return scans_ahead(disk.per_partition * disk.page_bytes, direct=disk.reader.grain > 1)


class Steps:
    """Runs iterations for some waiting tuples; the pinned partitions of the disk buffer first."""

    def __init__(
        self,
        master: MasterTable,
        shape: JoinShape,
        disk: DiskBuffer,
        waiting: WaitingTuples | ScanWindow,
        output: Output,
        recorder: Recorder,
        front: FrontStage | None,
    ) -> None:
        """The front stage, if there is one, is told which keys are frequent."""
        self._disk = disk
        self._waiting = waiting
        self._output = output
        self._recorder = recorder
        self._front = front
        self._results = ResultColumns(shape, master.stored_schema, waiting.table.store, output)
        self._calls = StepCalls(master, shape, disk, output, recorder, front, waiting.table)
        self._state = self._calls.state
        self._reads_ahead = isinstance(waiting, ScanWindow) and _reads_ahead(disk)
        if self._reads_ahead:
            disk.have_two_frames()
            self._calls.leave_reading_to_caller()

    def step(self, stream: TupleSource) -> Batches:
        """Iterations until nothing waits, or many of them are done.

        While nothing waits, as when other stages answer all tuples, the kernel is not even loaded.
        """
        self._state[state.IS_DRY] = 0
        self._waiting.table.spread()
        arrivals = stream.nothing
        if self._waiting.free:
            arrivals = yield from self._next(stream)
            self._state[state.IS_DRY] = not len(arrivals.codes)
        if not len(self._waiting) and not len(arrivals.codes) and not self._disk.pinned:
            return
        self._arriving = self._prepared(arrivals)
        self._results.open(self._kept(), self._waiting.table.store.flags)
        while (stopped := self._advance()) != kernels.FINISHED:
            if stopped == kernels.UNREAD:
                self._read_partition()
            elif stopped == kernels.OFFERS:
                self._offer()
            else:
                # Also before more arrives: a stage in front needs the room for its own results.
                yield from self._send()
                if stopped == kernels.NO_ARRIVALS:
                    self._waiting.table.spread()
                    arrivals = yield from self._next(stream)
                    self._state[state.IS_DRY] = not len(arrivals.codes)
                    self._arriving = self._prepared(arrivals)
                self._results.open(self._kept(), self._waiting.table.store.flags)
        yield from self._send()
        if left := len(arrivals.codes) - int(self._state[state.TAKEN]):
            stream.put_back(left)
        # Whoever runs the steps counts this one too.
        self._recorder.iterations -= 1
        self._calls.begin_anew()

    def _next(self, stream: TupleSource) -> Generator[pa.RecordBatch, None, Arrivals]:
        """The next arrivals; none when the stream pauses or ends."""
        for arrivals in stream.read(_ANY):
            yield from self._output.arrived(arrivals)
            if len(arrivals.codes):
                return arrivals
        return stream.nothing

    def _prepared(self, arrivals: Arrivals) -> state.Arriving:
        store = self._waiting.table.store
        self._columns, flags = store.arriving(arrivals.batch)
        self._state[state.TAKEN] = 0
        kept = store.fixed_columns()
        return state.Arriving(
            arrivals.codes,
            np.array([column.ctypes.data for column in self._columns], np.int64),
            np.array([column.address for column in kept], np.int64),
            np.array([column.width for column in kept], np.int64),
            flags,
            store.flags,
        )

    def _advance(self) -> int:
        calls = self._calls
        parts = self._arriving, calls.relation, self._results.results, calls.found, calls.step()
        if isinstance(self._waiting, ScanWindow):
            stopped = scan_kernels.advance(self._waiting.for_kernels, *parts)
        else:
            stopped = kernels.advance(self._waiting.for_kernels, *parts)
        if calls.count():
            self._waiting.note_full()
        if stopped == kernels.BROKEN:
            raise InternalError("A tuple expired before an older one of its key.")
        return stopped

    def _send(self) -> Batches:
        """Hand the results on; their memory is the output's then."""
        found = self._results.close()
        if found is not None:
            yield from self._output.written(*found)

    def _offer(self) -> None:
        """Let the front stage see the partition under way, and time pass."""
        assert self._front is not None
        self._front.pass_time()
        if len(found := self._calls.candidates(self._front.rule.threshold)):
            partition = self._disk.offered(int(self._state[state.PARTITION]), found)
            self._front.offer_keys(partition, found)
        # The table may have another size now.
        fixed = self._waiting.table.store.fixed_columns()
        self._arriving = self._arriving._replace(
            kept=np.array([column.address for column in fixed], np.int64),
            kept_flags=self._waiting.table.store.flags,
        )
        self._results.moved(self._kept(), self._waiting.table.store.flags)

    def _read_partition(self) -> None:
        """Read what compiled code cannot, or what a thread has read ahead."""
        if self._reads_ahead and not self._calls.has_refused:
            assert isinstance(self._waiting, ScanWindow)
            self._calls.fetch(self._waiting.following)
        else:
            self._calls.fill()

    def _kept(self) -> list[KeptColumn]:
        table = self._waiting.table
        return table.store.all_columns(table.chains.nodes)
