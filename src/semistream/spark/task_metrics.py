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

__all__ = ["TaskMetrics", "merged"]

_SUMS: Final = (
    "arrived",
    "joined",
    "unmatched",
    "outputs",
    "front_hits",
    "pages_read",
    "bytes_read",
)
_SECONDS: Final = "seconds"


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

    Counts are added up. `p99_seconds` is the slowest task's, so it is no less than that of all
    tuples. `service_rate` is per task: tuples finished in a second of a task's time.
    """
    last: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for record in sorted(records, key=lambda record: record["attempt"] or 0):
        last[tuple(record[name] for name in ("query", "batch", "stage", "partition"))] = record
    if not last:
        return {}
    tasks = list(last.values())
    sums: dict[str, Any] = {name: sum(task[name] for task in tasks) for name in _SUMS}
    seconds = sum(task[_SECONDS] for task in tasks)
    finished = sums["joined"] + sums["unmatched"]
    return sums | {
        "algorithm": tasks[0]["algorithm"],
        "tasks": len(tasks),
        "task_seconds": seconds,
        "service_rate": finished / seconds if seconds > 0 else 0.0,
        "p99_seconds": max(task["processing_time"]["p99"] for task in tasks),
        "peak_memory": max(task["peak_memory"] for task in tasks),
        "budget": max(task["budget"] for task in tasks),
    }
