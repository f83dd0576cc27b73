"""The metrics of one task, added up from several runs of engines."""

from __future__ import annotations

from dataclasses import replace

from semistream.errors import InternalError
from semistream.metrics import Metrics

__all__ = ["EngineRuns"]


class EngineRuns:
    """Adds up runs that follow one another, and keeps the most that each part has held."""

    def __init__(self) -> None:
        """No runs yet."""
        self._joint: Metrics | None = None
        self._peaks: dict[str, int] = {}

    def add(self, part: str, run: Metrics, elsewhere: int = 0) -> None:
        """Add a run of a part. `elsewhere`: bytes of its peak that count for another part."""
        self._joint = run if self._joint is None else Metrics.merge([self._joint, run])
        self.hold(part, run.peak_memory - elsewhere)

    def hold(self, part: str, size: int) -> None:
        """Note that a part holds this many bytes, until the end of the task."""
        self._peaks[part] = max(self._peaks.get(part, 0), size)

    def metrics(self, budget: int) -> Metrics:
        """All runs as one; the peak is the sum of the most that each part has held."""
        if self._joint is None:
            raise InternalError("No engine has run, so there are no metrics. Run the join first.")
        return replace(self._joint, peak_memory=sum(self._peaks.values()), budget=budget)
