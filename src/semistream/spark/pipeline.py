"""`Pipeline`: source → join → warehouse, with a route for every stream tuple, exactly once.

    source ─► micro-batch ─► join ─┬─► joined ─────► sink
                ▲     ▲            ├─► unmatched ──► sink, or its own, or the retry queue ─┐
                │     │            ├─► rejected ───► rejected                              │
                │     │            └─► deferred ───► deferred queue ─┐                     │
                │     └──────────────────────────────────────────────┘                     │
                └──────────────────────────────────────────────────────────────────────────┘

docs/pipeline.md says what is promised, and docs/adr/0010 how.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from semistream.errors import CheckpointError, PipelineStateError
from semistream.parts.join_shape import On
from semistream.relation import MasterTable
from semistream.relation.storage import Location
from semistream.spark.batch_frame import JoinSettings
from semistream.spark.batch_log import BatchLog, Counts, Outcome
from semistream.spark.batch_run import BatchRun
from semistream.spark.batch_sequence import BatchSequence, Clock, Policy, steady_time
from semistream.spark.folders import Folder
from semistream.spark.metrics_log import MetricsLog, prometheus_text
from semistream.spark.pipeline_settings import Asked, PipelineSettings, checked_checkpoint
from semistream.spark.routes import Retry
from semistream.spark.sinks import SinkLike
from semistream.spark.worker import Option

__all__ = ["Pipeline", "Status"]

_LOOK_SECONDS: Final = 1
"""How often waiting tuples are looked after while the stream rests."""


@dataclass(frozen=True)
class Status:
    """How a pipeline is."""

    name: str
    state: str
    """"new", "running", "finished", "stopped" or "failed"."""
    error: str | None
    """What it failed with."""
    batch: int | None
    """The number of the last batch that is done; what follows is of that batch."""
    version: int | None
    """The master's version."""
    counts: Counts
    totals: Counts
    """Of all batches since the checkpoint began."""
    seconds: float
    waiting_retry: int
    """Stream tuples in the retry queue now."""
    waiting_deferred: int
    """Stream tuples in the deferred queue now."""


class Pipeline:
    """Joins a stream with a master table and writes each tuple to where it belongs, once.

    Nothing runs before `start`; all that can be wrong with the arguments is an error before that.
    """

    def __init__(
        self,
        source: DataFrame,
        master: MasterTable | Location,
        *,
        on: On,
        sink: SinkLike,
        checkpoint: Location,
        memory: int | str,
        how: str = "left",
        algorithm: str = "auto",
        columns: Sequence[str] | None = None,
        unmatched: Retry | SinkLike | None = None,
        deferred: Location | None = None,
        rejected: SinkLike | None = None,
        checks: Mapping[str, str] | None = None,
        batch_target: float | str | None = None,
        trigger: float | str | None = None,
        metrics: Location | None = None,
        metrics_prometheus: Location | None = None,
        name: str | None = None,
        io: str = "buffered",
        clock: Clock = steady_time,
        **options: Option,
    ) -> None:
        """A pipeline that is not running yet.

        Args:
            source: a streaming DataFrame of a classic session.
            master: the master table, or its path; each batch takes its newest version.
            on: the stream's key columns, as for `ss.join`.
            sink: where joined rows go: a path for Parquet, `ss.ParquetSink`, `ss.TableSink`, or a
                function of a DataFrame and a batch number that is idempotent by that number.
            checkpoint: a folder of its own, which driver and executors reach; with the same
                folder a pipeline goes on where it was, whatever stopped it.
            memory: the budget of each task, as bytes or "64MB".
            how: "left" to emit unmatched tuples with nulls, "inner" to leave them out.
            algorithm: one of `ALGORITHMS`, or "auto".
            columns: the master's columns to add, by default all but its key.
            unmatched: `ss.Retry` to let unmatched tuples wait for their master row, or a sink for
                them; by default `how` decides.
            deferred: a folder for tuples that are deferred, on the checkpoint's filesystem; by
                default inside the checkpoint.
            rejected: a sink for tuples with a null key, records that could not be parsed (a
                column `_corrupt_record`), and those that fail `checks`; with a column `reason`.
                Without it a null key is unmatched.
            checks: a reason → an SQL predicate that must hold.
            batch_target: seconds that a batch should take, or "2s"; what would take longer is
                deferred, and joined when there is room.
            trigger: the time between batches, as seconds or "10s"; or "availableNow" to run until
                the source has no more, and end. By default a batch follows the last.
            metrics: a file that takes a JSON line per batch.
            metrics_prometheus: a file in Prometheus' text format, rewritten after each batch.
            name: the pipeline's name in metrics; by default that of the checkpoint's folder.
            io: "buffered", or "direct" to pass by the page cache of a local disk.
            clock: the time in seconds since 1970, for tests.
            options: sizes and rules of the algorithm, as `ss.engine` takes them.
        """
        join = JoinSettings(on, memory, algorithm, columns, io, options)
        asked = Asked(how, sink, unmatched, deferred, rejected, checks, batch_target, trigger)
        self._settings = PipelineSettings.checked(source, master, join, asked)
        self._checkpoint = checked_checkpoint(checkpoint, self._settings.outlets)
        self._deferred = None if deferred is None else Folder.at(deferred)
        self.name = name or self._checkpoint.name
        self._policy = Policy(
            self._settings.outlets.retry is not None, self._settings.target, clock
        )
        self._metrics = MetricsLog(self.name, metrics, metrics_prometheus)
        self._source = source
        self._state = "new"
        self._failure: BaseException | None = None
        self._last: Outcome | None = None
        self._ended = threading.Event()
        self._stopping = False
        self._query: StreamingQuery | None = None
        self._sequence: BatchSequence | None = None
        self._steward: threading.Thread | None = None

    def start(self) -> Pipeline:
        """Go on from the checkpoint, or begin with it; returns at once."""
        if self._state != "new":
            raise PipelineStateError(
                f"The pipeline {self.name} is {self._state}. Make a new one with the same "
                "checkpoint to go on."
            )
        home = self._checkpoint / "semistream"
        log = BatchLog(home.local or home.spark)
        self._check_whole(log)
        settings = self._settings
        run = BatchRun(settings.shape, settings.outlets, home, self._deferred, log.identity())
        run.claim()
        self._sequence = BatchSequence(settings.location, log, run, self._policy, self._on_done)
        self._last = log.last_outcome
        self._metrics.catch_up(log)
        self._sequence.recover(self._source.sparkSession)
        self._query = self._started()
        self._state = "running"
        self._steward = threading.Thread(
            target=self._tend, args=(self._query, self._sequence), daemon=True
        )
        self._steward.start()
        return self

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until it ends, or so many seconds; whether it has ended. Raises what it failed with.

        With trigger="availableNow" it ends when all tuples, deferred ones too, are written.
        """
        self._require_started()
        ended = self._ended.wait(timeout)
        if self._failure is not None:
            raise self._failure
        return ended

    def stop(self) -> None:
        """Stop it, the batch under way too: that one runs again when a pipeline goes on."""
        self._require_started()
        self._stopping = True
        if self._query is not None and self._steward is not None:
            self._query.stop()
            self._steward.join()

    def status(self) -> Status:
        """How it is now; counts are those of the last batch that is done."""
        last = self._last
        return Status(
            name=self.name,
            state=self._state,
            error=None if self._failure is None else str(self._failure),
            batch=None if last is None else last.number,
            version=None if last is None else last.version,
            counts=Counts() if last is None else last.counts,
            totals=Counts() if last is None else last.totals,
            seconds=0.0 if last is None else last.seconds,
            waiting_retry=0 if last is None else last.waiting_retry,
            waiting_deferred=0 if last is None else last.waiting_deferred,
        )

    def prometheus(self) -> str:
        """The metrics of the last batch, and totals, in Prometheus' text format."""
        return prometheus_text(self.name, self._last)

    def _started(self) -> StreamingQuery:
        """The query, running."""
        writer = self._source.writeStream.foreachBatch(self._on_batch).queryName(self.name)
        writer = writer.option("checkpointLocation", self._checkpoint.spark)
        trigger = self._settings.trigger
        return (writer.trigger(**trigger) if trigger else writer).start()

    def _on_batch(self, frame: DataFrame, number: int) -> None:
        """Spark has a micro-batch."""
        assert self._sequence is not None
        try:
            self._sequence.stream_batch(frame, number)
        except BaseException as error:
            # Spark wraps it in text; whoever waits is to get the error itself.
            self._failure = None if self._stopping else error
            raise

    def _on_done(self, outcome: Outcome) -> None:
        self._last = outcome
        self._metrics.append(outcome)

    def _tend(self, query: StreamingQuery, sequence: BatchSequence) -> None:
        """Look after waiting tuples while the query runs, and see to its end."""
        spark = self._source.sparkSession
        try:
            while not query.awaitTermination(_LOOK_SECONDS):
                sequence.tend(spark)
            if not self._stopping:
                sequence.drain(spark)
            self._state = "stopped" if self._stopping else "finished"
        except BaseException as error:
            self._fail(error)
        finally:
            self._ended.set()

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._state = "failed"
        if self._query is not None and self._query.isActive:
            self._query.stop()

    def _check_whole(self, log: BatchLog) -> None:
        """The log without Spark's own part would take new batches for ones that are done."""
        ran = any(record.stream_batch is not None for record in log.records()[-1:])
        if ran and not (self._checkpoint / "offsets").names():
            raise CheckpointError(
                f"{self._checkpoint.spark} has a batch log, but not Spark's offsets. Restore all "
                "of the checkpoint from one backup, or begin with a new one."
            )

    def _require_started(self) -> None:
        if self._state == "new":
            raise PipelineStateError(f"The pipeline {self.name} was not started: call start().")
