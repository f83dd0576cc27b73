"""Sizes for micro-batches: what a join on Spark runs, chosen by a model of one short run.

The sizes with the lowest cost are taken; `run_model` says what they cost. They are kept until runs
have been more than twice as long, or less than half as long, for some time, and other sizes would
be clearly better.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from semistream.algorithms.engine import Engine, Stream
from semistream.algorithms.options import Options, check_engine
from semistream.algorithms.planner import Occasion, Sizer
from semistream.algorithms.registry import AUTO, needs_of
from semistream.arrow_arrays import to_arrow
from semistream.budget import parse_memory
from semistream.cost.auto import ADAPTIVE, IN_MEMORY, adaptive_plan, final_plan, in_memory
from semistream.cost.factors import known_factors
from semistream.cost.model import CostModel
from semistream.cost.pieces import BATCH_ROWS
from semistream.cost.planning import explained, resolved_skew
from semistream.cost.run_model import RunCost, RunModel, RunStream
from semistream.cost.skew import Skew
from semistream.cost.tuner import Tuner
from semistream.errors import OptionError
from semistream.kernels.mapped_index import RESIDENT
from semistream.metrics import Clock
from semistream.parts.join_shape import JoinShape, On
from semistream.plan import Expectation, JoinPlan
from semistream.relation import MasterTable, mapped_pages

__all__ = ["MicroBatchEngine", "MicroBatchPlanner", "micro_batch_engine", "micro_batch_plan"]

_USUAL_TUPLES: Final = 50_000
"""Tuples of a run, as long as none has been seen."""
_LEAST_SAMPLE: Final = 100
_REMEMBERED: Final = 256
"""Tuples that are kept to size another plan by."""
_RUNS: Final = 4
"""So many runs in a row must be longer or shorter before sizes are chosen again."""
_CHANGED: Final = 2.0
_CLEARLY: Final = 1.25
"""A plan must be so much better to give up what the front stage has learned."""


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
        self._seen: tuple[RunStream, Occasion] | None = None

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

    def _stream(self, occasion: Occasion) -> tuple[RunStream, str]:
        """What is known of the stream, and where the skew comes from."""
        first, master, tuples = occasion.first, self._sizer.master, self._tuples
        if tuples is None:
            # Only the last batch that Spark gives a task is shorter.
            whole = 0 < first.num_rows < BATCH_ROWS
            tuples = float(first.num_rows if whole else _USUAL_TUPLES)
        unknown = self._skew is None and first.num_rows < _LEAST_SAMPLE
        given = Skew(1.0) if unknown else self._skew
        skew, told = resolved_skew(given, first, occasion.shape, master)
        # An empty first batch is a task with nothing to do: it is not worth the look.
        is_asked = first.num_rows > 0 or self._tuples is not None
        surveyed = self._sizer.io == "buffered" and is_asked
        held = _held(master) if surveyed else 0.0
        return RunStream(
            tuples, held, skew
        ), f"skew: {'not known, so as if 1' if unknown else told}"

    def _model(self, occasion: Occasion, stream: RunStream) -> RunModel:
        factors = known_factors(self._sizer.io).factors
        return RunModel(self._sizer, occasion, self._options, stream, factors)


def _explained(cost: RunCost, basis: tuple[str, ...], exponent: float) -> JoinPlan:
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
    _check_options(options)
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
    _check_options(options)
    sizer, occasion = Sizer(master, io, None), Occasion(shape, sample, memory)
    return MicroBatchPlanner(sizer, options, tuples, skew).plan(occasion)


def _check_options(options: Options) -> None:
    """Refuse those of algorithms that a task is never given; they would be ignored in silence."""
    known = needs_of(ADAPTIVE).options
    for name in options:
        if name not in known:
            raise OptionError(
                f'A task of a micro-batch with algorithm="auto" has no option {name!r}: it runs '
                f"{ADAPTIVE} or hybridjoin, whose options are {', '.join(known)}. Name the "
                "algorithm that you mean."
            )
