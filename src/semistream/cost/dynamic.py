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

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from semistream.algorithms import Engine, engine
from semistream.algorithms.engine import Stream
from semistream.budget import parse_memory
from semistream.cost.auto import IN_MEMORY, WORTHWHILE, in_memory
from semistream.cost.factors import CostFactors, known_factors
from semistream.cost.model import CostModel
from semistream.cost.planning import explained, keyed_codes
from semistream.cost.prediction import Prediction
from semistream.cost.pricing import priced_seconds
from semistream.cost.skew import Skew
from semistream.cost.skew_estimate import estimate_skew
from semistream.cost.tuner import Tuner
from semistream.errors import OptionError, RateError
from semistream.metrics import Clock, Metrics
from semistream.parts.join_shape import JoinShape, On
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
"""No plan is asked for with a smaller sample."""


class TunedEngine:
    """A join without Spark that chooses its plan, and chooses again when the stream changes."""

    def __init__(
        self,
        master: MasterTable,
        *,
        on: On,
        how: str = "inner",
        memory: int | str,
        rate: float | str | None = None,
        io: str = "buffered",
        columns: Sequence[str] | None = None,
        clock: Clock = time.perf_counter,
        factors: CostFactors | None = None,
        check_every: int = 100_000,
    ) -> None:
        """As `engine`; `rate` is the arrival rate if it is known, or "measured".

        Every `check_every` tuples the sample is looked at.
        """
        if check_every < 1:
            raise OptionError(f"check_every={check_every!r} must be at least 1.")
        if not (rate in (None, MEASURED) or (isinstance(rate, float | int) and rate > 0)):
            raise OptionError(f'rate={rate!r} must be tuples per second, or "{MEASURED}".')
        self._master, self._on, self._how = master, on, how
        self._most = parse_memory(memory)
        self._rate, self._io, self._columns, self._clock = rate, io, columns, clock
        self._factors = factors or known_factors(io).factors
        self._every = check_every
        self._sample: deque[np.ndarray[tuple[int], np.dtype[np.int64]]] = deque()
        self._ended: list[Metrics] = []
        self._engine: Engine | None = None
        self._runs = False
        self._skew: Skew | None = None
        self._pace = _Pace(clock)
        self._planned_rate: float | None = None
        self.plans: list[JoinPlan] = []
        """The plans so far, the one in use last."""

    def run(self, batches: Stream) -> Iterator[pa.RecordBatch]:
        """Join a stream; result batches as they come, as from `Engine.run`."""
        if isinstance(batches, pa.RecordBatch):
            batches = [batches]
        pending = iter(batches.to_batches() if isinstance(batches, pa.Table) else batches)
        self._pace = _Pace(self._clock)
        held = next(pending, None)
        if held is not None:
            self._observe(held)
        while held is not None:
            some = self._planned(held)
            section = _Section(held, pending, self._wants_other_plan, self._every, self._pace)
            self._runs = True
            yield from some.run(section)
            self._runs = False
            held = section.held
            self._ended.append(some.metrics())
            if held is not None:
                some.close()
                self._engine = None

    def metrics(self) -> Metrics:
        """All plans together, as `Metrics.merge` has it."""
        running = [] if self._engine is None or not self._runs else [self._engine.metrics()]
        if not (self._ended or running):
            raise OptionError("Nothing has run yet, so there are no metrics.")
        return Metrics.merge([*self._ended, *running])

    def memory(self) -> dict[str, int]:
        """Bytes by part of the plan in use; its "budget" may be less than was given."""
        return {} if self._engine is None else self._engine.memory()

    def close(self) -> None:
        """Close the files and give the memory back."""
        if self._engine is not None:
            self._engine.close()

    def _planned(self, first: pa.RecordBatch) -> Engine:
        """The engine in use, or one for what the sample shows."""
        if self._engine is None:
            shape = JoinShape(first.schema, self._master, self._on, self._how, self._columns)
            if not self._master.row_count:
                # There is nothing to choose by.
                self._engine = self._made("chybridjoin", self._most, {})
                return self._engine
            skew, ranked, tuner = self._ranked(shape, first)
            self._skew = skew
            basis = (f"skew: exponent {skew.exponent:.2f}, seen while running",)
            self.plans.append(explained(tuner, ranked, basis, ()))
            plan = self.plans[-1]
            self._engine = self._made(plan.algorithm, plan.memory, plan.options)
        return self._engine

    def _made(self, algorithm: str, memory: int, options: Mapping[str, Any]) -> Engine:
        return engine(
            self._master,
            algorithm=algorithm,
            on=self._on,
            how=self._how,
            memory=memory,
            io=self._io,
            columns=self._columns,
            clock=self._clock,
            **options,
        )

    def _ranked(
        self, shape: JoinShape, first: pa.RecordBatch
    ) -> tuple[Skew, list[Prediction], Tuner]:
        skew = self._seen_skew()
        model = CostModel(self._master, shape, first, skew, self._scaled(), self._io)
        tuner = Tuner(model)
        self._planned_rate = rate = self._arrival_rate()
        if rate is not None:
            try:
                cheapest = tuner.cheapest(rate * _SPARE, WORTHWHILE)
                if cheapest.plan.memory <= self._most:
                    return skew, [cheapest], tuner
            except RateError:
                pass  # Then as fast as the memory allows.
        fits = in_memory(self._master, shape, first, self._most)
        if fits is not None:
            return skew, [model.planned(IN_MEMORY, self._most, fits)], tuner
        return skew, tuner.choose(self._most, WORTHWHILE), tuner

    def _wants_other_plan(self, batch: pa.RecordBatch, due: bool) -> bool:
        """Whether the next batch should be joined by another plan."""
        self._observe(batch)
        if not due or self._skew is None or sum(map(len, self._sample)) < _LEAST_TUPLES:
            return False
        seen = self._seen_skew()
        if abs(seen.exponent - self._skew.exponent) < _MOVED and not self._pace_changed():
            return False
        shape = JoinShape(batch.schema, self._master, self._on, self._how, self._columns)
        skew, ranked, tuner = self._ranked(shape, batch)
        now, best = self.plans[-1], ranked[0]
        kept = tuner.tried(now.algorithm, now.memory, now.options)
        self._skew = skew
        if kept is None:
            return True
        if self._rate is not None and not 1 / _CLEARLY < best.plan.memory / now.memory < _CLEARLY:
            return True
        return self._planned_rate is None and best.rate > _CLEARLY * kept.rate

    def _arrival_rate(self) -> float | None:
        """Tuples per second; None: unknown, or more than the join can say."""
        if self._rate is None or self._rate == MEASURED:
            return self._pace.rate if self._rate == MEASURED else None
        return float(self._rate)

    def _pace_changed(self) -> bool:
        """Whether the arrival rate is another than the plan was made for."""
        if self._rate is None:
            return False
        self._pace.look()
        if self._rate != MEASURED:
            # The join should wait for its stream now and then; if it does not, it is too slow.
            return self._pace.busy and self.plans[-1].memory < self._most
        before, now = self._planned_rate, self._pace.rate
        if before is None or now is None:
            return before is not now
        return not 1 / _SPARE < now / before < _SPARE

    def _observe(self, batch: pa.RecordBatch) -> None:
        """Sample the keys of a batch; the oldest are forgotten."""
        shape = JoinShape(batch.schema, self._master, self._on, self._how, self._columns)
        codes = keyed_codes(shape, batch.slice(0, _PER_BATCH))
        if len(codes):
            self._sample.append(np.array(codes))
        while sum(map(len, self._sample)) > _SAMPLE:
            self._sample.popleft()

    def _seen_skew(self) -> Skew:
        if not self._sample:
            return Skew(0.0)
        estimate = estimate_skew(np.concatenate(list(self._sample)), self._master.row_count)
        return replace(estimate.skew, keys=None)

    def _scaled(self) -> CostFactors:
        """The factors, all by as much as the runs so far took longer or shorter than priced."""
        running = [] if self._engine is None or not self._runs else [self._engine.metrics()]
        runs = [*self._ended, *running]
        priced = sum(priced_seconds(metrics, self._factors) for metrics in runs)
        taken = sum(metrics.seconds for metrics in runs) - self._pace.waited
        if not (priced > 0 and taken > 0):
            return self._factors
        scale = taken / priced
        scaled: dict[str, Any] = {
            field.name: None if value is None else value * scale
            for field in fields(CostFactors)
            for value in (getattr(self._factors, field.name),)
        }
        return CostFactors(**scaled)


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

    def next(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
        """The next batch, and note how long it took to come."""
        asked = self._clock()
        batch = next(batches, None)
        self.waited += self._clock() - asked
        self._tuples += 0 if batch is None else batch.num_rows
        return batch

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


class _Section:
    """The batches that one plan joins; the first one that wants another plan is held back."""

    def __init__(
        self,
        first: pa.RecordBatch,
        rest: Iterator[pa.RecordBatch],
        ends: Callable[[pa.RecordBatch, bool], bool],
        every: int,
        pace: _Pace,
    ) -> None:
        """Every so many tuples it is asked whether the section ends."""
        self.held: pa.RecordBatch | None = None
        self._first, self._rest, self._ends, self._every = first, rest, ends, every
        self._pace = pace

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield self._first
        since = 0
        while (batch := self._pace.next(self._rest)) is not None:
            since += batch.num_rows
            due = since >= self._every
            since = 0 if due else since
            if self._ends(batch, due):
                self.held = batch
                return
            yield batch
