"""What the tasks of a join measure, on its way from the workers to the driver.

Each task that runs to its end makes a record. A pipeline's tasks hand it over with their result.
Other joins leave it as a JSON file in the folder that they were given as `metrics`; the driver adds
up the files of a micro-batch. Spark may run a task twice, after a failure or on speculation; then
the file of its last attempt counts.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TypeAlias

from pyspark import TaskContext

from semistream.algorithms import Engine
from semistream.metrics import Metrics
from semistream.plan import JoinPlan

__all__ = ["Report", "TaskMetrics", "leave_record", "merged", "plan_record", "task_record"]

Report: TypeAlias = Callable[[Mapping[str, Any]], None]
"""Takes the record of a task that has run to its end."""

_SHOWN: Final = (
    "arrived",
    "joined",
    "unmatched",
    "outputs",
    "front_hits",
    "in_place_probes",
    "pages_read",
    "bytes_read",
    "algorithm",
    "service_rate",
    "peak_memory",
    "budget",
)
"""Fields of `Metrics` that are shown of a micro-batch."""
_EXPECTED: Final = ("rate", "io_per_tuple", "hit_share", "wait_seconds", "exponent", "basis")


def task_record(
    metrics: Metrics, *, version: int | tuple[int, ...], warm: bool
) -> Mapping[str, Any]:
    """The metrics of a task that has run to its end, and which task it is.

    `version` is the master's, or those of several; `warm` says whether the engine had served
    another task before.
    """
    record = {**_spark_task(), "master_version": version, "warm": warm, **asdict(metrics)}
    return record | {"service_rate": metrics.service_rate, "hit_ratio": metrics.hit_ratio}


def plan_record(joining: object) -> Mapping[str, Any]:
    """The plan of an engine and the bytes of its parts; empty for what runs several engines."""
    plan = getattr(joining, "plan", None)
    if not isinstance(joining, Engine) or not isinstance(plan, JoinPlan):
        return {}
    expected = None
    if plan.expected is not None:
        expected = {name: getattr(plan.expected, name) for name in _EXPECTED}
    told = {"algorithm": plan.algorithm, "memory": plan.memory, "sizes": plan.sizes()}
    held = joining.memory()
    parts = {name: size for name, size in held.items() if name not in ("peak", "budget")}
    return {"plan": told | {"expected": expected}, "parts": parts}


def leave_record(path: str, record: Mapping[str, Any]) -> None:
    """Write a task's record into the folder at `path`; the file appears whole or not at all."""
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    names = ("batch", "stage", "partition", "attempt")
    name = "-".join("x" if record[part] is None else str(record[part]) for part in names)
    file = folder / f"{name}-{uuid.uuid4().hex[:12]}.json"
    unfinished = file.with_suffix(".part")
    unfinished.write_text(json.dumps(record) + "\n", "utf-8")
    unfinished.replace(file)


def _spark_task() -> Mapping[str, int | str | None]:
    """Which task of which micro-batch this is; outside Spark only the process is known."""
    context = TaskContext.get()
    if context is None:
        names = ("query", "batch", "stage", "partition", "attempt")
        return {**dict.fromkeys(names), "pid": os.getpid()}
    batch = context.getLocalProperty("streaming.sql.batchId")
    return {
        "query": context.getLocalProperty("sql.streaming.queryId"),
        "batch": None if batch is None else int(batch),
        "stage": context.stageId(),
        "partition": context.partitionId(),
        "attempt": context.attemptNumber(),
        "pid": os.getpid(),
    }


class TaskMetrics:
    """The folder where tasks leave their metrics."""

    def __init__(self, folder: Path) -> None:
        """The folder need not exist yet."""
        self._folder = folder

    def take(self, query: str, batch: int) -> dict[str, Any]:
        """The tasks of a query's micro-batch as one; removes their files."""
        found = {
            path: record
            for path, record in self._read(f"{batch}-*.json").items()
            if (record["query"], record["batch"]) == (query, batch)
        }
        for path in found:
            path.unlink(missing_ok=True)
        return merged(found.values())

    def _read(self, pattern: str) -> dict[Path, Mapping[str, Any]]:
        found = {}
        for path in sorted(self._folder.glob(pattern)):
            # Another process may have removed it.
            with contextlib.suppress(FileNotFoundError):
                found[path] = json.loads(path.read_text("utf-8"))
        return found


def merged(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Several tasks' metrics as one; empty if there are none.

    They are merged as runs of an engine are, see `Metrics.merge`: `service_rate` is tuples finished
    in a second of a task's time, `p99_seconds` is of the tuples of all tasks. `plan` and `parts`
    are those of one task, if its join is a single engine.
    """
    last: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for record in sorted(records, key=lambda record: record["attempt"] or 0):
        last[tuple(record[name] for name in ("query", "batch", "stage", "partition"))] = record
    if not last:
        return {}
    joint = Metrics.merge(Metrics.of(record) for record in last.values())
    planned = [record for record in last.values() if "plan" in record][-1:]
    return {name: getattr(joint, name) for name in _SHOWN} | {
        **{name: record[name] for record in planned for name in ("plan", "parts")},
        "tasks": len(last),
        "task_seconds": joint.seconds,
        "p99_seconds": joint.processing_time.p99,
    }
