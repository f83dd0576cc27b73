"""`MetricsListener`: a JSON line per micro-batch, for queries with `ss.join` but no pipeline.

    spark.streams.addListener(ss.MetricsListener("metrics.jsonl", metrics="tasks"))
    ss.join(sales, master, on="product_id", memory="64MB", metrics="tasks").writeStream…

`ss.Pipeline` does not need it: it writes lines itself, with the counts of the routes too.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from semistream.relation.storage import Location, local_path, scrubbed
from semistream.spark.pipeline.metrics_log import append_line
from semistream.spark.task_metrics import TaskMetrics

__all__ = ["MetricsListener"]


class MetricsListener(StreamingQueryListener):
    """Writes a JSON line for each micro-batch of the session's queries, and for their ends.

    `metrics` is the folder that `ss.join` was given as `metrics`. With it, a line also has what the
    tasks of the batch measured, under `join`, and their files are removed. The metrics of
    `DataFrame.observe` are under `observed`.
    """

    def __init__(self, path: Location, metrics: Location | None = None) -> None:
        """Lines are appended to the file `path`."""
        self._path = local_path(path).absolute()
        self._tasks = (
            None if metrics is None else TaskMetrics(local_path(metrics, "metrics").absolute())
        )

    # The four names that follow are Spark's own.

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """A query has started."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """A micro-batch is done."""
        progress = event.progress
        line = {"event": "batch", **_line(progress)}
        if self._tasks is not None:
            line["join"] = self._tasks.take(str(progress.id), progress.batchId)
        append_line(self._path, line)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """A query has nothing to do."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """A query has ended."""
        error = None if event.exception is None else scrubbed(event.exception)
        line = {"event": "end", "query": str(event.id), "error": error}
        append_line(self._path, line)


def _line(progress: StreamingQueryProgress) -> dict[str, Any]:
    durations = dict(progress.durationMs)
    return {
        "query": str(progress.id),
        "name": progress.name,
        "batch": progress.batchId,
        "at": progress.timestamp,
        "arrived": progress.numInputRows,
        "tuples_per_second": progress.processedRowsPerSecond,
        "batch_seconds": durations.get("triggerExecution", 0) / 1000,
        "observed": {
            name: row.asDict(recursive=True) for name, row in progress.observedMetrics.items()
        },
    }
