"""What the tasks of a join have measured, as one.

Each task that ends leaves a JSON file in the join's `metrics_dir`. Spark may run a task twice;
one file per task counts, the last attempt's.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from semistream.metrics import Metrics

__all__ = ["TaskMetrics", "merged"]

_SHOWN: Final = (
    "arrived",
    "joined",
    "unmatched",
    "outputs",
    "front_hits",
    "pages_read",
    "bytes_read",
    "algorithm",
    "service_rate",
    "peak_memory",
    "budget",
)
"""Fields of `Metrics` that are shown of a micro-batch."""


class TaskMetrics:
    """The folder that tasks leave their metrics in."""

    def __init__(self, folder: Path) -> None:
        """The folder, which may not be there yet."""
        self._folder = folder

    def clear(self) -> None:
        """Forget what was left before."""
        for path in self._files():
            path.unlink(missing_ok=True)

    def collect(self) -> dict[str, Any]:
        """All tasks as one; empty if there are none."""
        return merged(self._read().values())

    def take(self, query: str, batch: int) -> dict[str, Any]:
        """The tasks of a query's micro-batch as one; those of this batch are forgotten then."""
        found = {
            path: record
            for path, record in self._read(f"{batch}-*.json").items()
            if (record["query"], record["batch"]) == (query, batch)
        }
        for path in found:
            path.unlink(missing_ok=True)
        return merged(found.values())

    def _files(self, pattern: str = "*.json") -> list[Path]:
        return sorted(self._folder.glob(pattern))

    def _read(self, pattern: str = "*.json") -> dict[Path, Mapping[str, Any]]:
        found = {}
        for path in self._files(pattern):
            # Another reader may clear.
            with contextlib.suppress(FileNotFoundError):
                found[path] = json.loads(path.read_text("utf-8"))
        return found


def merged(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Several tasks' metrics as one; empty if there are none.

    They are merged as runs of an engine are, see `Metrics.merge`: `service_rate` is tuples finished
    in a second of a task's time, `p99_seconds` is of the tuples of all tasks.
    """
    last: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for record in sorted(records, key=lambda record: record["attempt"] or 0):
        last[tuple(record[name] for name in ("query", "batch", "stage", "partition"))] = record
    if not last:
        return {}
    joint = Metrics.merge(Metrics.of(record) for record in last.values())
    return {name: getattr(joint, name) for name in _SHOWN} | {
        "tasks": len(last),
        "task_seconds": joint.seconds,
        "p99_seconds": joint.processing_time.p99,
    }
