"""The join inside a Python worker of Spark.

A `JoinTask` says all that a worker needs to run the join on its share of the stream. Between
micro-batches its engine waits in this module, with front stage and open files: Spark keeps the
worker process and the modules it has imported, while what is shipped with a function is made
anew for each task. So whatever Spark ships refers to this module by name.

    task ──► take engine, or open one ──► run to the end ──► lay it back
                     │                        │ error
                     └── older version: drop  └─► drop
"""

from __future__ import annotations

import json
import os
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark import TaskContext

from semistream.algorithms import Engine, engine
from semistream.errors import MasterChangedError, OptionError
from semistream.metrics import Metrics
from semistream.relation import MasterTable
from semistream.spark.schema import carried_batch, carried_types

__all__ = [
    "EngineCache",
    "EngineKey",
    "JoinTask",
    "Option",
    "check_whole",
    "on_finished",
    "operator",
]

Option = int | str | bool | None
"""A value that an option of an engine can take."""

_MOST_IDLE: Final = 2
"""Engines that wait for their next task. Each holds its budget, so there are few: one for the
query, and one for another join of the same query, whose tasks the worker may serve in turn."""


@dataclass(frozen=True)
class JoinTask:
    """A join as Spark ships it: called with a task's batches, it gives the result's.

    Equal tasks share an engine, one after the other.
    """

    path: str = field(repr=False)
    """The master table's, absolute or a URI: a worker may stand in another directory. Not shown,
    since a URI may hold passwords."""
    version: int | None
    """The master's version; None for the newest when a task starts."""
    on: tuple[tuple[str, str], ...]
    """Pairs of a stream column and a master key column."""
    how: str
    algorithm: str
    memory: int
    """Bytes for each engine, so for each task that runs at a time."""
    io: str = "buffered"
    columns: tuple[str, ...] | None = None
    options: tuple[tuple[str, Option], ...] = ()
    types: tuple[str, ...] | None = None
    """What Spark was told that `columns` are; None to take them as they come."""
    metrics_dir: str | None = None
    """A folder that takes a JSON file per task that has finished; None for none."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join the batches of one Spark task. The engine is this task's alone while it runs."""
        # To an engine an empty batch is a pause; to Spark it is only a partition without rows.
        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return
        key = EngineKey(self, self._version(), first.schema.serialize().to_pybytes())
        kept = _ENGINES.take(key)
        joining = key.open() if kept is None else kept
        run = joining.run(chain([first], filled))
        try:
            for batch in run:
                yield carried_batch(batch, len(first.schema))
        except BaseException:
            # Also when Spark wants no more rows: what an engine half-way holds is of no use.
            _close(run)
            _close(joining)
            raise
        metrics = joining.metrics()
        _ENGINES.lay_back(key, joining)
        on_finished(self, metrics, version=key.version, warm=kept is not None)

    def _version(self) -> int:
        return MasterTable.open(self.path).version if self.version is None else self.version


class EngineKey(NamedTuple):
    """What an engine was made for; it can serve another task only if all of this is equal."""

    task: JoinTask
    version: int
    """The master's version, resolved."""
    schema: bytes
    """The stream's Arrow schema: a session may change time zone or string type in between."""
    shard: int | None = None
    """The master's shard; None for the whole master."""

    def open(self) -> Engine:
        """A new engine."""
        task = self.task
        options: dict[str, Any] = dict(task.options)
        return engine(
            task.algorithm,
            self._master(),
            on=dict(task.on),
            how=task.how,
            memory=task.memory,
            io=task.io,
            columns=task.columns,
            **options,
        )

    def _master(self) -> MasterTable:
        """The version, or the shard of it, that the engine reads; it must fit the query."""
        task = self.task
        master = MasterTable.open(task.path, self.version)
        if self.shard is None:
            check_whole(master)
        else:
            master = master.shard(self.shard)
        columns = task.columns or ()
        missing = [name for name in columns if name not in master.schema.names]
        found = None if missing else carried_types(master, columns)
        if task.types is not None and found != task.types:
            wanted = dict(zip(columns, task.types, strict=True))
            raise MasterChangedError(
                f"Version {self.version} of {master.path} has the columns\n{master.schema}\n"
                f"but the query was started for {wanted}. Stop the query and call ss.join again, "
                'or use freshness="pinned".'
            )
        return master

    def outdates(self, other: EngineKey) -> bool:
        """Whether the other is of the same join with an older version of the master."""
        same = replace(self.task, version=None) == replace(other.task, version=None)
        return same and other.version < self.version


class EngineCache:
    """Engines that wait for their next task, the least recently used given up first.

    An engine that runs is not in here, so no two tasks can have the same one.
    """

    def __init__(self, most: int) -> None:
        """Keeps at most `most` engines."""
        self._most = most
        self._idle: OrderedDict[EngineKey, Engine] = OrderedDict()

    def __len__(self) -> int:
        """Engines that wait."""
        return len(self._idle)

    def take(self, key: EngineKey) -> Engine | None:
        """Take out the engine of this key; those of older versions are given up. O(engines)."""
        for other in [other for other in self._idle if key.outdates(other)]:
            _close(self._idle.pop(other))
        return self._idle.pop(key, None)

    def lay_back(self, key: EngineKey, idle: Engine) -> None:
        """Keep an engine that has run to its end."""
        self._idle[key] = idle
        while len(self._idle) > self._most:
            _close(self._idle.popitem(last=False)[1])


_ENGINES: Final = EngineCache(_MOST_IDLE)


def check_whole(master: MasterTable) -> None:
    """Raise `OptionError` for a master table in shards: its pages are not in one order."""
    if master.shard_count > 1 or master.is_shard:
        raise OptionError(
            f"{master!r} is in shards, or one of them, which a join on Spark does not read yet. "
            "Build the master with shards=1."
        )


def operator(task: JoinTask) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The task as a function whose name tells what runs, in `explain` and in Spark's UI.

    The function is shipped by value, but the task's class by reference to this module.
    """

    def joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task(batches)

    joined.__name__ = joined.__qualname__ = f"semistream_{task.algorithm}_{_size(task.memory)}"
    return joined


def on_finished(task: JoinTask, metrics: Metrics, *, version: int, warm: bool) -> None:
    """A task has run to its end: write its metrics to the task's folder, if it has one.

    `version` is the master's, `warm` says whether the engine had served before. The file appears
    whole or not at all. Spark may run a task twice, after a failure or on speculation; whoever
    sums up takes one file per (query, batch, stage, partition).
    """
    if task.metrics_dir is None:
        return
    record = {**_spark_task(), "master_version": version, "warm": warm, **asdict(metrics)}
    record |= {"service_rate": metrics.service_rate, "hit_ratio": metrics.hit_ratio}
    folder = Path(task.metrics_dir)
    folder.mkdir(parents=True, exist_ok=True)
    names = ("batch", "stage", "partition", "attempt")
    name = "-".join("x" if record[part] is None else str(record[part]) for part in names)
    path = folder / f"{name}-{uuid.uuid4().hex[:12]}.json"
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(record) + "\n", "utf-8")
    unfinished.replace(path)


def _spark_task() -> Mapping[str, int | str | None]:
    """Which task of which micro-batch this is; all None outside Spark but for the process."""
    context = TaskContext.get()
    if context is None:
        names = ("query", "batch", "stage", "partition", "attempt")
        return {**dict.fromkeys(names), "pid": os.getpid()}
    batch = context.getLocalProperty("streaming.sql.batchId")
    return {
        "query": context.getLocalProperty("sql.streaming.queryId"),
        "batch": None if batch is None else int(batch),
        "stage": context.stageId(),
        "partition": context.partitionId(),
        "attempt": context.attemptNumber(),
        "pid": os.getpid(),
    }


def _size(memory: int) -> str:
    """Bytes as a short word for a name: 64MB."""
    for factor, unit in ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB")):
        if memory % factor == 0:
            return f"{memory // factor}{unit}"
    return f"{memory}B"


def _close(open_one: object) -> None:
    """Close what can be closed; anything else ends with its last reference."""
    close = getattr(open_one, "close", None)
    if close is not None:
        close()
