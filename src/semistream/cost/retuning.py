"""Dynamic tuning: a join that follows its stream (Polyzotis et al. 2007, §3.3, for all sizes).

The keys that arrive are sampled. When their skew has moved away from what the plan was made for,
the model is asked again; if another plan promises clearly more, the stream is held for a moment,
what waits is finished, and the join goes on with the new plan. So nothing waits across a change,
and no tuple is lost or joined twice.

    stream ─► sample ─► skew moved? ─► better plan? ─► finish what waits ─► other parts
                                                             └─► go on with the next batch

With a known arrival rate the least memory that serves it is taken, and the rest is given back. With
`rate="measured"` the rate is that at which tuples come while the join waits for them, if it does;
when it no longer waits, it gets all of its memory again. In between, front stage and stream table
move memory by themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa

from semistream.algorithms.options import Options
from semistream.algorithms.planner import Occasion, Sizer
from semistream.algorithms.registry import AUTO
from semistream.cost.auto import IN_MEMORY, adaptive_plan, final_plan, in_memory, rivals
from semistream.cost.factors import CostFactors, check_factors, known_factors
from semistream.cost.model import CostModel
from semistream.cost.planning import explained, keyed_codes
from semistream.cost.popularity import key_count
from semistream.cost.prediction import Prediction
from semistream.cost.pricing import priced_seconds
from semistream.cost.skew import Skew
from semistream.cost.skew_estimate import estimate_skew
from semistream.cost.tuner import Tuner
from semistream.errors import BudgetError, OptionError, RateError
from semistream.metrics import Clock, Recorder
from semistream.parts.join_shape import JoinShape
from semistream.plan import JoinPlan
from semistream.relation import MasterTable

MEASURED: Final = "measured"
_SAMPLE = 16_384
_PER_BATCH = 2_048
_MOVED = 0.15
"""An exponent that differs by as much asks for another plan."""
_CLEARLY = 1.1
_SPARE = 1.2
"""A plan for an arrival rate has so much more than it needs, for bursts."""
_IDLE, _BUSY = 0.5, 0.05
"""Shares of the time spent on waiting for tuples, above and below which the rate is looked at."""
_LEAST_TUPLES = 5_000
"""No other plan is asked for with a smaller sample."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class Retuning:
    """How an engine follows its stream: `ss.engine(…, retune=ss.Retuning(rate=20_000))`.

    `rate` is the arrival rate in tuples per second if it is known, or "measured"; then the engine
    takes no more memory than serves it. Every `check_every` tuples the sample is looked at.
    `factors` are by default those measured on this machine, or shipped if none were.
    """

    rate: float | str | None = None
    check_every: int = 100_000
    factors: CostFactors | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        if type(self.check_every) is not int or self.check_every < 1:
            raise OptionError(f"check_every={self.check_every!r} must be at least 1.")
        rate = self.rate
        if not (rate in (None, MEASURED) or (isinstance(rate, float | int) and rate > 0)):
            raise OptionError(f'rate={rate!r} must be tuples per second, or "{MEASURED}".')
        check_factors(self.factors)


class RetuningPlanner:
    """The planner of an engine that chooses its plan, and again when the stream has changed."""

    def __init__(
        self,
        master: MasterTable,
        io: str,
        algorithm: str,
        options: Options,
        sizer: Sizer,
        clock: Clock,
        memory: int,
        retuning: Retuning,
    ) -> None:
        """With an `algorithm` other than "auto" only its sizes are chosen."""
        self.name = algorithm
        self._master, self._io, self._sizer, self._clock = master, io, sizer, clock
        self._options, self._memory = options, memory
        self._retuning = retuning
        self._factors = retuning.factors or known_factors(io).factors
        self._sample: deque[np.ndarray[tuple[int], np.dtype[np.int64]]] = deque()
        self._pace = _Pace(clock)
        self._first = True
        self._plan: JoinPlan | None = None
        self._skew = Skew(0.0)
        self._rate: float | None = None
        self._since_check = 0
        self._scale = 1.0

    def start(self, timed: bool) -> None:
        """A run begins: its pace is not known, what was seen of its keys still tells."""
        if timed and self._retuning.rate == MEASURED:
            raise OptionError(
                'rate="measured" is for run(): a timed stream says when its tuples arrive. '
                "Give the rate in tuples per second."
            )
        self._pace = _Pace(self._clock)
        self._first = True

    def pull(self, items: Iterator[_T]) -> _T:
        """The next of them; how long it takes to come tells how fast the stream is."""
        return self._pace.pull(items)

    def plan(self, occasion: Occasion) -> JoinPlan:
        """The plan for what has been seen so far."""
        if not self._master.row_count:
            if self.name == AUTO:
                return adaptive_plan(self._sizer, self._options, occasion)
            return self._sizer.sized(self.name, self._options, occasion)
        skew = self._seen_skew()
        ranked, tuner = self._ranked(occasion, skew)
        basis = (f"skew: exponent {skew.exponent:.2f}, seen while running",)
        return final_plan(self._sizer, explained(tuner, ranked, basis, ()), occasion)

    def use(self, plan: JoinPlan) -> None:
        """The join goes on with this plan, which was made for what has been seen."""
        self._plan, self._skew, self._rate = plan, self._seen_skew(), self._arrival_rate()
        self._since_check = 0

    def wants_another(self, occasion: Occasion, counted: Recorder) -> bool:
        """Whether the next batch should be joined by another plan."""
        first, self._first = self._first, False
        self._observe(occasion.shape, occasion.first)
        self._since_check += occasion.first.num_rows
        if first or self._plan is None or self._since_check < self._retuning.check_every:
            return False
        self._since_check = 0
        if not self._master.row_count or sum(map(len, self._sample)) < _LEAST_TUPLES:
            return False
        seen = self._seen_skew()
        if abs(seen.exponent - self._skew.exponent) < _MOVED and not self._pace_changed():
            return False
        self._scale = self._scale_of(counted)
        ranked, tuner = self._ranked(occasion, seen)
        self._skew = seen
        return self._is_better(ranked[0], tuner)

    def _is_better(self, best: Prediction, tuner: Tuner) -> bool:
        """Whether a plan is worth the change; less memory for the same rate is."""
        assert self._plan is not None
        now = self._plan
        kept = tuner.tried(now.algorithm, now.memory, now.options)
        if kept is None:
            return True
        if self._retuning.rate is not None and not (
            1 / _CLEARLY < best.plan.memory / now.memory < _CLEARLY
        ):
            return True
        return self._arrival_rate() is None and best.rate > _CLEARLY * kept.rate

    def _ranked(self, occasion: Occasion, skew: Skew) -> tuple[list[Prediction], Tuner]:
        """The plans to choose from, the best first."""
        shape, first, memory = occasion.shape, occasion.first, occasion.memory
        use_filter, factors = self._sizer.use_filter, self._scaled()
        model = CostModel(self._master, shape, first, skew, factors, self._io, use_filter)
        tuner = Tuner(model, self._options)
        names = rivals(model, occasion.queued) if self.name == AUTO else [self.name]
        rate = self._arrival_rate()
        if rate is not None:
            try:
                cheapest = tuner.cheapest(rate * _SPARE, names)
                if cheapest.plan.memory <= memory:
                    return [cheapest], tuner
            except RateError:
                pass  # Then as fast as the memory allows.
        fits = in_memory(self._master, shape, first, memory, use_filter, self._io)
        if fits is not None and self._may_keep_all:
            return [model.planned(IN_MEMORY, memory, fits)], tuner
        try:
            return tuner.choose(memory, names), tuner
        except BudgetError:
            if self.name != AUTO or occasion.queued:
                raise
            return tuner.choose(memory), tuner

    @property
    def _may_keep_all(self) -> bool:
        return self.name in (AUTO, IN_MEMORY) and not self._options

    def _arrival_rate(self) -> float | None:
        """Tuples per second; None: unknown, or more than the join can say."""
        rate = self._retuning.rate
        if isinstance(rate, str) or rate is None:
            return self._pace.rate if rate == MEASURED else None
        return float(rate)

    def _pace_changed(self) -> bool:
        """Whether the arrival rate is another than the plan was made for."""
        if self._retuning.rate is None or self._plan is None:
            return False
        self._pace.look()
        if self._retuning.rate != MEASURED:
            # The join should wait for its stream now and then; if it does not, it is too slow.
            return self._pace.busy and self._plan.memory < self._memory
        before, now = self._rate, self._pace.rate
        if before is None or now is None:
            return before is not now
        return not 1 / _SPARE < now / before < _SPARE

    def _observe(self, shape: JoinShape, batch: pa.RecordBatch) -> None:
        """Sample the keys of a batch; the oldest are forgotten."""
        self._pace.came(batch.num_rows)
        codes = keyed_codes(shape, batch.slice(0, _PER_BATCH))
        if len(codes):
            self._sample.append(np.array(codes))
        while sum(map(len, self._sample)) > _SAMPLE:
            self._sample.popleft()

    def _seen_skew(self) -> Skew:
        if not self._sample:
            return Skew(0.0)
        estimate = estimate_skew(np.concatenate(list(self._sample)), key_count(self._master))
        return replace(estimate.skew, keys=None)

    def _scale_of(self, counted: Recorder) -> float:
        """How much longer this run takes than its operations are priced at; 1 if not known."""
        priced = priced_seconds(counted, self._factors)
        taken = counted.seconds - self._pace.waited
        return taken / priced if priced > 0 and taken > 0 else 1.0

    def _scaled(self) -> CostFactors:
        """The factors, all by as much as runs took longer or shorter than priced."""
        return self._factors.times(self._scale)


class _Pace:
    """How fast tuples come, as far as a join that pulls them can tell."""

    def __init__(self, clock: Clock) -> None:
        """Nothing has come yet."""
        self.rate: float | None = None
        """Tuples per second; None: unknown, or more than the join can take."""
        self.waited = 0.0
        """Seconds that were spent on waiting for tuples."""
        self.busy = False
        """Whether the join hardly waited, between the last two looks."""
        self._clock = clock
        self._tuples = 0
        self._looked_at, self._waited_then = clock(), 0.0

    def pull(self, items: Iterator[_T]) -> _T:
        """The next item, and note how long it took to come."""
        asked = self._clock()
        try:
            return next(items)
        finally:
            self.waited += self._clock() - asked

    def came(self, tuples: int) -> None:
        """So many tuples have come."""
        self._tuples += tuples

    def look(self) -> None:
        """Work the rate out from what has come since the last time, if that tells."""
        now = self._clock()
        taken, waited = now - self._looked_at, self.waited - self._waited_then
        self.busy = waited < _BUSY * taken
        if waited > _IDLE * taken:
            self.rate = self._tuples / taken
        elif self.busy:
            self.rate = None
        self._tuples, self._looked_at, self._waited_then = 0, now, self.waited
