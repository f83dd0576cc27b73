"""The metrics of one task, added up from several runs of engines."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from semistream.errors import InternalError
from semistream.metrics import Durations, Metrics

__all__ = ["EngineRuns"]


class EngineRuns:
    """Adds up runs that follow one another, and keeps the most that each part has held."""

    def __init__(self) -> None:
        """No runs yet."""
        self._joint: Metrics | None = None
        self._peaks: dict[str, int] = {}

    def add(self, part: str, run: Metrics, elsewhere: int = 0) -> None:
        """Add a run of a part. `elsewhere`: bytes of its peak that count for another part."""
        self._joint = run if self._joint is None else _joined(self._joint, run)
        self.hold(part, run.peak_memory - elsewhere)

    def hold(self, part: str, size: int) -> None:
        """Note that a part holds this many bytes, until the end of the task."""
        self._peaks[part] = max(self._peaks.get(part, 0), size)

    def metrics(self, budget: int) -> Metrics:
        """All runs as one; the peak is the sum of the most that each part has held.

        Counts and seconds are added up. The mean of durations is exact, the median is that of the
        larger run, and the 99th percentile is the highest, so it is never too low.
        """
        if self._joint is None:
            raise InternalError("No engine has run, so there are no metrics. Run the join first.")
        return replace(self._joint, peak_memory=sum(self._peaks.values()), budget=budget)


def _joined(one: Metrics, other: Metrics) -> Metrics:
    sums: dict[str, Any] = {}
    for each in fields(Metrics):
        mine, its = getattr(one, each.name), getattr(other, each.name)
        if isinstance(mine, Durations):
            sums[each.name] = _joint(mine, _finished(one), its, _finished(other))
        elif not isinstance(mine, str):
            sums[each.name] = mine + its
    return replace(one, **sums)


def _finished(run: Metrics) -> int:
    return run.joined + run.unmatched


def _joint(one: Durations, count: int, other: Durations, other_count: int) -> Durations:
    mean = (one.mean * count + other.mean * other_count) / max(count + other_count, 1)
    larger = one if count >= other_count else other
    return Durations(mean, larger.p50, max(one.p99, other.p99))
