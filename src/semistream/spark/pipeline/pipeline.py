"""`Pipeline`: source → join → warehouse, with a route for every stream tuple, exactly once.

    source ─► micro-batch ─► join ─┬─► joined ─────► sink
                ▲     ▲            ├─► unmatched ──► sink, or its own, or the retry queue ─┐
                │     │            ├─► rejected ───► rejected                              │
                │     │            └─► deferred ───► deferred queue ─┐                     │
                │     └──────────────────────────────────────────────┘                     │
                └──────────────────────────────────────────────────────────────────────────┘

docs/pipeline.md says what it promises, and docs/adr/0010 how it keeps that.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from semistream.budget import parse_memory
from semistream.display.live import live_display
from semistream.durations import parse_duration
from semistream.errors import CheckpointError, OptionError, PipelineStateError, SparkLostError
from semistream.parts.join_shape import On
from semistream.relation import MasterTable
from semistream.relation.storage import Location
from semistream.sampling import Sample
from semistream.spark.join import Option, join_task
from semistream.spark.pipeline.about import About, write_about
from semistream.spark.pipeline.batch_frame import BatchShape, check_names
from semistream.spark.pipeline.batch_log import BatchLog, Counts, Outcome
from semistream.spark.pipeline.batch_run import BatchRun
from semistream.spark.pipeline.batch_sequence import BatchSequence, Clock, Policy, steady_time
from semistream.spark.pipeline.failures import explained
from semistream.spark.pipeline.folders import Folder
from semistream.spark.pipeline.kafka_source import check_answers, kafka_sources
from semistream.spark.pipeline.lease import Lease
from semistream.spark.pipeline.master_join import MasterJoin, OneMaster
from semistream.spark.pipeline.metrics_log import MetricsLog, prometheus_text
from semistream.spark.pipeline.outlets import Outlets
from semistream.spark.pipeline.picture import RecentBatches, pipeline_html
from semistream.spark.pipeline.routes import Retry
from semistream.spark.pipeline.settings import (
    check_no_columns,
    check_no_terms,
    check_source,
    checkpoint_folder,
    rejecting_checks,
    spark_trigger,
    target_seconds,
)
from semistream.spark.pipeline.sinks import SinkLike
from semistream.spark.pipeline.star_join import StarJoin
from semistream.spark.pipeline.status import Status
from semistream.spark.pipeline.steps import Step, after_steps, checked_steps
from semistream.spark.records import RECORD
from semistream.spark.schema import stream_schema
from semistream.star.lookup import Lookup

__all__ = ["Pipeline", "Status"]

_LOOK_SECONDS: Final = 1
"""How often a pipeline looks whether waiting tuples are due while the stream rests."""


class Pipeline:
    """Joins a stream with one or several masters and writes each tuple to where it belongs, once.

    Nothing runs before `start`. The arguments are checked here.
    """

    def __init__(
        self,
        source: DataFrame,
        master: MasterTable | Location | Sequence[Lookup],
        *,
        on: On | None = None,
        sink: SinkLike,
        checkpoint: Location,
        memory: int | str,
        how: str | None = None,
        algorithm: str | None = None,
        columns: Sequence[str] | None = None,
        where: Any = None,
        valid: Sequence[str] | None = None,
        as_of: Sequence[str] | None = None,
        tolerance: Any = None,
        sample: float | Sample | None = None,
        steps: Sequence[Step] = (),
        unmatched: Retry | SinkLike | None = None,
        deferred: Location | None = None,
        rejected: SinkLike | None = None,
        checks: Mapping[str, str] | None = None,
        batch_target: float | str | None = None,
        trigger: float | str | None = None,
        metrics: Location | None = None,
        metrics_prometheus: Location | None = None,
        name: str | None = None,
        io: str | None = None,
        max_staleness: float | str | None = None,
        clock: Clock = steady_time,
        **options: Option,
    ) -> None:
        """A pipeline that is not running yet.

        Args:
            source: a streaming DataFrame of a classic session.
            master: the master table, or its path; or several, as a list of `ss.Lookup`, each with
                terms of its own. Each batch takes their newest versions.
            on: the stream's key columns, as for `ss.join`; not with a list.
            sink: where joined rows go: a path for Parquet, `ss.ParquetSink`, `ss.TableSink`,
                `ss.IcebergSink`, `ss.DatabaseSink`, `ss.KafkaSink`, or a function of a DataFrame
                and a batch number that is idempotent by that number.
            checkpoint: a folder of its own, which driver and executors reach. A pipeline with the
                same folder goes on where the last one was, whatever stopped it.
            memory: the budget of each task, as bytes or "64MB".
            how: "left", the default, to emit unmatched tuples with nulls, "inner" to leave them
                out; "semi" to emit the tuples that have a master row, each once and without its
                columns, "anti" to emit those that have none. What is emitted then counts as
                joined, all else as unmatched. With a list each look-up has its own:
                a tuple is unmatched if one with how="inner" has no row for it, and then left out.
            algorithm: one of `ALGORITHMS`, or "auto", the default.
            columns: the master's columns to add, by default all but its key.
            where: a condition beside equal keys, as in `ss.engine`; a tuple without a row that
                passes is unmatched.
            valid: which columns say from when to when a master row is valid, as in `ss.engine`.
            as_of: which columns say from when on a master row counts, as in `ss.engine`.
            tolerance: how much older the row of `as_of` may be.
            sample: the share of the stream's tuples that arrive, or a `Sample`, as in `ss.engine`.
                The others are `left_out` in the metrics, and go nowhere.
            steps: functions from DataFrame to DataFrame that each micro-batch goes through before
                it is joined, such as `partial(ss.surrogate_keys, keys=keys, on=…)`.
            unmatched: `ss.Retry` to let unmatched tuples wait for their master row, or a sink for
                them; by default `how` decides.
            deferred: a folder for deferred tuples, on the checkpoint's filesystem; by default
                inside the checkpoint.
            rejected: a sink for tuples with a null key, records that could not be parsed (a
                column `_corrupt_record`), and those that fail `checks`; with a column `reason`.
                Without it a null key is unmatched.
            checks: a reason → an SQL predicate that must hold.
            batch_target: how long a batch should take at most, as seconds or "2s". Tuples that
                would take longer are deferred, and joined when there is room.
            trigger: the time between batches, as seconds or "10s"; or "availableNow" to run until
                the source has no more, and end. By default each batch follows the last at once.
            metrics: a folder, as for `ss.join`, where the file <name>.jsonl gets a JSON line per
                batch; or a file for these lines, such as "metrics/sales.jsonl".
            metrics_prometheus: a file in Prometheus' text format, rewritten after each batch.
            name: the pipeline's name in metrics; by default that of the checkpoint's folder.
            io: "buffered", the default, or "direct" to bypass the page cache of a local disk.
            max_staleness: how old a master may be when a batch begins, as seconds or "10m". If it
                has not all changes of its source up to then, the pipeline fails with
                `StaleMasterError`; started again, it goes on. A master that `MasterTable.sync` does
                not bring up to date is as old as its version. A batch that a kill interrupted is
                finished with the version that it began with.
            clock: the time in seconds since 1970, for tests.
            options: sizes and rules of the algorithm, as `ss.engine` takes them.
        """
        check_source(source)
        terms: dict[str, Any] = {"on": on, "how": how, "algorithm": algorithm, "columns": columns}
        terms |= {"where": where, "valid": valid, "as_of": as_of, "tolerance": tolerance}
        terms |= {"io": io, **options}
        if isinstance(master, Sequence) and not isinstance(master, str):
            check_no_terms(terms)
            how = "inner"
        self._outlets = Outlets.of(sink, how or "left", unmatched, rejected)
        target = target_seconds(batch_target, deferred)
        most = None if max_staleness is None else parse_duration(max_staleness, "max_staleness")
        self._policy = Policy(self._outlets.retry is not None, target, most, clock)
        self._trigger = spark_trigger(trigger)
        if "preserve_order" in options:
            raise OptionError("A pipeline has no order: its routes are files. Leave it out.")
        self._steps = checked_steps(steps)
        arriving = after_steps(source, self._steps)
        self._arriving = arriving.columns
        stream = arriving.drop(RECORD)
        self._shape = BatchShape(
            stream,
            _join(stream, master, memory, terms),
            self._outlets.retry,
            rejecting_checks(stream, checks, is_rejecting=rejected is not None),
            None if sample is None else Sample.of(sample).of_columns(stream_schema(stream)),
        )
        self._outlets.check_columns(stream.columns, self._shape.output.names)
        self._checkpoint = checkpoint_folder(checkpoint)
        self._outlets.check_apart(self._checkpoint)
        self._deferred = None if deferred is None else Folder.at(deferred)
        self.name = name or self._checkpoint.name
        self._metrics = MetricsLog(self.name, metrics, metrics_prometheus)
        seconds = None if trigger in (None, "availableNow") else parse_duration(trigger, "trigger")
        self._about = About(
            self.name,
            self._shape.join.places,
            parse_memory(memory),
            io or "buffered",
            None if self._metrics.lines is None else str(self._metrics.lines.absolute()),
            target,
            seconds,
            trigger == "availableNow",
        )
        self._source = source
        self._kafka = kafka_sources(source)
        self._state = "new"
        self._failure: BaseException | None = None
        self._last: Outcome | None = None
        self._recent = RecentBatches()
        self._ended = threading.Event()
        self._stopping = False
        self._query: StreamingQuery | None = None
        self._sequence: BatchSequence | None = None
        self._steward: threading.Thread | None = None

    def start(self) -> Pipeline:
        """Start, or go on from the checkpoint if there is one; returns at once."""
        if self._state != "new":
            raise PipelineStateError(
                f"The pipeline {self.name} is {self._state}. Make a new one with the same "
                "checkpoint to go on."
            )
        check_answers(self._kafka)
        home = self._checkpoint / "semistream"
        lease = Lease.take(home.local or home.spark, self.name)
        try:
            self._sequence = sequence = self._recovered(home, lease)
            self._query = query = self._started()
        except BaseException as error:
            lease.release()
            if (clear := explained(error, self.name, self._kafka)) is error:
                raise
            raise clear from clear.__cause__
        self._state = "running"
        self._about = replace(self._about, started=datetime.now(UTC).isoformat(timespec="seconds"))
        write_about(home, self._about)
        tend = partial(self._tend, query, sequence, lease)
        self._steward = threading.Thread(target=tend, daemon=True)
        self._steward.start()
        return self

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until it ends, or this many seconds; whether it has ended.

        If the pipeline failed, its error is raised. With trigger="availableNow" it ends when all
        tuples, deferred ones too, are written.
        """
        self._require_started()
        ended = self._ended.wait(timeout)
        # Not before it has ended: how it did is then on record, and its checkpoint is free.
        if ended and self._failure is not None:
            raise self._failure
        return ended

    def stop(self) -> None:
        """Stop at once. A batch that is running is given up, and runs again after a restart."""
        self._require_started()
        self._stopping = True
        if self._query is not None and self._steward is not None:
            try:
                self._query.stop()
            except Exception as error:
                # If Java is gone, so is the query, and `await_termination` says so.
                if not isinstance(explained(error, self.name, self._kafka), SparkLostError):
                    raise
            self._steward.join()

    def status(self) -> Status:
        """The state now, and the counts of the last batch that is done."""
        last = self._last
        return Status(
            name=self.name,
            state=self._state,
            error=None if self._failure is None else str(self._failure),
            batch=None if last is None else last.number,
            version=None if last is None else last.version,
            counts=Counts() if last is None else last.counts,
            totals=Counts() if last is None else last.totals,
            ended_unmatched=0 if last is None else last.ended_unmatched,
            seconds=0.0 if last is None else last.seconds,
            waiting_retry=0 if last is None else last.waiting_retry,
            waiting_deferred=0 if last is None else last.waiting_deferred,
            versions={} if last is None else last.versions,
        )

    def display(self) -> None:
        """Show it in a notebook, and keep that up to date until it ends.

        The notebook goes on meanwhile. Elsewhere its state is printed, once.
        """
        if not live_display(self._repr_html_, self._ended.wait):
            print(self)

    def __repr__(self) -> str:
        """Its name and state, and how far it is."""
        at = "" if self._last is None else f", batch {self._last.number}"
        return f"Pipeline({self.name!r}, {self._state}{at})"

    def _repr_html_(self) -> str:
        """Tables and small charts, for notebooks."""
        return pipeline_html(self.status(), self._recent)

    def prometheus(self) -> str:
        """The metrics of the last batch, and totals, in Prometheus' text format."""
        return prometheus_text(self.name, self._last)

    @property
    def metrics_file(self) -> Path | None:
        """The file that gets a JSON line per batch; None without `metrics`."""
        return self._metrics.lines

    def _recovered(self, home: Folder, lease: Lease) -> BatchSequence:
        """The batches of this checkpoint, with what a killed process left half-way finished."""
        log = BatchLog(home.local or home.spark)
        self._check_whole(log)
        run = BatchRun(self._shape, self._outlets, home, self._deferred, log.identity())
        run.claim()
        join, policy = self._shape.join, self._policy
        sequence = BatchSequence(join, log, run, policy, lease, self._on_done)
        self._last = log.last_outcome
        self._metrics.catch_up(log)
        sequence.recover(self._source.sparkSession)
        return sequence

    def _started(self) -> StreamingQuery:
        """The streaming query, started."""
        writer = self._source.writeStream.foreachBatch(self._on_batch).queryName(self.name)
        writer = writer.option("checkpointLocation", self._checkpoint.spark)
        return (writer.trigger(**self._trigger) if self._trigger else writer).start()

    def _on_batch(self, frame: DataFrame, number: int) -> None:
        """Run one of Spark's micro-batches."""
        assert self._sequence is not None
        try:
            stepped = after_steps(frame, self._steps, self._arriving)
            self._sequence.stream_batch(stepped, number)
        except BaseException as error:
            # Spark would only pass its text on; `await_termination` raises the error itself.
            self._failure = None if self._stopping else explained(error, self.name, self._kafka)
            raise

    def _on_done(self, outcome: Outcome) -> None:
        self._last = outcome
        self._recent.add(outcome)
        self._metrics.append(outcome)

    def _tend(self, query: StreamingQuery, sequence: BatchSequence, lease: Lease) -> None:
        """While the query runs, join waiting tuples when they are due; then note how it ended."""
        spark = self._source.sparkSession
        try:
            while not query.awaitTermination(_LOOK_SECONDS):
                sequence.tend(spark)
            if not self._stopping:
                sequence.drain(spark)
            self._state = "stopped" if self._stopping else "finished"
        except BaseException as error:
            self._failure = explained(self._failure or error, self.name, self._kafka)
            self._state = "failed"
            # If Java is gone, so is the query.
            with contextlib.suppress(Exception):
                query.stop()
        finally:
            told = None if self._failure is None else str(self._failure)
            about = replace(self._about, state=self._state, error=told)
            write_about(self._checkpoint / "semistream", about)
            lease.release()
            self._ended.set()

    def _check_whole(self, log: BatchLog) -> None:
        """Raise if Spark's part of the checkpoint is gone.

        Spark would then count its batches from 0, and the log would take them for batches that are
        done.
        """
        last = log.last_record
        ran = last is not None and last.stream_batch is not None
        if ran and not (self._checkpoint / "offsets").names():
            raise CheckpointError(
                f"{self._checkpoint.shown} has a batch log, but not Spark's offsets. Restore all "
                "of the checkpoint from one backup, or begin with a new one."
            )

    def _require_started(self) -> None:
        if self._state == "new":
            raise PipelineStateError(f"The pipeline {self.name} was not started: call start().")


def _join(
    stream: DataFrame,
    master: MasterTable | Location | Sequence[Lookup],
    memory: int | str,
    terms: Mapping[str, Any],
) -> MasterJoin:
    """What batches are joined with."""
    check_names(stream)
    if isinstance(master, Sequence) and not isinstance(master, str):
        return StarJoin(stream, master, memory)
    return _one(stream, master, memory, **terms)


def _one(
    stream: DataFrame,
    master: MasterTable | Location,
    memory: int | str,
    *,
    on: On | None,
    how: str | None,
    algorithm: str | None,
    columns: Sequence[str] | None,
    io: str | None,
    **options: Any,
) -> OneMaster:
    """The join with one master."""
    table = master if isinstance(master, MasterTable) else MasterTable.open(master)
    if on is None:
        raise OptionError("on= is missing: give the stream's key columns, as for ss.join.")
    if how in ("semi", "anti"):
        check_no_columns(how, columns)
        columns, options["once"] = [], True
    options |= {"memory": memory, "algorithm": algorithm or "auto", "io": io or "buffered"}
    return OneMaster(stream, table, on, columns, partial(join_task, how="left", **options))
