"""Pricing: operations that were counted, or are expected, times what each of them costs.

A *priced* rate is that of a run on the disk and the CPU that the factors describe. It depends on
the counters alone, so it comes out the same on any machine.
"""

from __future__ import annotations

from operator import mul
from typing import Final

from semistream.cost.factors import CostFactors
from semistream.counters import FACTORS, Counted, operations
from semistream.metrics import Metrics

_BATCHED: Final = tuple(map(FACTORS.index, ("batched_read", "batched_byte")))
_SINGLE: Final = tuple(map(FACTORS.index, ("partition_read", "sequential_read", "byte_read")))


def in_background(counted: Counted) -> list[float]:
    """For each of `FACTORS`, the share of its operations that threads do while the join goes on."""
    shares = [0.0] * len(FACTORS)
    for place in _BATCHED:
        shares[place] = 1.0
    single = counted.partitions_read - counted.batched_reads
    if counted.reads_ahead and single > 0:
        for place in _SINGLE:
            shares[place] = min(1.0, counted.reads_ahead / single)
    return shares


def priced_parts(counted: Counted, factors: CostFactors) -> dict[str, float]:
    """Seconds by kind of operation, under the names of the factors; they add up to all of them."""
    parts, shares = _parts(counted, factors), in_background(counted)
    behind = sum(map(mul, parts, shares))
    is_hidden = behind <= sum(parts) - behind
    hidden = [share if is_hidden else 1 - share for share in shares]
    return {
        name: part * (1 - factors.overlap * share)
        for name, part, share in zip(FACTORS, parts, hidden, strict=True)
    }


def priced_seconds(counted: Counted, factors: CostFactors) -> float:
    """How long what was counted takes at these prices."""
    parts = _parts(counted, factors)
    seconds = sum(parts)
    if factors.overlap:
        behind = sum(map(mul, parts, in_background(counted)))
        seconds -= factors.overlap * min(behind, seconds - behind)
    return seconds


def _parts(counted: Counted, factors: CostFactors) -> list[float]:
    return [*map(mul, factors.prices, operations(counted))]


def priced_rate(metrics: Metrics, factors: CostFactors) -> float:
    """Stream tuples finished per priced second; 0 if nothing took any time."""
    seconds = priced_seconds(metrics, factors)
    return (metrics.joined + metrics.unmatched) / seconds if seconds > 0 else 0.0
