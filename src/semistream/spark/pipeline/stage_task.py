"""A batch inside a Python worker: tuples are joined, counted and written, each to its route's file.

    tuples ─► verdict ─┬─► join ─┬─► joined
                       │         └─► unmatched, expired or retry-<attempt>-<since>
                       ├─► rejected
                       └─► deferred-<chunk>

Only what was written and counted goes back to Spark, as a line of JSON. Every tuple gets a number
before the join. A mark for each number, made when a row comes out, shows whether each tuple has
left, and by one route.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.arrow_arrays import strings, to_arrow, to_numpy
from semistream.crash_points import reached
from semistream.relation.databases import seeing
from semistream.sampling import Sample, chosen
from semistream.spark.columns import PREFIX
from semistream.spark.pipeline.folders import Folder
from semistream.spark.pipeline.parquet_files import ParquetFiles
from semistream.spark.task_metrics import Report

__all__ = [
    "ATTEMPT",
    "DEFER",
    "FROM_DEFERRED",
    "FROM_RETRY",
    "FROM_SOURCE",
    "JOIN",
    "NUMBER",
    "ORIGIN",
    "REASON",
    "SINCE",
    "VERDICT",
    "Join",
    "RetryRule",
    "StageTask",
    "place",
    "shipped",
]

ATTEMPT: Final = PREFIX + "attempt"
"""How often a tuple was looked for and not found."""
SINCE: Final = PREFIX + "since"
"""When a tuple was first looked for and not found, in milliseconds since 1970."""
VERDICT: Final = PREFIX + "verdict"
ORIGIN: Final = PREFIX + "origin"
"""Where a tuple comes from, as a number."""
FROM_SOURCE, FROM_RETRY, FROM_DEFERRED = range(3)
REASON: Final = "reason"
"""The column that rejected tuples have besides their own."""
JOIN, DEFER = 0, -1
"""Verdicts; that of a rejected tuple is the number of the reason, from 1."""
NUMBER: Final = PREFIX + "number"
"""Where a task numbers its tuples."""
_MATCHED, _UNMATCHED = 1, 2
"""Marks of tuples that have left."""

_Batches: TypeAlias = Iterator[pa.RecordBatch]
_Mask: TypeAlias = NDArray[np.bool_]


def place(i: int) -> str:
    """The name of the stream's column i during the join; the master may have its real name."""
    return f"{PREFIX}{i}"


class RetryRule(NamedTuple):
    """Where unmatched tuples of a batch go."""

    cohort: int
    """`SINCE` of tuples that are looked for the first time."""
    over: int
    """Tuples that are looked for since this time, or longer, have expired."""


class Join(Protocol):
    """The join of a task."""

    def __call__(self, batches: _Batches, report: Report | None = None) -> _Batches:
        """A left join of the batches; `report` is told at the end what was measured."""


@dataclass(frozen=True)
class StageTask:
    """What each task of a batch does with its tuples."""

    join: Join
    folder: Folder
    """Where files are written."""
    stream: tuple[str, ...]
    """The names of the stream's columns."""
    payload: tuple[str, ...]
    """The names of the master's columns in the result."""
    witness: str
    """A column of the join's result that is null only if there is no master row."""
    hidden: str | None
    """A column of the stream that is null in all tuples but rejected ones, and left out."""
    targets: Mapping[str, str | None]
    """The folder of each route; None if its tuples are only counted."""
    reasons: tuple[str, ...] = ()
    retry: RetryRule | None = None
    chunks: int = 1
    """In how many parts deferred tuples wait."""
    sample: Sample | None = None
    """Which tuples of the source arrive; all, if it is None."""
    is_anti: bool = False
    """Whether tuples without a master row are the result, and those with one are unmatched."""
    codec: str = "snappy"
    schemas: Mapping[str, str] = field(default_factory=dict)
    """Spark's schemas of what sinks get, by folder, as JSON."""
    moments: Mapping[str, str] = field(default_factory=dict)
    """Of masters in databases, by location, what all tasks see."""

    def __call__(self, batches: _Batches) -> Iterator[pa.RecordBatch]:
        """Write all rows of the task; one row, with what was written, unless there is nothing."""
        run = _Run(self)
        with seeing(self.moments):
            for rows in self.join(run.entering(batches), run.measured):
                run.left(rows)
        if run.arrived or run.left_out:
            yield pa.RecordBatch.from_arrays([strings([json.dumps(run.told())])], names=["told"])


class _Run:
    """One task at work."""

    def __init__(self, task: StageTask) -> None:
        self._task = task
        self._files = ParquetFiles(task.folder, task.codec, task.schemas)
        self._stream = [place(i) for i in range(len(task.stream))]
        shown = [i for i, name in enumerate(task.stream) if name != task.hidden]
        self._shown = [place(i) for i in shown]
        self._shown_names = [task.stream[i] for i in shown]
        self.arrived: Counter[int] = Counter()
        self.left_out = 0
        self._routes: Counter[str] = Counter()
        self._engine: Mapping[str, Any] = {}
        self._marks = np.zeros(0, np.uint8)
        self._entered = 0

    def measured(self, record: Mapping[str, Any]) -> None:
        """Keep what the join has measured."""
        self._engine = record

    def entering(self, batches: _Batches) -> _Batches:
        """Count all tuples, write those that are not to be joined, and number the others."""
        for given in batches:
            batch = self._sampled(given)
            if not batch.num_rows:
                continue
            self._count_origins(batch)
            kept = self._judged(batch)
            if kept.num_rows:
                yield self._numbered(kept)

    def left(self, rows: pa.RecordBatch) -> None:
        """Mark the tuples of result rows, and write the rows."""
        numbers = to_numpy(rows.column(NUMBER))
        witness = rows.column(self._task.witness)
        if not witness.null_count and not self._task.is_anti:
            self._marks[numbers] |= _MATCHED
            self._emit("joined", rows)
            return
        matched = to_numpy(witness.is_null() if self._task.is_anti else witness.is_valid())
        self._marks[numbers[matched]] |= _MATCHED
        self._marks[numbers[~matched]] |= _UNMATCHED
        self._emit("joined", _where(rows, matched))
        self._unmatched(_where(rows, ~matched))

    def told(self) -> dict[str, Any]:
        """What was written and counted."""
        files = self._files.close()
        reached("task.files")
        return {
            "files": files,
            "arrived": self.arrived,
            "left_out": self.left_out,
            "routes": self._routes,
            "entered": self._entered,
            "joined": int(np.count_nonzero(self._marks == _MATCHED)),
            "unmatched": int(np.count_nonzero(self._marks == _UNMATCHED)),
            "engine": self._engine,
        }

    def _sampled(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The tuples that are in the sample, or have waited."""
        if self._task.sample is None:
            return batch
        wanted = chosen(batch, self._task.sample)
        if ORIGIN in batch.schema.names:
            wanted |= to_numpy(batch.column(ORIGIN)) != FROM_SOURCE
        self.left_out += batch.num_rows - int(np.count_nonzero(wanted))
        return _where(batch, wanted)

    def _count_origins(self, batch: pa.RecordBatch) -> None:
        if ORIGIN not in batch.schema.names:
            self.arrived[FROM_SOURCE] += batch.num_rows
            return
        counts = np.bincount(to_numpy(batch.column(ORIGIN)), minlength=3)
        self.arrived.update(dict(enumerate(counts.tolist())))

    def _judged(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The tuples to be joined; the others are written."""
        if VERDICT not in batch.schema.names:
            return batch
        verdicts = to_numpy(batch.column(VERDICT))
        if not verdicts.any():
            return batch
        self._reject(_where(batch, verdicts > JOIN), verdicts[verdicts > JOIN])
        self._defer(_where(batch, verdicts == DEFER))
        return _where(batch, verdicts == JOIN)

    def _numbered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        first, self._entered = self._entered, self._entered + batch.num_rows
        if self._entered > len(self._marks):
            grown = np.zeros(max(self._entered, 2 * len(self._marks)), np.uint8)
            grown[:first] = self._marks[:first]
            self._marks = grown
        names = [name for name in batch.schema.names if name not in (VERDICT, ORIGIN)]
        numbers = to_arrow(np.arange(first, self._entered))
        return pa.RecordBatch.from_arrays(
            [numbers, *(batch.column(name) for name in names)], names=[NUMBER, *names]
        )

    def _reject(self, rows: pa.RecordBatch, verdicts: NDArray[np.int32]) -> None:
        reasons = strings(self._task.reasons).take(to_arrow(verdicts - 1))
        columns = [*rows.select(self._stream).columns, reasons]
        names = [*self._task.stream, REASON]
        self._write("rejected", pa.RecordBatch.from_arrays(columns, names=names))

    def _defer(self, rows: pa.RecordBatch) -> None:
        chunks = (np.arange(rows.num_rows) + self._routes.total()) % self._task.chunks
        for chunk in np.unique(chunks).tolist():
            self._wait(f"deferred-{chunk}", _where(rows, chunks == chunk))

    def _unmatched(self, rows: pa.RecordBatch) -> None:
        """Write unmatched tuples to where they go now."""
        rule = self._task.retry
        if rule is None:
            self._emit("unmatched", rows)
            return
        attempts = _numbers(rows, ATTEMPT, 0) + 1
        since = _numbers(rows, SINCE, rule.cohort)
        is_over = since <= rule.over
        if is_over.any():
            self._emit("expired", _where(rows, is_over))
        waits = ~is_over
        for attempt, began in np.unique([attempts[waits], since[waits]], axis=1).T.tolist():
            chosen = waits & (attempts == attempt) & (since == began)
            self._wait(f"retry-{attempt}-{began}", _where(rows, chosen), attempt, began)

    def _wait(
        self, route: str, rows: pa.RecordBatch, attempt: int | None = None, since: int | None = None
    ) -> None:
        """Write tuples for a queue, with what they need to come back."""
        columns, names = rows.select(self._stream).columns, list(self._task.stream)
        if attempt is not None and since is not None:
            columns.append(to_arrow(np.full(rows.num_rows, attempt, np.int32)))
            columns.append(to_arrow(np.full(rows.num_rows, since, np.int64)))
            names += [ATTEMPT, SINCE]
        elif SINCE in rows.schema.names:
            columns += [rows.column(ATTEMPT), rows.column(SINCE)]
            names += [ATTEMPT, SINCE]
        self._write(route, pa.RecordBatch.from_arrays(columns, names=names))

    def _emit(self, route: str, rows: pa.RecordBatch) -> None:
        """Write rows for a sink: all columns if they go where joined rows go."""
        task = self._task
        names, shown = self._shown, self._shown_names
        if task.targets.get(route) == task.targets["joined"]:
            names, shown = [*names, *task.payload], [*shown, *task.payload]
        columns = rows.select(names).columns
        self._write(route, pa.RecordBatch.from_arrays(columns, names=shown))

    def _write(self, route: str, rows: pa.RecordBatch) -> None:
        self._routes[route] += rows.num_rows
        target = self._task.targets.get(route, route)
        if target is not None:
            self._files.add(target, rows)


def shipped(task: StageTask, name: str) -> Callable[[_Batches], _Batches]:
    """The task as a function, under a name that Spark's UI shows.

    Spark ships the function by value, but the task's class by reference to this module.
    """

    def staged(batches: _Batches) -> _Batches:
        return task(batches)

    staged.__name__ = staged.__qualname__ = name
    return staged


def _where(rows: pa.RecordBatch, mask: _Mask) -> pa.RecordBatch:
    return rows.filter(to_arrow(mask))


def _numbers(rows: pa.RecordBatch, name: str, default: int) -> NDArray[np.int64]:
    """A column as numbers, with a default for nulls, or for all if there is no such column."""
    if name not in rows.schema.names:
        return np.full(rows.num_rows, default, np.int64)
    column = rows.column(name)
    numbers: NDArray[np.int64] = to_numpy(column).astype(np.int64)
    if column.null_count:
        numbers[~to_numpy(column.is_valid())] = default
    return numbers
