"""Assembly: from a budget to sizes, and from sizes to parts.

Each algorithm says what it needs; the memory that nothing else needs goes to waiting tuples,
since they are what a partition's cost is shared among.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.budget import MemoryBudget
from semistream.errors import BudgetError
from semistream.metrics import Recorder
from semistream.parts import arrival_queue, front_stage, stream_buffer
from semistream.parts.admission import PaperRule
from semistream.parts.arrival_queue import ArrivalQueue
from semistream.parts.disk_buffer import DiskBuffer, disk_bytes
from semistream.parts.front_stage import FrontStage, KeptRows, front_stage_bytes
from semistream.parts.join_shape import JoinShape
from semistream.parts.output import Output, staging_bytes
from semistream.parts.scan_window import ScanWindow
from semistream.parts.stream_buffer import StreamBuffer, TupleSource
from semistream.parts.stream_table import StreamTable, table_bytes
from semistream.parts.tuple_store import TupleLayout
from semistream.parts.waiting import Prober, WaitingTuples
from semistream.plan import JoinPlan
from semistream.relation import MasterTable

_LARGEST_DISK_BUFFER = 8 << 20
_LARGEST_FRAGMENT = 1 << 20
_FEWEST_SLOTS = 64
_FEWEST_CHUNK_ROWS = 64
_FRONT_HEAP_SLACK = 1.5
_HEAP_SLACK = 1.5
"""Heap bytes per byte of waiting tuples: some of the heap is dead rows, some is spare."""


@dataclass(frozen=True)
class Needs:
    """What an algorithm asks for, beyond a disk buffer, a stream buffer and output staging."""

    algorithm: str
    options: tuple[str, ...] = ("partition_pages", "stream_slots")
    waiting: bool = True
    queue: bool = False
    fences: bool = False
    tuples_per_partition: bool = False
    pinned_share: float = 0.0
    pinned_row_bytes: int = 0
    most_pages: int = 1 << 20
    most_frames: int = 2
    front_share: float = 0.0


class _HasNeeds(Protocol):
    needs: ClassVar[Needs]


_Join = TypeVar("_Join", bound=_HasNeeds)


class Sizing:
    """Divides a budget among the parts of one algorithm."""

    def __init__(
        self, needs: Needs, master: MasterTable, shape: JoinShape, sample: pa.RecordBatch
    ) -> None:
        """`sample` is the first stream batch: it tells how wide varying columns are."""
        self._needs = needs
        self._master = master
        self._layout = TupleLayout(shape)
        plain = shape.plain(sample)
        self._varying = self._layout.varying_bytes(plain)
        widest_tuple = shape.tuple_bytes(plain) if plain.num_rows else 64
        self._least_heap = 4 * (widest_tuple + 64)
        self._least_fragment = 2 * (widest_tuple + master.widest_row) + 1024
        rows = max(master.row_count, 1)
        self._master_row = int(master.pages.length.sum()) // rows + 1
        even = master.widest_row <= 2 * self._master_row
        self._output_row = widest_tuple + (master.widest_row if even else self._master_row)
        self._tuple_row = int(plain.nbytes / plain.num_rows) + 1 if plain.num_rows else 64

    def plan(self, memory: int, options: Mapping[str, int]) -> JoinPlan:
        """The sizes for `memory` bytes; `options` fixes some of them."""
        for draft in (self._generous(memory), *self._frugal()):
            plan = self._sized(memory, options, draft)
            if self._enough(plan, options):
                return plan
        raise BudgetError(
            f"memory={memory:,} bytes is too little for {self._needs.algorithm} on this master: "
            f"the least is {self.least_memory(options):,} bytes. Give more memory"
            + (", or drop the options that fix sizes." if options else ".")
        )

    def least_memory(self, options: Mapping[str, int]) -> int:
        """The smallest budget that works: what the most frugal draft takes."""
        return min(self._least(draft, options) for draft in self._frugal())

    def _least(self, draft: JoinPlan, options: Mapping[str, int]) -> int:
        low, high = 1, 1 << 50
        while low < high:
            middle = (low + high) // 2
            if self._enough(self._sized(middle, options, draft), options):
                high = middle
            else:
                low = middle + 1
        return low

    def _generous(self, memory: int) -> JoinPlan:
        fragment = max(self._least_fragment, min(memory // 32, _LARGEST_FRAGMENT))
        pages = 1
        while pages * 2 <= min(self._master.page_count, self._needs.most_pages) and disk_bytes(
            self._master, pages * 2, 0
        ) <= min(memory // 8, _LARGEST_DISK_BUFFER):
            pages *= 2
        chunk_rows = max(_FEWEST_CHUNK_ROWS, min(memory // 2048, 65536))
        affordable = memory // 4 // disk_bytes(self._master, pages, 0, frames=1)
        frames = max(2, min(affordable, self._needs.most_frames))
        return self._draft(pages, fragment, chunk_rows, frames)

    def _frugal(self) -> list[JoinPlan]:
        """Small drafts: one page a partition, or more where few partitions save tuples."""
        pages = [1]
        while self._needs.tuples_per_partition and pages[-1] * 2 <= self._master.page_count:
            pages.append(pages[-1] * 2)
        return [self._draft(count, self._least_fragment, _FEWEST_CHUNK_ROWS) for count in pages]

    def _draft(self, pages: int, fragment: int, chunk_rows: int, frames: int = 2) -> JoinPlan:
        pairs = max(16, min(65536, fragment // self._output_row))
        return JoinPlan(
            self._needs.algorithm, 0, pages, 0, 0, 0, 0, fragment, pairs, chunk_rows, frames
        )

    def _sized(self, memory: int, options: Mapping[str, int], draft: JoinPlan) -> JoinPlan:
        pages = max(1, min(options.get("partition_pages", draft.partition_pages), self._pages))
        partitions = -(-self._master.page_count // pages)
        plan = replace(draft, memory=memory, partition_pages=pages)
        pinned = min(options.get("pinned_partitions", self._pinned(memory, pages)), partitions)
        plan = replace(plan, pinned_partitions=pinned, **self._front(memory))
        rest = memory - sum(self._parts(plan).values())
        slots = self._slots(rest, plan) if self._needs.waiting else 0
        slots = options.get("stream_slots", slots)
        chunk = 0
        if self._needs.tuples_per_partition:
            chunk = options.get("chunk_tuples", slots // max(partitions, 1))
        plan = replace(plan, stream_slots=slots, chunk_tuples=chunk, heap_bytes=self._heap(slots))
        return replace(plan, parts=self._parts(plan))

    def _front(self, memory: int) -> dict[str, int]:
        """Rows and heap of the front stage, for its share of memory."""
        if not self._needs.front_share:
            return {}
        heap_row = self._master_row * _FRONT_HEAP_SLACK
        rows = int(memory * self._needs.front_share / (front_stage.BYTES_PER_ROW + heap_row))
        rows = max(16, min(rows, self._master.row_count))
        return {"front_rows": rows, "front_heap_bytes": int(rows * heap_row)}

    @property
    def _pages(self) -> int:
        return max(self._master.page_count, 1)

    def _pinned(self, memory: int, pages: int) -> int:
        """As many partitions as the algorithm's share of memory holds, but at least one."""
        if not self._needs.pinned_share:
            return 0
        one = disk_bytes(self._master, pages, 1) - disk_bytes(self._master, pages, 0)
        return max(1, int(memory * self._needs.pinned_share) // max(one, 1))

    def _slots(self, rest: int, plan: JoinPlan) -> int:
        """The most slots that `rest` bytes hold; bytes grow with slots, so bisect."""
        low, high = 0, max(rest, 0) // 16
        while low < high:
            middle = (low + high + 1) // 2
            if sum(self._waiting_parts(middle, plan).values()) <= rest:
                low = middle
            else:
                high = middle - 1
        return low

    def _waiting_parts(self, slots: int, plan: JoinPlan) -> dict[str, int]:
        fenced = self._needs.fences and self._master.layout == "key"
        fences = self._partitions(plan) if fenced else 0
        table = table_bytes(slots, fences, self._layout, self._heap(slots))
        queue = slots * arrival_queue.BYTES_PER_SLOT
        return {"stream table": table} | ({"arrival queue": queue} if self._needs.queue else {})

    def _partitions(self, plan: JoinPlan) -> int:
        return -(-self._master.page_count // plan.partition_pages)

    def _heap(self, slots: int) -> int:
        if not len(self._layout.varying):
            return 0
        return max(int(slots * self._varying * _HEAP_SLACK), self._least_heap)

    def _parts(self, plan: JoinPlan) -> dict[str, int]:
        pinned_rows = int(
            self._master.pages.rows[: plan.pinned_partitions * plan.partition_pages].sum()
        )
        parts = {
            "index": self._master.index_bytes,
            "disk buffer": disk_bytes(
                self._master, plan.partition_pages, plan.pinned_partitions, plan.frames
            ),
            "stream buffer": plan.stream_chunk_rows * stream_buffer.BYTES_PER_ROW,
            "output": staging_bytes(plan.fragment_bytes, plan.pairs, self._master.widest_row),
        }
        if self._needs.pinned_row_bytes:
            parts["pinned rows"] = pinned_rows * self._needs.pinned_row_bytes + 64
        if plan.front_rows:
            parts["front stage"] = front_stage_bytes(plan.front_rows, plan.front_heap_bytes)
            parts["stream buffer"] += plan.stream_chunk_rows * self._tuple_row
        if plan.stream_slots:
            parts |= self._waiting_parts(plan.stream_slots, plan)
        return parts

    def _enough(self, plan: JoinPlan, options: Mapping[str, int]) -> bool:
        if sum(plan.parts.values()) > plan.memory:
            return False
        if not self._needs.waiting:
            return True
        fewest = 1 if "stream_slots" in options else _FEWEST_SLOTS
        if self._needs.tuples_per_partition:
            partitions = self._partitions(plan)
            return plan.chunk_tuples >= 1 and plan.stream_slots >= plan.chunk_tuples * partitions
        return plan.stream_slots >= fewest


class Assembly:
    """The parts of one run, made to the sizes of its plan."""

    def __init__(
        self,
        plan: JoinPlan,
        master: MasterTable,
        shape: JoinShape,
        batches: Iterator[pa.RecordBatch],
        budget: MemoryBudget,
        recorder: Recorder,
        io: str,
    ) -> None:
        """Take the grants of the parts that every algorithm has."""
        self.plan = plan
        self.master = master
        self.shape = shape
        self.budget = budget
        self.recorder = recorder
        budget.grant("index").take(master.index_bytes)
        self.disk = DiskBuffer(
            master,
            shape,
            plan.partition_pages,
            io,
            budget.grant("disk buffer"),
            recorder,
            plan.pinned_partitions,
            plan.frames,
        )
        buffer = StreamBuffer(
            batches, shape, plan.stream_chunk_rows, budget.grant("stream buffer"), recorder
        )
        self.output = Output(
            shape,
            master.widest_row,
            plan.fragment_bytes,
            plan.pairs,
            budget.grant("output"),
            recorder,
        )
        self.front = self._front_stage(buffer) if plan.front_rows else None
        self.stream: TupleSource = self.front or buffer

    def waiting(self) -> WaitingTuples:
        """Stream table and arrival queue; clustered when the master is in key order."""
        table = self._table(self.disk.fences())
        queue = ArrivalQueue(self.plan.stream_slots, self.budget.grant("arrival queue"))
        return WaitingTuples(
            self.shape, table, queue, self.output, self.recorder, self.front
        )

    def window(self) -> ScanWindow:
        """Stream table and ring of chunks, for a scan of all partitions."""
        table = self._table(np.empty(0, np.int64))
        prober = Prober(self.shape, table, self.output, self.recorder, self.front)
        return ScanWindow(table, prober, self.output, self.disk.partitions)

    def _front_stage(self, buffer: StreamBuffer) -> FrontStage:
        average_row = self.plan.front_heap_bytes / self.plan.front_rows / _FRONT_HEAP_SLACK
        kept = KeptRows(
            self.shape.kept_schema(self.master.stored_schema),
            self.plan.front_rows,
            self.plan.front_heap_bytes,
            self.budget.grant("front stage"),
            self.master.widest_row,
            average_row,
        )
        return FrontStage(
            buffer,
            kept,
            PaperRule(),
            self.shape,
            self.output,
            self.recorder,
            self.disk.partitions,
            average_row,
        )

    def _table(self, fences: NDArray[np.int64]) -> StreamTable:
        return StreamTable(
            self.plan.stream_slots,
            fences,
            TupleLayout(self.shape),
            self.plan.heap_bytes,
            self.budget.grant("stream table"),
            self.recorder,
        )


def with_front_stage(algorithm: type[_Join], name: str) -> type[_Join]:
    """The same algorithm behind a front stage."""
    needs = replace(algorithm.needs, algorithm=name, front_share=0.15)
    return type(name, (algorithm,), {"needs": needs, "__doc__": algorithm.__doc__})
