"""Running one batch: its rows are staged, and then each route is written to where it ends.

Every step is idempotent by the batch's number, so a batch can run again from any point. What is
staged is already as a Parquet sink wants it, so such a sink takes the files over as they are, if it
is on the same filesystem, and a database gets their rows from the driver. Spark reads them for all
others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)
from pyspark.sql.types import IntegerType, StructField, StructType

from semistream.crash_points import reached
from semistream.errors import InternalError
from semistream.spark.pipeline.batch_frame import BatchShape
from semistream.spark.pipeline.batch_log import BatchRecord
from semistream.spark.pipeline.database_sink import DatabaseSink
from semistream.spark.pipeline.folders import Folder, Note
from semistream.spark.pipeline.outlets import Outlets
from semistream.spark.pipeline.queues import QueueEntry
from semistream.spark.pipeline.sinks import ParquetSink, Sink
from semistream.spark.pipeline.stage_task import REASON, VERDICT
from semistream.spark.pipeline.staging import Arrival, Staging, route_folder

__all__ = ["BatchRun"]


class BatchRun:
    """Runs batches as their records say."""

    def __init__(
        self,
        shape: BatchShape,
        outlets: Outlets,
        home: Folder,
        deferred: Folder | None,
        writer: str,
    ) -> None:
        """Staging and queues are in the folder `home`; sinks know the pipeline as `writer`."""
        self._shape, self._outlets, self._writer = shape, outlets, writer
        self._folder = home / "staging"
        self._staging = Staging(shape, outlets, home, deferred)
        self.retry, self.deferred = self._staging.retry, self._staging.deferred

    def claim(self) -> None:
        """Claim the folder of each Parquet sink for its route of this pipeline."""
        for name, sink in self._outlets.by_name().items():
            if isinstance(sink, ParquetSink):
                Folder.at(sink.path).claim(f"{self._writer}/{name}", f"{name}=")

    def write(self, record: BatchRecord, arrival: Arrival) -> Note:
        """Write all outputs of a batch; a note with its `counts` and what the `engine` measured.

        Writing a batch again changes nothing.
        """
        staged = self._folder / str(record.number)
        note = staged.note() or self._staging.by_route(record, arrival, staged)
        self._deliver(record, arrival, staged, note)
        reached("deliver.all")
        for part, route in enumerate(sorted(note["routes"])):
            if "-" in route:
                self._queue(record, part, route, note["routes"][route], staged)
                reached("queue.put")
        return note

    def clean(self, record: BatchRecord) -> None:
        """Remove what nobody needs any more once the batch is done."""
        self.retry.remove(record.retried)
        self.deferred.remove(record.returned)
        reached("clean.queues")
        (self._folder / str(record.number)).remove()
        reached("clean.staging")
        # A task that was given up may still be writing there; what it leaves is in nobody's way.
        with contextlib.suppress(OSError):
            (self._folder / f"_tasks.{record.number}").remove()

    def _deliver(self, record: BatchRecord, arrival: Arrival, staged: Folder, note: Note) -> None:
        """Hand the staged rows of each sink over, if there are any."""
        outlets, shape = self._outlets, self._shape
        plans: list[tuple[str, Sink | None, Sequence[str], StructType]] = [
            ("sink", outlets.sink, outlets.emitted, shape.output),
            ("unmatched", outlets.unmatched, ["unmatched"], shape.kept),
            ("dead letters", outlets.dead_letters, ["expired"], shape.kept),
            ("rejected", outlets.rejected, ["rejected"], shape.rejected),
        ]
        # A checkpoint of an older version may have a batch whose files have more columns.
        is_old = "folders" not in note
        folders = note["routes"] if is_old else note["folders"]
        for name, sink, wanted, schema in plans:
            found = [route for route in wanted if folders.get(route)]
            if sink is None or not found:
                continue
            staged_rows = [route_folder(staged, route) for route in found]
            target = sink.folder(record.number) if isinstance(sink, ParquetSink) else None
            if not is_old and target is not None and staged_rows[0].can_become(target):
                staged_rows[0].become(target, {"rows": folders[found[0]]})
                reached("deliver.sink")
                continue
            if not is_old and isinstance(sink, DatabaseSink):
                rows_of = partial(_rows_of, staged_rows)
                sink.load(rows_of, record.number, f"{self._writer}/{name}")
                reached("deliver.sink")
                continue
            is_numbered = is_old and name == "rejected"
            added = [StructField(VERDICT, IntegerType())] if is_numbered else []
            reader = arrival.spark.read.schema(StructType([*schema.fields, *added]))
            rows = reader.parquet(*(folder.spark for folder in staged_rows))
            rows = self._with_reason(rows) if is_numbered else rows
            sink.write(rows, record.number, f"{self._writer}/{name}")
            reached("deliver.sink")

    def _with_reason(self, rows: DataFrame) -> DataFrame:
        """Rejected tuples of an older version, which have a number for their reason."""
        if self._shape.checks is None:
            raise InternalError("Tuples were rejected without checks. Report this.")
        reasons = F.array(*map(F.lit, self._shape.checks.reasons))
        return rows.withColumn(REASON, F.element_at(reasons, F.col(VERDICT))).drop(VERDICT)

    def _queue(self, record: BatchRecord, part: int, route: str, rows: int, staged: Folder) -> None:
        """Move the folder of a route of waiting tuples into its queue, as an entry."""
        now = int(record.at * 1000)
        kind, *numbers = route.split("-")
        queue, attempt, since, due = self.deferred, 0, now, now
        if kind == "retry":
            attempt, since = map(int, numbers)
            if self._outlets.retry is None:
                raise InternalError("Tuples are to be retried without a Retry. Report this.")
            queue, due = self.retry, self._outlets.retry.due(attempt, since, record.at)
        entry = QueueEntry(record.number, part, attempt, since, due, record.version, rows)
        queue.put(entry, route_folder(staged, route))


def _rows_of(folders: Sequence[Folder]) -> Iterator[pa.RecordBatch]:
    """The rows that are staged in some folders."""
    return chain.from_iterable(folder.rows() for folder in folders)
