"""Auto: the algorithm and its sizes, chosen by the model when the first tuples show the stream.

If all of R fits the budget it is kept in memory, as Optimised X-HYBRIDJOIN with everything pinned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from semistream.algorithms.registry import needs_of
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
WORTHWHILE = ("chybridjoin", "hybridjoin", "oxhybridjoin", "xhybridjoin", "cmeshjoin", "rmeshjoin")
"""Those that are the best somewhere, as long as there is memory for any of them."""
_ADAPTIVE = ("chybridjoin",)
"""For a stream of which nothing is known: its front stage finds out and gives memory back."""
_LEAST_SAMPLE = 1000


@dataclass(frozen=True)
class AutoChoice:
    """Chooses for one master; called with the first batch of a stream."""

    master: MasterTable
    io: str
    options: Mapping[str, Any]
    skew: Skew | None = None
    """The stream's skew, if it is known; else the first batch tells."""

    def __call__(self, shape: JoinShape, first: pa.RecordBatch, memory: int) -> JoinPlan:
        """The plan, with its options and what is expected of it."""
        if not self.master.row_count:
            sizing = Sizing(needs_of("chybridjoin"), self.master, shape, first)
            return sizing.plan(memory, self.options)
        known = known_factors(self.io)
        given: Skew | SkewEstimate | None = self.skew
        unknown = given is None and first.num_rows < _LEAST_SAMPLE
        skew, told = resolved_skew(Skew(1.0) if unknown else given, first, shape, self.master)
        told = "not known yet, so one that adapts" if unknown else told
        model = CostModel(self.master, shape, first, skew, known.factors, self.io)
        tuner = Tuner(model, self.options)
        basis = (f"skew: {told}", f"cost factors: {known.source}")
        fits = in_memory(self.master, shape, first, memory)
        if fits is not None and not self.options:
            everything = [model.planned(IN_MEMORY, memory, fits)]
            return explained(tuner, everything, ("all of R fits: it is kept in memory", *basis), ())
        try:
            ranked = tuner.choose(memory, _ADAPTIVE if unknown else WORTHWHILE)
        except BudgetError:
            ranked = tuner.choose(memory)
        return explained(tuner, ranked, basis, ())


def in_memory(
    master: MasterTable, shape: JoinShape, sample: pa.RecordBatch, memory: int
) -> dict[str, int] | None:
    """The options by which all of R is kept in memory, if it fits."""
    options = {"pinned_partitions": max(master.page_count, 1)}
    plan = Sizing(needs_of(IN_MEMORY), master, shape, sample).plan_or_none(memory, options)
    return None if plan is None else options
