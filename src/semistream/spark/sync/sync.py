"""`MasterTable.sync` on Spark: each batch of changes becomes a version of the master.

A batch frame is one batch. A stream is a query of Spark's with `foreachBatch`; its own number of a
micro-batch is committed with the master's version, so that one which runs again does nothing.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)
from pyspark.sql.streaming.query import StreamingQuery

from semistream.arrow_arrays import to_numpy
from semistream.durations import parse_duration
from semistream.errors import MasterExistsError, OptionError, SemistreamError, SourceError
from semistream.relation import MasterTable
from semistream.relation.following import (
    Applied,
    Changes,
    Following,
    applied,
    as_of,
    checked_mark,
    is_done,
    note_fresh,
    progress,
    tidied,
)
from semistream.relation.storage import Location, harmless, local_path, scrubbed
from semistream.spark.columns import column
from semistream.spark.pipeline.batch_log import pinned_versions
from semistream.spark.pipeline.failures import explained
from semistream.spark.pipeline.settings import checkpoint_folder, spark_trigger
from semistream.spark.sync.formats import AT, BAD, COUNT, DELETED, ChangeShape, sequence_name
from semistream.spark.sync.rebuild import can_rebuild, rebuilt
from semistream.spark.sync.snapshots import Snapshots

__all__ = ["Sync", "SyncStatus", "sync"]

_MOST_MERGED: Final = 500_000
"""With more changed keys than these, the master is built anew by Spark's executors; fewer pass
through the driver, and only the pages that they touch are written."""
_MOST_ATTEMPTS: Final = 20
_TIDY_EVERY: Final = 16
_LOOK_SECONDS: Final = 1
_LOST: Final = re.compile(
    r"Some data may have been (lost|missed)|failOnDataLoss|FILE_NOT_EXIST|FILE_NOT_FOUND|"
    r"TRUNCATED_TRANSACTION_LOG|VERSION_NOT_(FOUND|CONTIGUOUS)|annot time travel"
)
"""How Kafka's connector and Delta's say that changes are gone."""
_MOST_LINES: Final = 4
"""Of what Spark says when it cannot read the changes."""


@dataclass(frozen=True)
class SyncStatus:
    """How far a master has come with its source."""

    state: str
    """"running", "finished", "stopped" or "failed"."""
    error: str | None
    version: int
    """The master's version now."""
    position: int | None
    """The last batch of the source that has changed the master; None if there is none."""
    committed: float | None
    """When that was, as seconds since 1970."""
    as_of: float
    """The master has all changes of its source up to then."""
    lag_seconds: float
    """How long ago that is."""
    changes: int
    """All changes that came since the start."""
    fresh: int
    """Those that counted; the others were late, repeated or overtaken by another."""
    upserted: int
    deleted: int


@dataclass
class _Totals:
    changes: int = 0
    fresh: int = 0
    upserted: int = 0
    deleted: int = 0


@dataclass(frozen=True)
class _Terms:
    """What is the same for every batch."""

    shape: ChangeShape
    location: str
    stored_as: str
    keep: float | None
    pinned_by: Sequence[Location]
    metrics: Path | None


def sync(
    master: MasterTable,
    changes: DataFrame,
    *,
    sequence_by: str | Sequence[str] | None,
    apply_as_deletes: str | Column | None,
    format: str,
    checkpoint: Location | None,
    trigger: float | str | None,
    every: float | str,
    stored_as: str,
    keep: float | str | None,
    pinned_by: Sequence[Location],
    metrics: Location | None,
) -> Sync:
    """See `MasterTable.sync`."""
    given: object = changes
    if not isinstance(given, DataFrame):
        raise OptionError(f"changes is a {type(given).__name__}; it must be a Spark DataFrame.")
    if isinstance(pinned_by, str):
        raise OptionError(f"pinned_by={pinned_by!r} must be a list of checkpoints.")
    seconds = parse_duration(every, "every")
    terms = _Terms(
        ChangeShape.of(changes, master, format, sequence_by, apply_as_deletes),
        master.location,
        stored_as,
        None if keep is None else parse_duration(keep, "keep"),
        tuple(pinned_by),
        None if metrics is None else local_path(metrics, "metrics"),
    )
    checked_mark(master, terms.shape.sequence_by, Following(stored_as, 0.0))
    if not changes.isStreaming:
        return Sync(terms, 0.0)._once(changes)
    if ".connect." in type(changes).__module__:
        raise OptionError(
            "changes belongs to a Spark Connect session, whose foreachBatch runs away from this "
            "process. Use a classic session, or give a batch of changes at a time."
        )
    if terms.shape.format == "iceberg" and sequence_by is None:
        raise OptionError(
            "A stream of Iceberg's changes has no order that lasts from batch to batch. Give "
            "sequence_by=, or a batch of changes at a time."
        )
    if checkpoint is None:
        raise OptionError(
            "changes is a stream: give checkpoint=, a folder where Spark keeps how far it has read."
        )
    asked = spark_trigger(every if trigger is None else trigger)
    if trigger is not None:
        seconds = 0.0 if "availableNow" in asked else parse_duration(trigger, "trigger")
    return Sync(terms, seconds)._started(changes, checkpoint_folder(checkpoint).spark, asked)


class Sync:
    """A master that follows its source: running, if the source is a stream."""

    def __init__(self, terms: _Terms, interval: float) -> None:
        """`interval` is how long ago Spark may have asked the source for the last time."""
        self._terms, self._interval = terms, interval
        self._totals = _Totals()
        self._state = "running"
        self._failure: BaseException | None = None
        self._stopping = False
        self._query: StreamingQuery | None = None
        self._steward: threading.Thread | None = None
        self._is_known, self._ended = threading.Event(), threading.Event()
        self._began = time.time()
        self._noted = 0.0

    @property
    def master(self) -> MasterTable:
        """The newest version of the master."""
        return MasterTable.open(self._terms.location)

    def status(self) -> SyncStatus:
        """The state now."""
        at, known = as_of(self._terms.location), progress(self._terms.location)
        return SyncStatus(
            state=self._state,
            error=None if self._failure is None else str(self._failure),
            version=MasterTable.latest_version(self._terms.location),
            position=None if known is None else known.position,
            committed=None if known is None else known.committed,
            as_of=at,
            lag_seconds=max(time.time() - at, 0.0),
            **asdict(self._totals),
        )

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until it ends, or this many seconds; whether it has ended. Raises its error."""
        ended = self._ended.wait(timeout)
        # Before it has ended, the failure is Spark's, without what to do about it.
        if ended and self._failure is not None:
            raise self._failure
        return ended

    def stop(self) -> None:
        """Stop at once. A batch that is not committed runs again after a restart."""
        self._stopping = True
        if self._query is not None and self._steward is not None:
            # If Java is gone, so is the query.
            with contextlib.suppress(Exception):
                self._query.stop()
            self._steward.join()

    def _once(self, frame: DataFrame) -> Sync:
        """Apply a batch frame."""
        self._apply(frame, None, None, self._began)
        self._note(self._began)
        self._state = "finished"
        self._ended.set()
        return self

    def _started(self, changes: DataFrame, checkpoint: str, trigger: dict[str, Any]) -> Sync:
        """Start a streaming query."""
        writer = changes.writeStream.foreachBatch(self._on_batch)
        writer = writer.option("checkpointLocation", checkpoint).trigger(**trigger)
        with self._explained():
            self._query = writer.start()
        self._is_known.set()
        self._steward = threading.Thread(target=self._tend, args=(self._query,), daemon=True)
        self._steward.start()
        return self

    def _on_batch(self, frame: DataFrame, number: int) -> None:
        """Apply one of Spark's micro-batches."""
        began = time.time()
        # Spark begins before `start` has returned the query. Its id is that of the checkpoint.
        self._is_known.wait()
        assert self._query is not None
        try:
            self._apply(frame, str(self._query.id), number, began)
        except BaseException as error:
            # Spark would only pass its text on; `await_termination` raises the error itself.
            self._failure = None if self._stopping else error
            raise

    def _apply(
        self, frame: DataFrame, source: str | None, position: int | None, began: float
    ) -> None:
        """Apply a batch of changes, and tell of it."""
        following = Following(self._terms.stored_as, began, source, position)
        for attempt in range(1, _MOST_ATTEMPTS + 1):
            try:
                done, count = self._applied(frame, following)
                break
            except MasterExistsError:
                # Another writer was first: look again at what the master has.
                if attempt == _MOST_ATTEMPTS:
                    raise
                time.sleep(random.uniform(0.0, 0.1 * attempt))
        self._tell(done, count, began, position)

    def _applied(self, frame: DataFrame, following: Following) -> tuple[Applied, int]:
        """What was done, and with how many changes."""
        shape = self._terms.shape
        master = MasterTable.open(self._terms.location)
        mark = checked_mark(master, shape.sequence_by, following)
        if is_done(mark, following):
            return Applied(master.version), 0
        sequence: list[Column] | None = None
        if shape.format == "iceberg" and shape.sequence_by == ("_change_ordinal",):
            snapshots = Snapshots.of(mark).with_those_of(frame)
            sequence = [snapshots.number()]
            following = replace(following, source="iceberg", position=snapshots.position())
        last = shape.last_changes(frame, sequence).persist()
        try:
            # What is wrong, how many there are, and when the newest was made.
            summary = last.agg(
                F.min(column(BAD)),
                F.coalesce(F.sum(column(COUNT)), F.lit(0)),
                F.max(column(AT)),
                F.count(F.lit(1)),
            )
            bad, count, newest, keys = summary.collect()[0]
            _check_none_bad(bad)
            if type(following.position) is int and newest is not None:
                following = replace(following, as_of=min(following.as_of, newest))
            if keys > _MOST_MERGED and can_rebuild(master, last):
                nothing = _changes(last.limit(0).toArrow(), shape)
                return rebuilt(master, last, shape, nothing, following), count
            return applied(master, _changes(last.toArrow(), shape), following), count
        finally:
            last.unpersist()

    def _tell(self, done: Applied, count: int, began: float, position: int | None) -> None:
        """Count what was done, write the metrics, and remove old versions now and then."""
        terms, totals = self._terms, self._totals
        totals.changes += count
        totals.fresh += done.fresh
        totals.upserted += done.upserted
        totals.deleted += done.deleted
        if terms.metrics is not None:
            seconds = time.time() - began
            line = asdict(done) | {"changes": count, "at": began, "seconds": seconds}
            line["lag_seconds"] = time.time() - as_of(terms.location)
            line["position"] = position
            terms.metrics.parent.mkdir(parents=True, exist_ok=True)
            with open(terms.metrics, "a") as file:
                file.write(json.dumps(line) + "\n")
        if terms.keep is not None and done.fresh and done.version % _TIDY_EVERY == 0:
            pins = set[int]().union(*map(pinned_versions, terms.pinned_by))
            tidied(terms.location, terms.keep, pins)

    def _tend(self, query: StreamingQuery) -> None:
        """While the query runs, note that nothing is new; then note how it ended."""
        try:
            with self._explained():
                while not query.awaitTermination(_LOOK_SECONDS):
                    status: dict[str, Any] = dict(query.status)
                    waits = str(status["message"]).startswith("Waiting")
                    if waits and not status["isDataAvailable"]:
                        self._note(time.time() - self._interval)
                if not self._stopping:
                    self._note(self._began)
            self._state = "stopped" if self._stopping else "finished"
        except BaseException as error:
            self._failure, self._state = error, "failed"
        finally:
            self._ended.set()

    def _note(self, at: float) -> None:
        """Note that the master has all changes up to then, if it is time to."""
        if at - self._noted >= min(self._interval, 10.0):
            self._noted = at
            note_fresh(self._terms.location, at)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise an error that says what happened and how to go on."""
        try:
            yield
        except Exception as error:
            found = explained(self._failure or error, "sync")
            if isinstance(found, SemistreamError) and type(found) is not SemistreamError:
                raise found from found.__cause__
            if _LOST.search(str(found)):
                raise SourceError(
                    f"The source no longer has changes that the master at {self.master.path} has "
                    "not seen (a vacuum or a retention time has removed them, or the table or the "
                    "topic is another one): build the master anew from a snapshot of the source, "
                    "with replace=True, and follow it with a new checkpoint; until then the master "
                    "is as it was."
                ) from harmless(error)
            said = _without_traces(scrubbed(str(found)))
            raise SourceError(
                f"The changes for the master at {self.master.path} cannot be read: {said} The "
                "master is as it was, and goes on from its checkpoint once they can."
            ) from harmless(error)


def _changes(table: pa.Table, shape: ChangeShape) -> Changes:
    """Collected changes."""
    columns = [table.column(sequence_name(i)) for i in range(len(shape.sequence_by))]
    return Changes(
        table.select(list(shape.columns)),
        to_numpy(table.column(DELETED).combine_chunks()),
        [column.combine_chunks() for column in columns],
        shape.sequence_by,
    )


def _without_traces(message: str) -> str:
    """The first lines of Spark's message, without those of Java."""
    text = message.partition("JVM stacktrace")[0].partition("Driver stacktrace")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [one for one in lines if not one.startswith(("at ", "... ", "Caused by: "))]
    return " ".join(told[:_MOST_LINES])


def _check_none_bad(fault: str | None) -> None:
    """Raise if a change cannot be applied; the text says what is wrong."""
    if fault is not None:
        raise OptionError(
            f"A change cannot be applied: it has {fault}. Nothing of this batch is applied. Mend "
            "the source, or leave such changes out."
        )
