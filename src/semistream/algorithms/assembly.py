"""Assembly: from the sizes of a plan to the parts of a run, wired as an algorithm asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.algorithms.sizing import MOST_ELASTIC_SHARE, MOST_PRICED_SHARE, Needs
from semistream.budget import Grant, MemoryBudget
from semistream.kernels.demand import partitions_of, regions_of
from semistream.metrics import Recorder
from semistream.parts import kept_rows, stream_buffer
from semistream.parts.admission import (
    AdmissionRule,
    BalanceRule,
    PaperRule,
    PinnedRule,
    TinyLfuRule,
)
from semistream.parts.arrival_queue import ArrivalQueue
from semistream.parts.demand import DemandedTuples
from semistream.parts.demand_table import DemandTable
from semistream.parts.disk_buffer import DiskBuffer
from semistream.parts.front_stage import FrontStage
from semistream.parts.in_place import InPlace
from semistream.parts.index_steps import IndexSteps, can_look_up
from semistream.parts.join_shape import JoinShape
from semistream.parts.kept_rows import KeptRows
from semistream.parts.learned import Learned, Legacy
from semistream.parts.look_ups import LookUps
from semistream.parts.output import Output
from semistream.parts.rebalancer import Rebalancer, SlotOwner
from semistream.parts.recall import recall
from semistream.parts.recent_keys import RecentKeys
from semistream.parts.scan_window import ScanWindow
from semistream.parts.stage import Stage
from semistream.parts.steps import Steps, can_step
from semistream.parts.stream_buffer import StreamBuffer, TupleSource
from semistream.parts.stream_table import StreamTable
from semistream.parts.timed_stream import TimedStream
from semistream.parts.tuple_store import TupleLayout
from semistream.parts.waiting import Prober, WaitingTuples
from semistream.plan import JoinPlan
from semistream.relation import MappedPages, MasterTable, MembershipFilter, mapped_pages

FRONT_SHARE = 0.15
"""What the 2017 paper found best for the front stage (its §5.4)."""

MakeBuffer: TypeAlias = Callable[
    [JoinShape, int, Grant, Recorder, MembershipFilter | None], StreamBuffer | TimedStream
]
"""Makes the stream buffer: for a join, at most so many rows at a time."""

_Join_co = TypeVar("_Join_co", covariant=True)


class Assembly:
    """The parts of one run, made to the sizes of its plan."""

    def __init__(
        self,
        plan: JoinPlan,
        needs: Needs,
        master: MasterTable,
        shape: JoinShape,
        make_buffer: MakeBuffer,
        budget: MemoryBudget,
        recorder: Recorder,
        io: str,
        legacy: Legacy | None = None,
    ) -> None:
        """Take the grants of the parts that every algorithm has.

        The front stage goes on with the rows of the legacy that it can use.
        """
        self.plan = plan
        self._needs = needs
        self.master = master
        self.shape = shape
        self.budget = budget
        self.recorder = recorder
        budget.grant("index").take(master.index_bytes)
        members = self._membership_filter()
        self.disk = DiskBuffer(
            master,
            shape,
            plan.buffered_pages,
            io,
            budget.grant("disk buffer"),
            recorder,
            plan.pinned_in_disk_buffer,
            plan.frames,
        )
        grant = budget.grant("stream buffer")
        self.buffer = make_buffer(shape, plan.stream_chunk_rows, grant, recorder, members)
        grant.take(max(0, plan.parts["stream buffer"] - grant.bytes))
        self.output = Output(
            shape,
            master.widest_row,
            plan.fragment_bytes,
            plan.pairs,
            budget.grant("output"),
            recorder,
            large=bool(plan.in_place_rows),
        )
        self.look_ups: LookUps | None = None
        if plan.look_ups:
            grant = budget.grant("disk buffer")
            sizes = plan.partition_pages, plan.look_ups, plan.found_bytes
            self.look_ups = LookUps(master, shape, *sizes, io, grant, recorder)
        self.front = self._front_stage(legacy) if plan.front_rows else None
        self.stream: TupleSource = self.buffer
        self._mapped = mapped_pages(self.disk.reader) if plan.in_place_rows else None
        if self._mapped is not None:
            self.stream = Stage(self.stream, self._in_place(self._mapped))
        # Behind the pages in memory it keeps rows of pages that are not.
        if self.front is not None:
            self.stream = Stage(self.stream, self.front)

    def restart(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Use the same parts for another stream of the same schema; nothing waits in them."""
        assert isinstance(self.buffer, StreamBuffer)
        self.buffer.restart(batches)
        if self.front is not None:
            self.front.restart()

    def recall(self, learned: Learned) -> None:
        """Read the rows of learned keys that the front stage lacks, before the stream begins."""
        if self.front is not None and self.plan.admission != "pinned" and self.master.page_count:
            size = self.master.pages.length.mean()
            recall(self.front, learned, self.disk, self.look_ups, size)

    def legacy(self) -> Legacy | None:
        """What the next run can use of the front stage of this one, which is over."""
        if self.front is None or self.plan.admission == "pinned":
            return None
        kept = self.front.kept
        if self.master.is_live:
            return Legacy(Learned.of(kept), rule=self.front.rule)
        return Legacy(Learned.nothing(), kept, self.master, self.front.rule)

    def close(self) -> None:
        """Close the files."""
        if self._mapped is not None:
            self._mapped.close()
        self.disk.close()
        if self.look_ups is not None:
            self.look_ups.close()

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
        table = self._table(self._fences())
        queue = ArrivalQueue(self.plan.stream_slots, self.budget.grant("arrival queue"))
        self._share_memory(table, queue)
        return WaitingTuples(self.shape, table, queue, self.output, self.recorder, self.front)

    def demanded(self) -> DemandedTuples:
        """Waiting tuples by the partition that they need, for look-ups or one at a time."""
        disk, per_partition = self.disk, self.plan.partition_pages
        groups = -(-self.master.page_count // per_partition) + (self.look_ups is None)
        pages, owns_fences = self.master.pages, self.look_ups is not None and per_partition > 1
        fences = pages.fences(per_partition) if owns_fences else pages.first

        def by_fences(codes: NDArray[np.int64]) -> NDArray[np.int32]:
            regions = np.empty(len(codes), np.int32)
            regions_of(fences, codes, regions)
            return regions

        def by_pages(codes: NDArray[np.int64]) -> NDArray[np.int32]:
            regions = np.empty(len(codes), np.int32)
            partitions_of(pages.first, pages.last, per_partition, codes, groups - 1, regions)
            return regions

        def by_locator(codes: NDArray[np.int64]) -> NDArray[np.int32]:
            first, last = disk.spans(codes)
            return np.where(first <= last, first // per_partition, groups - 1).astype(np.int32)

        whole = by_pages if self.master.layout == "key" else by_locator
        table = DemandTable(
            self.plan.stream_slots,
            groups,
            len(fences) if owns_fences else 0,
            whole if self.look_ups is None else by_fences,
            TupleLayout(self.shape),
            self.plan.heap_bytes,
            self.budget.grant("stream table"),
            self.recorder,
        )
        waiting = DemandedTuples(
            self.shape,
            table,
            self.output,
            self.recorder,
            self.front,
            # The locator is read to tell tuples' pages: the more at a time, the fewer reads.
            by_halves=self.master.layout != "key",
        )
        self._share_memory(table, waiting)
        return waiting

    def steps(self, waiting: WaitingTuples | ScanWindow) -> Steps | None:
        """Whole steps in compiled code, where that can be; None to go partition by partition.

        A pushed stream is asked for arrivals after each partition, as time passes.
        """
        if not isinstance(self.buffer, StreamBuffer) or self.look_ups is not None:
            return None
        if not can_step(self.master, self.shape, self.disk, waiting, self.front):
            return None
        parts = self.disk, waiting, self.output, self.recorder, self.front
        return Steps(self.master, self.shape, *parts)

    def index_steps(self) -> IndexSteps | None:
        """The same for INLJ, which has no waiting tuples."""
        if not isinstance(self.buffer, StreamBuffer):
            return None
        if not can_look_up(self.master, self.shape, self.disk):
            return None
        parts = self.disk, self.output, self.recorder, self.front
        return IndexSteps(self.master, self.shape, *parts, self.budget.grant("stream buffer"))

    def _fences(self) -> NDArray[np.int64]:
        """The first code of each partition, when the master is in key order; else nothing."""
        if self.master.layout != "key":
            return np.empty(0, np.int64)
        return self.master.pages.fences(self.plan.partition_pages)

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

    def window(self, w: int) -> ScanWindow:
        """Stream table and ring of chunks, for a scan of all partitions; `w` tuples enter each."""
        table = self._table(np.empty(0, np.int64), max(self.disk.partitions, 1))
        prober = Prober(self.shape, table, self.output, self.recorder, self.front)
        window = ScanWindow(table, prober, self.output, w)
        self._share_memory(table, window)
        return window

    def _share_memory(self, table: StreamTable | DemandTable, owner: SlotOwner) -> None:
        """Let front stage and stream table give each other memory."""
        if self.front is None or self.plan.admission == "pinned":
            return
        plan = self.plan
        elastic = isinstance(self.front.rule, BalanceRule)
        row_bytes, slot_bytes = exchanged_bytes(plan, self.shape, self._needs.slot_bytes)
        self.front.rebalancer = Rebalancer(
            self.budget,
            self.front.kept,
            table,
            owner,
            row_bytes=row_bytes,
            slot_bytes=slot_bytes,
            slot_heap_bytes=_heap_bytes(plan),
            most_share=MOST_ELASTIC_SHARE if elastic else MOST_PRICED_SHARE,
            elastic=elastic,
            priced=self._needs.grouped,
        )

    def _in_place(self, mapped: MappedPages) -> InPlace:
        grant = self.budget.grant("in place")
        grant.take(self.master.page_count)
        return InPlace(
            mapped,
            self.master.stored_schema,
            self.shape,
            self.output,
            self.recorder,
            self.plan.stream_chunk_rows,
            self.plan.in_place_rows,
            grant,
        )

    def _front_stage(self, legacy: Legacy | None) -> FrontStage:
        kept = self._kept_rows(legacy)
        average_row = kept.heap.limit / kept.capacity
        rule = self._rule(average_row)
        if legacy is not None and legacy.rule is not None:
            rule.go_on_from(legacy.rule)
        return FrontStage(
            kept,
            rule,
            self.shape,
            self.output,
            self.recorder,
            -(-self.master.page_count // self.plan.partition_pages),
            average_row,
        )

    def _kept_rows(self, legacy: Legacy | None) -> KeptRows:
        """Those of the legacy if they fit the plan, or none yet."""
        plan, grant = self.plan, self.budget.grant("front stage")
        schema = self.shape.kept_schema(self.master.stored_schema)
        sizes = plan.front_rows, plan.front_heap_bytes
        if legacy is not None and plan.admission != "pinned":
            kept = legacy.rows_for(self.master, schema, plan.front_most_rows)
            if kept is not None:
                kept.move_to(grant, *sizes)
                return kept
        return KeptRows(schema, *sizes, grant, plan.front_most_rows)

    def _rule(self, average_row: float) -> AdmissionRule:
        plan, layout = self.plan, TupleLayout(self.shape)
        if plan.admission == "pinned":
            return PinnedRule()
        if plan.admission == "balance":
            tuple_bytes = self._needs.slot_bytes + layout.slot_bytes + _heap_bytes(plan)
            return BalanceRule(tuple_bytes, average_row + kept_rows.BYTES_PER_ROW)
        if plan.admission == "tinylfu":
            return TinyLfuRule(plan.front_most_rows, self.budget.grant("front stage"))
        if plan.threshold:
            return PaperRule(plan.threshold, moves=False)
        # Where the front stage sees few pages, every key may come in until it is full.
        return PaperRule(1.0) if self._needs.grouped else PaperRule()

    def _table(self, fences: NDArray[np.int64], cycle: int = 0) -> StreamTable:
        return StreamTable(
            self.plan.stream_slots,
            fences,
            TupleLayout(self.shape),
            self.plan.heap_bytes,
            self.budget.grant("stream table"),
            self.recorder,
            cycle,
        )


def exchanged_bytes(plan: JoinPlan, shape: JoinShape, slot_bytes: int) -> tuple[float, float]:
    """What a row of the front stage and a slot of the stream table take, all told."""
    row = kept_rows.BYTES_PER_ROW + plan.front_heap_bytes / plan.front_rows
    return row, slot_bytes + TupleLayout(shape).slot_bytes + _heap_bytes(plan) + 1


def _heap_bytes(plan: JoinPlan) -> float:
    return plan.heap_bytes / plan.stream_slots if plan.stream_slots else 0.0


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
        front = ("admission", "front_percent", "front_rows", "threshold")
        options = (*self.algorithm.needs.options, *front)
        return replace(
            self.algorithm.needs,
            algorithm=self.name,
            options=options,
            front_share=FRONT_SHARE,
        )

    def assemble(self, assembly: Assembly) -> _Join_co:
        """The assembly hands out the front stage wherever the algorithm asks for its stream."""
        return self.algorithm.assemble(assembly)
