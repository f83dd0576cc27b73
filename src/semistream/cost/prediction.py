"""Prediction: what a plan will do and cost for each stream tuple, once it is warm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from semistream.cost.factors import CostFactors
from semistream.cost.pricing import priced_parts, priced_seconds
from semistream.counters import Counters
from semistream.plan import JoinPlan

_UNCHANGED = 0.9, 1.1
"""A front stage whose size changes by less has the size that it begins with."""


class Operations(Counters[float]):
    """Operations per stream tuple, by counter."""


@dataclass(frozen=True)
class Prediction:
    """What a plan does in the steady state, for a stream that never runs dry."""

    plan: JoinPlan
    operations: Operations
    factors: CostFactors
    hit_share: float
    """The share of stream tuples that the front stage answers."""
    waiting: float
    """Stream tuples that wait at a time."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the plan was made with."""
    front_change: float = 1.0
    """The rows that the front stage will have, divided by those that it begins with."""

    @property
    def rate(self) -> float:
        """Stream tuples finished per second (μ)."""
        seconds = priced_seconds(self.operations, self.factors)
        return 1 / seconds if seconds > 0 else float("inf")

    @property
    def shrinks(self) -> bool:
        """Whether the front stage will give up memory that does not pay there."""
        return self.front_change < _UNCHANGED[0]

    @property
    def grows(self) -> bool:
        """Whether the front stage will take memory that pays there."""
        return self.front_change > _UNCHANGED[1]

    @property
    def io_per_tuple(self) -> float:
        """Pages of R read per stream tuple."""
        return self.operations.pages_read

    @property
    def wait_seconds(self) -> float:
        """How long a stream tuple waits on average: by Little's law, waiting tuples / rate."""
        return self.waiting / self.rate

    @property
    def seconds_by_operation(self) -> dict[str, float]:
        """Seconds per stream tuple, by cost factor."""
        return priced_parts(self.operations, self.factors)
