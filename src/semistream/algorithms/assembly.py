"""Assembly: from a budget to sizes, and from sizes to parts.

Each algorithm says what it needs; the memory that nothing else needs goes to waiting tuples,
since they are what a partition's cost is shared among.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.budget import MemoryBudget
from semistream.errors import BudgetError
from semistream.kernels import NODE
from semistream.metrics import Recorder
from semistream.parts import arrival_queue, kept_rows, stream_buffer
from semistream.parts.admission import (
    AdmissionRule,
    BalanceRule,
    PaperRule,
    PinnedRule,
    TinyLfuRule,
)
from semistream.parts.arrival_queue import ArrivalQueue
from semistream.parts.disk_buffer import DiskBuffer, disk_bytes
from semistream.parts.front_stage import FrontStage
from semistream.parts.join_shape import JoinShape
from semistream.parts.kept_rows import KeptRows, front_stage_bytes, kept_bytes
from semistream.parts.memory_share import MemoryShare, SlotOwner
from semistream.parts.output import Output, staging_bytes
from semistream.parts.page_set import PageLoader, loader_bytes, place_bytes, usable
from semistream.parts.recent_keys import BYTES_PER_CODE, RecentKeys
from semistream.parts.scan_window import ScanWindow
from semistream.parts.stream_buffer import StreamBuffer, TupleSource
from semistream.parts.stream_table import StreamTable, table_bytes
from semistream.parts.timed_stream import TimedArrivals, TimedStream
from semistream.parts.tuple_store import TupleLayout
from semistream.parts.waiting import Prober, WaitingTuples
from semistream.plan import JoinPlan
from semistream.relation import MasterTable, MembershipFilter

_LARGEST_DISK_BUFFER = 8 << 20
_NO_MEMORY = 1 << 50
_MOST_LOOK_UPS = 64
_FEWEST_LOOK_UPS = 4
"""With fewer at a time, a larger partition that is decoded as a whole is handled faster."""
_LARGEST_LOOKED_UP = 512 << 10
"""Two partitions of 256 KB: larger reads are hardly cheaper, and bring rows that nobody needs."""
_MOST_SLOTS = 1 << 27
"""More waiting tuples than this share nothing more; slots are int32."""
_FEWEST_SLOTS = 64
_FEWEST_CHUNK_ROWS = 64
_MOST_ELASTIC_SHARE = 0.6
FRONT_SHARE = 0.15
"""What the 2017 paper found best for the front stage (its §5.4)."""
_HEAP_SLACK = 1.5
"""Heap bytes per byte of waiting tuples: some of the heap is dead rows, some is spare."""


_Join_co = TypeVar("_Join_co", covariant=True)


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
    pinned_front: bool = False
    most_pages: int = 1 << 20
    most_frames: int = 2
    front_share: float = 0.0
    look_ups: bool = False


class Sizing:
    """Divides a budget among the parts of one algorithm."""

    def __init__(
        self,
        needs: Needs,
        master: MasterTable,
        shape: JoinShape,
        sample: pa.RecordBatch,
        filter_bytes: int = 0,
    ) -> None:
        """`sample` is the first stream batch: it tells how wide varying columns are.

        `filter_bytes` are set apart for a membership filter; 0 for none.
        """
        self._needs = needs
        self._filter_bytes = filter_bytes
        self._master = master
        self._layout = TupleLayout(shape)
        plain = shape.plain(sample)
        self._many = needs.look_ups and usable(master, shape)
        self._kept_schema = shape.kept_schema(master.stored_schema)
        self._varying = self._layout.varying_bytes(plain)
        widest_tuple = shape.tuple_bytes(plain) if plain.num_rows else 64
        self._least_heap = 4 * (widest_tuple + 64)
        self._least_fragment = 2 * (widest_tuple + master.widest_row) + 1024
        rows = max(master.row_count, 1)
        self._master_row = int(master.pages.length.sum()) // rows + 1
        even = master.widest_row <= 2 * self._master_row
        self._output_row = widest_tuple + (master.widest_row if even else self._master_row)
        self._tuple_row = int(plain.nbytes / plain.num_rows) + 1 if plain.num_rows else 64

    def plan(self, memory: int, options: Mapping[str, Any]) -> JoinPlan:
        """The sizes for `memory` bytes; `options` fixes some of them."""
        free = memory - self._filter_bytes
        for draft in (self._generous(free), *self._frugal()):
            plan = self._sized(free, options, draft)
            if self._enough(plan, options):
                return self._with_filter(plan)
        if self.least_memory(options) >= _NO_MEMORY:
            raise BudgetError(
                f"No memory is enough for {self._needs.algorithm} with {dict(options)}: it needs "
                "at least chunk_tuples × partitions stream_slots. Drop the options that fix sizes."
            )
        raise BudgetError(
            f"memory={memory:,} bytes is too little for {self._needs.algorithm} on this master: "
            f"the least is {self.least_memory(options):,} bytes. Give more memory"
            + (", or drop the options that fix sizes." if options else ".")
            + self._filter_advice()
        )

    def least_memory(self, options: Mapping[str, Any]) -> int:
        """The smallest budget that works: what the most frugal draft takes."""
        least = min(self._least(draft, options) for draft in self._frugal())
        return least + self._filter_bytes

    def _with_filter(self, plan: JoinPlan) -> JoinPlan:
        if not self._filter_bytes:
            return plan
        parts = plan.parts | {"filter": self._filter_bytes}
        return replace(plan, memory=plan.memory + self._filter_bytes, parts=parts)

    def _filter_advice(self) -> str:
        if not self._filter_bytes:
            return ""
        return f" The membership filter takes {self._filter_bytes:,}: use_filter=False saves them."

    def _least(self, draft: JoinPlan, options: Mapping[str, Any]) -> int:
        low, high = 1, _NO_MEMORY
        while low < high:
            middle = (low + high) // 2
            if self._enough(self._sized(middle, options, draft), options):
                high = middle
            else:
                low = middle + 1
        return low

    def _generous(self, memory: int) -> JoinPlan:
        fragment = max(self._least_fragment, memory // 32)
        pages = self._partition_pages(memory, _LARGEST_LOOKED_UP)
        while pages > 1 and not self._look_ups(memory, pages):
            pages //= 2
        if not self._look_ups(memory, pages):
            pages = self._partition_pages(memory, _LARGEST_DISK_BUFFER)
        chunk_rows = max(_FEWEST_CHUNK_ROWS, min(memory // 2048, 65536))
        affordable = memory // 4 // disk_bytes(self._master, pages, 0, frames=1)
        frames = max(2, min(affordable, self._needs.most_frames))
        return self._draft(pages, fragment, chunk_rows, frames)

    def _partition_pages(self, memory: int, largest: int) -> int:
        """As many pages as an eighth of the memory, or `largest`, holds twice."""
        pages, most = 1, min(self._master.page_count, self._needs.most_pages)
        while pages * 2 <= most and disk_bytes(self._master, pages * 2, 0) <= min(
            memory // 8, largest
        ):
            pages *= 2
        return pages

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

    def _sized(self, memory: int, options: Mapping[str, Any], draft: JoinPlan) -> JoinPlan:
        pages = max(1, min(options.get("partition_pages", draft.partition_pages), self._pages))
        partitions = -(-self._master.page_count // pages)
        plan = replace(draft, memory=memory, partition_pages=pages)
        if self._many:
            plan = replace(plan, look_ups=options.get("look_ups", self._look_ups(memory, pages)))
        pinned = min(options.get("pinned_partitions", self._pinned(memory, pages)), partitions)
        plan = replace(plan, pinned_partitions=pinned)
        if self._needs.pinned_front:
            plan = self._pinned_front(plan)
        else:
            plan = self._front(plan, memory, options)
        rest = memory - sum(self._parts(plan).values())
        slots = self._slots(rest, plan) if self._needs.waiting else 0
        slots = options.get("stream_slots", slots)
        chunk = 0
        if self._needs.tuples_per_partition:
            chunk = options.get("chunk_tuples", slots // max(partitions, 1))
        plan = replace(plan, stream_slots=slots, chunk_tuples=chunk, heap_bytes=self._heap(slots))
        return replace(plan, parts=self._parts(plan))

    def _pinned_front(self, plan: JoinPlan) -> JoinPlan:
        """The plan with a front stage for the rows of the pinned partitions."""
        pages = plan.pinned_partitions * plan.partition_pages
        rows = max(16, int(self._master.pages.rows[:pages].sum()))
        heap = int(self._kept_bytes(rows, float(self._master.pages.length[:pages].sum()))) + 4096
        return replace(
            plan, front_rows=rows, front_most_rows=rows, front_heap_bytes=heap, admission="pinned"
        )

    def _front(self, plan: JoinPlan, memory: int, options: Mapping[str, Any]) -> JoinPlan:
        """The plan with a front stage for its share of memory, if it has one."""
        if not self._needs.front_share:
            return plan
        heap_row = self._kept_bytes(1, self._master_row)
        row = kept_rows.BYTES_PER_ROW + heap_row
        share = options.get("front_percent", 100 * self._needs.front_share) / 100
        if plan.fragment_bytes == self._least_fragment:
            # Where memory is scarce, more than the paper's share would raise the least.
            share = min(share, self._needs.front_share)
        rows = max(16, min(int(memory * share / row), self._master.row_count))
        admission = options.get("admission", "paper")
        most = int(memory * _MOST_ELASTIC_SHARE / row) if admission == "balance" else rows
        return replace(
            plan,
            front_rows=rows,
            front_heap_bytes=int(rows * heap_row),
            front_most_rows=max(most, rows),
            admission=admission,
            recent_codes=0 if self._needs.waiting else max(64, min(memory // 1024, 65536)),
        )

    def _look_ups(self, memory: int, pages: int) -> int:
        """How many partitions to read at a time; 0 to read one and decode it."""
        if not self._many:
            return 0
        most = memory // 12 // place_bytes(self._master, pages)
        most = min(most, _MOST_LOOK_UPS, self._pages // pages // 2)
        return most if most >= _FEWEST_LOOK_UPS else 0

    def _kept_bytes(self, rows: float, stored_bytes: float) -> float:
        return kept_bytes(self._kept_schema, self._master.stored_schema, rows, stored_bytes)

    @property
    def _pages(self) -> int:
        return max(self._master.page_count, 1)

    def _pinned(self, memory: int, pages: int) -> int:
        """As many partitions as the algorithm's share of memory holds, but at least one."""
        if not self._needs.pinned_share:
            return 0
        index = self._master.pages
        sizes = index.length.astype(np.float64)
        if self._needs.pinned_front:
            row = self._kept_bytes(1, self._master_row) + kept_rows.BYTES_PER_ROW
            sizes = index.rows.astype(np.float64) * row
        pinned = np.searchsorted(np.cumsum(sizes), memory * self._needs.pinned_share, side="right")
        return max(1, int(pinned) // pages)

    def _slots(self, rest: int, plan: JoinPlan) -> int:
        """The most slots that `rest` bytes hold; bytes grow with slots, so bisect."""
        low, high = 0, min(max(rest, 0) // 16, _MOST_SLOTS)
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
        parts = {
            "index": self._master.index_bytes,
            "disk buffer": disk_bytes(
                self._master, plan.partition_pages, plan.pinned_in_disk_buffer, plan.frames
            ),
            "stream buffer": plan.stream_chunk_rows * stream_buffer.BYTES_PER_ROW,
            "output": staging_bytes(plan.fragment_bytes, plan.pairs, self._master.widest_row),
        }
        if plan.look_ups:
            parts["disk buffer"] += loader_bytes(self._master, plan.partition_pages, plan.look_ups)
        if plan.front_rows:
            parts["front stage"] = front_stage_bytes(
                plan.front_rows, plan.front_most_rows, plan.front_heap_bytes
            )
            if plan.admission == "tinylfu":
                parts["front stage"] += TinyLfuRule.bytes_for(plan.front_most_rows)
            if plan.recent_codes:
                codes = plan.recent_codes + plan.stream_chunk_rows
                parts["recent keys"] = codes * BYTES_PER_CODE
            parts["stream buffer"] += plan.stream_chunk_rows * self._tuple_row
        if self._filter_bytes:
            # Tuples that pass and those that do not are copied apart.
            parts["stream buffer"] += plan.stream_chunk_rows * self._tuple_row
        if plan.stream_slots:
            parts |= self._waiting_parts(plan.stream_slots, plan)
        return parts

    def _enough(self, plan: JoinPlan, options: Mapping[str, Any]) -> bool:
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
        batches: Iterator[pa.RecordBatch] | TimedArrivals,
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
        members = self._membership_filter()
        self.disk = DiskBuffer(
            master,
            shape,
            plan.partition_pages,
            io,
            budget.grant("disk buffer"),
            recorder,
            plan.pinned_in_disk_buffer,
            plan.frames,
        )
        self.buffer: StreamBuffer | TimedStream
        rows, grant = plan.stream_chunk_rows, budget.grant("stream buffer")
        if isinstance(batches, TimedArrivals):
            self.buffer = TimedStream(batches, shape, rows, grant, recorder, members)
        else:
            self.buffer = StreamBuffer(batches, shape, rows, grant, recorder, members)
        grant.take(max(0, plan.parts["stream buffer"] - grant.bytes))
        self.output = Output(
            shape,
            master.widest_row,
            plan.fragment_bytes,
            plan.pairs,
            budget.grant("output"),
            recorder,
        )
        self.pages: PageLoader | None = None
        if plan.look_ups:
            grant = budget.grant("disk buffer")
            sizes = plan.partition_pages, plan.look_ups
            self.pages = PageLoader(master, shape, *sizes, io, grant, recorder)
        self.front = self._front_stage(self.buffer) if plan.front_rows else None
        self.stream: TupleSource = self.front or self.buffer

    def restart(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Use the same parts for another stream of the same schema; nothing waits in them."""
        assert isinstance(self.buffer, StreamBuffer)
        self.buffer.restart(batches)
        if self.front is not None:
            self.front.restart()

    def close(self) -> None:
        """Close the files."""
        self.disk.close()
        if self.pages is not None:
            self.pages.close()

    def _membership_filter(self) -> MembershipFilter | None:
        """The master's filter, if the plan has room for it; read before anything is opened."""
        if "filter" not in self.plan.parts:
            return None
        codes = self.plan.stream_chunk_rows * stream_buffer.BYTES_PER_ROW
        self.budget.grant("stream buffer").take(self.plan.parts["stream buffer"] - codes)
        self.budget.grant("filter").take(self.plan.parts["filter"])
        return self.master.membership_filter()

    def waiting(self) -> WaitingTuples:
        """Stream table and arrival queue; clustered when the master is in key order."""
        table = self._table(self.disk.fences())
        queue = ArrivalQueue(self.plan.stream_slots, self.budget.grant("arrival queue"))
        self._share_memory(table, queue, arrival_queue.BYTES_PER_SLOT)
        return WaitingTuples(self.shape, table, queue, self.output, self.recorder, self.front)

    def recent_keys(self) -> RecentKeys | None:
        """The buffer by which a join without waiting tuples counts keys for its front stage."""
        if self.front is None:
            return None
        return RecentKeys(
            self.plan.recent_codes,
            self.plan.stream_chunk_rows,
            self.master.page_count,
            self.front,
            self.budget.grant("recent keys"),
        )

    def window(self) -> ScanWindow:
        """Stream table and ring of chunks, for a scan of all partitions."""
        table = self._table(np.empty(0, np.int64))
        prober = Prober(self.shape, table, self.output, self.recorder, self.front)
        window = ScanWindow(table, prober, self.output, self.disk.partitions)
        self._share_memory(table, window, 0)
        return window

    def _share_memory(self, table: StreamTable, owner: SlotOwner, queue_bytes: int) -> None:
        """Let front stage and stream table give each other memory."""
        if self.front is None or self.plan.admission == "pinned":
            return
        plan, layout = self.plan, TupleLayout(self.shape)
        heap = plan.heap_bytes / plan.stream_slots if plan.stream_slots else 0.0
        elastic = isinstance(self.front.rule, BalanceRule)
        self.front.share = MemoryShare(
            self.budget,
            self.front.kept,
            table,
            owner,
            row_bytes=kept_rows.BYTES_PER_ROW + plan.front_heap_bytes / plan.front_rows,
            slot_bytes=NODE.itemsize + layout.slot_bytes + queue_bytes + heap + 1,
            slot_heap_bytes=heap,
            most_share=_MOST_ELASTIC_SHARE if elastic else 1.0,
            elastic=elastic,
        )

    def _front_stage(self, buffer: StreamBuffer | TimedStream) -> FrontStage:
        kept = KeptRows(
            self.shape.kept_schema(self.master.stored_schema),
            self.plan.front_rows,
            self.plan.front_heap_bytes,
            self.budget.grant("front stage"),
            self.plan.front_most_rows,
        )
        average_row = kept.heap.limit / kept.capacity
        return FrontStage(
            buffer,
            kept,
            self._rule(average_row),
            self.shape,
            self.output,
            self.recorder,
            self.disk.partitions,
            average_row,
        )

    def _rule(self, average_row: float) -> AdmissionRule:
        plan, layout = self.plan, TupleLayout(self.shape)
        if plan.admission == "pinned":
            return PinnedRule()
        if plan.admission == "balance":
            heap = plan.heap_bytes / plan.stream_slots if plan.stream_slots else 0.0
            tuple_bytes = NODE.itemsize + layout.slot_bytes + arrival_queue.BYTES_PER_SLOT + heap
            return BalanceRule(tuple_bytes, average_row + kept_rows.BYTES_PER_ROW)
        if plan.admission == "tinylfu":
            return TinyLfuRule(plan.front_most_rows, self.budget.grant("front stage"))
        return PaperRule()

    def _table(self, fences: NDArray[np.int64]) -> StreamTable:
        return StreamTable(
            self.plan.stream_slots,
            fences,
            TupleLayout(self.shape),
            self.plan.heap_bytes,
            self.budget.grant("stream table"),
            self.recorder,
        )


class Buildable(Protocol[_Join_co]):
    """What makes a join out of an assembly: an algorithm's class, or one with a front stage."""

    @property
    def needs(self) -> Needs:
        """What it asks of the budget."""

    def assemble(self, assembly: Assembly) -> _Join_co:
        """Wire the parts of one run."""


@dataclass(frozen=True)
class WithFrontStage(Generic[_Join_co]):
    """The same algorithm behind a front stage: it reads its tuples there and tells it of f."""

    name: str
    algorithm: Buildable[_Join_co]

    @property
    def needs(self) -> Needs:
        """The algorithm's, and the paper's share of memory for the front stage."""
        options = (*self.algorithm.needs.options, "admission", "front_percent")
        return replace(
            self.algorithm.needs,
            algorithm=self.name,
            options=options,
            front_share=FRONT_SHARE,
        )

    def assemble(self, assembly: Assembly) -> _Join_co:
        """The assembly hands out the front stage wherever the algorithm asks for its stream."""
        return self.algorithm.assemble(assembly)
