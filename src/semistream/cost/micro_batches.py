"""Sizes for micro-batches: what a join on Spark runs, chosen by a model of one short run.

A task of a micro-batch is a run of n tuples. The front stage is warm, since it stays from run to
run; nothing waits before it, and nothing may wait after it. So with m tuples that miss the front
stage, and room for W of them to wait:

    partitions touched by w tuples   D(w) = Σ (1 − e^(−w q))
    partition reads                  D(W) + (m − W) / (2 W / D(W)),   or D(m) if m ≤ W
    seconds                          reads × read + sets × step + n × arrival + m × wait

q is a partition's share of the tuples that miss. A read from the page cache costs less; with
`io="buffered"` pages that are there are not read at all, and only tuples of others count. The sizes
with the lowest cost are taken. They are kept until runs have been more than twice as long, or less
than half as long, for some time, and other sizes would be clearly better.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from semistream.algorithms.engine import Engine, Stream
from semistream.algorithms.options import Options, check_engine
from semistream.algorithms.planner import Occasion, Sizer
from semistream.algorithms.registry import AUTO, needs_of
from semistream.algorithms.sizing import Sizing
from semistream.arrow_arrays import to_arrow
from semistream.budget import parse_memory
from semistream.cost.auto import ADAPTIVE, IN_MEMORY, adaptive_plan, final_plan, in_memory
from semistream.cost.factors import CostFactors, known_factors
from semistream.cost.model import CostModel
from semistream.cost.pieces import Pieces
from semistream.cost.planning import explained, resolved_skew
from semistream.cost.popularity import Popularity
from semistream.cost.skew import Skew
from semistream.cost.tuner import Tuner
from semistream.counters import FACTORS
from semistream.kernels.mapped_index import RESIDENT
from semistream.metrics import Clock
from semistream.parts.frame_finder import searchable
from semistream.parts.join_shape import JoinShape, On
from semistream.parts.look_up_set import most_rows
from semistream.parts.steps import is_for_steps
from semistream.plan import Expectation, JoinPlan
from semistream.relation import MasterTable, mapped_pages

__all__ = ["MicroBatchEngine", "MicroBatchPlanner", "micro_batch_engine", "micro_batch_plan"]

_OF_DISKS: Final = ("partition_read", "byte_read", "batched_byte")
"""Prices that are a disk's where R does not lie in memory. Batched reads are announced, and then
the disk is not waited for at each of them."""
_USUAL_TUPLES: Final = 50_000
"""Tuples of a run, as long as none has been seen."""
_SPARK_ROWS: Final = 10_000
"""Spark gives a task so many rows at a time: a shorter first batch is the whole run."""
_LEAST_SAMPLE: Final = 100
_REMEMBERED: Final = 256
"""Tuples that are kept to size another plan by."""
_LEAST_NOT_HELD: Final = 0.1
"""However many pages are held, sizes are for at least such a share of tuples of other pages."""
_FRONTS: Final = (15, 60)
_MOST_LOOK_UPS: Final = 128
_SIZES: Final = (
    *((pages, _MOST_LOOK_UPS) for pages in (1, 2, 4, 8)),
    *((pages, 0) for pages in (4, 8, 16)),
)
"""Pages of a partition, and how many are looked up at a time: 0 for one, joined as a whole.

Larger ones outgrow the caches of the processor, which the factors do not show.
"""
_FEWEST_LOOK_UPS: Final = 8
_AHEAD: Final = 1.5
"""Look-ups for each whose rows have room in a set on average."""
_RUNS: Final = 4
"""So many runs in a row must be longer or shorter before sizes are chosen again."""
_CHANGED: Final = 2.0
_ADAPTS: Final = 0.95
_VARIES: Final = 1.15
_IN_PLACE_CHUNK: Final = 0.0002
"""Seconds for a chunk that is answered in place, beside its tuples."""
_CLEARLY: Final = 1.25
"""A plan must be so much better to give up what the front stage has learned."""


@dataclass(frozen=True)
class _RunCost:
    """What a run of some tuples takes with a plan."""

    plan: JoinPlan
    options: Options
    tuples: float
    hit_share: float
    reads: float
    seconds_by_part: dict[str, float]

    @property
    def seconds(self) -> float:
        """Of the whole run."""
        return sum(self.seconds_by_part.values())


class _Stream(NamedTuple):
    """What the sizes are chosen for."""

    tuples: float
    """Of a run."""
    held: float
    """The share of them whose pages the operating system holds."""
    skew: Skew

    def told(self, io: str) -> tuple[str, ...]:
        """In words."""
        found = (f"for tasks of {self.tuples:,.0f} tuples",)
        if io != "buffered":
            return found
        return (*found, f"{self.held:.0%} of R is in memory and searched in place")


class _RunModel:
    """The cost of runs of one join, for one length of runs and one skew."""

    def __init__(
        self,
        sizer: Sizer,
        occasion: Occasion,
        options: Options,
        stream: _Stream,
        factors: CostFactors,
    ) -> None:
        """`options` fix some of the sizes."""
        self._sizer = sizer
        self._occasion = occasion
        self._fixed = options
        self._arrived = self._tuples = stream.tuples
        # Pages that are held are searched in place; others come from the disk.
        if sizer.io == "buffered":
            self._tuples *= max(1 - stream.held, _LEAST_NOT_HELD)
        self._prices = dict(zip(FACTORS, factors.for_master(sizer.master).prices, strict=True))
        if sizer.io == "buffered":
            direct = dict(zip(FACTORS, known_factors("direct").factors.prices, strict=True))
            self._prices |= {name: direct[name] for name in _OF_DISKS}
        self._popularity = Popularity(sizer.master, stream.skew)
        self._pieces = Pieces(occasion.shape, sizer.master, occasion.first)
        self._sizings: dict[str, Sizing] = {}
        self._frequent = self._frequent_keys()

    def _frequent_keys(self) -> int:
        """How many keys come often enough for a front stage to notice them: once in a run."""
        low, high = 0, self._popularity.keys
        while low < high:
            middle = (low + high + 1) // 2
            share = self._popularity.top(middle) - self._popularity.top(middle - 1)
            low, high = (middle, high) if share * self._tuples >= 1 else (low, middle - 1)
        return low

    def best(self) -> _RunCost | None:
        """The plan with the lowest cost; None if the memory is too little for any."""
        found = [cost for cost in map(self.tried, self._candidates()) if cost is not None]
        return min(found, key=_worth, default=None)

    def tried(self, candidate: tuple[str, Options], as_is: bool = False) -> _RunCost | None:
        """What an algorithm with some sizes takes; None if they do not fit.

        Unless it is to stay `as_is`, there are as many look-ups as suit the other sizes.
        """
        algorithm, options = candidate
        plan = self._sizing(algorithm).plan_or_none(self._occasion.memory, options)
        as_is = as_is or "look_ups" in self._fixed
        return None if plan is None else self._cost(plan, options, as_is)

    def _candidates(self) -> Iterator[tuple[str, Options]]:
        master, shape = self._sizer.master, self._occasion.shape
        sizes: list[Options] = [{}]
        if searchable(master, shape.code_column):
            most = max(1, master.page_count // 2)
            sizes = [
                {"partition_pages": pages, "look_ups": look_ups}
                for pages, look_ups in _SIZES
                if pages <= most
            ]
        known = needs_of("hybridjoin").options
        without_front = all(name in known for name in self._fixed)
        for some in sizes:
            if without_front:
                yield "hybridjoin", {**some, **self._fixed}
            # A front stage that is shown one partition at a time costs more than it saves.
            one_by_one = some.get("look_ups") == 0 and not self._fixed
            for percent in () if one_by_one else _FRONTS:
                yield ADAPTIVE, {**some, "front_percent": percent, **self._fixed}

    def _sizing(self, algorithm: str) -> Sizing:
        if algorithm not in self._sizings:
            self._sizings[algorithm] = self._sizer.sizing(algorithm, self._occasion)
        return self._sizings[algorithm]

    def _cost(self, plan: JoinPlan, options: Options, as_is: bool) -> _RunCost:
        prices, each = self._prices, self._rows_per_key
        kept = min(int(plan.front_rows / each), self._frequent)
        hits = self._popularity.top(kept)
        missed = max(1 - hits, 1e-9)
        entering = self._tuples * missed
        waiting = max(min(entering, plan.stream_slots), 1.0)
        shares = self._popularity.shares(plan.partition_pages, kept)
        touched = float(-np.expm1(-shares.of_one / missed * waiting) @ shares.number)
        reads = touched = max(touched, 1.0)
        if entering > waiting:
            reads += (entering - waiting) / max(1.0, 2 * waiting / touched)
        codes = self._popularity.distinct(kept, missed, waiting) * entering
        if plan.look_ups:
            rows = most_rows(self._sizer.master, plan.found_bytes, plan.look_ups)[1]
            found = max(rows / each, 1.0)
            # A partition with more wanted rows than a set has room for is read again for the rest.
            reads = max(reads, codes / found)
            room = max(1.0, found * reads / max(codes, 1.0))
            if not as_is:
                look_ups = int(min(max(_AHEAD * room, _FEWEST_LOOK_UPS), _MOST_LOOK_UPS))
                plan, options = replace(plan, look_ups=look_ups), {**options, "look_ups": look_ups}
            # A set has whole partitions only, so that some of its room stays empty.
            together = max(min(plan.look_ups, room - 1), 1.0)
            sets = max(1.0, reads / together)
            parts = self._looked_up(plan, reads, codes, sets)
            output = self._gathered(plan, entering, sets)
        else:
            parts, output = self._decoded(plan, reads, entering)
        parts["waiting"] = entering * (prices["append"] + prices["delete"])
        chunks = -(-self._arrived // plan.stream_chunk_rows)
        if plan.in_place_rows:
            parts["in place"] = (self._arrived - self._tuples) * prices[
                "in_place_probe"
            ] + chunks * _IN_PLACE_CHUNK
        if plan.front_rows:
            parts["front stage"] = (
                self._tuples * prices["front_probe"] + chunks * prices["front_chunk"]
            )
            output += self._gathered(plan, self._tuples * hits, chunks)
        parts["output"] = output + self._tuples * (each * prices["output"] + prices["stream_read"])
        return _RunCost(plan, options, self._arrived, hits, reads, parts)

    @property
    def _rows_per_key(self) -> float:
        return self._sizer.master.row_count / self._popularity.keys

    def _gathered(self, plan: JoinPlan, tuples: float, times: float) -> float:
        """The cost of pieces of output that Python gathers."""
        piece = self._prices["piece"] + self._pieces.columns * self._prices["column"]
        return self._pieces.gathered(plan, tuples * self._rows_per_key, times) * piece

    def _looked_up(
        self, plan: JoinPlan, reads: float, codes: float, sets: float
    ) -> dict[str, float]:
        """The cost of partitions that are looked up in sets."""
        prices, size = self._prices, self._bytes(plan)
        return {
            "reads": reads
            * (
                prices["batched_read"]
                + size * prices["batched_byte"]
                + plan.partition_pages * prices["page_read"]
            ),
            "look-ups": codes * prices["batched_code"],
            "steps": sets * prices["batched_iteration"],
        }

    def _decoded(
        self, plan: JoinPlan, reads: float, entering: float
    ) -> tuple[dict[str, float], float]:
        """The cost of partitions that are read one by one, and that of their output."""
        prices, master = self._prices, self._sizer.master
        rows = reads * plan.partition_pages * master.row_count / max(master.page_count, 1)
        if is_for_steps(master, self._occasion.shape, plan.partition_pages, scans=False):
            matches = entering * self._rows_per_key
            pieces = self._pieces.compiled(plan, matches, entering / plan.stream_chunk_rows)
            # Half of the partitions have something for a front stage to look at.
            calls = pieces + (reads / 2 if plan.front_rows else 0.0)
            each = prices["compiled_iteration"] + prices["compiled_probe"]
            steps = reads * each + calls * prices["compiled_call"]
            output = pieces * self._pieces.columns * prices["compiled_column"]
        else:
            decoded = plan.partition_pages * len(master.stored_schema)
            steps = reads * (prices["iteration"] + decoded * prices["decoded_column"])
            output = self._gathered(plan, entering, reads)
        parts = {
            "reads": reads
            * (
                prices["partition_read"]
                + self._bytes(plan) * prices["byte_read"]
                + plan.partition_pages * prices["page_read"]
            ),
            "look-ups": rows * prices["probe"],
            "steps": steps,
        }
        return parts, output

    def _bytes(self, plan: JoinPlan) -> float:
        """Of a partition, in its file."""
        pages = self._sizer.master.pages
        return pages.stored_bytes(0, len(pages)) / max(len(pages), 1) * plan.partition_pages


def _worth(cost: _RunCost) -> float:
    """Its seconds; a front stage counts for more, since it adapts when the stream changes.

    Partitions that are joined as a whole count for less: their times vary most.
    """
    worth = cost.seconds * (_ADAPTS if cost.plan.front_rows else 1.0)
    return worth if cost.plan.look_ups else worth * _VARIES


class MicroBatchPlanner:
    """The planner of a join on Spark whose algorithm is "auto"."""

    name = AUTO

    def __init__(
        self,
        sizer: Sizer,
        options: Options,
        tuples: float | None = None,
        skew: Skew | None = None,
    ) -> None:
        """For runs of `tuples`, if that is known, and a skew, if the first batch need not tell."""
        self._sizer = sizer
        self._options = options
        self._tuples = tuples
        self._skew = skew
        self._recent: deque[tuple[int, float]] = deque(maxlen=_RUNS)
        self._guessed = True
        self._seen: tuple[_Stream, Occasion] | None = None

    def plan(self, occasion: Occasion) -> JoinPlan:
        """The plan for a stream that begins so."""
        if not self._sizer.master.row_count or self._sizer.master.is_live:
            return adaptive_plan(self._sizer, self._options, occasion)
        whole = None if self._options else self._whole(occasion)
        if whole is not None:
            return whole
        stream, told = self._stream(occasion)
        # If this does not fit, the error says what the least is, whatever the first batch is like.
        usual = self._sizer.sized(ADAPTIVE, self._options, occasion)
        best = self._model(occasion, stream).best()
        if best is None:
            return replace(usual, options=self._options)
        if occasion.first.num_rows:
            few = occasion.first.take(
                to_arrow(np.arange(min(_REMEMBERED, occasion.first.num_rows)))
            )
            self._seen = stream, replace(occasion, first=few)
        source = known_factors(self._sizer.io).source
        basis = (*stream.told(self._sizer.io), told, f"cost factors: {source}")
        return _explained(best, basis, stream.skew.exponent)

    def _whole(self, occasion: Occasion) -> JoinPlan | None:
        """The plan that keeps all of R, if it fits; there is nothing to choose then."""
        sizer, shape, first = self._sizer, occasion.shape, occasion.first
        # Half stays free: tuples may be wider than their schema lets one guess. Where pages are
        # searched in place, little would be gained by a copy that leaves less room for all else.
        full = first.num_rows and sizer.io != "buffered"
        memory = occasion.memory if full else occasion.memory // 2
        options = in_memory(sizer.master, shape, first, memory, sizer.use_filter, sizer.io)
        if options is None:
            return None
        known, skew = known_factors(sizer.io), self._skew or Skew(1.0)
        model = CostModel(
            sizer.master, shape, first, skew, known.factors, sizer.io, sizer.use_filter
        )
        found = [model.planned(IN_MEMORY, occasion.memory, options)]
        basis = ("all of R fits: it is kept in memory", f"cost factors: {known.source}")
        return final_plan(sizer, explained(Tuner(model), found, basis, ()), occasion)

    def note(self, arrived: int, in_place: int) -> None:
        """A run is over: so many tuples arrived, and so many were answered in place."""
        if arrived:
            self._recent.append((arrived, in_place / arrived))

    def outgrown(self, plan: JoinPlan) -> bool:
        """Whether the runs of late would be clearly faster with another plan than this."""
        if self._seen is None or len(self._recent) < (1 if self._guessed else _RUNS):
            return False
        (stream, occasion), recent = self._seen, np.array(self._recent)
        usual = float(np.median(recent[:, 0]))
        if 1 / _CHANGED < usual / stream.tuples < _CHANGED:
            return False
        self._guessed, self._tuples = False, usual
        stream = stream._replace(tuples=usual, held=float(np.median(recent[:, 1])))
        self._seen = stream, occasion
        model = self._model(occasion, stream)
        best, kept = model.best(), model.tried((plan.algorithm, plan.options), as_is=True)
        return best is not None and kept is not None and kept.seconds > _CLEARLY * best.seconds

    def _stream(self, occasion: Occasion) -> tuple[_Stream, str]:
        """What is known of the stream, and where the skew comes from."""
        first, master, tuples = occasion.first, self._sizer.master, self._tuples
        if tuples is None:
            whole = 0 < first.num_rows < _SPARK_ROWS
            tuples = float(first.num_rows if whole else _USUAL_TUPLES)
        unknown = self._skew is None and first.num_rows < _LEAST_SAMPLE
        given = Skew(1.0) if unknown else self._skew
        skew, told = resolved_skew(given, first, occasion.shape, master)
        surveyed = self._sizer.io == "buffered" and first.num_rows
        held = _held(master) if surveyed else 0.0
        return _Stream(tuples, held, skew), f"skew: {'not known, so as if 1' if unknown else told}"

    def _model(self, occasion: Occasion, stream: _Stream) -> _RunModel:
        factors = known_factors(self._sizer.io).factors
        return _RunModel(self._sizer, occasion, self._options, stream, factors)


def _explained(cost: _RunCost, basis: tuple[str, ...], exponent: float) -> JoinPlan:
    seconds = max(cost.seconds, 1e-9)
    pages = cost.reads * cost.plan.partition_pages
    expected = Expectation(
        rate=cost.tuples / seconds,
        io_per_tuple=pages / max(cost.tuples, 1.0),
        hit_share=cost.hit_share,
        wait_seconds=seconds / 2,
        seconds={name: part / max(cost.tuples, 1.0) for name, part in cost.seconds_by_part.items()},
        basis=basis,
        exponent=exponent,
    )
    return replace(cost.plan, options=dict(cost.options), expected=expected)


def _held(master: MasterTable) -> float:
    """The share of the master's bytes that the operating system holds."""
    with master.reader("buffered") as reader:
        mapped = mapped_pages(reader)
        if mapped is None:
            return 0.0
        there = mapped.index.state & RESIDENT > 0
        held = float(mapped.index.length[there].sum()) / float(mapped.index.length.sum())
        mapped.close()
    return held


class MicroBatchEngine(Engine):
    """An engine for one run after the other, which chooses its sizes by how long they are."""

    def __init__(self, master: MasterTable, planner: MicroBatchPlanner, **terms: Any) -> None:
        """As an engine with a planner of this kind."""
        super().__init__(master, planner, **terms)
        self._chooser = planner

    def run(self, batches: Stream) -> Generator[pa.RecordBatch, None, None]:
        """As `Engine.run`; before it, other sizes are taken if runs have become longer or shorter.

        To begin anew costs time, so it takes several runs and a clear gain. What the front stage
        has learned stays.
        """
        last, plan = self.metrics(), self.plan
        self._chooser.note(last.arrived, last.in_place_probes)
        if plan is not None and self._chooser.outgrown(plan):
            legacy = self.leave()
            if legacy is not None:
                self.inherit(legacy)
        return super().run(batches)


def micro_batch_engine(
    master: MasterTable,
    *,
    on: On,
    memory: int | str,
    how: str = "inner",
    columns: Sequence[str] | None = None,
    io: str = "buffered",
    clock: Clock = time.perf_counter,
    use_filter: bool | None = None,
    **options: int | str,
) -> MicroBatchEngine:
    """The engine that a task on Spark runs when its algorithm is "auto"."""
    check_engine(master, on, how, AUTO, io, use_filter, options)
    return MicroBatchEngine(
        master,
        MicroBatchPlanner(Sizer(master, io, use_filter), options),
        on=on,
        memory=parse_memory(memory),
        how=how,
        columns=columns,
        io=io,
        clock=clock,
    )


def micro_batch_plan(
    master: MasterTable,
    shape: JoinShape,
    sample: pa.RecordBatch,
    memory: int,
    io: str,
    tuples: int,
    skew: Skew | None,
    options: Options,
) -> JoinPlan:
    """What a join on Spark runs for tasks of so many tuples."""
    sizer, occasion = Sizer(master, io, None), Occasion(shape, sample, memory)
    return MicroBatchPlanner(sizer, options, tuples, skew).plan(occasion)
