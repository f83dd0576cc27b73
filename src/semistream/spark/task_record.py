"""What a task of a join leaves behind when it has ended: its metrics, as a JSON file."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from pyspark import TaskContext

from semistream.metrics import Metrics

__all__ = ["leave_record"]


def leave_record(path: str, metrics: Metrics, *, version: int, warm: bool) -> None:
    """A task has run to its end: write its metrics to the folder at `path`.

    `version` is the master's, `warm` says whether the engine had served before. The file appears
    whole or not at all. Spark may run a task twice, after a failure or on speculation; whoever
    sums up takes one file per (query, batch, stage, partition).
    """
    record = {**_spark_task(), "master_version": version, "warm": warm, **asdict(metrics)}
    record |= {"service_rate": metrics.service_rate, "hit_ratio": metrics.hit_ratio}
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    names = ("batch", "stage", "partition", "attempt")
    name = "-".join("x" if record[part] is None else str(record[part]) for part in names)
    file = folder / f"{name}-{uuid.uuid4().hex[:12]}.json"
    unfinished = file.with_suffix(".part")
    unfinished.write_text(json.dumps(record) + "\n", "utf-8")
    unfinished.replace(file)


def _spark_task() -> Mapping[str, int | str | None]:
    """Which task of which micro-batch this is; all None outside Spark but for the process."""
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
