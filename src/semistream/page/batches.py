"""The batches of a pipeline as columns of numbers, as far back as they are on record.

The log of a checkpoint has the last thousand. A file of metrics, if the pipeline writes one, has
all.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from semistream.relation.storage import Location
from semistream.spark.pipeline.batch_log import Counts, Outcome, logged_outcomes
from semistream.spark.pipeline.metrics_log import metrics_line

__all__ = ["Batches", "Numbers"]

Numbers = NDArray[np.float64]

_COLUMNS: Final = (
    *("batch", "master_version", "arrived", "source", "retried", "returned"),
    *("joined", "unmatched", "deferred", "rejected", "expired", "outputs", "left_out"),
    *("waiting_retry", "waiting_deferred", "batch_seconds"),
    *("hit_ratio", "front_hits", "in_place_probes", "pages_read", "bytes_read"),
    *("service_rate", "p99_seconds", "peak_memory", "budget", "tasks", "task_seconds"),
)
_MOST: Final = 100_000
"""So many batches are kept; the oldest go first."""
_LIST_SECONDS: Final = 30.0


class Batches:
    """Grows with the pipeline: call `refresh` before reading."""

    def __init__(self, checkpoint: Location | None, metrics: Path | None = None) -> None:
        """From a checkpoint's log, a file of metrics, or both."""
        self._checkpoint, self.metrics = checkpoint, metrics
        self._listed = -_LIST_SECONDS
        self._columns = {name: array("d") for name in ("at", *_COLUMNS)}
        self._read = 0
        self.line: Mapping[str, Any] = {}
        """The metrics of the last batch."""
        self.outcome: Outcome | None = None
        """The last batch in the log."""
        self.sums = dict.fromkeys(_COLUMNS, 0.0)
        """Of all batches that were read, those that are no longer kept too."""

    def __len__(self) -> int:
        """Batches that are kept."""
        return len(self._columns["at"])

    def refresh(self) -> None:
        """Read what is new."""
        # Once there is a log, it has all that the file gets later.
        if self.metrics is not None and (self._checkpoint is None or self.outcome is None):
            for line in self._new_lines(self.metrics):
                self._add(line)
        if self._checkpoint is not None:
            # The next batch may be forgotten if nobody has looked for a thousand batches.
            is_late = time.monotonic() - self._listed > _LIST_SECONDS
            # The file may have the line of the last batch, but not its plan.
            after = self._last - 1 if self.outcome is None else self._last
            for outcome in logged_outcomes(self._checkpoint, after, not is_late):
                self.outcome = outcome
                if outcome.number > self._last:
                    self._add(metrics_line(outcome))
            if is_late:
                self._listed = time.monotonic()

    def column(self, name: str, last: int | None = None) -> Numbers:
        """The numbers of a column, NaN where they are not known; all, or of the last batches."""
        found = np.array(self._columns[name])
        return found if last is None else found[-last:]

    def totals(self) -> dict[str, int]:
        """Where all tuples went, since the checkpoint began or the file did."""
        if self.outcome is not None:
            ended = self.outcome.ended_unmatched
            return {**asdict(self.outcome.totals), "unmatched": ended}
        found = {name: int(self.sums[name]) for name in asdict(Counts())}
        waiting = int(self.line.get("waiting_retry") or 0)
        return found | {"unmatched": found["unmatched"] - found["retried"] - waiting}

    @property
    def _last(self) -> int:
        return int(self.line.get("batch", -1))

    def _add(self, line: Mapping[str, Any]) -> None:
        try:
            at = datetime.fromisoformat(line["at"]).timestamp()
            numbers = {name: _number(line.get(name)) for name in _COLUMNS}
        except (KeyError, TypeError, ValueError):
            return
        if numbers["batch"] <= self._last:
            # Another checkpoint has begun to write to the same file.
            self._forget()
        self.line = line
        self._columns["at"].append(at)
        for name, number in numbers.items():
            self._columns[name].append(number)
            self.sums[name] += 0.0 if math.isnan(number) else number
        if len(self) > _MOST + _MOST // 10:
            for column in self._columns.values():
                del column[: len(column) - _MOST]

    def _forget(self) -> None:
        for column in self._columns.values():
            del column[:]
        self.sums = dict.fromkeys(_COLUMNS, 0.0)

    def _new_lines(self, path: Path) -> Iterator[Mapping[str, Any]]:
        """The whole lines that were added; one that a crash has cut off is passed over."""
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            file.seek(self._read)
            for text in file:
                if not text.endswith(b"\n"):
                    return
                self._read += len(text)
                with contextlib.suppress(ValueError):
                    found = json.loads(text)
                    if isinstance(found, dict):
                        yield found


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
