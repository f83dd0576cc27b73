"""Steps: many iterations of HYBRIDJOIN and its kin in one call of compiled code.

An iteration takes arrivals in, reads the oldest tuple's partition, joins it and lets go of what it
settles. In Python that costs more than the work itself when partitions are small. The kernel
does it in the same order, on the same stream table, queue and frame, until it needs one of these:

    arrivals            the next chunk of the stream
    room                the results so far go out
    an opinion          the front stage looks at the frequent keys of a partition
    a reader            a page that compiled code cannot read, or that is broken
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from math import inf
from typing import Any, Final, TypeVar, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.kernels import CANDIDATE
from semistream.kernels import step_state as state
from semistream.kernels import steps as kernels
from semistream.kernels.reading import PageList
from semistream.kernels.results import Found
from semistream.kernels.rows import FIELD
from semistream.metrics import Recorder
from semistream.parts.disk_buffer import DiskBuffer, Partition
from semistream.parts.frame_finder import searchable
from semistream.parts.front_stage import FrontStage
from semistream.parts.join_shape import JoinShape
from semistream.parts.output import Output
from semistream.parts.result_columns import ResultColumns
from semistream.parts.row_arena import column_width
from semistream.parts.stream_buffer import Arrivals, TupleSource
from semistream.parts.tuple_store import KeptColumn, TupleLayout
from semistream.parts.waiting import WaitingTuples
from semistream.relation import MasterTable

Batches = Iterator[pa.RecordBatch]
_Array = TypeVar("_Array", bound=NDArray[Any])

_MOST_ITERATIONS: Final = 128
_MOST_CANDIDATES: Final = 1024
_ANY: Final = 1 << 62


_LARGEST_PARTITION: Final = 256 << 10
"""Bytes of a partition up to which the work in Python would cost more than waiting for the disk."""


def can_step(
    master: MasterTable, shape: JoinShape, disk: DiskBuffer, waiting: WaitingTuples
) -> bool:
    """Whether compiled code can do all of it, with files that it can read."""
    return (
        is_for_steps(master, shape, disk.per_partition)
        and waiting.table.store.is_flat
        and disk.readable_in_kernels
    )


def is_for_steps(master: MasterTable, shape: JoinShape, partition_pages: int) -> bool:
    """Whether a join is plain enough for compiled steps, and whether they pay.

    What Python does for a large partition takes less time than reading it, and there a thread
    reads the next one meanwhile.
    """
    return (
        partition_pages * master.page_bytes <= _LARGEST_PARTITION
        and searchable(master, shape.code_column)
        and shape.codec.exact
        and not len(TupleLayout(shape).varying)
    )


class Steps:
    """Runs iterations for some waiting tuples; the pinned partitions of the disk buffer first."""

    def __init__(
        self,
        master: MasterTable,
        shape: JoinShape,
        disk: DiskBuffer,
        waiting: WaitingTuples,
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
        self._relation = _relation(master, shape, disk)
        pairs = output.pairs
        self._found = Found(pairs.tuples, np.zeros(len(pairs.tuples), np.int32), pairs.rows)
        self._state = np.full(state.STATES, -1, np.int64)
        self._state[[state.PHASE, state.TAKEN]] = 0
        self._state[state.READ_UNTIL] = disk.read_until
        self._counts = np.zeros(state.COUNTS, np.int64)
        self._iterations = 0
        self._read = np.zeros(_MOST_ITERATIONS, np.int64)
        self._candidates = np.zeros(_MOST_CANDIDATES if front is not None else 0, CANDIDATE)

    def step(self, stream: TupleSource) -> Batches:
        """Iterations until nothing waits, or many of them are done.

        While nothing waits, as when other stages answer all tuples, the kernel is not even loaded.
        """
        self._state[state.IS_DRY] = 0
        arrivals = stream.nothing
        if self._waiting.free:
            arrivals = yield from self._next(stream)
            self._state[state.IS_DRY] = not len(arrivals.codes)
        if not len(self._waiting) and not len(arrivals.codes) and not self._disk.pinned:
            return
        self._arriving = self._prepared(arrivals)
        self._results.open(self._kept())
        while (stopped := self._advance()) != kernels.FINISHED:
            if stopped == kernels.UNREAD:
                self._read_partition()
            elif stopped == kernels.OFFERS:
                self._offer()
            else:
                # Also before more arrives: a stage in front needs the room for its own results.
                yield from self._send()
                if stopped == kernels.NO_ARRIVALS:
                    arrivals = yield from self._next(stream)
                    self._state[state.IS_DRY] = not len(arrivals.codes)
                    self._arriving = self._prepared(arrivals)
                self._results.open(self._kept())
        yield from self._send()
        if left := len(arrivals.codes) - int(self._state[state.TAKEN]):
            stream.put_back(left)
        # Whoever runs the steps counts this one too.
        self._recorder.iterations -= 1
        self._counts[state.ITERATIONS] = self._iterations = 0

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
        recorder, front = self._recorder, self._front
        step = state.Step(
            self._state,
            self._counts,
            recorder.processing.bins,
            self._read,
            inf if front is None else float(front.rule.threshold),
            _ANY if front is None else front.next_tick - recorder.partitions_read,
            self._candidates,
            recorder.micros(),
            _MOST_ITERATIONS,
        )
        waiting, arriving, results = (
            self._waiting.for_kernels,
            self._arriving,
            self._results.results,
        )
        stopped = kernels.advance(waiting, arriving, self._relation, results, self._found, step)
        self._count()
        return stopped

    def _count(self) -> None:
        """Hand what was counted to the recorder."""
        counts, recorder = self._counts.tolist(), self._recorder
        reads, gone, lonely = (counts[i] for i in (state.READS, state.DELETES, state.LONELY))
        if reads:
            self._disk.note_reads(self._read[:reads])
        done = counts[state.ITERATIONS] - self._iterations
        recorder.iterations += done
        recorder.compiled_iterations += done
        recorder.compiled_calls += 1
        self._iterations = counts[state.ITERATIONS]
        recorder.partitions_read += reads
        recorder.sequential_reads += counts[state.SEQUENTIAL]
        recorder.pages_read += counts[state.PAGES]
        recorder.bytes_read += counts[state.BYTES]
        recorder.probes += counts[state.PROBES]
        recorder.partition_probes += counts[state.PARTITION_PROBES]
        recorder.matches += counts[state.MATCHES]
        recorder.appends += counts[state.APPENDS]
        recorder.deletes += gone
        recorder.joined += gone - lonely
        recorder.unmatched += lonely
        recorder.processing.add_counted(counts[state.WAITED])
        if counts[state.WAS_FULL]:
            self._waiting.queue.was_full = True
        self._counts[:] = 0
        self._counts[state.ITERATIONS] = counts[state.ITERATIONS]

    def _send(self) -> Batches:
        """Hand the results on; their memory is the output's then."""
        found = self._results.close()
        if found is not None:
            yield from self._output.matched(*found)

    def _offer(self) -> None:
        """Let the front stage see the partition under way, and time pass."""
        assert self._front is not None
        found = int(self._state[state.CANDIDATES])
        if found:
            partition = self._disk.in_memory(int(self._state[state.PARTITION]))
            self._front.offer_keys(partition, self._candidates[:found])
        else:
            self._front.pass_time()
        # The table may have another size now.
        fixed = self._waiting.table.store.fixed_columns()
        self._arriving = self._arriving._replace(
            kept=np.array([column.address for column in fixed], np.int64),
            kept_flags=self._waiting.table.store.flags,
        )
        self._results.moved(self._kept())

    def _read_partition(self) -> None:
        """Read what compiled code cannot; the errors of the reader say what is wrong."""
        if (page := int(self._state[state.UNSOUND])) >= 0:
            raise self._disk.reader.corrupt(page, "its content is not what its index says")
        number = int(self._state[state.PARTITION])
        self._recorder.bytes_read += self._disk.fill(number)
        self._state[state.IN_FRAME] = number

    def _kept(self) -> list[KeptColumn]:
        table = self._waiting.table
        return table.store.all_columns(table.chains.nodes)


def _relation(master: MasterTable, shape: JoinShape, disk: DiskBuffer) -> state.Relation:
    index, stored, reader = master.pages, master.stored_schema, disk.reader
    return state.Relation(
        first=_read_only(index.first),
        last=_read_only(index.last),
        rows=_read_only(index.rows),
        file=_read_only(index.file),
        pages=_read_only_pages(reader.pages),
        descriptors=disk.descriptors,
        grain=reader.grain,
        per_partition=disk.per_partition,
        widths=np.array([column_width(field.type) for field in stored], np.int64),
        code=stored.get_field_index(shape.code_column),
        frame=disk.frame.address,
        fields=np.zeros((disk.per_partition, len(stored)), FIELD),
        pinned=_pinned_fields(disk.pinned, stored),
        pinned_rows=_read_only(np.array([len(one.codes) for one in disk.pinned], np.int32)),
    )


def _read_only_pages(pages: PageList) -> PageList:
    """The list with all arrays read-only but the marks that kernels make."""
    fixed = {name: _read_only(getattr(pages, name)) for name in pages._fields if name != "sound"}
    return pages._replace(**fixed)


def _pinned_fields(pinned: list[Partition], stored: pa.Schema) -> NDArray[np.void]:
    """The columns of partitions in memory, where they lie."""
    fields = np.zeros((len(pinned), len(stored)), FIELD)
    for number, partition in enumerate(pinned):
        for name, column in zip(partition.batch.schema.names, partition.batch.columns, strict=True):
            addresses = [0 if part is None else part.address for part in column.buffers()]
            place = stored.get_field_index(name)
            fields[number, place] = (
                addresses[-1],
                addresses[1] if len(addresses) == 3 else 0,
                addresses[0] if column.null_count else 0,
                column.offset,
                column_width(column.type),
                0,
            )
    return fields


def _read_only(array: _Array) -> _Array:
    """The same array, of one type for kernels whether it may be written or not."""
    view: Any = array.view()
    view.flags.writeable = False
    return cast(_Array, view)
