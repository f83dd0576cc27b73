"""Dividing the memory of a star: each further byte goes where it saves most time.

The cost model gives each look-up a curve, seconds per stream tuple against memory, for runs as long
as a round. All look-ups begin with the least they can run with. Then one piece of memory after the
other goes to the look-up whose curve falls most per byte, looking ahead, since a curve may be flat
before it falls: a master kept whole saves nothing before the last byte of it. In the end no byte
would save more elsewhere.

    seconds │╲    a                   a and b fall equally fast where their shares end
            │ ╲__╲______ b
            └────────────► bytes

A round's own memory is weighed against theirs by trying some sizes: the longer a round is, the more
tuples share a page that is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa

from semistream.algorithms.planner import Occasion, Sizer
from semistream.algorithms.registry import AUTO
from semistream.arrow_arrays import no_rows
from semistream.cost.auto import ADAPTIVE, IN_MEMORY
from semistream.cost.factors import known_factors
from semistream.cost.micro_batches import micro_batch_plan
from semistream.cost.model import CostModel
from semistream.cost.planning import resolved_skew
from semistream.cost.prediction import Prediction
from semistream.cost.skew import Skew
from semistream.errors import BudgetError
from semistream.star.lookup import named
from semistream.star.plan import LookupShare, StarPlan
from semistream.star.rounds import FEWEST_TUPLES, round_bytes
from semistream.star.shape import LookupShape, StarShape
from semistream.star.term_engine import term_engine

__all__ = ["divided"]

_USUAL_TUPLES: Final = 50_000
"""Tuples of a task on Spark: longer rounds than this share little more."""
_ROUND_SHARES: Final = (0.3, 0.6)
"""What a round may have of the memory that no look-up needs."""
_POINTS_APART: Final = 4
_FLAT: Final = 0.98
_STEPS: Final = 128
_CHUNK_SECONDS: Final = 0.001
"""What a chunk of tuples takes whose pages are in memory, beside the tuples."""
_RUN_SECONDS: Final = 0.001
"""What a look-up takes for a round, however short."""
_NO_MEMORY: Final = 1 << 50
_LEAST_SAMPLE: Final = 100
_UNKNOWN_TUPLE: Final = 64.0
_NO_MORE_FOR_TERMS: Final = 1 << 18
"""Bytes of a round of a join on terms with shards, where the least is not known exactly."""
_SHARED_BY_SHARDS: Final = 4 / 3
"""Engines on shards have three quarters of the memory; tuples on their way to them the rest."""


def divided(shape: StarShape, first: pa.RecordBatch, memory: int) -> StarPlan:
    """The division for a stream that begins so; the batch may be empty."""
    curves = [_Curve(one, first) for one in shape.lookups]
    wide = first.nbytes / first.num_rows if first.num_rows else _UNKNOWN_TUPLE
    width = round_bytes(wide, [one.row_bytes for one in shape.lookups])
    fewest = math.ceil(FEWEST_TUPLES * width)
    least = sum(curve.least for curve in curves)
    spare = memory - least - fewest
    if spare < 0:
        parts = ", ".join(f"{curve.name} {curve.least:,}" for curve in curves)
        raise BudgetError(
            f"memory={memory:,} bytes is too little for {len(curves)} look-ups: the least is "
            f"{least + fewest:,} bytes ({parts}, and {fewest:,} for a round of tuples). Give more "
            "memory.",
            least=least + fewest,
        )
    most = math.ceil(_USUAL_TUPLES * width)
    sizes = sorted({min(most, fewest + int(spare * part)) for part in _ROUND_SHARES})
    plans = [_planned(curves, memory, held, int(held / width)) for held in sizes]
    return min(plans, key=lambda plan: plan.seconds + len(curves) * _RUN_SECONDS / plan.tuples)


def _planned(curves: Sequence[_Curve], memory: int, held: int, tuples: int) -> StarPlan:
    """The best division if a round has so much memory."""
    rest = memory - held
    for curve in curves:
        curve.draw(tuples, rest)
    shares = _shared(curves, rest)
    equal = rest // len(curves)
    fits = all(curve.least <= equal for curve in curves)
    return StarPlan(
        memory=memory,
        held=held,
        tuples=tuples,
        shares=tuple(
            LookupShare(curve.name, size, curve.least, curve.seconds(size), curve.keeps_all(size))
            for curve, size in zip(curves, shares, strict=True)
        ),
        seconds_if_equal=sum(curve.seconds(equal) for curve in curves) if fits else None,
    )


def _shared(curves: Sequence[_Curve], memory: int) -> list[int]:
    """Bytes of each look-up: all begin with the least, and then the steepest curve gets more."""
    shares = [curve.least for curve in curves]
    rest = memory - sum(shares)
    step = max(1, rest // _STEPS)
    while rest > 0:
        best, gain, more = -1, 0.0, 0
        for i, curve in enumerate(curves):
            for added in _reaches(step, rest, curve.whole - shares[i]):
                saved = (curve.seconds(shares[i]) - curve.seconds(shares[i] + added)) / added
                if saved > gain:
                    best, gain, more = i, saved, added
        if best < 0:
            break
        shares[best] += more
        rest -= more
    # What the model sees no use for is for longer rounds, or more skew, than it assumes.
    sizes = [curve.bytes for curve in curves]
    left = [int(rest * size / max(sum(sizes), 1)) for size in sizes]
    return [share + more for share, more in zip(shares, left, strict=True)]


def _reaches(step: int, rest: int, whole: int) -> set[int]:
    """How far to look ahead: some steps, all that is left, or what keeps all of a master."""
    found = {min(step << power, rest) for power in range(_STEPS.bit_length())}
    return found | ({whole} if 0 < whole <= rest else set())


class _Curve:
    """Seconds per tuple of a look-up against its memory."""

    def __init__(self, shape: LookupShape, first: pa.RecordBatch) -> None:
        lookup = shape.lookup
        self.name, self._shape, self._master = lookup.name, shape, lookup.master
        self.bytes = int(lookup.master.pages.length.sum())
        options = dict(lookup.options)
        self._sizer = Sizer(lookup.master, lookup.io, options.pop("use_filter", None))
        self._options: dict[str, Any] = options
        self._factors = known_factors(lookup.io).factors
        f = self._factors
        self._kept_seconds = f.front_probe + f.front_hit + f.output + f.stream_read
        """What a tuple takes if all of the master is in memory."""
        self._algorithm = lookup.algorithm
        self._sample = shape.sample(first)
        self._nothing = no_rows(shape.schema)
        self._skew = self._found_skew()
        with named(lookup):
            self.least = self._least() if shape.asked.is_plain else self._least_of_terms()
        self.whole = self._whole()
        self._points: list[tuple[float, float]] = []

    def draw(self, tuples: int, memory: int) -> None:
        """Ask the model for some points of the curve, up to so much memory, for such rounds."""
        self._points = []
        # A master that is kept whole is a step, not a point of the curve.
        most = self.whole - 1 if self.keeps_all(memory) else memory
        size = min(self.least, most)
        while True:
            self._points.append((math.log(size), self._modelled(size, max(tuples, 1))))
            if size >= most or self._is_flat():
                return
            size = min(size * _POINTS_APART, most)

    def _is_flat(self) -> bool:
        """Whether the last step has gained next to nothing, so that the next will not either."""
        return len(self._points) > 2 and self._points[-1][1] > _FLAT * self._points[-2][1]

    def seconds(self, memory: int) -> float:
        """What a tuple takes with so much memory; a straight line between points."""
        if self.keeps_all(memory):
            return self._kept_seconds
        at, points = math.log(memory), self._points
        for (low, slow), (high, fast) in pairwise(points):
            if at <= high:
                share = (at - low) / (high - low) if high > low else 1.0
                return min(slow, slow + (fast - slow) * share)
        return points[-1][1]

    def keeps_all(self, memory: int) -> bool:
        """Whether all of the master is kept in so much memory."""
        return 0 < self.whole <= memory

    def _modelled(self, memory: int, tuples: int) -> float:
        """Seconds of a tuple by the model: on average, if half of the pages are in memory."""
        if not self._master.row_count:
            return 0.0
        if self._algorithm != AUTO:
            return 1 / self._steady(self._algorithm, memory).rate
        plan = micro_batch_plan(
            self._master,
            self._shape.shape,
            self._nothing,
            memory,
            self._sizer.io,
            tuples,
            self._skew,
            self._options,
        )
        # With memory for next to nothing, the model of short runs has no plan.
        rate = plan.expected.rate if plan.expected else self._steady(ADAPTIVE, memory).rate
        if not plan.in_place_rows:
            return 1 / rate
        probe = self._factors.in_place_probe
        return (1 / rate + probe + _CHUNK_SECONDS / plan.stream_chunk_rows) / 2

    def _steady(self, algorithm: str, memory: int) -> Prediction:
        """What an algorithm does with a stream that never ends."""
        model = CostModel(
            self._master,
            self._shape.shape,
            self._nothing,
            self._skew,
            self._factors,
            self._sizer.io,
            self._sizer.use_filter,
        )
        return model.planned(algorithm, memory, self._options)

    def _found_skew(self) -> Skew:
        if self._sample.num_rows < _LEAST_SAMPLE or not self._master.row_count:
            return Skew(1.0)
        return resolved_skew(None, self._sample, self._shape.shape, self._master)[0]

    def _least(self) -> int:
        """The least memory, by the sample or by no more than the schema, whichever is more."""
        master, algorithm = self._master, self._algorithm
        name = ADAPTIVE if algorithm == AUTO else algorithm
        parts = [master.shard(i) for i in range(master.shard_count)]
        least = 0
        for part in parts if len(parts) > 1 else [master]:
            sizer = Sizer(part, self._sizer.io, self._sizer.use_filter)
            for sample in (self._nothing, self._sample):
                occasion = Occasion(self._shape.shape, sample, 1)
                found = sizer.sizing(name, occasion).least_memory(self._options)
                if found >= _NO_MEMORY:
                    sizer.sized(name, self._options, occasion)
                least = max(least, found)
        if len(parts) > 1:
            least = math.ceil(least * len(parts) * _SHARED_BY_SHARDS) + len(parts) + 4
        return least

    def _least_of_terms(self) -> int:
        """The same for a join on terms, which holds tuples of its own."""
        least = self._least()
        if self._master.shard_count > 1:
            return 2 * least + _NO_MORE_FOR_TERMS
        for sample in (self._nothing, self._sample):
            try:
                term_engine(self._shape, 1).planned(sample)
            except BudgetError as error:
                if error.least is None:
                    raise
                least = max(least, error.least)
        return least

    def _whole(self) -> int:
        """The memory in which a join keeps all of the master; 0 if it never does."""
        chosen = self._algorithm == AUTO and not self._options and self._shape.asked.is_plain
        if not chosen or not self._master.row_count or self._master.shard_count > 1:
            return 0
        options = {"pinned_partitions": max(self._master.page_count, 1)}
        sizing = self._sizer.sizing(IN_MEMORY, Occasion(self._shape.shape, self._nothing, 1))
        # A join leaves half free: tuples may be wider than their schema lets one guess.
        return 2 * sizing.least_memory(options)
