"""Staging: the tasks of a batch join and write in one go, each row to a file of its route.

    staging/_tasks.12/part-….parquet                              written by tasks
    staging/12/__semistream_route=joined/part-….parquet           moved here by the driver
               __semistream_route=rejected/…
               __semistream_route=retry-1-1763200000000/…
               _committed.json                                    the counts

A batch is staged whole or not at all. So a batch that runs again after a crash goes on with the
same rows, even if its source would now give others. Tasks say which files they have written; a
file that none of them names, as of a task that ran twice, stays behind. Rows are counted where they
enter the join, where they leave it, and in the files. Unless all counts agree, nothing is staged
and the pipeline stops.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from semistream.crash_points import reached
from semistream.errors import ConservationError
from semistream.spark.columns import PREFIX
from semistream.spark.pipeline.batch_frame import BatchShape
from semistream.spark.pipeline.batch_log import BatchRecord, Counts
from semistream.spark.pipeline.capacity import chunk_count, put_off
from semistream.spark.pipeline.folders import Folder, Note
from semistream.spark.pipeline.master_join import Planned, shared_moments
from semistream.spark.pipeline.outlets import Outlets
from semistream.spark.pipeline.parquet_files import WrittenFile
from semistream.spark.pipeline.queues import TupleQueue, rows_in
from semistream.spark.pipeline.routes import retry_rule
from semistream.spark.pipeline.stage_task import (
    FROM_DEFERRED,
    FROM_RETRY,
    FROM_SOURCE,
    StageTask,
    shipped,
)
from semistream.spark.task_metrics import merged

__all__ = ["Arrival", "Staging", "route_folder"]

_CODECS: Final = {"none": "none", "uncompressed": "none", "lz4raw": "lz4", "lz4_raw": "lz4"}
"""Spark's names of codecs that have others in Arrow."""


@dataclass(frozen=True)
class Arrival:
    """What a batch gets from Spark."""

    spark: SparkSession
    frame: DataFrame | None = None
    """The micro-batch; None for a batch of waiting tuples only."""
    rows: int = 0
    """Rows of the frame, counted if the batch has a limit; then the frame is cached."""


def route_folder(staged: Folder, route: str) -> Folder:
    """Where the rows of a route are staged."""
    return staged / f"{PREFIX}route={route}"


class Staging:
    """Joins the tuples of a batch and writes the result to files, once."""

    def __init__(
        self, shape: BatchShape, outlets: Outlets, home: Folder, deferred: Folder | None
    ) -> None:
        """Queues are in the folder `home`."""
        self._shape, self._outlets = shape, outlets
        self.retry = TupleQueue(home / "retry")
        self.deferred = TupleQueue(deferred or home / "deferred")
        self._learned = None if home.local is None else f"{home.local}/learned"

    def by_route(self, record: BatchRecord, arrival: Arrival, folder: Folder) -> Note:
        """Stage a batch.

        The note has its `counts`, the rows of its `routes` and `folders`, and `engine`.
        """
        excess = self._excess(record, arrival)
        frame = self._shape.judged(self._gathered(record, arrival, excess))
        join = self._shape.join.planned(frame, record, self._learned)
        tasks = folder.sibling(f"_tasks.{folder.name}")
        task = self._task(record, arrival, join, tasks, excess)
        told: list[dict[str, Any]] = []

        def write(_: str) -> None:
            tasks.create()
            with shared_moments(self._shape.join.masters()) as moments:
                run = shipped(replace(task, moments=moments), join.name)
                rows = join.placed(frame).mapInArrow(run, "told string")
                told.extend(json.loads(row.told) for row in rows.collect())
            reached("stage.told")

        def note(written: Folder) -> Note:
            written.create()
            files = [WrittenFile(*file) for one in told for file in one["files"]]
            return _checked(record, told, files, _moved(files, tasks, written))

        return folder.fill(write, note)

    def _excess(self, record: BatchRecord, arrival: Arrival) -> int:
        """How many stream tuples there are beyond those that the batch may join."""
        if record.capacity is None:
            return 0
        waited = rows_in(record.retried) + rows_in(record.returned)
        return max(arrival.rows + waited - record.capacity, 0)

    def _gathered(self, record: BatchRecord, arrival: Arrival, excess: int) -> DataFrame:
        """All tuples of a batch."""
        shape, spark = self._shape, arrival.spark
        waiting = [
            queue.read(spark, names, shape.waiting) if names else None
            for queue, names in ((self.retry, record.retried), (self.deferred, record.returned))
        ]
        frame = shape.gathered([arrival.frame, *waiting])
        return put_off(frame, shape.join.costly, excess) if excess else frame

    def _task(
        self,
        record: BatchRecord,
        arrival: Arrival,
        join: Planned,
        folder: Folder,
        excess: int,
    ) -> StageTask:
        """What each task does."""
        shape, outlets = self._shape, self._outlets
        kept = shape.kept.json()
        codec = str(arrival.spark.conf.get("spark.sql.parquet.compression.codec", "snappy")).lower()
        return StageTask(
            join=join.task,
            folder=folder,
            stream=tuple(shape.stream_columns),
            payload=tuple(shape.join.payload),
            witness=join.witness,
            hidden=shape.hidden,
            targets=outlets.folders,
            reasons=() if shape.checks is None else shape.checks.reasons,
            retry=None if outlets.retry is None else retry_rule(outlets.retry, record.at),
            sample=shape.sample,
            is_anti=outlets.how == "anti",
            chunks=max(chunk_count(excess, record.capacity or 1), 1),
            codec=_CODECS.get(codec, codec),
            schemas={
                "unmatched": kept,
                "expired": kept,
                "joined": shape.output.json(),
                "rejected": shape.rejected.json(),
            },
        )


def _moved(files: Sequence[WrittenFile], tasks: Folder, staged: Folder) -> dict[str, int]:
    """Move the files that tasks have written to where they belong; the rows of each folder."""
    targets = {name: route_folder(staged, name) for name in sorted({f.target for f in files})}
    for target in targets.values():
        target.create()
    for file in files:
        targets[file.target].take_file(tasks / file.name)
    reached("stage.moved")
    return {name: target.row_count() for name, target in targets.items()}


def _checked(
    record: BatchRecord,
    told: Sequence[Mapping[str, Any]],
    files: Sequence[WrittenFile],
    folders: Mapping[str, int],
) -> Note:
    """The note of a batch. `ConservationError` unless every tuple went to exactly one place."""
    routes: Counter[str] = Counter()
    arrived: Counter[int] = Counter()
    for one in told:
        routes.update(one["routes"])
        arrived.update({int(origin): rows for origin, rows in one["arrived"].items()})
    written: Counter[str] = Counter()
    for file in files:
        written[file.target] += file.rows
    counts = _counts(record, arrived[FROM_SOURCE], sum(one["joined"] for one in told), routes)
    entered = sum(one["entered"] for one in told)
    if not (
        (arrived[FROM_RETRY], arrived[FROM_DEFERRED]) == (counts.retried, counts.returned)
        and entered == counts.arrived - counts.deferred - counts.rejected
        and entered == counts.joined + counts.unmatched
        and counts.unmatched == sum(one["unmatched"] for one in told)
        and written == folders
    ):
        raise ConservationError(
            f"Batch {record.number} does not add up: {counts}; {dict(arrived)} tuples came from "
            f"source and queues, {entered} entered the join, and the rows that left it are "
            f"{dict(routes)}; {dict(written)} rows were written, {dict(folders)} are in the files. "
            "Nothing of the batch was handed on. Start the pipeline again: the batch runs anew "
            "from its record. If it fails again, report it with the checkpoint's batch log."
        )
    engine = merged(one["engine"] for one in told if one["engine"])
    if engine:
        hits = engine["front_hits"] + engine["in_place_probes"]
        asked = sum(map(_asked, told))
        engine["hit_ratio"] = hits / asked if asked else 0.0
    if any(one["left_out"] for one in told):
        engine["left_out"] = sum(one["left_out"] for one in told)
    return {
        "counts": asdict(counts),
        "routes": dict(routes),
        "folders": dict(folders),
        "engine": engine,
    }


def _asked(told: Mapping[str, Any]) -> int:
    """How many tuples a task has looked for, in all masters together."""
    lookups = told["engine"].get("lookups")
    return sum(one["arrived"] for one in lookups.values()) if lookups else told["entered"]


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
