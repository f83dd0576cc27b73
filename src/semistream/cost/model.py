"""The model: from the sizes of a plan to the operations that a stream tuple takes.

It describes this engine, not the papers' prototypes, whose equations are in
`semistream_papers.equations`: the sizes are those that `Sizing` gives, and a prediction has the
counters that a run would have.

    skew ─► popularity ─► front stage: hit share, rows, slots
                             └─► INLJ: a page per tuple, MESHJOIN: a cycle, HYBRIDJOIN: steady state
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from semistream.algorithms.assembly import exchanged_bytes
from semistream.algorithms.inlj import TUPLES_PER_STEP
from semistream.algorithms.registry import ALGORITHMS, needs_of
from semistream.algorithms.sizing import MOST_PRICED_SHARE, Needs, Sizing
from semistream.column_widths import column_width
from semistream.cost.factors import CostFactors
from semistream.cost.popularity import Popularity
from semistream.cost.prediction import Operations, Prediction
from semistream.cost.skew import Skew
from semistream.cost.steady_state import SteadyState, steady_state
from semistream.parts.front_stage import RESTING_TURNS
from semistream.parts.join_shape import JoinShape
from semistream.parts.look_up_set import most_rows
from semistream.parts.rebalancer import LEAST_SHARE, judged_rows, priced_rows
from semistream.parts.result_columns import piece_rows
from semistream.parts.steps import is_for_steps
from semistream.plan import JoinPlan
from semistream.relation import MasterTable
from semistream.relation.frame import ALIGNMENT

_LEARNED = 0.95
"""A front stage is judged while it still learns: it has this part of its final hit share then."""
_MOST_MOVES = 64
"""A front stage may go back and forth between two sizes; either is as good."""
_LOCATOR_ROW = 16
"""Bytes of a row of the locator."""


class _Front(NamedTuple):
    """A front stage that has settled: its rows, its hit share, and the slots for waiting tuples."""

    rows: int
    hits: float
    slots: int


_NO_FRONT = _Front(0, 0.0, 0)


class CompiledCalls(NamedTuple):
    """How many calls compiled steps take.

    A call ends when a piece of output is full, when a chunk of the stream is used up, or when a
    front stage that learns is to see a partition.
    """

    shape: JoinShape
    master: MasterTable
    sample: pa.RecordBatch

    def number(
        self,
        plan: JoinPlan,
        missed: float,
        matches: float,
        iterations: float,
        shown: float = 0.5,
    ) -> float:
        """For so many tuples that miss the front stage, result rows of theirs, and iterations.

        A front stage sees the part `shown` of all partitions.
        """
        learns = plan.front_rows and plan.admission != "pinned"
        # At the end of a chunk a piece is half full, and half of the partitions have nothing new.
        return (
            matches / self._rows_of_piece(plan)
            + missed / plan.stream_chunk_rows / 2
            + (iterations * shown if learns else 0.0)
        )

    def _rows_of_piece(self, plan: JoinPlan) -> int:
        plain, stored = self.shape.plain(self.sample), self.master.stored_schema
        widest = self.shape.tuple_bytes(plain) if plain.num_rows else 64
        varying = sum(column_width(stored.field(name).type) < 0 for name in self.shape.payload)
        most = plan.fragment_bytes // (widest + self.master.widest_row)
        return piece_rows(max(1, most), varying)


class CostModel:
    """Predicts plans of any algorithm for one master, one kind of stream tuple and one skew."""

    def __init__(
        self,
        master: MasterTable,
        shape: JoinShape,
        sample: pa.RecordBatch,
        skew: Skew,
        factors: CostFactors,
        io: str = "buffered",
        use_filter: bool | None = None,
    ) -> None:
        """`sample` and `use_filter` are those of `Sizing`."""
        self.master = master
        self.shape = shape
        self.sample = sample
        self.skew = skew
        self.factors = factors.for_master(master)
        self.popularity = Popularity(master, skew)
        self._io = io
        self._direct = io == "direct"
        self._use_filter = use_filter

    @property
    def candidates(self) -> list[str]:
        """The algorithms to choose from where none is named.

        DEMANDJOIN reads fewer pages and takes more processor time, so it is for pages that are
        waited for: past the operating system's cache, or far away. It needs to know each tuple's
        page, which only key order tells without a read.
        """
        waits = self.master.layout == "key" and (self._direct or self.master.is_far)
        return [name for name in ALGORITHMS if waits or not needs_of(name).grouped]

    def sizing(self, algorithm: str) -> Sizing:
        """What divides a budget among the parts of an algorithm."""
        needs = needs_of(algorithm)
        return Sizing(needs, self.master, self.shape, self.sample, self._use_filter, self._io)

    def planned(
        self, algorithm: str, memory: int, options: Mapping[str, Any] | None = None
    ) -> Prediction:
        """The plan for a budget, and what it will do; `options` fix some of its sizes."""
        options = options or {}
        return self.predict(self.sizing(algorithm).plan(memory, options), options)

    def predict(self, plan: JoinPlan, options: Mapping[str, Any] | None = None) -> Prediction:
        """What a plan will do; `options` are those that it was made with."""
        needs = needs_of(plan.algorithm)
        front = self._front(plan, needs)
        if not needs.waiting:
            operations, waiting = self._look_ups(plan, front), 0.0
        elif needs.queue or needs.grouped:
            operations, waiting = self._queue(plan, front, by_demand=needs.grouped)
        else:
            operations, waiting = self._scan(plan, front)
        made_with = dict(options or {})
        shrinks = front.rows < 0.9 * plan.front_rows
        return Prediction(plan, operations, self.factors, front.hits, waiting, made_with, shrinks)

    def _front(self, plan: JoinPlan, needs: Needs) -> _Front:
        """The front stage once memory has moved to where it pays."""
        if plan.admission == "pinned":
            hits = self.popularity.first(plan.pinned_partitions, plan.partition_pages)
            return _Front(plan.front_rows, hits, plan.stream_slots)
        if not plan.front_rows:
            return _Front(0, 0.0, plan.stream_slots)
        top, rows = self.popularity.top, plan.front_rows
        row_bytes, slot_bytes = exchanged_bytes(plan, self.shape, needs.slot_bytes)
        if not plan.stream_slots:
            turn = self.master.page_count
            return _Front(
                rows, self.popularity.noticed(self._keys(rows), plan.recent_codes, turn), 0
            )
        pool = rows * row_bytes + plan.stream_slots * slot_bytes
        most = rows * row_bytes / pool
        for _ in range(_MOST_MOVES):
            hits = _LEARNED * top(self._keys(rows))
            if needs.grouped:
                of_most = _LEARNED * top(self._keys(rows / 1.5))
                judged = priced_rows(rows, hits, of_most, row_bytes, pool, MOST_PRICED_SHARE)
            else:
                judged = judged_rows(rows, hits, row_bytes, pool, most)
            if judged == rows:
                break
            rows = judged
        slots = plan.stream_slots + int((plan.front_rows - rows) * row_bytes / slot_bytes)
        return _Front(rows, top(self._keys(rows)), slots)

    def _keys(self, rows: float) -> float:
        """How many keys `rows` master rows belong to."""
        return rows * self.popularity.keys / max(self.master.row_count, 1)

    def _look_ups(self, plan: JoinPlan, front: _Front) -> Operations:
        """INLJ: neighbours in the stream share a page only by chance."""
        shares = self.popularity.shares(1, self._top(plan, front))
        missed = 1 - front.hits
        same = float((shares.of_one / max(missed, 1e-12)) ** 2 @ shares.number)
        reads = missed * (1 - same)
        return Operations(
            **self._read(reads, 1),
            index_pages_read=self._located(missed, plan.stream_chunk_rows),
            probes=missed,
            **self._arrival(plan),
            iterations=missed / TUPLES_PER_STEP,
        )

    def _located(self, missed: float, chunk: float) -> float:
        """Locator pages per tuple, when each is read once for a chunk of tuples."""
        if self.master.layout == "key" or not missed:
            return 0.0
        pages = max(1.0, self.popularity.keys * _LOCATOR_ROW / (16 << 10))
        asked = chunk * missed
        return float(pages * -np.expm1(asked * np.log1p(-1 / max(pages, 1.0 + 1e-9))) / chunk)

    def _scan(self, plan: JoinPlan, front: _Front) -> tuple[Operations, float]:
        """MESHJOIN: w tuples enter for each partition of the cycle."""
        cycle = self._partitions(plan)
        per_step: float = front.slots / cycle
        if needs_of(plan.algorithm).tuples_per_partition:
            per_step = front.slots // cycle if plan.front_rows else plan.chunk_tuples
        missed = 1 - front.hits
        reads = missed / per_step
        probes = reads * self.master.row_count / cycle
        operations = Operations(
            **self._read(reads, plan.partition_pages),
            sequential_reads=reads * (1 - 1 / cycle),
            probes=probes,
            hash_probes=probes,
            partition_probes=reads,
            **self._tuples(plan, missed),
            iterations=reads,
            **self._compiled(plan, front, reads, scans=True),
        )
        return operations, per_step * cycle

    def _queue(self, plan: JoinPlan, front: _Front, *, by_demand: bool) -> tuple[Operations, float]:
        """HYBRIDJOIN and its kin, DEMANDJOIN: the steady state of those who wait."""
        missed, pinned = 1 - front.hits, plan.pinned_partitions
        at_once = self.popularity.first(plan.pinned_in_disk_buffer, plan.partition_pages)
        shares = self.popularity.shares(plan.partition_pages, self._top(plan, front), pinned)
        together = 1.0
        if by_demand and self.master.layout != "key":
            # They are filled by halves.
            front = front._replace(slots=front.slots * 3 // 4)
        if not missed:
            state = SteadyState(0.0, 0.0, 0.0)
        elif not len(shares.of_one):
            # Everything is pinned: a step settles all that has come.
            return self._all_pinned(plan)
        else:
            entering = shares._replace(of_one=shares.of_one / missed)
            state = steady_state(entering, front.slots, 1, at_once, by_demand=by_demand)
            together = self._together(plan, front, missed, state, by_demand)
            if together > 1:
                sets = round(2 * together)
                state = steady_state(entering, front.slots, sets, at_once, by_demand=by_demand)
        reads = missed * state.reads
        if plan.look_ups and reads:
            # A partition with more wanted rows than a set has room for is read again for the rest.
            found = most_rows(self.master, plan.found_bytes, plan.look_ups)[1]
            reads = max(reads, missed * self._codes(plan, front, missed, state) / found)
        rows = self.master.row_count / self._partitions(plan)
        probes = reads * (1 + plan.pinned_in_disk_buffer) * rows
        in_key_order, read = self.master.layout == "key", self._read(reads, plan.partition_pages)
        if plan.look_ups:
            # Rows that nobody waits for are not looked at.
            probes = missed * self._codes(plan, front, missed, state) if missed else 0.0
            read |= {
                "batched_reads": reads,
                "batched_bytes": read["bytes_read"],
                "batched_codes": probes,
            }
        elif by_demand:
            # Tuples look for their rows, and for their page when they come.
            probes = missed
        compiled = {} if by_demand else self._compiled(plan, front, reads)
        located = reads
        if by_demand and reads:
            # Half of the slots are filled at a time, with chunks of the stream.
            located = self._located(missed, min(plan.stream_chunk_rows, front.slots / 2 / missed))
        operations = Operations(
            **read,
            index_pages_read=0.0 if in_key_order else located,
            probes=probes,
            hash_probes=0.0 if in_key_order or by_demand else probes,
            partition_probes=reads / together * (1 + plan.pinned_in_disk_buffer),
            **self._tuples(plan, missed, self._is_idle(front, plan)),
            iterations=reads / together,
            **compiled,
        )
        return operations, state.waiting

    def _together(
        self, plan: JoinPlan, front: _Front, missed: float, state: SteadyState, by_demand: bool
    ) -> float:
        """Partitions that are looked up at once: as many as asked for, or as have room.

        DEMANDJOIN counts tuples, not codes, and leaves a partition out that has no room as a whole.
        """
        if not plan.look_ups or not state.reads or not front.slots:
            return 1.0
        rows = most_rows(self.master, plan.found_bytes, plan.look_ups)[1]
        if by_demand:
            room = rows * state.reads
            # The last one seldom fits, the less so the larger partitions are beside the room.
            return max(1.0, min(plan.look_ups, room - 1.3 / max(room, 1.0)))
        codes = max(self._codes(plan, front, missed, state), 1e-12)
        return max(1.0, min(plan.look_ups, rows * state.reads / codes))

    def _codes(self, plan: JoinPlan, front: _Front, missed: float, state: SteadyState) -> float:
        """Codes per waiting tuple; tuples of a code that came while it waited leave with it."""
        # A code first comes at any time of its partition's wait, and few partitions wait longest.
        part = 1.8 if needs_of(plan.algorithm).grouped else 3
        return self.popularity.distinct(self._top(plan, front), missed, state.longest_wait / part)

    def _all_pinned(self, plan: JoinPlan) -> tuple[Operations, float]:
        """X-HYBRIDJOIN with all of R in memory, probed with each full stream table."""
        operations = Operations(
            probes=self.master.row_count / plan.stream_slots,
            partition_probes=plan.pinned_partitions / plan.stream_slots,
            **self._tuples(plan, 1.0),
            iterations=1 / plan.stream_slots,
            **self._compiled(plan, _NO_FRONT, 1 / plan.stream_slots),
        )
        return operations, plan.stream_slots / 2

    def _top(self, plan: JoinPlan, front: _Front) -> int:
        """How many of the most frequent keys never reach the disk; pinned ones count apart."""
        return 0 if plan.admission == "pinned" else int(self._keys(front.rows))

    def _is_idle(self, front: _Front, plan: JoinPlan) -> bool:
        """Whether the front stage rests in most turns."""
        if not needs_of(plan.algorithm).grouped or front.hits >= 2 * LEAST_SHARE:
            return False
        row_bytes, slot_bytes = exchanged_bytes(
            plan, self.shape, needs_of(plan.algorithm).slot_bytes
        )
        row_share = front.rows * row_bytes
        return row_share <= LEAST_SHARE * (row_share + front.slots * slot_bytes)

    def _tuples(self, plan: JoinPlan, missed: float, is_idle: bool = False) -> dict[str, float]:
        """What is done for each stream tuple, and for each that misses the front stage."""
        grouped = missed if needs_of(plan.algorithm).grouped else 0.0
        entered = {"appends": missed, "deletes": missed, "grouped": grouped}
        return self._arrival(plan, is_idle) | entered

    def _arrival(self, plan: JoinPlan, is_idle: bool = False) -> dict[str, float]:
        """Every stream tuple is read, meets the front stage if there is one, and comes out."""
        rows_per_key = self.master.row_count / self.popularity.keys
        always = {"stream_reads": 1.0, "outputs": rows_per_key}
        if not plan.front_rows:
            return always
        met = 1 / (1 + RESTING_TURNS) if is_idle else 1.0
        return always | {"front_probes": met, "front_chunks": met / plan.stream_chunk_rows}

    def _read(self, reads: float, partition_pages: int) -> dict[str, float]:
        """Reads of partitions as counters."""
        pages = self.master.page_count / -(-self.master.page_count // partition_pages)
        count = self.master.page_count
        stored = self.master.pages.stored_bytes(0, count) / max(count, 1)
        return {
            "partitions_read": reads,
            "pages_read": reads * pages,
            # A direct read begins and ends at a multiple of the alignment.
            "bytes_read": reads * (pages * stored + (ALIGNMENT if self._direct else 0)),
        }

    def _compiled(
        self, plan: JoinPlan, front: _Front, iterations: float, *, scans: bool = False
    ) -> dict[str, float]:
        """What compiled steps do, if partitions are joined by them."""
        pages = plan.partition_pages
        if plan.look_ups or not is_for_steps(self.master, self.shape, pages, scans=scans):
            return {}
        missed = 1 - front.hits
        matches = missed * self.master.row_count / self.popularity.keys
        calls = CompiledCalls(self.shape, self.master, self.sample)
        # More skew gives more hits, and more partitions with a key that is worth keeping.
        number = calls.number(plan, missed, matches, iterations, front.hits**0.5)
        return {"compiled_iterations": iterations, "compiled_calls": number}

    def _partitions(self, plan: JoinPlan) -> int:
        return max(1, -(-self.master.page_count // plan.partition_pages))
