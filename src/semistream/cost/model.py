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
from semistream.cost.factors import CostFactors
from semistream.cost.pieces import Pieces, chunk_rows
from semistream.cost.popularity import Floats, Popularity, Shares
from semistream.cost.prediction import Operations, Prediction
from semistream.cost.skew import Skew
from semistream.cost.steady_state import SteadyState, steady_state
from semistream.parts.front_stage import RESTING_TURNS
from semistream.parts.join_shape import JoinShape
from semistream.parts.look_up_set import most_rows
from semistream.parts.rebalancer import LEAST_SHARE, judged_rows, priced_rows
from semistream.parts.steps import is_for_steps, scans_ahead
from semistream.parts.tuple_table import uncached_share
from semistream.plan import JoinPlan
from semistream.relation import MasterTable
from semistream.relation.frame import ALIGNMENT

_LEARNED = 0.9
"""A front stage is judged while it still learns: it has this part of its final hit share then."""
_MOST_MOVES = 64
"""A front stage may go back and forth between two sizes; either is as good."""
_LOCATOR_ROW = 16
"""Bytes of a row of the locator."""


_UNEVEN = np.linspace(0.85, 1.15, 31)
"""How many codes wait for a partition beside the average."""


class _Front(NamedTuple):
    """A front stage that has settled."""

    rows: int
    hits: float
    """The share of tuples that it answers."""
    slots: int
    """For waiting tuples."""
    considered: float = 0.0
    """The share of tuples whose key CINLJ considers."""
    looks: float = 1.0
    """The share of the stream that it looks at: one that answers next to nothing rests."""


_NO_FRONT = _Front(0, 0.0, 0)


class _Joined(NamedTuple):
    """Partitions by kind, per stream tuple."""

    tuples: Floats
    """That are joined with them."""
    times: Floats
    """That they are joined."""


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
        self._pieces = Pieces(shape, master, sample)
        self.io = io
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
        return Sizing(needs, self.master, self.shape, self.sample, self._use_filter, self.io)

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
        change = front.rows / plan.front_rows if plan.front_rows else 1.0
        return Prediction(plan, operations, self.factors, front.hits, waiting, made_with, change)

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
            hits, considered = self.popularity.noticed(
                self._keys(rows), plan.recent_codes, self.master.page_count, chunk_rows(plan)
            )
            return _Front(rows, hits, 0, considered)
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
        hits, held = top(self._keys(rows)), rows * row_bytes
        rests = needs.grouped and hits < 2 * LEAST_SHARE
        rests = rests and held <= LEAST_SHARE * (held + slots * slot_bytes)
        looks = 1 / (1 + RESTING_TURNS) if rests else 1.0
        return _Front(rows, hits, slots, looks=looks)

    def _keys(self, rows: float) -> float:
        """How many keys there is room for, with all rows that each has."""
        return float(int(rows / self._rows_per_key + 1e-6))

    def _look_ups(self, plan: JoinPlan, front: _Front) -> Operations:
        """INLJ: neighbours in the stream share a page only by chance."""
        shares = self.popularity.shares(1, self._top(plan, front))
        missed = 1 - front.hits
        same = float((shares.of_one / max(missed, 1e-12)) ** 2 @ shares.number)
        reads = missed * max(1 - same, 0.0)
        ends = 1 / chunk_rows(plan)
        pieces = self._pieces.compiled(plan, self._matches(front), ends)
        handed_on = self._handed_on(plan, front, reads, reads, compiled=pieces)
        return Operations(
            **self._read(reads, 1),
            index_pages_read=self._located(missed, chunk_rows(plan)),
            probes=missed,
            **self._arrival(plan, front, missed),
            iterations=missed / TUPLES_PER_STEP,
            compiled_calls=self._calls(plan, front, ends) + handed_on["offers"],
            **handed_on,
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
            **self._tuples(plan, front, missed),
            iterations=reads,
            **self._steps(plan, front, reads, reads, scans=True),
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
        if missed and not len(shares.of_one):
            # Everything is pinned: a step settles all that has come.
            return self._all_pinned(plan)
        if not missed or not shares.of_one.any():
            state = SteadyState(0.0, 0.0, 0.0, np.zeros(0))
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
            found, codes = self._found(plan), self._codes(plan, front, missed, state)
            if by_demand:
                entered, together = _crowded(entering, state, codes, found, plan.look_ups)
                reads = missed * entered
            else:
                reads *= float(np.ceil(_UNEVEN * codes / state.reads / found).mean())
        rows = self.master.row_count / self._partitions(plan)
        probes = reads * (1 + plan.pinned_in_disk_buffer) * rows
        iterations = reads / together
        if by_demand and reads and not plan.look_ups:
            reads += self._read_again(plan, missed, reads)
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
        located = reads
        if by_demand and reads:
            # Half of the slots are filled at a time, with chunks of the stream.
            located = self._located(missed, min(chunk_rows(plan), front.slots / 2 / missed))
        joined: _Joined | None = None
        if reads and not plan.look_ups:
            joined = self._joined(plan, entering, state, missed, iterations)
        operations = Operations(
            **read,
            index_pages_read=0.0 if in_key_order else located,
            probes=probes,
            hash_probes=0.0 if in_key_order or by_demand else probes,
            partition_probes=iterations * (1 + plan.pinned_in_disk_buffer),
            **self._tuples(plan, front, missed),
            iterations=iterations,
            batched_iterations=iterations if plan.look_ups else 0.0,
            **self._steps(plan, front, reads, iterations, joined, by_demand=by_demand),
        )
        return operations, state.waiting

    def _read_again(self, plan: JoinPlan, missed: float, reads: float) -> float:
        """DEMANDJOIN's reads of both sides of an edge that a key crosses and a tuple waits at."""
        crossed = 1 - 1 / self._rows_per_key
        keys = self.popularity.keys / self._partitions(plan)
        return 2 * crossed * reads * float(-np.expm1(-missed / reads / keys))

    def _joined(
        self, plan: JoinPlan, entering: Shares, state: SteadyState, missed: float, iterations: float
    ) -> _Joined:
        """Of partitions that are read one by one, and those in the disk buffer."""
        tuples = missed * entering.of_one * entering.number
        pinned = self.popularity.leading(plan.pinned_in_disk_buffer, plan.partition_pages)
        return _Joined(
            np.append(tuples, pinned),
            np.append(tuples / state.each, np.full(len(pinned), iterations)),
        )

    def _together(
        self, plan: JoinPlan, front: _Front, missed: float, state: SteadyState, by_demand: bool
    ) -> float:
        """Partitions that are looked up at once: as many as asked for, or as have room.

        DEMANDJOIN counts tuples, not codes, and leaves a partition out that has no room as a whole.
        """
        if not plan.look_ups or not state.reads or not front.slots:
            return 1.0
        found = self._found(plan)
        if by_demand:
            return float(_fit(found * np.array([state.reads]), plan.look_ups)[0])
        room = found * state.reads / max(self._codes(plan, front, missed, state), 1e-12)
        # Partitions are looked up as wholes, and some have more codes than others.
        fit = np.clip(np.floor(room * _UNEVEN), 1, plan.look_ups)
        return float(fit.mean())

    def _found(self, plan: JoinPlan) -> float:
        """Codes for whose rows a set of look-ups has room."""
        rows = most_rows(self.master, plan.found_bytes, plan.look_ups)[1]
        return max(1.0, rows / self._rows_per_key)

    def _codes(self, plan: JoinPlan, front: _Front, missed: float, state: SteadyState) -> float:
        """Codes per waiting tuple; tuples of a code that came while it waited leave with it."""
        # A code first comes at any time of its partition's wait, and few partitions wait longest.
        part = 1.8 if needs_of(plan.algorithm).grouped else 1.5
        return self.popularity.distinct(self._top(plan, front), missed, state.longest_wait / part)

    def _all_pinned(self, plan: JoinPlan) -> tuple[Operations, float]:
        """X-HYBRIDJOIN with all of R in memory, probed with each full stream table."""
        operations = Operations(
            probes=self.master.row_count / plan.stream_slots,
            partition_probes=plan.pinned_partitions / plan.stream_slots,
            **self._tuples(plan, _NO_FRONT._replace(slots=plan.stream_slots), 1.0),
            iterations=1 / plan.stream_slots,
            **self._steps(plan, _NO_FRONT, 0.0, 1 / plan.stream_slots),
        )
        return operations, plan.stream_slots / 2

    def _top(self, plan: JoinPlan, front: _Front) -> int:
        """How many of the most frequent keys never reach the disk; pinned ones count apart."""
        return 0 if plan.admission == "pinned" else int(self._keys(front.rows))

    def _tuples(self, plan: JoinPlan, front: _Front, missed: float) -> dict[str, float]:
        """What is done for each stream tuple, and for each that misses the front stage."""
        grouped = missed if needs_of(plan.algorithm).grouped else 0.0
        # A front stage gives slots away, or takes some.
        table = plan.parts["stream table"] * front.slots // plan.stream_slots
        arrival = self._arrival(plan, front, missed)
        arrival["uncached"] = arrival.get("uncached", 0.0) + missed * uncached_share(table)
        return arrival | {"appends": missed, "deletes": missed, "grouped": grouped}

    def _arrival(self, plan: JoinPlan, front: _Front, missed: float) -> dict[str, float]:
        """Every stream tuple is read, meets the front stage if there is one, and comes out."""
        always = {"stream_reads": 1.0, "outputs": self._rows_per_key}
        if not plan.front_rows:
            return always
        hits = 1 - missed
        return always | {
            "front_probes": front.looks,
            "front_hits": hits,
            "front_chunks": front.looks / chunk_rows(plan),
            "uncached": hits
            * uncached_share(plan.parts["front stage"] * front.rows // plan.front_rows),
        }

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

    def _steps(
        self,
        plan: JoinPlan,
        front: _Front,
        reads: float,
        iterations: float,
        joined: _Joined | None = None,
        *,
        scans: bool = False,
        by_demand: bool = False,
    ) -> dict[str, float]:
        """What iterations hand on; and what compiled steps do, if partitions are joined by them."""
        pages = plan.partition_pages
        is_ahead = scans and scans_ahead(pages * self.master.page_bytes, direct=self._direct)
        in_python = plan.look_ups or by_demand or (is_ahead and plan.front_rows)
        if in_python or not is_for_steps(self.master, self.shape, pages, scans=scans):
            tuples, times = joined or (1 - front.hits, iterations)
            pieces = self._pieces.gathered(plan, self._rows_per_key * tuples, times)
            # A batch is read by threads of its own. A queue tells the next one in key order only.
            known = scans or by_demand or self.master.layout == "key"
            handed_on = self._handed_on(plan, front, reads, iterations, gathered=pieces)
            if plan.look_ups:
                return handed_on
            decoded = reads * self.master.page_count / self._partitions(plan)
            return handed_on | {
                "reads_ahead": iterations if self._direct and known else 0.0,
                "decoded_columns": decoded * len(self.master.stored_schema),
            }
        ends = 1 / chunk_rows(plan)
        pieces = self._pieces.compiled(plan, self._matches(front), (1 - front.hits) * ends)
        calls = self._calls(plan, front, ends)
        if is_ahead:
            # Each partition is handed over by the thread that reads it.
            calls += iterations
        handed_on = self._handed_on(plan, front, reads, iterations, compiled=pieces)
        if _learns(plan):
            # Compiled code shows keys that are frequent enough to the front stage.
            calls += handed_on["offers"]
        return handed_on | {
            "compiled_iterations": iterations,
            "compiled_probes": iterations * (bool(reads) + plan.pinned_in_disk_buffer),
            "compiled_calls": calls,
            "reads_ahead": iterations if is_ahead else 0.0,
        }

    def _calls(self, plan: JoinPlan, front: _Front, ends: float) -> float:
        """Calls of compiled code: each ends with a full piece, or with the chunk."""
        # Some end with both.
        return max(ends, self._pieces.compiled(plan, self._matches(front), 1.25 * ends))

    def _handed_on(
        self,
        plan: JoinPlan,
        front: _Front,
        reads: float,
        seen: float,
        *,
        gathered: float = 0.0,
        compiled: float = 0.0,
    ) -> dict[str, float]:
        """Pieces of output, with those of the front stage; and how often it considers keys.

        It may do so `seen` times, each time of some of the `reads`.
        """
        if plan.front_rows and front.hits:
            hits = front.hits * self._rows_per_key
            gathered += front.looks * self._pieces.gathered(plan, hits, 1 / chunk_rows(plan))
        offers = front.considered
        if _learns(plan) and plan.stream_slots and seen:
            turn = self._partitions(plan) / reads
            keys = self.popularity.considered(self._keys(front.rows), turn)
            offers = front.looks * float(-np.expm1(-keys / (turn * seen))) * seen
        return {
            "pieces": gathered,
            "columns": (gathered + compiled) * self._pieces.columns,
            "compiled_columns": compiled * self._pieces.columns,
            "offers": offers,
        }

    def _matches(self, front: _Front) -> float:
        """Result rows per tuple that do not come from the front stage."""
        return (1 - front.hits) * self._rows_per_key

    @property
    def _rows_per_key(self) -> float:
        return self.master.row_count / self.popularity.keys

    def _partitions(self, plan: JoinPlan) -> int:
        return max(1, -(-self.master.page_count // plan.partition_pages))


def _learns(plan: JoinPlan) -> bool:
    """Whether there is a front stage that finds out which rows to keep."""
    return bool(plan.front_rows) and plan.admission != "pinned"


def _crowded(
    entering: Shares, state: SteadyState, codes: float, found: float, most: int
) -> tuple[float, float]:
    """DEMANDJOIN's reads per tuple, and partitions that are looked up at once, group by group.

    A group with more codes than a set has room for is read again, and fills a set alone.
    """
    again = np.maximum(1.0, state.each * codes / found)
    reads = entering.of_one / state.each * entering.number * again
    fitting = np.where(state.each <= found, reads, 0.0)
    mean, square = (float(fitting @ state.each**n / max(fitting.sum(), 1e-12)) for n in (1, 2))
    # Where groups are of different sizes, a large one is more often left out at the end of a set.
    room = found - (square / max(mean, 1e-12) - mean) / 2
    sets = reads / _fit(room * again / state.each, most)
    return float(reads.sum()), float(reads.sum() / sets.sum())


def _fit(room: Floats, most: int) -> Floats:
    """How many partitions are looked up at once if `room` of them would fill a set."""
    # The last one seldom fits, the less so the larger partitions are beside the room.
    fit: Floats = np.clip(room - 1.3 / np.maximum(room, 1.0), 1.0, most)
    return fit
