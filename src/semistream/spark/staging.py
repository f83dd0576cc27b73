"""Staging: the result of a batch's join, written once, each row in the folder of its route.

    staging/12/__semistream_route=joined/…
               __semistream_route=rejected/…
               __semistream_route=retry-1-1763200000000/…
               _committed.json                              the counts

It is whole or not there. So a batch that runs again after a crash goes on from the same rows, even
if its source would now give others. Counting is part of it: rows where they enter the job, where
they leave it, and in the files; unless all agree, nothing is staged and the pipeline stops.
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
from semistream.spark.batch_frame import MATCHED, NUMBER, BatchShape, tallied, tally_of
from semistream.spark.batch_log import BatchRecord, Counts
from semistream.spark.capacity import PUT_OFF, chunk_count, put_off
from semistream.spark.folders import Folder, Note
from semistream.spark.queues import TupleQueue, rows_in
from semistream.spark.routes import ROUTE
from semistream.spark.task_metrics import TaskMetrics

__all__ = ["Arrival", "SeveralRows", "Staging", "route_folder"]


@dataclass(frozen=True)
class Arrival:
    """What Spark hands over: its session, and the micro-batch; None for waiting tuples only."""

    spark: SparkSession
    frame: DataFrame | None = None
    rows: int = 0
    """How many there are, where that must be known before; then the frame is cached."""


class SeveralRows(Exception):  # noqa: N818 (a turn of the way, no error)
    """Some tuple has not exactly one row in the result."""


class _Counted(NamedTuple):
    """A frame, and what has counted the rows on their way into it."""

    frame: DataFrame
    source: Observation | None
    entered: Observation


def route_folder(staged: Folder, route: str) -> Folder:
    """Where the rows of a route are."""
    return staged / f"{ROUTE}={route}"


class Staging:
    """Joins the tuples of a batch and writes the result down, once."""

    def __init__(self, shape: BatchShape, home: Folder, deferred: Folder | None) -> None:
        """With queues, and the metrics of the tasks, in the folder `home`."""
        self._shape = shape
        self.retry = TupleQueue(home / "retry")
        self.deferred = TupleQueue(deferred or home / "deferred")
        self._metrics_dir = None if home.local is None else f"{home.local}/tasks"
        self._tasks = None if self._metrics_dir is None else TaskMetrics(Path(self._metrics_dir))

    def by_route(
        self, record: BatchRecord, arrival: Arrival, master: MasterTable, folder: Folder
    ) -> Note:
        """Stage a batch, a folder per route: `counts`, rows by `routes`, and `engine`."""
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
        """Write a batch without waiting tuples to its only sink, of Parquet: `counts`, `engine`.

        Raises `SeveralRows` if tuples and rows are not one to one: then only what is staged can
        be counted, and nothing was written.
        """
        judged = self._judged(record, arrival, 0)
        frame, left = tallied(self._joined(judged.frame, master))
        out = frame if keep_unmatched else frame.where(MATCHED)
        out = out.select(*self._shape.output_names())

        def note(written: Folder) -> Note:
            entered, tally = tally_of(judged.entered), tally_of(left)
            if (entered.rows, entered.mark) != (tally.rows, tally.mark):
                raise SeveralRows
            joined = tally.rows - tally.unmatched
            routes = {"joined": joined, "unmatched": tally.unmatched}
            counts = _counts(record, entered.rows, joined, routes)
            wanted = tally.rows if keep_unmatched else joined
            _check(record, counts, entered.rows, wanted, written.row_count())
            return {"counts": asdict(counts), "engine": self._engine(counts)}

        return folder.fill(lambda path: out.write.parquet(path), note)

    def _excess(self, record: BatchRecord, arrival: Arrival) -> int:
        """Stream tuples beyond what the batch may join."""
        if record.capacity is None:
            return 0
        waited = rows_in(record.retried) + rows_in(record.returned)
        return max(arrival.rows + waited - record.capacity, 0)

    def _judged(self, record: BatchRecord, arrival: Arrival, excess: int) -> _Counted:
        """All tuples of a batch, counted, with their verdicts. Those that return stay."""
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
        return self._shape.joined(frame, master, self._metrics_dir)

    def _engine(self, counts: Counts) -> dict[str, Any]:
        """What the tasks have measured. Tuples that passed the join by could be no hits."""
        engine = {} if self._tasks is None else self._tasks.collect()
        if engine:
            passed = counts.deferred + counts.rejected
            finished = engine["joined"] + engine["unmatched"] - passed
            engine["hit_ratio"] = engine["front_hits"] / finished if finished > 0 else 0.0
        return engine


def _counts(record: BatchRecord, source: int, joined: int, routes: Mapping[str, int]) -> Counts:
    """The tuples of a batch from the rows of its routes; only a joined tuple has several."""

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
    """Different tuples among the rows, of which some tuples have several."""
    if not folder.exists():
        return 0
    schema = StructType([StructField(NUMBER, LongType())])
    return spark.read.schema(schema).parquet(folder.spark).distinct().count()


def _check(record: BatchRecord, counts: Counts, entered: int, left: int, written: int) -> None:
    """All that arrived went somewhere, once."""
    went = counts.joined + counts.unmatched + counts.deferred + counts.rejected
    if entered == counts.arrived == went and left == written:
        return
    raise ConservationError(
        f"Batch {record.number} does not add up: {counts}; {entered} tuples entered the join, "
        f"{counts.arrived} arrived and {went} went somewhere; {left} rows left it and {written} "
        "were written. Nothing of the batch was handed on. Start the pipeline again: the batch "
        "runs anew from its record. If it fails again, report it with the checkpoint's batch log."
    )
