"""The cost of runs of a join: how long a task of a micro-batch takes with some sizes.

A task of a micro-batch is a run of n tuples. The front stage is warm, since it stays from run to
run; nothing waits before it, and nothing may wait after it. So with m tuples that miss the front
stage, and room for W of them to wait:

    partitions touched by w tuples   D(w) = Σ (1 − e^(−w q))
    partition reads                  D(W) + (m − W) / (2 W / D(W)),   or D(m) if m ≤ W
    seconds                          reads × read + sets × step + n × arrival + m × wait

q is a partition's share of the tuples that miss. A read from the page cache costs less; with
`io="buffered"` pages that are there are not read at all, and only tuples of others count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from semistream.algorithms.options import Options
from semistream.algorithms.planner import Occasion, Sizer
from semistream.algorithms.registry import needs_of
from semistream.algorithms.sizing import Sizing
from semistream.cost.auto import ADAPTIVE
from semistream.cost.factors import CostFactors, known_factors
from semistream.cost.pieces import Pieces, chunk_rows
from semistream.cost.popularity import Popularity
from semistream.cost.skew import Skew
from semistream.counters import FACTORS
from semistream.parts.frame_finder import searchable
from semistream.parts.look_up_set import most_rows
from semistream.parts.steps import is_for_steps
from semistream.plan import JoinPlan

__all__ = ["RunCost", "RunModel", "RunStream"]

_OF_DISKS: Final = ("partition_read", "byte_read", "batched_byte")
"""Prices that are a disk's where R does not lie in memory. Batched reads are announced, and then
the disk is not waited for at each of them."""
_LEAST_NOT_HELD: Final = 0.1
"""However many pages are held, sizes are for at least such a share of tuples of other pages."""
_FRONTS: Final = (15, 60)
_MOST_LOOK_UPS: Final = 128
_LOOKED_UP, _WHOLE = (1, 2, 4, 8), (4, 8, 16)
"""Pages of a partition: of many that are looked up at a time, and of one that is joined as a whole.

Larger ones outgrow the caches of the processor, which the factors do not show.
"""
_SMALL_PAGE: Final = 32 << 10
"""Of such pages a partition may have twice as many."""
_FEWEST_LOOK_UPS: Final = 8
_AHEAD: Final = 1.5
"""Look-ups for each whose rows have room in a set on average."""
_ADAPTS: Final = 0.95
_VARIES: Final = 1.15
_IN_PLACE_CHUNK: Final = 0.0002
"""Seconds for a chunk that is answered in place, beside its tuples."""


@dataclass(frozen=True)
class RunCost:
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


class RunStream(NamedTuple):
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


class RunModel:
    """The cost of runs of one join, for one length of runs and one skew."""

    def __init__(
        self,
        sizer: Sizer,
        occasion: Occasion,
        options: Options,
        stream: RunStream,
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

    def best(self) -> RunCost | None:
        """The plan with the lowest cost; None if the memory is too little for any."""
        found = [cost for cost in map(self.tried, self._candidates()) if cost is not None]
        return min(found, key=_worth, default=None)

    def tried(self, candidate: tuple[str, Options], as_is: bool = False) -> RunCost | None:
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
            is_small = master.page_bytes <= _SMALL_PAGE
            looked_up = (*_LOOKED_UP, 2 * _LOOKED_UP[-1]) if is_small else _LOOKED_UP
            sizes = [
                {"partition_pages": pages, "look_ups": look_ups}
                for look_ups, several in ((_MOST_LOOK_UPS, looked_up), (0, _WHOLE))
                for pages in several
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

    def _cost(self, plan: JoinPlan, options: Options, as_is: bool) -> RunCost:
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
        chunks = np.ceil(self._arrived / chunk_rows(plan))
        if plan.in_place_rows:
            parts["in place"] = (self._arrived - self._tuples) * prices[
                "in_place_probe"
            ] + chunks * _IN_PLACE_CHUNK
        if plan.front_rows:
            parts["front stage"] = (
                self._tuples * (prices["front_probe"] + hits * prices["front_hit"])
                + chunks * prices["front_chunk"]
            )
            output += self._gathered(plan, self._tuples * hits, chunks)
        parts["output"] = output + self._tuples * (each * prices["output"] + prices["stream_read"])
        return RunCost(plan, options, self._arrived, hits, reads, parts)

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
            pieces = self._pieces.compiled(plan, matches, entering / chunk_rows(plan))
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


def _worth(cost: RunCost) -> float:
    """Its seconds; a front stage counts for more, since it adapts when the stream changes.

    Partitions that are joined as a whole count for less: their times vary most.
    """
    worth = cost.seconds * (_ADAPTS if cost.plan.front_rows else 1.0)
    return worth if cost.plan.look_ups else worth * _VARIES
