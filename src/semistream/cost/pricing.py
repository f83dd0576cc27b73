"""Pricing: operations that were counted, or are expected, times what each of them costs.

A *priced* rate is that of a run on the disk and the CPU that the factors describe. It depends on
the counters alone, so it comes out the same on any machine.
"""

from __future__ import annotations

from operator import mul

from semistream.cost.factors import CostFactors
from semistream.counters import FACTORS, Counted, operations
from semistream.metrics import Metrics


def priced_parts(counted: Counted, factors: CostFactors) -> dict[str, float]:
    """Seconds by kind of operation, under the names of the factors."""
    return dict(zip(FACTORS, map(mul, factors.prices, operations(counted)), strict=True))


def priced_seconds(counted: Counted, factors: CostFactors) -> float:
    """How long what was counted takes at these prices."""
    seconds: float = sum(map(mul, factors.prices, operations(counted)))
    return seconds


def priced_rate(metrics: Metrics, factors: CostFactors) -> float:
    """Stream tuples finished per priced second; 0 if nothing took any time."""
    seconds = priced_seconds(metrics, factors)
    return (metrics.joined + metrics.unmatched) / seconds if seconds > 0 else 0.0
