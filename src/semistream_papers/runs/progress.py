"""Progress of a run: when its warm-up ends, when enough is measured, and the result then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from semistream.metrics import Metrics
from semistream.plan import JoinPlan
from semistream_papers.runs.setting import Setting

__all__ = ["Progress", "run_result"]

_WARM_WINDOWS: Final = 3.0
_MEASURED_WINDOWS: Final = 2.0
_LOOK_UPS: Final = 1_000
_RECENT_TURNS: Final = 1
_LUMPY_WINDOWS: Final = 12.0
"""Windows to warm up and to measure where progress is lumpy.

HYBRIDJOIN's rate as a share of X-HYBRIDJOIN's (R of 2 million, scale "laptop") was 0.70 after 3 + 2
windows, 0.62 after 3 + 6, 0.54 after 3 + 12 and 0.53 after 12 + 12. Other runs differ by less than
3 % between 3 + 2 and 24 + 8."""
_SLOW_SECONDS: Final = 8.0
_TIMELINE: Final = 24
_MOST_BATCH: Final = 65536


class Progress:
    """Follows a run by its counters: warm-up, measured stretch, end."""

    def __init__(
        self, setting: Setting, plan: JoinPlan, metrics: Callable[[], Metrics], warm: bool
    ) -> None:
        """A window is as many tuples as can wait. With a front stage it is stretched.

        The front stage answers tuples that never wait, so it takes more of them to turn a window
        over.
        """
        window = plan.stream_slots or (_LOOK_UPS if not plan.front_rows else 0)
        window = window or max(_LOOK_UPS, plan.recent_codes * _RECENT_TURNS)
        if setting.arrival_rate and not setting.shedding:
            # The join keeps up with this stream, so the window never fills.
            window = int(setting.arrival_rate * _SLOW_SECONDS)
        stretch = 2.0 if plan.front_rows else 1.0
        warm_windows = _WARM_WINDOWS if plan.stream_slots or plan.front_rows else 0.0
        if _is_lumpy(setting):
            warm_windows = _LUMPY_WINDOWS
        self.warm_up = int(window * warm_windows * stretch) if warm else 0
        windows = _LUMPY_WINDOWS if _is_lumpy(setting) else _MEASURED_WINDOWS
        self.measured = int(window * windows * stretch)
        self._end = 0
        self.batch_rows = max(64, min(window // 16, _MOST_BATCH))
        self.done = False
        self.begun: Metrics | None = None
        self.ended: Metrics | None = None
        self.timeline: list[dict[str, float]] = []
        self._metrics = metrics
        self._next = 0

    def check(self) -> bool:
        """Note where the run is; True when enough is measured."""
        now = self._metrics()
        finished = now.joined + now.unmatched
        if self.begun is None and finished >= self.warm_up:
            self.begun = now
            self._next = finished
            self._end = finished + self.measured
        if self.begun is not None and finished >= self._next:
            self._next = finished + self.measured // _TIMELINE
            self.timeline.append(_moment(now))
        if self.begun is not None and finished >= self._end:
            self.ended = now
            self.done = True
        return self.done


def _is_lumpy(setting: Setting) -> bool:
    """Whether one read may finish half of the waiting tuples.

    So it is where a queue says which partition comes next and the hot keys share one.
    """
    return setting.needs.queue and not setting.scatter and not setting.arrival_rate


def _moment(now: Metrics) -> dict[str, float]:
    return {
        "seconds": now.seconds,
        "finished": now.joined + now.unmatched,
        "front_hits": now.front_hits,
        "iterations": now.iterations,
    }


def run_result(setting: Setting, plan: JoinPlan, progress: Progress) -> dict[str, Any]:
    """Rates, times and counters of the measured stretch, and the sizes of the run."""
    begun, ended = progress.begun, progress.ended
    assert begun is not None
    assert ended is not None
    counted = ended.since(begun)
    finished = counted["joined"] + counted["unmatched"]
    seconds = ended.seconds - begun.seconds
    iterations = max(1, counted["iterations"])
    return {
        "rate": finished / seconds if seconds else 0.0,
        "seconds": seconds,
        "finished": finished,
        "processing": _mean_between(begun, ended, "processing_time"),
        "waiting": _mean_between(begun, ended, "waiting_time"),
        "hit_share": counted["front_hits"] / max(1, finished),
        "loop_seconds": seconds / iterations,
        "per_loop": finished / iterations,
        "counters": counted,
        "timeline": progress.timeline,
        "sizes": {
            "rows": setting.run_rows,
            "memory": plan.memory,
            "stream_slots": plan.stream_slots,
            "chunk_tuples": plan.chunk_tuples,
            "partition_pages": plan.partition_pages,
            "pinned_partitions": plan.pinned_partitions,
            "front_rows": plan.front_rows,
        },
    }


def _mean_between(begun: Metrics, ended: Metrics, name: str) -> float:
    """The mean of a duration over the tuples of the measured stretch."""
    before, after = begun.joined + begun.unmatched, ended.joined + ended.unmatched
    total: float = getattr(ended, name).mean * after - getattr(begun, name).mean * before
    return total / max(1, after - before)
