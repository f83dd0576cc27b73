"""Step calls: what every call of compiled steps works on, and what it has counted.

R for kernels, the frame its partitions are read to, arrays for pairs and candidates, and the state
with which a step goes on where its last call ended.
"""

from __future__ import annotations

from math import inf
from typing import Any, Final, TypeVar, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.column_widths import column_width
from semistream.kernels import CANDIDATE
from semistream.kernels import step_state as state
from semistream.kernels.reading import PageList
from semistream.kernels.results import Found
from semistream.kernels.rows import FIELD
from semistream.metrics import Recorder
from semistream.parts.disk_buffer import DiskBuffer, Partition
from semistream.parts.front_stage import FrontStage
from semistream.parts.join_shape import JoinShape
from semistream.parts.output import Output
from semistream.parts.tuple_table import TupleTable
from semistream.relation import MasterTable

_Array = TypeVar("_Array", bound=NDArray[Any])

_MOST_ITERATIONS: Final = 128
_MOST_CANDIDATES: Final = 1024
_ANY: Final = 1 << 62


class StepCalls:
    """R and the state of steps, for kernels; what they count goes to the recorder."""

    def __init__(
        self,
        master: MasterTable,
        shape: JoinShape,
        disk: DiskBuffer,
        output: Output,
        recorder: Recorder,
        front: FrontStage | None,
        table: TupleTable | None = None,
    ) -> None:
        """Nothing has begun; candidates are noted for the front stage, if there is one.

        `table` is where tuples wait, if they do.
        """
        self.relation = _relation(master, shape, disk)
        pairs = output.pairs
        self.found = Found(pairs.tuples, np.zeros(len(pairs.tuples), np.int32), pairs.rows)
        self.state = np.full(state.STATES, -1, np.int64)
        self.state[[state.PHASE, state.TAKEN]] = 0
        self.state[state.READ_UNTIL] = disk.read_until
        self._counts = np.zeros(state.COUNTS, np.int64)
        self._iterations = 0
        self._read = np.zeros(_MOST_ITERATIONS, np.int64)
        self._candidates = np.zeros(_MOST_CANDIDATES if front is not None else 0, CANDIDATE)
        self._disk = disk
        self._recorder = recorder
        self._front = front
        self._table = table
        self._notes_reads = True

    def step(self) -> state.Step:
        """For the next call."""
        recorder, front = self._recorder, self._front
        return state.Step(
            self.state,
            self._counts,
            recorder.processing.bins,
            self._read,
            inf if front is None else float(front.rule.threshold),
            _ANY if front is None else front.next_tick - recorder.partitions_read,
            self._candidates,
            recorder.micros(),
            _MOST_ITERATIONS,
        )

    def count(self) -> bool:
        """Hand what a call counted to the recorder; whether there was no room for more tuples."""
        counts, recorder = self._counts.tolist(), self._recorder
        recorder.compiled_calls += 1
        reads, gone, lonely = (counts[i] for i in (state.READS, state.DELETES, state.LONELY))
        if reads and self._notes_reads:
            self._disk.note_reads(self._read[:reads])
        done = counts[state.ITERATIONS] - self._iterations
        recorder.iterations += done
        recorder.compiled_iterations += done
        self._iterations = counts[state.ITERATIONS]
        recorder.partitions_read += reads
        recorder.sequential_reads += counts[state.SEQUENTIAL]
        recorder.pages_read += counts[state.PAGES]
        recorder.bytes_read += counts[state.BYTES]
        recorder.probes += counts[state.PROBES]
        recorder.hash_probes += counts[state.HASH_PROBES]
        recorder.partition_probes += counts[state.PARTITION_PROBES]
        recorder.compiled_probes += counts[state.PARTITION_PROBES]
        recorder.matches += counts[state.MATCHES]
        if self._table is not None:
            self._table.count_appends(counts[state.APPENDS])
        recorder.deletes += gone
        recorder.joined += gone - lonely
        recorder.unmatched += lonely
        recorder.processing.add_counted(counts[state.WAITED])
        self._counts[:] = 0
        self._counts[state.ITERATIONS] = self._iterations
        return bool(counts[state.WAS_FULL])

    def begin_anew(self) -> None:
        """A step is over: the next one counts its iterations from 0."""
        self._counts[state.ITERATIONS] = self._iterations = 0

    def candidates(self, threshold: float) -> NDArray[np.void]:
        """A copy of the candidates that are frequent enough; none is left."""
        found = self._candidates[: self.state[state.CANDIDATES]]
        self.state[state.CANDIDATES] = 0
        enough: NDArray[np.void] = found[found["frequency"] >= threshold]
        return enough

    def leave_reading_to_caller(self) -> None:
        """From now on each partition is fetched: a thread can read ahead then."""
        self.relation.descriptors[:] = -1
        self._notes_reads = False

    @property
    def has_refused(self) -> bool:
        """Whether compiled code does not take the partition under way as it is in the frame."""
        is_there = self.state[state.IN_FRAME] == self.state[state.PARTITION]
        return bool(is_there or self.state[state.UNSOUND] >= 0)

    def fetch(self, following: int | None) -> None:
        """Have the partition under way in the frame, and the following one read meanwhile."""
        number = int(self.state[state.PARTITION])
        self._recorder.bytes_read += self._disk.fetch(number, following)
        self.relation = self.relation._replace(frame=self._disk.frame.address)
        self.state[state.IN_FRAME] = number

    def fill(self) -> None:
        """Read what compiled code cannot; the errors of the reader say what is wrong."""
        if (page := int(self.state[state.UNSOUND])) >= 0:
            raise self._disk.reader.corrupt(page, "its content is not what its index says")
        number = int(self.state[state.PARTITION])
        self._recorder.bytes_read += self._disk.fill(number)
        self.state[state.IN_FRAME] = number


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
        in_order=master.layout == "key",
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
