"""Several runs of engines, which together do the work of one task, as one."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from semistream.errors import InternalError
from semistream.metrics import Durations, Metrics

__all__ = ["EngineRuns"]


class EngineRuns:
    """What was counted in runs one after the other, and the most that each part has held."""

    def __init__(self) -> None:
        """None yet."""
        self._joint: Metrics | None = None
        self._peaks: dict[str, int] = {}

    def add(self, part: str, run: Metrics, elsewhere: int = 0) -> None:
        """A run is over. `elsewhere` are bytes of its peak that another part counts."""
        self._joint = run if self._joint is None else _joined(self._joint, run)
        self.hold(part, run.peak_memory - elsewhere)

    def hold(self, part: str, size: int) -> None:
        """A part has held so many bytes, from now on until the task's end."""
        self._peaks[part] = max(self._peaks.get(part, 0), size)

    def metrics(self, budget: int) -> Metrics:
        """All runs as one; the peak is the sum of what the parts have held at most.

        Counts and seconds are added up. Of durations the mean is exact, the median is that of
        the larger run, and the 99th percentile the highest: no less than the true one.
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
