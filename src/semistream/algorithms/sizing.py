"""Sizing: from a budget to the sizes of the parts.

Each algorithm says what it needs; the memory that nothing else needs goes to waiting tuples,
since they are what a partition's cost is shared among.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.errors import BudgetError
from semistream.parts import arrival_queue, demand_table, kept_rows, stream_buffer, stream_table
from semistream.parts.admission import TinyLfuRule
from semistream.parts.demand_table import demand_bytes
from semistream.parts.disk_buffer import disk_bytes
from semistream.parts.frame_finder import searchable
from semistream.parts.in_place import can_be_in_place, in_place_bytes
from semistream.parts.join_shape import JoinShape
from semistream.parts.kept_rows import front_stage_bytes, kept_bytes
from semistream.parts.look_up_set import most_rows
from semistream.parts.look_ups import look_up_bytes
from semistream.parts.output import staging_bytes
from semistream.parts.recent_keys import BYTES_PER_CODE
from semistream.parts.stream_table import table_bytes
from semistream.parts.tuple_store import TupleLayout
from semistream.plan import JoinPlan
from semistream.relation import PACKED, MasterTable

_LARGEST_DISK_BUFFER = 8 << 20
_NO_MEMORY = 1 << 50
_MOST_LOOK_UPS = 128
_MOST_ASKED_FOR = 4096
"""The same for a master in a database, which is asked for keys and need not read partitions."""
_FEWEST_LOOK_UPS = 4
_SETS_OF_R = 16
"""A set of look-ups is at most such a part of R: in larger ones tuples wait for each other."""
_FOUND_SHARE, _FOUND_SHARE_GROUPED = 40, 20
"""A set of look-ups has one part in so many of the memory. Where tuples are grouped, more of them
wait for each partition, and fewer partitions would have room in the same set."""
_LITTLE_MEMORY = 2 << 20
"""With less than this, slots are worth more than larger sets."""
_MOST_FOUND = 1 << 20
"""Bytes of rows for waiting tuples that are read at a time: more would only wait."""
_FEWEST_FOUND = 64
"""With room for fewer rows, a partition that is decoded as a whole is handled faster."""
_WAITING_SHARE = 0.6
"""What is left of the memory for waiting tuples, about."""
_LARGEST_LOOKED_UP = 272 << 10
"""Larger reads are hardly cheaper, byte by byte, and bring rows that nobody needs."""
_MOST_SLOTS = 1 << 27
"""More waiting tuples than this share nothing more; slots are int32."""
_FEWEST_SLOTS = 64
_FEWEST_CHUNK_ROWS = 64
_MOST_ROWS_IN_PLACE = 16384
"""Rows that are found in place at a time: more share no further cost."""
MOST_ELASTIC_SHARE = 0.6
"""What an elastic front stage may take of the memory."""
MOST_PRICED_SHARE = 0.4
"""What a front stage may take of the memory that is judged by its price."""
_MOST_SKETCH = 16
"""Bytes per kept row that a sketch of frequencies takes at most."""
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
    pinned_front: bool = False
    most_pages: int = 1 << 20
    most_frames: int = 2
    front_share: float = 0.0
    look_ups: bool = False
    grouped: bool = False
    """Whether waiting tuples are grouped by partition, in a demand table."""

    @property
    def slot_bytes(self) -> int:
        """What a waiting tuple takes beside its columns, but for buckets."""
        if self.grouped:
            return demand_table.BYTES_PER_SLOT
        return stream_table.BYTES_PER_SLOT + (arrival_queue.BYTES_PER_SLOT if self.queue else 0)


class Sizing:
    """Divides a budget among the parts of one algorithm."""

    def __init__(
        self,
        needs: Needs,
        master: MasterTable,
        shape: JoinShape,
        sample: pa.RecordBatch,
        use_filter: bool | None = None,
        io: str = "unmapped",
    ) -> None:
        """`sample` is the first stream batch: it tells how wide varying columns are.

        `use_filter` is whether the master's membership filter, if it has one, is in memory; None
        for yes if the memory is enough for it.
        """
        self._needs = needs
        self._filter_bytes = 0 if use_filter is False else master.filter_bytes
        self._without_filter: Sizing | None = None
        if use_filter is None and self._filter_bytes:
            self._without_filter = Sizing(needs, master, shape, sample, False, io)
        self._master = master
        self._layout = TupleLayout(shape)
        plain = shape.plain(sample)
        self._shape = shape
        self._many = needs.look_ups and searchable(master, shape.code_column)
        self._set_partitions = _MOST_LOOK_UPS
        if master.is_live:
            self._set_partitions = min(_MOST_ASKED_FOR, max(master.page_count, 1))
        self._in_place = io == "buffered" and can_be_in_place(master, shape)
        self._kept_schema = shape.kept_schema(master.stored_schema)
        self._varying = self._layout.varying_bytes(plain)
        widest_tuple = shape.tuple_bytes(plain) if plain.num_rows else 64
        self._least_heap = 4 * (widest_tuple + 64)
        self._least_fragment = 2 * (widest_tuple + master.widest_row) + 4096
        rows = max(master.row_count, 1)
        self._master_row = int(master.pages.length.sum()) // rows + 1
        even = master.widest_row <= 2 * self._master_row
        self._output_row = widest_tuple + (master.widest_row if even else self._master_row)
        self._tuple_row = int(plain.nbytes / plain.num_rows) + 1 if plain.num_rows else 64

    def plan(self, memory: int, options: Mapping[str, Any]) -> JoinPlan:
        """The sizes for `memory` bytes; `options` fixes some of them."""
        plan = self._divided(memory, options)
        if plan is not None:
            return plan
        if self._without_filter is not None:
            return self._without_filter.plan(memory, options)
        least = self.least_memory(options)
        if least >= _NO_MEMORY:
            raise BudgetError(
                f"No memory is enough for {self._needs.algorithm} with {dict(options)}: it needs "
                "at least chunk_tuples × partitions stream_slots. Drop the options that fix sizes."
            )
        raise BudgetError(
            f"memory={memory:,} bytes is too little for {self._needs.algorithm} on this master: "
            f"the least is {least:,} bytes. Give more memory"
            + (", or drop the options that fix sizes." if options else ".")
            + self._filter_advice(),
            least=least,
        )

    def plan_or_none(self, memory: int, options: Mapping[str, Any]) -> JoinPlan | None:
        """The same, or None when `memory` is too little."""
        plan = self._divided(memory, options)
        if plan is None and self._without_filter is not None:
            return self._without_filter.plan_or_none(memory, options)
        return plan

    def _divided(self, memory: int, options: Mapping[str, Any]) -> JoinPlan | None:
        free = memory - self._filter_bytes
        for draft in (self._generous(free), *self._frugal()):
            plan = self._sized(free, options, draft)
            if self._enough(plan, options):
                return self._with_filter(plan)
        return None

    def least_memory(self, options: Mapping[str, Any]) -> int:
        """The smallest budget that works: what the most frugal draft takes."""
        if self._without_filter is not None:
            return self._without_filter.least_memory(options)
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
        def works(memory: int) -> bool:
            return self._enough(self._sized(memory, options, draft), options)

        low, high = 1, 1 << 16
        while high < _NO_MEMORY and not works(high):
            low, high = high + 1, high * 2
        while low < high:
            middle = (low + high) // 2
            if works(middle):
                high = middle
            else:
                low = middle + 1
        return low

    def _generous(self, memory: int) -> JoinPlan:
        pages = self._looked_up_pages(memory)
        if not self._look_ups(memory, pages):
            pages = self._partition_pages(memory, _LARGEST_DISK_BUFFER)
        affordable = memory // 4 // disk_bytes(self._master, pages, 0, frames=1)
        frames = max(2, min(affordable, self._needs.most_frames))
        if self._in_place:
            return self._generous_in_place(memory, pages, frames)
        fragment = max(self._least_fragment, memory // 32)
        chunk_rows = max(_FEWEST_CHUNK_ROWS, min(memory // 2048, 65536))
        return self._draft(pages, fragment, chunk_rows, frames)

    def _generous_in_place(self, memory: int, pages: int, frames: int) -> JoinPlan:
        """Pages in memory are searched for a whole chunk, whose results are made at once.

        So chunks have half of what is left beside the index and the disk buffer.
        """

        def draft(rows: int) -> JoinPlan:
            fragment = max(self._least_fragment, rows * self._output_row)
            plan = self._draft(pages, fragment, rows, frames)
            return self._with_look_ups(plan, memory, {})

        def taken(rows: int) -> int:
            return sum(self._parts(draft(rows)).values())

        few, many = _FEWEST_CHUNK_ROWS, _MOST_ROWS_IN_PLACE
        fixed = taken(few)
        # A front stage, which is added later, copies tuples once more.
        row = (taken(many) - fixed) / (many - few) + self._tuple_row
        return draft(max(few, min(int((memory - fixed) / 2 / row), many)))

    def _partition_pages(self, memory: int, largest: int) -> int:
        """As many pages as an eighth of the memory, or `largest`, holds twice."""
        pages, most = 1, min(self._master.page_count, self._needs.most_pages)
        while pages * 2 <= most and disk_bytes(self._master, pages * 2, 0) <= min(
            memory // 8, largest
        ):
            pages *= 2
        return pages

    def _looked_up_pages(self, memory: int) -> int:
        """As many pages as a tenth of the memory holds twice, up to what a disk reads well."""
        if self._master.is_live:
            return 1
        pages, frame = 1, self._master.pages.frame_bytes
        most = min(memory // 20, _LARGEST_LOOKED_UP)
        few = _SETS_OF_R * _FEWEST_LOOK_UPS
        while self._many and pages * 2 * few <= self._pages and frame(pages * 2) <= most:
            if self._needs.grouped and self._at_once(memory, pages * 2) < 2:
                break
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
            self._needs.algorithm,
            0,
            pages,
            0,
            0,
            0,
            0,
            fragment,
            pairs,
            chunk_rows,
            frames,
            in_place_rows=pairs if self._in_place else 0,
        )

    def _sized(self, memory: int, options: Mapping[str, Any], draft: JoinPlan) -> JoinPlan:
        pages = max(1, min(options.get("partition_pages", draft.partition_pages), self._pages))
        partitions = -(-self._master.page_count // pages)
        plan = replace(draft, memory=memory, partition_pages=pages)
        plan = self._with_look_ups(plan, memory, options)
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

    def _with_look_ups(self, plan: JoinPlan, memory: int, options: Mapping[str, Any]) -> JoinPlan:
        if not self._many:
            return plan
        look_ups = options.get("look_ups", self._look_ups(memory, plan.partition_pages))
        return replace(plan, look_ups=look_ups, found_bytes=self._found_bytes(memory))

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
        # What other parts need, and some room to wait, comes first.
        room = memory - sum(self._parts(plan).values()) - memory // 8
        rows = min(int(memory * share / row), int(room / (row + _MOST_SKETCH)))
        rows = options.get("front_rows", rows)
        rows = max(16, min(rows, self._master.row_count))
        admission = options.get("admission", "paper")
        most = rows
        if admission == "balance":
            most = int(memory * MOST_ELASTIC_SHARE / row)
        elif self._needs.grouped:
            most = max(rows, int(memory * MOST_PRICED_SHARE / row))
        return replace(
            plan,
            front_rows=rows,
            front_heap_bytes=int(rows * heap_row),
            front_most_rows=max(most, rows),
            admission=admission,
            threshold=options.get("threshold", 0),
            recent_codes=0 if self._needs.waiting else max(64, min(memory // 1024, 65536)),
        )

    def _look_ups(self, memory: int, pages: int) -> int:
        """How many partitions to read at a time; 0 to read one and decode it."""
        if not self._many or memory // _FOUND_SHARE < _FEWEST_FOUND * self._master_row:
            return 0
        if self._master.is_live:
            return self._set_partitions
        look_ups = min(_MOST_LOOK_UPS, self._pages // pages // _SETS_OF_R)
        # One packed page at a time would be unpacked as a whole; a set unpacks what it finds.
        few_will_do = self._needs.grouped or self._master.compression == PACKED
        fewest = 1 if few_will_do else _FEWEST_LOOK_UPS
        return look_ups if min(look_ups, self._at_once(memory, pages)) >= fewest else 0

    def _at_once(self, memory: int, pages: int) -> float:
        """About how many partitions of so many pages have room in a set."""
        return self._found_rows(memory) / self._waiting_for(memory, pages)

    def _found_rows(self, memory: int) -> int:
        """Rows that a set of look-ups can find."""
        return most_rows(self._master, self._found_bytes(memory), self._set_partitions)[1]

    def _waiting_for(self, memory: int, pages: int) -> float:
        """About how many tuples wait for a partition when it is read: twice the average."""
        slot = self._layout.slot_bytes + self._varying * _HEAP_SLACK
        slot += self._needs.slot_bytes
        return 2 * memory * _WAITING_SHARE / slot * pages / self._pages

    def _found_bytes(self, memory: int) -> int:
        """Bytes for the rows of a set of look-ups."""
        least = 2 * self._master.widest_row + 64 * self._set_partitions
        large = self._needs.grouped and memory >= _LITTLE_MEMORY
        share = _FOUND_SHARE_GROUPED if large else _FOUND_SHARE
        return max(least, min(memory // share, _MOST_FOUND))

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
        if self._needs.grouped:
            # Without look-ups there is a group for tuples that have no partition.
            groups = self._partitions(plan) + (not plan.look_ups)
            # The index has the first code of each page.
            fences = groups if plan.look_ups and plan.partition_pages > 1 else 0
            sizes = slots, groups, fences, self._layout, self._heap(slots)
            return {"stream table": demand_bytes(*sizes)}
        fenced = self._needs.fences and self._master.layout == "key"
        fences = self._partitions(plan) if fenced else 0
        cycle = 0 if self._needs.queue else max(self._partitions(plan), 1)
        table = table_bytes(slots, fences, self._layout, self._heap(slots), cycle)
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
                self._master, plan.buffered_pages, plan.pinned_in_disk_buffer, plan.frames
            ),
            "stream buffer": plan.stream_chunk_rows * stream_buffer.BYTES_PER_ROW,
            "output": staging_bytes(
                plan.fragment_bytes, plan.pairs, self._master.widest_row, bool(plan.in_place_rows)
            ),
        }
        if plan.look_ups:
            sizes = plan.partition_pages, plan.found_bytes
            parts["disk buffer"] += look_up_bytes(self._master, *sizes)
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
        if plan.in_place_rows:
            sizes = plan.stream_chunk_rows, plan.in_place_rows
            parts["in place"] = in_place_bytes(self._shape, self._master.stored_schema, *sizes)
            parts["in place"] += self._master.page_count
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
