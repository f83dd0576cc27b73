"""`join_star`: a Spark DataFrame with several master tables, as one `mapInArrow`.

    stream ─► task: rounds ─► look-up, look-up, … ─► stream's columns, then each master's

A chain of joins passes every tuple between Spark and Python once for each master, each time with a
worker of its own. Here a tuple passes once. Each look-up is a `JoinTask` like that of a single
join, with its share of the memory; `semistream.star` runs them one after the other.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from semistream.algorithms import Engine
from semistream.arrow_arrays import no_rows
from semistream.budget import parse_memory
from semistream.errors import ColumnClashError, OptionError
from semistream.matching.join import Matching
from semistream.matching.terms import Terms
from semistream.relation import MasterTable
from semistream.relation.storage import Location
from semistream.spark.columns import check_collations, quoted
from semistream.spark.join import check_frame, join_task
from semistream.spark.schema import carried_batch, stream_schema
from semistream.spark.task_metrics import Report, leave_record, task_record
from semistream.spark.worker import EngineKey, Joining, JoinTask, nullable, short_size
from semistream.star.division import divided
from semistream.star.lookup import Lookup, check_lookups, named
from semistream.star.rounds import Rounds
from semistream.star.shape import LookupShape, StarShape

__all__ = ["LookupTask", "StarTask", "join_star", "star_operator", "star_task"]

_MOST_IDLE: Final = 2
"""How many stars may wait for their next task in a worker. Each holds its budget."""


def join_star(
    df: DataFrame,
    lookups: Sequence[Lookup],
    *,
    memory: int | str,
    preserve_order: bool = False,
    freshness: str = "pinned",
    metrics: Location | None = None,
    learned: Location | None = None,
) -> DataFrame:
    """Join a batch or streaming DataFrame with several master tables, in one operator.

    Its columns are the stream's, then those of each look-up, in the order they are given in. Rows
    come in no particular order, unless it is to be preserved. The result is that of a chain of
    joins, one for each look-up.

    Args:
        df: the stream, of a classic or a Connect session.
        lookups: the masters and how to look up in each: `ss.Lookup(master, on=…)`. A master in
            shards is joined with all its shards in every task.
        memory: the budget of each task that runs at a time, for all look-ups together, as bytes or
            "128MB". The cost model divides it, so that no byte would save more time elsewhere;
            `star_engine(lookups, memory=…).planned(schema).explain()` says how.
        preserve_order: whether results come in the order of the stream, within a partition.
        freshness: "pinned" for the versions that the masters have open; "latest" for the newest
            when a task starts, as in `join`.
        metrics: a folder that every executor can write to. Each task that finishes leaves its
            metrics there as a JSON file, with those of each look-up.
        learned: a folder on a local disk, where workers leave the keys that the stream keeps asking
            for, as in `join`; each look-up has a file of its own.
    """
    task, schema = star_task(
        df, lookups, memory=memory, freshness=freshness, metrics=metrics, learned=learned
    )
    for one in task.lookups:
        one.join.check_fresh()
    if type(preserve_order) is not bool:
        raise OptionError(f"preserve_order={preserve_order!r} must be True or False.")
    return df.mapInArrow(star_operator(replace(task, ordered=preserve_order)), schema)


@dataclass(frozen=True)
class LookupTask:
    """A look-up as Spark ships it."""

    join: JoinTask
    """The join of row numbers and keys with the master."""
    on: tuple[tuple[str, str], ...]
    """Pairs of a stream column and a master key column."""
    name: str
    how: str
    prefix: str
    asked: Terms
    """What is asked for beside equal keys, of the stream's columns."""
    known_as: tuple[tuple[str, str], ...]

    def opened(self, version: int) -> Lookup:
        """The look-up, with a version of its master."""
        master = MasterTable.open(self.join.path, version)
        columns = None if self.join.columns is None else list(self.join.columns)
        lookup = Lookup(
            master,
            on=dict(self.on),
            how=self.how,
            columns=columns,
            name=self.name,
            prefix=self.prefix,
        )
        lookup.asked, lookup.known_as = self.asked, dict(self.known_as)
        return lookup


@dataclass(frozen=True)
class StarTask:
    """A star as Spark ships it: called with a task's batches, it gives the result's."""

    lookups: tuple[LookupTask, ...]
    held: int
    """Bytes for the tuples of a round."""
    memory: int
    """Bytes for everything in one task."""
    ordered: bool = False
    """Whether results come in the order of the stream."""
    metrics: str | None = None
    """A folder where each task that finishes leaves a JSON file; None for none."""

    def __call__(
        self, batches: Iterator[pa.RecordBatch], report: Report | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Join the batches of one Spark task; `report` is told what was measured."""
        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return
        for one in self.lookups:
            one.join.check_fresh()
        schema = nullable(first.schema)
        key = self._key(schema)
        star, warm = _STARS.taken(key)
        run = star.rounds.run(
            pa.RecordBatch.from_arrays(batch.columns, schema=schema)
            for batch in chain([first], filled)
        )
        try:
            for batch in run:
                yield carried_batch(batch, len(schema))
        except BaseException:
            # Spark also ends up here when it wants no more rows. Engines stopped half-way.
            run.close()
            star.close()
            raise
        for lookup, engine_key, joining in zip(self.lookups, star.keys, star.joinings, strict=True):
            lookup.join.hand_on(engine_key, joining)
        _STARS.lay_back(key, star)
        if self.metrics is not None or report is not None:
            record = _record(star.rounds, key, warm)
            if self.metrics is not None:
                leave_record(self.metrics, record)
            if report is not None:
                report(record)

    def _key(self, schema: pa.Schema) -> _StarKey:
        versions = tuple(
            MasterTable.latest_version(one.join.path)
            if one.join.version is None
            else one.join.version
            for one in self.lookups
        )
        return _StarKey(replace(self, metrics=None), versions, schema.serialize().to_pybytes())


class _StarKey(NamedTuple):
    """What open engines were made for."""

    task: StarTask
    versions: tuple[int, ...]
    schema: bytes


class _OpenStar:
    """The engines of a star in a worker, kept from task to task."""

    def __init__(self, key: _StarKey, old: _OpenStar | None) -> None:
        """Engines go on from those of an older star of the same look-ups, if there is one."""
        schema = pa.ipc.read_schema(pa.py_buffer(key.schema))
        opened = [
            one.opened(version) for one, version in zip(key.task.lookups, key.versions, strict=True)
        ]
        shape = StarShape(schema, opened)
        self.keys: list[EngineKey] = []
        self.joinings: list[Joining] = []
        for place, (lookup, one, version) in enumerate(
            zip(key.task.lookups, shape.lookups, key.versions, strict=True)
        ):
            engine_key = _engine_key(lookup.join, one, version)
            self.keys.append(engine_key)
            self.joinings.append(_begun(lookup.join, engine_key, old, place))
        task = key.task
        self.rounds = Rounds(shape, self.joinings, task.held, task.memory, ordered=task.ordered)

    def close(self) -> None:
        for joining in self.joinings:
            joining.close()


def _engine_key(join: JoinTask, one: LookupShape, version: int) -> EngineKey:
    task = replace(join, metrics=None, learned=None)
    return EngineKey(task, version, one.schema.serialize().to_pybytes())


def _begun(join: JoinTask, key: EngineKey, old: _OpenStar | None, place: int) -> Joining:
    """The engine of a look-up: the old one if it still fits, else one that knows what it knew."""
    if old is not None and old.keys[place] == key:
        return old.joinings[place]
    legacy = None if old is None else old.joinings[place].leave()
    joining = join.begun(key)
    if isinstance(joining, Engine | Matching):
        # The memory was divided when nothing but the schema was known.
        joining.expect(no_rows(pa.ipc.read_schema(pa.py_buffer(key.schema))))
    if legacy is not None:
        joining.inherit(legacy)
    return joining


class _Stars:
    """Stars that wait for their next task; the least recently used is closed first."""

    def __init__(self) -> None:
        self._idle: OrderedDict[_StarKey, _OpenStar] = OrderedDict()

    def taken(self, key: _StarKey) -> tuple[_OpenStar, bool]:
        """The star of this key, and whether it has served a task before."""
        star = self._idle.pop(key, None)
        if star is not None:
            return star, True
        akin = [other for other in self._idle if _unversioned(other) == _unversioned(key)]
        return _OpenStar(key, self._idle.pop(akin[-1]) if akin else None), False

    def lay_back(self, key: _StarKey, star: _OpenStar) -> None:
        """Keep a star that has run to its end."""
        self._idle[key] = star
        while len(self._idle) > _MOST_IDLE:
            self._idle.popitem(last=False)[1].close()


_STARS: Final = _Stars()


def _unversioned(key: _StarKey) -> tuple[Any, ...]:
    """The star without versions of masters, and without sizes, which may go with them."""
    parts = [(one.name, one.on, one.join.path, one.join.algorithm) for one in key.task.lookups]
    return (*parts, key.schema)


def _record(rounds: Rounds, key: _StarKey, warm: bool) -> dict[str, Any]:
    """What a task has measured, together and by look-up."""
    found = rounds.metrics()
    versions = dict(zip((one.name for one in key.task.lookups), key.versions, strict=True))
    by_lookup = {
        name: {"master_version": versions[name], **run.counts(), "algorithm": run.algorithm}
        for name, run in found.lookups.items()
    }
    return {**task_record(found.joint(), version=key.versions, warm=warm), "lookups": by_lookup}


def star_operator(
    task: StarTask,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The task as a function; `explain` and Spark's UI show its name, which says what runs."""

    def joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task(batches)

    name = f"semistream_star_{len(task.lookups)}_{short_size(task.memory)}"
    joined.__name__ = joined.__qualname__ = name
    return joined


def star_task(
    df: DataFrame,
    lookups: Sequence[Lookup],
    *,
    memory: int | str,
    freshness: str = "pinned",
    metrics: Location | None = None,
    learned: Location | None = None,
) -> tuple[StarTask, StructType]:
    """What each task of a star does, after all checks, and the schema of the result."""
    check_frame(df, freshness)
    checked, size = check_lookups(lookups), parse_memory(memory)
    schema = stream_schema(df)
    shape = StarShape(schema, checked)
    plan = divided(shape, no_rows(shape.plain_stream), size)
    tasks: list[LookupTask] = []
    fields: list[StructField] = list(df.schema.fields)
    for one, share in zip(shape.lookups, plan.shares, strict=True):
        with named(one.lookup):
            task, added = _lookup_task(df, one, share.memory, freshness, learned)
        tasks.append(task)
        fields += added
    _check_cases(df, fields)
    folder = None if metrics is None else os.path.abspath(metrics)
    return StarTask(tuple(tasks), plan.held, size, metrics=folder), StructType(fields)


def _lookup_task(
    df: DataFrame, one: LookupShape, memory: int, freshness: str, learned: Location | None
) -> tuple[LookupTask, list[StructField]]:
    """A look-up's task, and the columns that it adds."""
    lookup = one.lookup
    check_collations(df.schema, list(one.keys), "Stream column")
    names = [f"{quoted(name)} AS {quoted(called)}" for name, called in one.given.items()]
    join, schema = join_task(
        df.selectExpr(*names),
        lookup.master,
        on=one.on,
        memory=memory,
        freshness=freshness,
        shuffle=False,
        learned=learned,
        known_as=dict(one.asked.known_as),
        **lookup.terms(),
        **lookup.conditions(),
    )
    join = replace(join, max_staleness=lookup.most_behind)
    back = {called: name for name, called in one.keys.items()}
    on = tuple((back[called], key) for called, key in one.on.items())
    added = [
        StructField(lookup.prefix + field.name, field.dataType, field.nullable or lookup.keeps)
        for field in schema.fields[len(names) :]
    ]
    known_as = tuple(lookup.known_as.items())
    task = LookupTask(join, on, lookup.name, lookup.how, lookup.prefix, lookup.asked, known_as)
    return task, added


def _check_cases(df: DataFrame, fields: Sequence[StructField]) -> None:
    """To Spark, names that differ only in case are the same, unless it is told otherwise."""
    if str(df.sparkSession.conf.get("spark.sql.caseSensitive", "false")).lower() == "true":
        return
    known = [field.name.lower() for field in fields]
    clash = sorted(field.name for field in fields if known.count(field.name.lower()) > 1)
    if clash:
        raise ColumnClashError(
            f"The columns {clash} are the same but for upper and lower case, which Spark does not "
            "tell apart. Rename them in the stream, choose the masters' columns with columns=[…], "
            "give a look-up a prefix=…, or set spark.sql.caseSensitive to true."
        )
