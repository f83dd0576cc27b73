"""The join inside a Python worker of Spark.

A `JoinTask` has all that a worker needs to join its share of the stream. Spark keeps a worker
process, and the modules it has imported, from micro-batch to micro-batch; what it ships with a
function is made anew for each task. So engines wait in this module between tasks, with their front
stage and open files, and whatever Spark ships refers to this module by name.

    task ──► take engine, or open one ──► run to the end ──► lay it back
                     │   ▲ learned            │ error
                     │   │                    └─► drop
                     └── an engine of an older version or another schema; the learned file

A new engine begins with what another of the same join has learned, in this worker or in any. With
a master table in shards, what is kept is a `OneShard` or an `AllShards` in place of an engine.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from semistream.algorithms import Engine, fixed_engine
from semistream.algorithms.registry import AUTO
from semistream.cost.auto import ADAPTIVE
from semistream.cost.micro_batches import micro_batch_engine
from semistream.errors import BudgetError, MasterChangedError
from semistream.matching.engine import EngineMaker
from semistream.matching.join import Matching, PairFinder
from semistream.matching.terms import Terms
from semistream.metrics import Metrics
from semistream.parts.join_shape import resolve_on
from semistream.parts.learned import Learned, Legacy
from semistream.relation import MasterTable
from semistream.relation.following.freshness import check_fresh
from semistream.sampling import Sample, sampled
from semistream.scanning.conditions import Condition
from semistream.scanning.engine import scan_engine
from semistream.spark.learned_file import LearnedFile
from semistream.spark.schema import carried_batch, still_has
from semistream.spark.shards.division import DESTINATION_COLUMNS, KeyShards
from semistream.spark.shards.joins import AllShards, OneShard
from semistream.spark.task_metrics import Report, leave_record, plan_record, task_record

__all__ = [
    "EngineCache",
    "EngineKey",
    "JoinTask",
    "Joining",
    "Option",
    "key_types",
    "nullable",
    "operator",
    "short_size",
]

Option = int | str | bool | None
"""A value that an option of an engine can take."""

_MOST_IDLE: Final = 2
"""How many engines may wait for their next task. Each holds its budget, so there are few: one for
the query, and one for a second join in the same query, whose tasks the worker may serve in turn.

When the stream is divided by shard, a worker gets tasks of any shard, so the engine it has kept is
often of another one. To keep one for every shard, a worker would need the memory of them all."""


_BYTES_PER_KEY: Final = 256
"""Bytes of memory for each learned key that is read or written: a row takes about as much."""


class Joining(Protocol):
    """What a task runs: an engine, or something that runs engines on shards."""

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join a stream without pauses, yielding result batches as they come."""

    def metrics(self) -> Metrics:
        """Of the last run."""

    def learned(self, most: int | None = None) -> Learned:
        """The keys that the stream keeps asking for, the most frequent first."""

    def leave(self) -> Legacy | None:
        """Close it, and hand on what it has learned."""

    def inherit(self, legacy: Legacy) -> None:
        """Begin with what another has learned."""

    def close(self) -> None:
        """Give back what is kept for another run."""


@dataclass(frozen=True)
class JoinTask:
    """A join as Spark ships it: called with a task's batches, it gives the result's.

    Equal tasks share an engine, one after the other.
    """

    path: str = field(repr=False)
    """Where the master table is: an absolute path or a URI, since a worker may run in another
    directory. Not shown, since a URI may hold passwords."""
    version: int | None
    """The master's version; None for the newest when a task starts."""
    on: tuple[tuple[str, str], ...]
    """Pairs of a stream column and a master key column."""
    how: str
    algorithm: str
    memory: int
    """Bytes for all engines of one task."""
    io: str = "buffered"
    columns: tuple[str, ...] | None = None
    options: tuple[tuple[str, Option], ...] = ()
    types: tuple[str, ...] | None = None
    """The types that Spark expects of `columns`; None to take them as they come."""
    metrics: str | None = None
    """A folder where each task that finishes leaves a JSON file; None for none."""
    learned: str | None = None
    """A folder where workers leave the keys they have learned; None for none."""
    cache: tuple[str, int] | None = None
    """A folder of the executor's disk for copies of pages, and the bytes they may take there."""
    shards: int = 1
    """Shards of the master table."""
    condition: Condition | None = None
    """What stands in place of `on`: a scan of all shards by one engine."""
    sample: Sample | None = None
    """The tuples to join; None for all. It names the columns that decide."""
    divided_by: tuple[str, ...] | None = None
    """The types of the key by which the stream was divided to match the shards; each tuple's
    destination is then in its last columns. None if the stream is not divided."""
    terms: Terms | None = None
    """What is asked for beside equal keys; None if engines alone give it."""
    max_staleness: float | None = None
    """How many seconds old the master may be when a task starts; None for any."""

    def __call__(
        self, batches: Iterator[pa.RecordBatch], report: Report | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Join the batches of one Spark task. The engine is this task's alone while it runs.

        `report` is called at the end, with what the task has measured.
        """
        # To an engine an empty batch means a pause. Empty batches from Spark mean nothing.
        filled: Iterator[pa.RecordBatch] = (batch for batch in batches if batch.num_rows)
        left_out: list[int] = []
        if self.sample is not None:
            filled = sampled(filled, self.sample, left_out.append)
        first = next(filled, None)
        if first is None:
            return
        self.check_fresh()
        schema = nullable(first.schema)
        key = self._engine_key(first, schema)
        added = 0 if key.shard is None else DESTINATION_COLUMNS
        kept = _ENGINES.take(key)
        joining = self.begun(key) if kept is None else kept
        run = joining.run(
            pa.RecordBatch.from_arrays(batch.columns, schema=schema)
            for batch in chain([first], filled)
        )
        try:
            for batch in run:
                yield carried_batch(batch, len(first.schema) - added)
        except BaseException as error:
            if isinstance(error, BudgetError) and self.shards > 1:
                error.add_note(
                    f"An engine on a shard has part of the task's {self.memory:,} bytes."
                )
            # Spark also ends up here when it wants no more rows. Either way the engine stopped
            # half-way, and no other task can use it.
            _close(run)
            joining.close()
            raise
        metrics = joining.metrics()
        if left_out:
            arrived = metrics.arrived + sum(left_out)
            metrics = replace(metrics, arrived=arrived, left_out=sum(left_out))
        self.hand_on(key, joining)
        _ENGINES.lay_back(key, joining)
        if self.metrics is not None or report is not None:
            record = {
                **task_record(metrics, version=key.version, warm=kept is not None),
                **plan_record(joining),
            }
            if self.metrics is not None:
                leave_record(self.metrics, record)
            if report is not None:
                report(record)

    def check_fresh(self) -> None:
        """Raise `StaleMasterError` if the master is too old."""
        if self.max_staleness is not None:
            check_fresh(self.path, self.version, self.max_staleness)

    def engine(self, master: MasterTable, memory: int) -> Engine:
        """An engine on a master table or one of its shards, with all of the memory or a part."""
        options: dict[str, Any] = dict(self.options)
        if self.condition is not None:
            terms = self._terms() | {"on": self.condition}
            return scan_engine(master, memory=memory, **terms, **options)
        if self.algorithm == AUTO:
            return micro_batch_engine(master, memory=memory, **self._terms(), **options)
        return fixed_engine(
            master, algorithm=self.algorithm, memory=memory, **self._terms(), **options
        )

    def finding(self, on: Mapping[str, str], columns: Sequence[str], memory: int) -> JoinTask:
        """The inner join that finds the pairs of a join on terms."""
        return replace(
            self,
            on=tuple(on.items()),
            how="inner",
            columns=tuple(columns),
            memory=memory,
            types=None,
            terms=None,
        )

    def look_up_engine(self, master: MasterTable, memory: int) -> Engine:
        """An INLJ that gives the same columns, made for few tuples.

        It skips the filter and the map of the files: both take time before the first tuple.
        """
        terms = self._terms()
        if self.io == "buffered":
            terms["io"] = "unmapped"
        return fixed_engine(master, algorithm="inlj", memory=memory, use_filter=False, **terms)

    def key_shards(self, master: MasterTable) -> KeyShards:
        """Finds the shard of each stream tuple of this join."""
        key = tuple(resolve_on(dict(self.on), master.key).values())
        return KeyShards(master.codec, key, self.shards)

    def _terms(self) -> dict[str, Any]:
        return {"on": dict(self.on), "how": self.how, "io": self.io, "columns": self.columns}

    def begun(self, key: EngineKey) -> Joining:
        """A new engine; it begins with what others have learned, here or in other workers."""
        legacy = _ENGINES.legacy(key)
        joining = key.open()
        if legacy is None and self.learned is not None and key.shard is None:
            learned = key.learned_file(self.learned).read(self.memory // _BYTES_PER_KEY)
            legacy = Legacy(learned) if len(learned.codes) else None
        if legacy is not None:
            joining.inherit(legacy)
        return joining

    def hand_on(self, key: EngineKey, joining: Joining) -> None:
        """Leave what was learned for workers that start later, if it is time to.

        A worker with tasks of any shard opens engines again and again. To read their keys each
        time would cost more than it saves.
        """
        if self.learned is not None and key.shard is None:
            file = key.learned_file(self.learned)
            if file.is_due:
                file.write(joining.learned(self.memory // _BYTES_PER_KEY))

    def _engine_key(self, first: pa.RecordBatch, schema: pa.Schema) -> EngineKey:
        """What the task's engine must be made for; the first tuple says which shard it is."""
        version = MasterTable.latest_version(self.path) if self.version is None else self.version
        divided = self.divided_by is not None
        shard = first.column(first.num_columns - 1)[0].as_py() if divided else None
        # What is left for others makes no other engine.
        task = replace(self, metrics=None, learned=None, sample=None, max_staleness=None)
        return EngineKey(task, version, schema.serialize().to_pybytes(), shard)


class EngineKey(NamedTuple):
    """What an engine was made for; it can serve another task only if all of this is equal."""

    task: JoinTask
    version: int
    """The master's version, resolved."""
    schema: bytes
    """The stream's Arrow schema: a session may change its time zone or string type. All columns
    are nullable in it: Spark takes those of a stream for so or not, from batch to batch."""
    shard: int | None = None
    """The shard whose tuples the task gets; None if the stream is not divided."""

    def open(self) -> Joining:
        """A new engine, or a join with the shards."""
        task, master = self.task, self._master()
        if task.terms is None:
            return self.opened(task, master)
        return Matching(
            task.terms,
            master,
            _Finders(self, master),
            on=dict(task.on),
            memory=task.memory,
            columns=task.columns,
            passed_on=0 if self.shard is None else DESTINATION_COLUMNS,
        )

    def opened(self, task: JoinTask, master: MasterTable) -> Engine | AllShards | OneShard:
        """What joins on equal keys."""
        if task.shards == 1 or task.condition is not None:
            return task.engine(master, task.memory)
        # `master` and its index are not kept: the shards have copies of their parts of it.
        shards = [master.shard(i) for i in range(task.shards)]
        keys = task.key_shards(master)
        if self.shard is None:
            return AllShards(task, shards, keys, task.memory)
        return OneShard(task, shards, self.shard, keys, task.memory)

    def _master(self) -> MasterTable:
        """The version of the master to join with; an error if it does not fit the query."""
        task = self.task
        master = MasterTable.open(task.path, self.version)
        if task.cache is not None:
            master = master.cached(*task.cache)
        columns = task.columns or ()
        if task.types is not None and not still_has(master, columns, task.types):
            wanted = dict(zip(columns, task.types, strict=True))
            raise _changed(master, f"the columns\n{master.schema}\n", str(wanted))
        if master.shard_count != task.shards:
            raise _changed(master, f"{master.shard_count} shards, ", str(task.shards))
        if task.divided_by is not None and key_types(master) != task.divided_by:
            raise _changed(master, f"a key of {key_types(master)}, ", str(task.divided_by))
        return master

    def is_akin(self, other: EngineKey) -> bool:
        """Whether the other is of the same join, of any version of the master and any schema."""
        same = replace(self.task, version=None) == replace(other.task, version=None)
        return same and other.shard == self.shard

    def learned_file(self, folder: str) -> LearnedFile:
        """Where in a folder the keys that this join has learned are left."""
        task = self.task
        return LearnedFile(folder, (task.path, task.on))


class _Finders(NamedTuple):
    """Makes what finds the pairs of a join on terms."""

    key: EngineKey
    master: MasterTable

    def make(
        self, on: dict[str, str], columns: list[str], memory: int, first: pa.RecordBatch
    ) -> PairFinder:
        """An engine for an inner join, or a join with the shards."""
        made = self.key.opened(self.key.task.finding(on, columns, memory), self.master)
        if isinstance(made, Engine):
            made.expect(first)
        return made

    def check(
        self, on: dict[str, str], columns: list[str], memory: int, first: pa.RecordBatch
    ) -> None:
        """Raise `BudgetError` if that is too little memory; shards were checked by the driver."""
        task = self.key.task
        if task.shards == 1:
            EngineMaker(task.algorithm, self._engine, (ADAPTIVE,)).check(on, columns, memory, first)

    def _engine(
        self, algorithm: str, on: dict[str, str], columns: list[str], memory: int
    ) -> Engine:
        task = replace(self.key.task.finding(on, columns, memory), algorithm=algorithm)
        return task.engine(self.master, memory)


class EngineCache:
    """Engines that wait for their next task; the least recently used is closed first.

    A running engine is not in here, so two tasks never have the same one.
    """

    def __init__(self, most: int) -> None:
        """Keeps at most `most` engines."""
        self._most = most
        self._idle: OrderedDict[EngineKey, Joining] = OrderedDict()

    def __len__(self) -> int:
        """Engines that wait."""
        return len(self._idle)

    def take(self, key: EngineKey) -> Joining | None:
        """Take out the engine of this key."""
        return self._idle.pop(key, None)

    def legacy(self, key: EngineKey) -> Legacy | None:
        """What an engine of the same join has learned; None if there is none. O(engines).

        Those of older versions are closed. The one used last knows best.
        """
        akin = [other for other in self._idle if key.is_akin(other)]
        left = None
        for other in akin:
            if other.version < key.version:
                left = self._idle.pop(other).leave() or left
        if left is None and akin and akin[-1] in self._idle:
            left = Legacy(self._idle[akin[-1]].learned())
        return left

    def lay_back(self, key: EngineKey, idle: Joining) -> None:
        """Keep an engine that has run to its end."""
        self._idle[key] = idle
        while len(self._idle) > self._most:
            self._idle.popitem(last=False)[1].close()


def nullable(schema: pa.Schema) -> pa.Schema:
    """The schema with all columns nullable, and nothing said beside their types."""
    return pa.schema([pa.field(field.name, field.type) for field in schema])


_ENGINES: Final = EngineCache(_MOST_IDLE)


def key_types(master: MasterTable) -> tuple[str, ...]:
    """The types of a master table's key columns: they decide which codes keys have."""
    return tuple(str(master.schema.field(name).type) for name in master.key)


def _changed(master: MasterTable, found: str, wanted: str) -> MasterChangedError:
    return MasterChangedError(
        f"Version {master.version} of {master.path} has {found}but the query was started for "
        f'{wanted}. Stop the query and call ss.join again, or use freshness="pinned".'
    )


def operator(task: JoinTask) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The task as a function; `explain` and Spark's UI show its name, which says what runs.

    Spark ships the function by value, but the task's class by reference to this module.
    """

    def joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task(batches)

    joined.__name__ = joined.__qualname__ = f"semistream_{task.algorithm}_{short_size(task.memory)}"
    return joined


def short_size(memory: int) -> str:
    """Bytes as a short word for a name: 64MB."""
    for factor, unit in ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB")):
        if memory % factor == 0:
            return f"{memory // factor}{unit}"
    return f"{memory}B"


def _close(run: Iterator[pa.RecordBatch]) -> None:
    """End a run half-way if it is a generator; anything else ends with its last reference."""
    close = getattr(run, "close", None)
    if close is not None:
        close()
