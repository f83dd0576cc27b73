"""Auto: the algorithm and its sizes, chosen by the model when the first tuples show the stream.

If all of R fits the budget it is kept in memory, as Optimised X-HYBRIDJOIN with everything pinned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from semistream.algorithms.options import Options
from semistream.algorithms.planner import Occasion, Sizer
from semistream.algorithms.registry import AUTO, needs_of
from semistream.algorithms.sizing import Sizing
from semistream.cost.factors import known_factors
from semistream.cost.model import CostModel
from semistream.cost.planning import explained, resolved_skew
from semistream.cost.skew import Skew
from semistream.cost.skew_estimate import SkewEstimate
from semistream.cost.tuner import Tuner
from semistream.errors import BudgetError
from semistream.parts.join_shape import JoinShape
from semistream.plan import JoinPlan
from semistream.relation import MasterTable

IN_MEMORY = "oxhybridjoin"
"""The algorithm that keeps all of R, if all of it is pinned."""
ADAPTIVE = "chybridjoin"
"""For a stream of which nothing is known: its front stage finds out and gives memory back."""
FRUGAL = "inlj"
"""For an empty master and hardly any memory."""
WORTHWHILE = (
    *("demandjoin", "chybridjoin", "hybridjoin", "oxhybridjoin", "xhybridjoin", "cmeshjoin"),
    "rmeshjoin",
)
"""Those that are the best somewhere, as long as there is memory for any of them."""
_LEAST_SAMPLE = 1000
_WORTH_A_STEP = 1024
"""Tuples of a chunk that is found in place."""


@dataclass(frozen=True)
class AutoPlanner:
    """The planner of an engine whose algorithm is chosen by the model, once."""

    master: MasterTable
    io: str
    options: Options
    sizer: Sizer
    skew: Skew | None = None
    """The stream's skew, if it is known; else the first batch tells."""
    name: str = AUTO

    def plan(self, occasion: Occasion) -> JoinPlan:
        """The plan, with its options and what is expected of it."""
        if not self.master.row_count or self.master.is_live:
            return adaptive_plan(self.sizer, self.options, occasion)
        return final_plan(self.sizer, self._chosen(occasion), occasion)

    def _chosen(self, occasion: Occasion) -> JoinPlan:
        shape, first, memory = occasion.shape, occasion.first, occasion.memory
        known, use_filter = known_factors(self.io), self.sizer.use_filter
        given: Skew | SkewEstimate | None = self.skew
        unknown = given is None and first.num_rows < _LEAST_SAMPLE
        skew, told = resolved_skew(Skew(1.0) if unknown else given, first, shape, self.master)
        told = "not known yet, so one that adapts" if unknown else told
        model = CostModel(self.master, shape, first, skew, known.factors, self.io, use_filter)
        tuner = Tuner(model, self.options)
        basis = (f"skew: {told}", f"cost factors: {known.source}")
        fits = in_memory(self.master, shape, first, memory, use_filter, self.io, _WORTH_A_STEP)
        if fits is not None and not self.options:
            everything = [model.planned(IN_MEMORY, memory, fits)]
            return explained(tuner, everything, ("all of R fits: it is kept in memory", *basis), ())
        try:
            names = (ADAPTIVE,) if unknown else rivals(model, occasion.queued)
            ranked = tuner.choose(memory, names)
        except BudgetError:
            ranked = tuner.choose(memory)
        return explained(tuner, ranked, basis, ())


def adaptive_plan(sizer: Sizer, options: Options, occasion: Occasion) -> JoinPlan:
    """The plan where nothing is to be compared: for an empty master, or one in a database.

    There a round trip costs more than all else, so what asks for many keys at a time is best.
    """
    try:
        return sizer.sized(ADAPTIVE, options, occasion)
    except BudgetError:
        if occasion.queued:
            raise
        return sizer.sized(FRUGAL, options, occasion)


def rivals(model: CostModel, queued: bool) -> list[str]:
    """The algorithms to choose from; if `queued`, those that have an arrival queue."""
    names = [name for name in WORTHWHILE if name in model.candidates]
    return [name for name in names if needs_of(name).queue or not queued]


def final_plan(sizer: Sizer, chosen: JoinPlan, occasion: Occasion) -> JoinPlan:
    """A plan that the model has chosen, with the sizes of just this occasion."""
    occasion = replace(occasion, memory=chosen.memory)
    sized = sizer.sized(chosen.algorithm, chosen.options, occasion)
    return replace(sized, options=chosen.options, expected=chosen.expected)


def in_memory(
    master: MasterTable,
    shape: JoinShape,
    sample: pa.RecordBatch,
    memory: int,
    use_filter: bool | None = None,
    io: str = "buffered",
    least_chunk: int = 0,
) -> dict[str, int] | None:
    """The options by which all of R is kept in memory, if it fits and does not change.

    Where pages are searched in place, chunks of the stream must have at least so many tuples: a
    copy of R saves less than small chunks cost.
    """
    if master.is_live:
        return None
    options = {"pinned_partitions": max(master.page_count, 1)}
    sizing = Sizing(needs_of(IN_MEMORY), master, shape, sample, use_filter, io)
    plan = sizing.plan_or_none(memory, options)
    if plan is None or (plan.in_place_rows and plan.stream_chunk_rows < least_chunk):
        return None
    return options
