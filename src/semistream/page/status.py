"""The status of a pipeline, as `/status.json` has it. docs/monitoring.md explains each field."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from semistream.errors import CheckpointError, SemistreamError
from semistream.page.advice import advice
from semistream.page.batches import Batches, Numbers
from semistream.page.forecast import Forecast, Question
from semistream.page.masters import Masters
from semistream.page.series import MOST_POINTS, arrival_rate, lag, median, ratio, series
from semistream.relation.storage import Location, inside, is_uri, without_secrets
from semistream.spark.pipeline.about import About, read_about
from semistream.spark.pipeline.lease import is_held

__all__ = ["Watched"]

_RECENT: Final = 20
"""What is measured of late is measured over so many batches."""
_FORMAT: Final = 1


class Watched:
    """A pipeline seen from outside: by its checkpoint, or only by a file of its metrics."""

    def __init__(self, place: Location, metrics: Location | None = None) -> None:
        """`place` is a checkpoint, or a file of metrics."""
        is_file = not is_uri(place) and Path(place).is_file()
        self._checkpoint = None if is_file else place
        self._shown = without_secrets(place) if is_uri(place) else str(Path(place).absolute())
        if self._checkpoint is not None and not is_uri(place) and not Path(place).is_dir():
            raise CheckpointError(
                f"{place} is no checkpoint and no file of metrics. Give the folder that the "
                "pipeline has as its checkpoint, or its metrics file."
            )
        lines = place if is_file else metrics
        self.batches = Batches(self._checkpoint, None if lines is None else Path(str(lines)))
        self._masters, self._forecast = Masters(), Forecast()
        self._one_at_a_time = threading.Lock()

    def status(
        self, points: int = MOST_POINTS, last: int | None = None, wait: bool = False
    ) -> dict[str, Any]:
        """All that is known now; its series have at most so many points, of the last batches.

        With `wait`, the forecast is waited for.
        """
        with self._one_at_a_time:
            about = self._about()
            if self.batches.metrics is None and about.metrics is not None:
                self.batches.metrics = Path(about.metrics)
            self.batches.refresh()
            line = self.batches.line
            engine: Mapping[str, Any] = {}
            if self.batches.outcome is not None:
                engine = self.batches.outcome.engine
            masters = self._masters.told(about.masters, self._versions(about))
            recent = _recent(self.batches)
            plan = _plan(engine, recent)
            found: dict[str, Any] = {
                "format": _FORMAT,
                "now": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "name": about.name or str(line.get("pipeline") or ""),
                "checkpoint": self._shown,
                "state": self._state(about),
                "error": about.error,
                "started": about.started or None,
                "trigger": about.trigger,
                "once": about.once,
                "batch_target": about.batch_target,
                "batches": len(self.batches),
                "last": dict(line) or None,
                "totals": self.batches.totals(),
                "recent": recent,
                "queues": _queues(self.batches, recent),
                "lag": _lag(self.batches, masters),
                "memory": _memory(about, line, engine),
                "masters": masters,
                "plan": plan,
                "curve": self._curve(about, masters, plan, recent, wait),
                "cache": self.cache(engine),
                "series": series(self.batches, points, last),
            }
            found["warnings"] = [one._asdict() for one in advice(found)]
            return found

    def cache(self, engine: Mapping[str, Any]) -> dict[str, int]:
        """Counters under the names that Flink gives to those of its lookup caches.

        They count the batches that were read, from the oldest that is on record.
        """
        sums = self.batches.sums
        hits = sums["front_hits"] + sums["in_place_probes"]
        asked = sums["joined"] + sums["unmatched"]
        parts = engine.get("parts") or {}
        return {
            "hitCount": int(hits),
            "missCount": int(max(asked - hits, 0)),
            "loadCount": int(sums["pages_read"]),
            "numCachedBytes": int(parts.get("front stage", 0)),
        }

    def _about(self) -> About:
        found = None if self._checkpoint is None else read_about(self._checkpoint)
        return found or About(name="", state="unknown")

    def _state(self, about: About) -> str:
        if about.state == "running" and self._checkpoint is not None:
            with contextlib.suppress(OSError, SemistreamError):
                if is_held(inside(self._checkpoint, "semistream")) is False:
                    return "gone"
        return about.state

    def _versions(self, about: About) -> dict[str, int | None]:
        line = self.batches.line
        several = line.get("master_versions") or {}
        return {name: several.get(name, line.get("master_version")) for name in about.masters}

    def _curve(
        self,
        about: About,
        masters: list[dict[str, Any]],
        plan: Mapping[str, Any] | None,
        recent: Mapping[str, Any],
        wait: bool,
    ) -> dict[str, Any] | None:
        expected = None if plan is None else plan["expected"]
        if expected is None or len(masters) != 1 or not masters[0].get("rows"):
            return None
        assert plan is not None
        question = Question.of(
            masters[0]["place"],
            masters[0]["newest"],
            plan["memory"],
            about.io,
            expected["exponent"] or 0.0,
            recent["task_tuples"] or 1.0,
        )
        curve = self._forecast.curve(question, wait)
        if curve is None or len(curve.points) < 2:
            return None
        return {
            "points": [list(point) for point in curve.points],
            "memory": curve.memory,
            "knee": curve.knee,
            "knee_text": curve.knee_text(),
            "sentence": curve.sentence(),
        }


def _recent(batches: Batches) -> dict[str, Any]:
    """What the last batches have done. Medians: one that starts workers says little of the rest."""

    def column(name: str) -> Numbers:
        return batches.column(name, _RECENT)

    def total(name: str) -> float:
        return float(np.nansum(column(name)))

    seconds, arrived = column("batch_seconds"), column("arrived")
    done = column("joined") + column("unmatched")
    apart = np.diff(batches.column("at", _RECENT + 1))
    before = batches.column("batch_seconds", len(apart) + 1)[:-1]
    busy = median(ratio(before, apart))
    task_rate = median(ratio(done, column("task_seconds")))
    return {
        "batches": min(len(batches), _RECENT),
        "arrival_rate": arrival_rate(batches, _RECENT),
        "service_rate": median(ratio(arrived, seconds)),
        "batch_seconds": median(seconds),
        "busy": None if busy is None else min(busy, 1.0),
        "task_rate": median(column("service_rate")) if task_rate is None else task_rate,
        "task_tuples": median(ratio(arrived, column("tasks"))),
        "hit_ratio": median(column("hit_ratio")),
        "pages_per_1000": median(ratio(1000 * column("pages_read"), done)),
        "p99_seconds": median(column("p99_seconds")),
        "unmatched_share": _share(total("unmatched"), float(done.sum())),
        "rejected_share": _share(total("rejected"), float(arrived.sum())),
    }


def _share(above: float, below: float) -> float | None:
    return above / below if below > 0 else None


def _plan(engine: Mapping[str, Any], recent: Mapping[str, Any]) -> dict[str, Any] | None:
    """The plan of the last batch, and what was measured of what it expected."""
    if "plan" not in engine:
        return None
    return {
        **engine["plan"],
        "measured": {
            "rate": recent["task_rate"],
            "io_per_tuple": _per_tuple(recent["pages_per_1000"]),
            "hit_share": recent["hit_ratio"],
            "p99_seconds": recent["p99_seconds"],
        },
    }


def _per_tuple(per_1000: float | None) -> float | None:
    return None if per_1000 is None else per_1000 / 1000


def _queues(batches: Batches, recent: Mapping[str, Any]) -> dict[str, Any]:
    deferred = np.nan_to_num(batches.column("waiting_deferred", _RECENT))
    waiting = float(deferred[-1]) if len(deferred) else 0.0
    rate = recent["service_rate"]
    grown = len(deferred) > 2 and waiting > deferred[0] and bool(np.all(np.diff(deferred) >= 0))
    return {
        "retry": int(batches.line.get("waiting_retry") or 0),
        "deferred": int(waiting),
        "deferred_grows": bool(grown),
        "catch_up_seconds": waiting / rate if rate else None,
    }


def _lag(batches: Batches, masters: list[dict[str, Any]]) -> dict[str, Any]:
    """How far behind the pipeline is, with its tuples and with versions of masters."""
    quiet = None
    if len(batches):
        ended = batches.column("at", 1)[0] + batches.column("batch_seconds", 1)[0]
        quiet = max(time.time() - float(ended), 0.0)
    behind = [one["behind"] for one in masters if one["behind"] is not None]
    return {
        "tuple_seconds": median(lag(batches, _RECENT)) if len(batches) else None,
        "quiet_seconds": quiet,
        "versions_behind": max(behind, default=None),
    }


def _memory(about: About, line: Mapping[str, Any], engine: Mapping[str, Any]) -> dict[str, Any]:
    """Of one task."""
    return {
        "budget": line.get("budget") or about.memory,
        "peak": line.get("peak_memory"),
        "parts": dict(engine.get("parts") or {}),
    }
