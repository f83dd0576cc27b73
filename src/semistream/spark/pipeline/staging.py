"""Staging: the result of a batch's join is written once, each row in the folder of its route.

    staging/12/__semistream_route=joined/…
               __semistream_route=rejected/…
               __semistream_route=retry-1-1763200000000/…
               _committed.json                              the counts

A batch is staged whole or not at all. So a batch that runs again after a crash goes on with the
same rows, even if its source would now give others. Rows are counted where they enter the job,
where they leave it, and in the files. Unless all counts agree, nothing is staged and the pipeline
stops.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)
from pyspark.sql.types import LongType, StructField, StructType

from semistream.errors import ConservationError
from semistream.relation import MasterTable
from semistream.spark.pipeline.batch_frame import MATCHED, NUMBER, BatchShape, tallied, tally_of
from semistream.spark.pipeline.batch_log import BatchRecord, Counts
from semistream.spark.pipeline.capacity import PUT_OFF, chunk_count, put_off
from semistream.spark.pipeline.folders import Folder, Note
from semistream.spark.pipeline.queues import TupleQueue, rows_in
from semistream.spark.pipeline.routes import ROUTE
from semistream.spark.task_metrics import TaskMetrics

__all__ = ["Arrival", "NotOneToOne", "Staging", "route_folder"]


@dataclass(frozen=True)
class Arrival:
    """What a batch gets from Spark."""

    spark: SparkSession
    frame: DataFrame | None = None
    """The micro-batch; None for a batch of waiting tuples only."""
    rows: int = 0
    """Rows of the frame, counted if a batch has a limit; then the frame is cached."""


class NotOneToOne(Exception):  # noqa: N818 (a signal to the caller, no error)
    """Some tuple has no row in the result, or several."""


class _Counted(NamedTuple):
    """A frame, and the observations that count its rows when it is written."""

    frame: DataFrame
    source: Observation | None
    """Rows of the micro-batch alone."""
    entered: Observation
    """All rows, with those that have waited."""


def route_folder(staged: Folder, route: str) -> Folder:
    """Where the rows of a route are staged."""
    return staged / f"{ROUTE}={route}"


class Staging:
    """Joins the tuples of a batch and writes the result to files, once."""

    def __init__(self, shape: BatchShape, home: Folder, deferred: Folder | None) -> None:
        """Queues, and the metrics of the tasks, are in the folder `home`."""
        self._shape = shape
        self.retry = TupleQueue(home / "retry")
        self.deferred = TupleQueue(deferred or home / "deferred")
        self._metrics = None if home.local is None else f"{home.local}/tasks"
        self._learned = None if home.local is None else f"{home.local}/learned"
        self._tasks = None if self._metrics is None else TaskMetrics(Path(self._metrics))

    def by_route(
        self, record: BatchRecord, arrival: Arrival, master: MasterTable, folder: Folder
    ) -> Note:
        """Stage a batch; a note of its `counts`, the rows of its `routes`, and `engine`."""
        excess = self._excess(record, arrival)
        judged = self._judged(record, arrival, excess)
        joined = self._joined(judged.frame, master)
        chunks = chunk_count(excess, record.capacity or 1)
        frame, left = tallied(self._shape.routed(joined, record.at, chunks))

        def note(written: Folder) -> Note:
            names = (name.partition("=") for name in written.names())
            routes = {route: route_folder(written, route).row_count() for _, _, route in names}
            entered, tally = tally_of(judged.entered), tally_of(left)
            tuples = routes.get("joined", 0)
            if (entered.rows, entered.mark) != (tally.rows, tally.mark):
                tuples = _distinct(arrival.spark, route_folder(written, "joined"))
            source = 0 if judged.source is None else tally_of(judged.source).rows
            counts = _counts(record, source, tuples, routes)
            _check(record, counts, entered.rows, tally.rows, sum(routes.values()))
            return {"counts": asdict(counts), "routes": routes, "engine": self._engine(counts)}

        rows = frame.drop(MATCHED)
        return folder.fill(lambda path: rows.write.partitionBy(ROUTE).parquet(path), note)

    def directly(
        self,
        record: BatchRecord,
        arrival: Arrival,
        master: MasterTable,
        folder: Folder,
        keep_unmatched: bool,
    ) -> Note:
        """Write a batch without waiting tuples to its only sink's folder; a note as `by_route`'s.

        Raises `NotOneToOne` unless each tuple has one row. Tuples can then be counted only from
        staged rows, so nothing is left written.
        """
        judged = self._judged(record, arrival, 0)
        frame, left = tallied(self._joined(judged.frame, master))
        out = frame if keep_unmatched else frame.where(MATCHED)
        out = out.select(*self._shape.output_names())

        def note(written: Folder) -> Note:
            entered, tally = tally_of(judged.entered), tally_of(left)
            if (entered.rows, entered.mark) != (tally.rows, tally.mark):
                raise NotOneToOne
            joined = tally.rows - tally.unmatched
            routes = {"joined": joined, "unmatched": tally.unmatched}
            counts = _counts(record, entered.rows, joined, routes)
            wanted = tally.rows if keep_unmatched else joined
            _check(record, counts, entered.rows, wanted, written.row_count())
            return {"counts": asdict(counts), "engine": self._engine(counts)}

        return folder.fill(lambda path: out.write.parquet(path), note)

    def _excess(self, record: BatchRecord, arrival: Arrival) -> int:
        """How many stream tuples there are beyond those that the batch may join."""
        if record.capacity is None:
            return 0
        waited = rows_in(record.retried) + rows_in(record.returned)
        return max(arrival.rows + waited - record.capacity, 0)

    def _judged(self, record: BatchRecord, arrival: Arrival, excess: int) -> _Counted:
        """All tuples of a batch with their verdicts, to be counted.

        Tuples that come back from the deferred queue are not deferred again.
        """
        shape, spark = self._shape, arrival.spark
        source: Observation | None = None
        parts: list[DataFrame] = []
        if arrival.frame is not None:
            frame, source = tallied(arrival.frame)
            parts.append(shape.arriving(frame))
        if record.retried:
            parts.append(self.retry.read(spark, record.retried, shape.waiting))
        if excess and parts:
            parts = [put_off(reduce(DataFrame.unionByName, parts), shape.key, excess)]
        if record.returned:
            back = self.deferred.read(spark, record.returned, shape.waiting)
            parts.append(back.withColumn(PUT_OFF, F.lit(False)) if excess and parts else back)
        gathered = reduce(DataFrame.unionByName, parts)
        waits = F.col(PUT_OFF) if PUT_OFF in gathered.columns else None
        frame, entered = tallied(shape.judged(gathered, waits))
        return _Counted(frame, source, entered)

    def _joined(self, frame: DataFrame, master: MasterTable) -> DataFrame:
        if self._tasks is not None:
            self._tasks.clear()
        return self._shape.joined(frame, master, metrics=self._metrics, learned=self._learned)

    def _engine(self, counts: Counts) -> dict[str, Any]:
        """What the tasks measured, with the hit ratio among the tuples that were looked up."""
        engine = {} if self._tasks is None else self._tasks.collect()
        if engine:
            passed = counts.deferred + counts.rejected
            finished = engine["joined"] + engine["unmatched"] - passed
            hits = engine["front_hits"] + engine["in_place_probes"]
            engine["hit_ratio"] = hits / finished if finished > 0 else 0.0
        return engine


def _counts(record: BatchRecord, source: int, joined: int, routes: Mapping[str, int]) -> Counts:
    """The counts of a batch. Each row of a route is a tuple, but joined tuples may have several."""

    def rows(*prefixes: str) -> int:
        return sum(rows for name, rows in routes.items() if name.startswith(prefixes))

    return Counts(
        source=source,
        retried=rows_in(record.retried),
        returned=rows_in(record.returned),
        joined=joined,
        unmatched=rows("unmatched", "expired", "retry-"),
        deferred=rows("deferred-"),
        rejected=rows("rejected"),
        expired=rows("expired"),
        outputs=rows("joined"),
    )


def _distinct(spark: SparkSession, folder: Folder) -> int:
    """How many tuples the rows belong to."""
    if not folder.exists():
        return 0
    schema = StructType([StructField(NUMBER, LongType())])
    return spark.read.schema(schema).parquet(folder.spark).distinct().count()


def _check(record: BatchRecord, counts: Counts, entered: int, left: int, written: int) -> None:
    """Raise unless every tuple that arrived went to exactly one place."""
    went = counts.joined + counts.unmatched + counts.deferred + counts.rejected
    if entered == counts.arrived == went and left == written:
        return
    raise ConservationError(
        f"Batch {record.number} does not add up: {counts}; {entered} tuples entered the join, "
        f"{counts.arrived} arrived and {went} went somewhere; {left} rows left it and {written} "
        "were written. Nothing of the batch was handed on. Start the pipeline again: the batch "
        "runs anew from its record. If it fails again, report it with the checkpoint's batch log."
    )
