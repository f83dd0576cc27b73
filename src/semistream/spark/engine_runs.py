"""Several runs of engines, which together do the work of one task, as one."""

from __future__ import annotations

from dataclasses import replace

from semistream.errors import InternalError
from semistream.metrics import Metrics

__all__ = ["EngineRuns"]


class EngineRuns:
    """What was counted in runs one after the other, and the most that each part has held."""

    def __init__(self) -> None:
        """None yet."""
        self._joint: Metrics | None = None
        self._peaks: dict[str, int] = {}

    def add(self, part: str, run: Metrics, elsewhere: int = 0) -> None:
        """A run is over. `elsewhere` are bytes of its peak that another part counts."""
        self._joint = run if self._joint is None else Metrics.merge([self._joint, run])
        self.hold(part, run.peak_memory - elsewhere)

    def hold(self, part: str, size: int) -> None:
        """A part has held so many bytes, from now on until the task's end."""
        self._peaks[part] = max(self._peaks.get(part, 0), size)

    def metrics(self, budget: int) -> Metrics:
        """All runs as one; the peak is the sum of what the parts have held at most."""
        if self._joint is None:
            raise InternalError("No engine has run, so there are no metrics. Run the join first.")
        return replace(self._joint, peak_memory=sum(self._peaks.values()), budget=budget)
