"""The batches of a pipeline, one after the other: each is decided once, and run until it is done.

    decide ─► record ─► run ─► outcome ─► clean
                 ▲                │
                 └── again after a crash, from here

Batches come from Spark, and, when Spark has none, from the queues. Only one runs at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from semistream.errors import CheckpointError, OptionError
from semistream.relation.following import check_fresh, followed_as_of
from semistream.spark.pipeline.batch_log import BatchLog, BatchRecord, Counts, Outcome
from semistream.spark.pipeline.batch_run import BatchRun
from semistream.spark.pipeline.capacity import learned, taken_back
from semistream.spark.pipeline.folders import Note
from semistream.spark.pipeline.lease import Lease
from semistream.spark.pipeline.master_join import MasterJoin, Versions
from semistream.spark.pipeline.queues import QueueEntry, rows_in
from semistream.spark.pipeline.staging import Arrival

__all__ = ["BatchSequence", "Clock", "Policy", "steady_time"]

Clock = Callable[[], float]
"""Seconds since 1970, never running backwards."""

_WALL: Final = time.time() - time.perf_counter()


def steady_time() -> float:
    """The time of day; changes of the system's clock after the import do not show in it."""
    return _WALL + time.perf_counter()


@dataclass(frozen=True)
class Policy:
    """How it is decided what a batch takes in."""

    retries: bool
    """Whether unmatched tuples wait and are looked for again."""
    target: float | None
    """Seconds that a batch may take; None for no limit."""
    max_staleness: float | None = None
    """Seconds that a master may be behind its source when a batch begins; None for any."""
    clock: Clock = steady_time


class BatchSequence:
    """Decides what each batch takes in, runs it, and records its outcome."""

    def __init__(
        self,
        masters: MasterJoin,
        log: BatchLog,
        run: BatchRun,
        policy: Policy,
        lease: Lease,
        on_done: Callable[[Outcome], None],
    ) -> None:
        """A batch takes the newest versions of the masters; `on_done` gets every outcome."""
        self._lease = lease
        self._masters, self._log, self._run, self._policy = masters, log, run, policy
        self._on_done = on_done
        self._lock = threading.Lock()
        self._is_warm = False
        self._moves = self._seen = 0

    def recover(self, spark: SparkSession) -> None:
        """Finish what a killed process left half-way; Spark itself runs its own batch again."""
        left = rows_in(entry.name for entry in self._run.retry.entries())
        if left and not self._policy.retries:
            raise OptionError(
                f"{left} stream tuples wait in the retry queue of this checkpoint, but unmatched= "
                "is no ss.Retry. Give one, so that they can be looked for again."
            )
        self._check_deferred()
        last = self._log.last_record
        if last is not None and self._log.is_done(last):
            self._run.clean(last)
        elif last is not None and last.stream_batch is None:
            self._finish(last, Arrival(spark), again=True)

    def stream_batch(self, frame: DataFrame, number: int) -> None:
        """Run Spark's micro-batch of this number, unless it is done already."""
        with self._lock, self._moving():
            self._lease.check()
            record = self._log.of_stream_batch(number)
            if record is not None and self._log.is_done(record):
                return
            self._check_order(record, number)
            # A batch that has a limit is counted before it is joined.
            cached = (self._capacity() if record is None else record.capacity) is not None
            frame = frame.persist() if cached else frame
            try:
                rows = frame.count() if cached else 0
                arrival = Arrival(frame.sparkSession, frame, rows)
                again = record is not None
                self._finish(record or self._begin(number, rows), arrival, again)
            finally:
                if cached:
                    frame.unpersist()

    def waiting_batch(self, spark: SparkSession, retries: bool = True) -> bool:
        """Run a batch of waiting tuples that are due; False if there are none."""
        with self._lock:
            self._lease.check()
            if self._log.unfinished is not None:
                # Spark is about to run that one again, and batches must keep their order.
                return False
            due = bool(self._due(self._policy.clock()) if retries else [])
            if not due and not self._run.deferred.entries():
                return False
            self._finish(self._begin(None, 0, retries), Arrival(spark), again=False)
            return True

    def tend(self, spark: SparkSession) -> None:
        """Run a batch of waiting tuples if the stream has rested since the last call."""
        is_idle, self._seen = self._moves == self._seen, self._moves
        if is_idle and not self._lock.locked():
            self.waiting_batch(spark)

    def drain(self, spark: SparkSession) -> None:
        """After the stream has ended: join all deferred tuples, and retry those that are due."""
        retries = True
        while self.waiting_batch(spark, retries):
            retries = False

    @contextmanager
    def _moving(self) -> Iterator[None]:
        """Mark that a batch of the stream begins, and that it ends, for `tend`."""
        self._moves += 1
        try:
            yield
        finally:
            self._moves += 1

    def _check_order(self, record: BatchRecord | None, number: int) -> None:
        unfinished = self._log.unfinished
        if unfinished is not None and unfinished != record:
            raise CheckpointError(
                f"Batch {unfinished.number} (Spark's {unfinished.stream_batch}) is not finished, "
                f"but Spark goes on with its batch {number}. The checkpoint's folders do not "
                "belong together: restore all of it from one backup, or begin with a new one."
            )

    def _begin(self, stream_batch: int | None, rows: int, retries: bool = True) -> BatchRecord:
        """Decide what the next batch takes in, and put that on record."""
        at, known = self._policy.clock(), self._capacity()
        retried = self._due(at) if retries else []
        rows += sum(entry.rows for entry in retried)
        returned = taken_back(self._run.deferred.entries(), known, rows, stream_batch is None)
        newest = self._masters.newest()
        record = BatchRecord(
            number=self._log.next_number,
            stream_batch=stream_batch,
            at=at,
            version=newest.version,
            retried=tuple(entry.name for entry in retried),
            returned=tuple(entry.name for entry in returned),
            # A batch that only brings tuples back must not defer them again.
            capacity=known if stream_batch is not None or retried else None,
            versions=newest.versions,
            master_as_of=self._as_of(newest, at),
        )
        self._log.begin(record)
        return record

    def _as_of(self, versions: Versions, now: float) -> float | None:
        """Up to when the masters have all changes; raises if one is too far behind."""
        places, own = self._masters.located(versions), self._masters.most_behind
        for location, version in places.items():
            limits = (self._policy.max_staleness, own.get(location))
            most = min((limit for limit in limits if limit is not None), default=None)
            if most is not None:
                check_fresh(location, version, most, now)
        found = [followed_as_of(location, version) for location, version in places.items()]
        return min((at for at in found if at is not None), default=None)

    def _capacity(self) -> int | None:
        """How many tuples the next batch may join, as learned so far; None for no limit."""
        last = self._log.last_outcome
        return None if self._policy.target is None or last is None else last.capacity

    def _check_deferred(self) -> None:
        """Raise unless all deferred tuples are in the folder that was given."""
        last = self._log.last_outcome
        here = rows_in(entry.name for entry in self._run.deferred.entries())
        if last is not None and here < last.waiting_deferred:
            raise OptionError(
                f"{last.waiting_deferred:,} stream tuples were deferred with this checkpoint, but "
                f"{here:,} are in the folder of deferred tuples. Give deferred= as it was before."
            )

    def _due(self, at: float) -> list[QueueEntry]:
        """Entries of the retry queue that are due, or older than a master's newest version."""
        entries = self._run.retry.entries() if self._policy.retries else []
        version = self._masters.newest().version if entries else 0
        return [e for e in entries if e.due <= at * 1000 or e.version < version]

    def _finish(self, record: BatchRecord, arrival: Arrival, again: bool) -> None:
        began = self._policy.clock()
        note = self._run.write(record, arrival)
        outcome = self._outcome(record, note, self._policy.clock() - began, again)
        self._log.finish(outcome)
        self._run.clean(record)
        self._on_done(outcome)

    def _outcome(self, record: BatchRecord, note: Note, seconds: float, again: bool) -> Outcome:
        counts, last = Counts(**note["counts"]), self._log.last_outcome
        capacity = None if last is None else last.capacity
        target = self._policy.target
        # Nothing is learned from the first batch, which starts Python workers, nor from one that
        # runs again, which may find half of its work done.
        if target is not None and self._is_warm and not again:
            before = None if last is None else (_tuples(last.counts), last.seconds)
            capacity = learned(capacity, _tuples(counts), seconds, target, before)
        self._is_warm = True
        taken = {*record.retried, *record.returned}
        waiting = [
            sum(entry.rows for entry in queue.entries() if entry.name not in taken)
            for queue in (self._run.retry, self._run.deferred)
        ]
        return Outcome(
            number=record.number,
            stream_batch=record.stream_batch,
            at=record.at,
            version=record.version,
            counts=counts,
            totals=counts if last is None else last.totals.plus(counts),
            seconds=seconds,
            capacity=capacity,
            waiting_retry=waiting[0],
            waiting_deferred=waiting[1],
            engine=note["engine"],
            versions=record.versions,
            master_as_of=record.master_as_of,
        )


def _tuples(counts: Counts) -> int:
    """How many tuples a batch has looked up."""
    return counts.joined + counts.unmatched
