"""Running one batch: its rows are staged, and then each route is written to where it ends.

Every step is idempotent by the batch's number, so a batch can run again from any point. If a
Parquet sink is the only outlet, a batch is written there directly; its folder then serves as the
staging.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql.types import IntegerType, StructField, StructType

from semistream.errors import InternalError
from semistream.relation import MasterTable
from semistream.spark.pipeline.batch_frame import BatchShape
from semistream.spark.pipeline.batch_log import BatchRecord
from semistream.spark.pipeline.folders import Folder, Note
from semistream.spark.pipeline.outlets import Outlets
from semistream.spark.pipeline.queues import QueueEntry
from semistream.spark.pipeline.routes import REASON, VERDICT
from semistream.spark.pipeline.sinks import ParquetSink, Sink
from semistream.spark.pipeline.staging import Arrival, NotOneToOne, Staging, route_folder

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
        self._is_direct = outlets.is_single
        self._staging = Staging(shape, home, deferred)
        self.retry, self.deferred = self._staging.retry, self._staging.deferred

    def claim(self) -> None:
        """Claim the folder of each Parquet sink for its route of this pipeline."""
        for name, sink in self._outlets.by_name().items():
            if isinstance(sink, ParquetSink):
                Folder.at(sink.path).claim(f"{self._writer}/{name}", f"{name}=")

    def write(self, record: BatchRecord, arrival: Arrival, master: MasterTable) -> Note:
        """Write all outputs of a batch; a note with its `counts` and what the `engine` measured.

        Writing a batch again changes nothing.
        """
        staged = self._folder / str(record.number)
        note = staged.note()
        if note is None and self._is_direct and record.capacity is None and not record.returned:
            with contextlib.suppress(NotOneToOne):
                return self._write_directly(record, arrival, master)
            # The master has several rows for some key, so the next batches would also fail here,
            # and be joined twice: stage them from now on.
            self._is_direct = False
        note = note or self._staging.by_route(record, arrival, master, staged)
        self._deliver(record, arrival, staged, note["routes"])
        for part, route in enumerate(sorted(note["routes"])):
            if "-" in route:
                self._queue(record, part, route, note["routes"][route], staged)
        return note

    def clean(self, record: BatchRecord) -> None:
        """Remove what nobody needs any more once the batch is done."""
        self.retry.remove(record.retried)
        self.deferred.remove(record.returned)
        (self._folder / str(record.number)).remove()

    def _write_directly(self, record: BatchRecord, arrival: Arrival, master: MasterTable) -> Note:
        sink, keep = self._outlets.sink, self._outlets.how == "left"
        assert isinstance(sink, ParquetSink)
        folder = sink.folder(record.number)
        return folder.note() or self._staging.directly(record, arrival, master, folder, keep)

    def _deliver(
        self, record: BatchRecord, arrival: Arrival, staged: Folder, routes: Mapping[str, int]
    ) -> None:
        """Write the staged rows of each sink, if there are any."""
        outlets, shape = self._outlets, self._shape
        stream = StructType(shape.stream.fields)
        judged = StructType([*shape.stream.fields, StructField(VERDICT, IntegerType())])
        plans: list[tuple[str, Sink | None, Sequence[str], StructType]] = [
            ("sink", outlets.sink, outlets.emitted, shape.output),
            ("unmatched", outlets.unmatched, ["unmatched"], stream),
            ("dead letters", outlets.dead_letters, ["expired"], stream),
            ("rejected", outlets.rejected, ["rejected"], judged),
        ]
        for name, sink, wanted, schema in plans:
            found = [route_folder(staged, route).spark for route in wanted if routes.get(route)]
            if sink is not None and found:
                rows = arrival.spark.read.schema(schema).parquet(*found)
                rows = self._with_reason(rows) if name == "rejected" else rows
                sink.write(rows, record.number, f"{self._writer}/{name}")

    def _with_reason(self, rows: DataFrame) -> DataFrame:
        if self._shape.checks is None:
            raise InternalError("Tuples were rejected without checks. Report this.")
        return rows.withColumn(REASON, self._shape.checks.reason()).drop(VERDICT)

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
