"""`join`: a Spark DataFrame with a master table, as one `mapInArrow`.

If the master table is in shards and the stream is divided to match, two steps come before it:
another `mapInArrow`, which finds the shard of each tuple, and a shuffle.

No stream tuple passes through the driver. All arguments are checked here, before anything starts,
with the engine's own messages. `worker` does the join itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from semistream.algorithms import Engine, fixed_engine
from semistream.algorithms.registry import AUTO
from semistream.arrow_arrays import no_rows
from semistream.budget import parse_memory
from semistream.cost.auto import ADAPTIVE, IN_MEMORY, in_memory
from semistream.cost.micro_batches import micro_batch_engine
from semistream.durations import parse_duration
from semistream.errors import OptionError
from semistream.matching.engine import MatchingEngine
from semistream.matching.resolved import Resolved
from semistream.matching.round_memory import RoundMemory
from semistream.matching.terms import Terms
from semistream.parts.join_shape import JoinShape, On, resolve_on
from semistream.relation import MasterTable
from semistream.relation.storage import Location, local_path
from semistream.sampling import Sample
from semistream.scanning.conditions import Condition
from semistream.scanning.engine import scan_engine
from semistream.scanning.sizing import ALGORITHM as SCAN
from semistream.spark.columns import check_condition, check_plain
from semistream.spark.observed import observed
from semistream.spark.schema import carried_types, joined_schema, stream_schema
from semistream.spark.shards.division import divided
from semistream.spark.shards.memory import is_divided
from semistream.spark.worker import JoinTask, Option, key_types, operator

__all__ = ["JoinTask", "Option", "check_frame", "join", "join_task", "operator", "placed"]

_FRESHNESS: Final = ("pinned", "latest")
_AMPLE: Final = 1 << 40
"""More bytes than any engine needs."""


def join(
    df: DataFrame,
    master: MasterTable,
    *,
    on: On | Condition,
    memory: int | str,
    how: str = "inner",
    algorithm: str = "auto",
    columns: Sequence[str] | None = None,
    where: Any = None,
    valid: Sequence[str] | None = None,
    as_of: Sequence[str] | None = None,
    tolerance: Any = None,
    preserve_order: bool = False,
    freshness: str = "pinned",
    io: str = "buffered",
    shuffle: bool | None = None,
    metrics: Location | None = None,
    learned: Location | None = None,
    cache: Location | None = None,
    cache_bytes: int | str = "10GB",
    sample: float | Sample | None = None,
    max_staleness: float | str | None = None,
    observe: str | None = None,
    **options: Option,
) -> DataFrame:
    """Join a batch or streaming DataFrame with a master table; the result is of the same kind.

    Its columns are the stream's, then the master's without its key. Rows come in no particular
    order, unless `preserve_order`. A stream tuple whose key is null is unmatched.

    Args:
        df: the stream, of a classic or a Connect session.
        master: the master table; every executor must be able to read its path.
        on: the stream's key columns: a name, a list, or a dict from stream column to master key
            column. Or a condition, such as `between("ip", "low", "high")`; then the result has the
            master's key too.
        memory: the budget of each task that runs at a time, as bytes or "64MB". A Python worker
            keeps its engine, and so the memory, between micro-batches.
        how: "inner", "left", "semi" or "anti", as in `engine`.
        algorithm: one of `ALGORITHMS`, or "auto": then all of R is kept in memory if it fits, and
            else each worker chooses algorithm and sizes by how many tuples its tasks have;
            `plan(…, task_tuples=…)` says what it will be.
        columns: the master's columns to add, by default all but its key.
        where: a condition on stream tuple and master row beside equal keys, as in `engine`.
        valid: which columns say from when to when a master row is valid, as in `engine`.
        as_of: which columns say from when on a master row counts, as in `engine`.
        tolerance: how much older the row of `as_of` may be.
        preserve_order: whether the rows of each partition come in the order of the stream.
        freshness: "pinned" for the version that `master` has open; "latest" for the newest when
            a task starts. With "latest", tasks of one batch, or a batch and its replay, may see
            different versions. A version that lacks one of the columns, or has it with another
            type, stops the query.
        io: "buffered", "unmapped" or "direct", as in `engine`.
        shuffle: for a master in shards, whether Spark divides the stream to match. If so, each
            task joins with one shard, and the tuples of hot keys are spread over all tasks; if
            not, each task joins with all shards. By default it does if the master is larger than
            4 times `memory`.
        metrics: a folder that every executor can write to. Each task that finishes leaves its
            metrics there as a JSON file.
        learned: a folder on a local disk, where workers leave the keys that the stream keeps asking
            for. A worker that starts later, in this query or the next, begins with them. It is a
            hint: it changes what is fast, never what comes out.
        cache: for a master in an object store, a folder on each executor's own disk, where its
            workers keep copies of the pages they have read; see docs/object-stores.md. The same as
            giving `master.cached(cache, cache_bytes)`.
        cache_bytes: how many bytes these copies may take, of all masters together.
        sample: the share of the stream's tuples to join, or a `Sample`, as in `engine`. A replay
            of a micro-batch has the same tuples.
        max_staleness: how old the master may be, as seconds or "10m". If it has not all changes
            of its source up to then, the query stops with `StaleMasterError`. A master that
            `MasterTable.sync` does not bring up to date is as old as its version.
        observe: a name, under which the join's counters are in `observedMetrics` of each progress
            of a streaming query, as those of `DataFrame.observe`; all columns are nullable then.
        options: sizes and rules of the algorithm, as `engine` takes them.
    """
    known: dict[str, Any] = dict(options)
    if cache is not None:
        master = master.cached(cache, cache_bytes)
    task, schema = join_task(
        df,
        master,
        on=on,
        memory=memory,
        how=how,
        algorithm=algorithm,
        columns=columns,
        where=where,
        valid=valid,
        as_of=as_of,
        tolerance=tolerance,
        preserve_order=preserve_order,
        freshness=freshness,
        io=io,
        shuffle=shuffle,
        metrics=metrics,
        learned=learned,
        **known,
    )
    if sample is not None:
        task = replace(task, sample=Sample.of(sample).of_columns(stream_schema(df)))
    if max_staleness is not None:
        task = replace(task, max_staleness=parse_duration(max_staleness, "max_staleness"))
        task.check_fresh()
    run, frame = operator(task), placed(df, task, master)
    if observe is not None:
        return observed(frame, task, schema, observe, run.__name__)
    return frame.mapInArrow(run, schema)


def join_task(
    df: DataFrame,
    master: MasterTable,
    *,
    on: On | Condition,
    memory: int | str,
    how: str = "inner",
    algorithm: str = "auto",
    columns: Sequence[str] | None = None,
    where: Any = None,
    valid: Sequence[str] | None = None,
    as_of: Sequence[str] | None = None,
    tolerance: Any = None,
    preserve_order: bool = False,
    freshness: str = "pinned",
    io: str = "buffered",
    shuffle: bool | None = None,
    metrics: Location | None = None,
    learned: Location | None = None,
    known_as: Mapping[str, str] | None = None,
    once: bool = False,
    **options: Option,
) -> tuple[JoinTask, StructType]:
    """What each task of a join does, after all checks, and the schema of the result.

    It serves every frame with the columns of `df`, after `placed`. Arguments are those of `join`;
    `known_as` has columns of `df` that conditions name otherwise; with `once`, a left join gives
    each tuple once, with any one of its rows.
    """
    check_frame(df, freshness)
    _check(shuffle, options)
    terms = Terms.of(how, where, valid, as_of, tolerance, preserve_order)
    if isinstance(on, Condition):
        terms.refuse_all_but_how(on)
        return _condition_task(
            df,
            master,
            on,
            {
                "memory": memory,
                "how": how,
                "algorithm": algorithm,
                "columns": columns,
                "io": io,
                "shuffle": shuffle,
                "learned": learned,
                **options,
            },
            pinned=freshness == "pinned",
            metrics=metrics,
        )
    terms = replace(terms, known_as=tuple((known_as or {}).items()), once=once)
    may_broadcast = algorithm == AUTO and not options and freshness == "pinned"
    chosen: dict[str, Any] = dict(options)
    given: dict[str, Any] = {"on": on, "memory": memory, "io": io, "columns": columns}
    shape = _checked_shape(df, master, algorithm, terms, given | chosen)
    pinned = freshness == "pinned"
    task = JoinTask(
        path=master.location,
        version=master.version if pinned else None,
        on=tuple((stream, key) for key, stream in resolve_on(on, master.key).items()),
        how=how,
        algorithm=algorithm,
        memory=parse_memory(memory),
        io=io,
        columns=tuple(shape.payload),
        types=carried_types(master, shape.payload),
        options=tuple(sorted(chosen.items())),
        metrics=_absolute(metrics, "metrics"),
        learned=_absolute(learned, "learned"),
        cache=master.cache,
        shards=master.shard_count,
        terms=None if terms.is_plain else terms,
    )
    schema = joined_schema(df, shape, pinned)
    finding = task
    if task.terms is not None:
        shuffle = _shuffle_in_order(shuffle, terms, master)
        finding, shape = _finding(df, task, master)
    if may_broadcast and master.shard_count == 1:
        whole = _broadcast(master, shape, finding.memory)
        if whole is not None:
            task = replace(task, algorithm=whole[0], options=tuple(sorted(whole[1].items())))
    if is_divided(finding, master, shape, finding.memory, shuffle):
        task = replace(task, divided_by=key_types(master))
    return task, schema


def _absolute(folder: Location | None, argument: str) -> str | None:
    return None if folder is None else os.path.abspath(local_path(folder, argument))


def _shuffle_in_order(shuffle: bool | None, terms: Terms, master: MasterTable) -> bool | None:
    """Whether the stream may be divided: that would lose its order."""
    if not terms.preserve_order or master.shard_count == 1:
        return shuffle
    if shuffle:
        raise OptionError(
            "preserve_order=True and shuffle=True do not go together: Spark moves tuples to other "
            "tasks, where their order is lost. Leave one of them out."
        )
    return False


def _finding(df: DataFrame, task: JoinTask, master: MasterTable) -> tuple[JoinTask, JoinShape]:
    """The join that finds the pairs of a join on terms, as its engines see it."""
    assert task.terms is not None
    schema = stream_schema(df)
    resolved = Resolved(schema, master, dict(task.on), task.columns, task.terms)
    places = () if resolved.condition is None else resolved.condition.places
    check_condition(df.schema, [place.column for place in places if place.of_stream])
    memory = task.memory - RoundMemory.usual(task.memory, resolved.holds_tuples)
    finding = task.finding(resolved.engine_on, resolved.engine_columns, memory)
    narrow = resolved.engine_batch(no_rows(schema), pa.nulls(0, pa.int32()))
    columns = resolved.engine_columns
    return finding, JoinShape(narrow.schema, master, resolved.engine_on, "inner", columns)


def _condition_task(
    df: DataFrame,
    master: MasterTable,
    on: Condition,
    terms: Mapping[str, Any],
    pinned: bool,
    metrics: Location | None,
) -> tuple[JoinTask, StructType]:
    """The same for a condition, which is a scan of R in each task."""
    _refuse_shard(master)
    shape = scan_engine(master, on=on, **terms).shape(stream_schema(df))
    task = JoinTask(
        path=master.location,
        version=master.version if pinned else None,
        on=(),
        condition=on,
        how=terms["how"],
        algorithm=SCAN,
        memory=parse_memory(terms["memory"]),
        io=terms["io"],
        columns=tuple(shape.payload),
        types=carried_types(master, shape.payload),
        metrics=_absolute(metrics, "metrics"),
        cache=master.cache,
        shards=master.shard_count,
    )
    return task, joined_schema(df, shape, pinned)


def placed(df: DataFrame, task: JoinTask, master: MasterTable) -> DataFrame:
    """The frame with each tuple in a Spark task that can join it."""
    return df if task.divided_by is None else divided(df, task.key_shards(master))


def _broadcast(
    master: MasterTable, shape: JoinShape, memory: int
) -> tuple[str, dict[str, Any]] | None:
    """Algorithm and options to hold all of R in every worker; None if it does not fit.

    Workers read R from its files, so this broadcast does not pass through the driver.
    """
    nothing = no_rows(shape.stream_schema)
    # Half stays free: tuples may be wider than their schema lets one guess.
    options = in_memory(master, shape, nothing, memory // 2)
    return None if options is None else (IN_MEMORY, options)


def check_frame(df: DataFrame, freshness: str) -> None:
    """Refuse what is no frame, and a freshness that there is not."""
    given: object = df
    if not isinstance(given, DataFrame):
        raise OptionError(
            f"df is a {type(given).__module__}.{type(given).__name__}; it must be a Spark "
            "DataFrame. Make one with spark.createDataFrame(…), or join Arrow batches without "
            "Spark with ss.engine(…)."
        )
    check_plain(df.columns)
    if freshness not in _FRESHNESS:
        raise OptionError(
            f"freshness={freshness!r} is not known. Use one of: {', '.join(_FRESHNESS)}."
        )


def _check(shuffle: bool | None, options: Mapping[str, Option]) -> None:
    if shuffle not in (None, True, False):
        raise OptionError(f"shuffle={shuffle!r} must be True, False or None.")
    if "clock" in options:
        raise OptionError("clock is not an option of a join on Spark. Leave it out.")


def _checked_shape(
    df: DataFrame,
    master: MasterTable,
    algorithm: str,
    terms: Terms,
    arguments: Mapping[str, Any],
) -> JoinShape:
    """The shape of the join, after all checks that an engine makes when it starts."""
    if isinstance(master, MasterTable):
        resolve_on(arguments["on"], master.key, df.columns)
    _refuse_shard(master)
    if getattr(master, "shard_count", 1) > 1:
        # `is_divided` checks the memory later, once it knows how the shards share it.
        master, arguments = master.shard(0), {**arguments, "memory": _AMPLE}
    if terms.is_plain:
        return _engine(master, algorithm, **arguments, how=terms.how).shape(stream_schema(df))
    _engine(master, algorithm, **arguments)

    def made(algorithm: str, on: dict[str, str], columns: list[str], memory: int) -> Engine:
        inner = {"on": on, "columns": columns, "memory": memory}
        return _engine(master, algorithm, **{**arguments, **inner})

    on, columns = arguments["on"], arguments["columns"]
    memory = parse_memory(arguments["memory"])
    engine = MatchingEngine(
        master,
        terms,
        made,
        algorithm=algorithm,
        on=on,
        memory=memory,
        columns=columns,
        chosen_from=(ADAPTIVE,),
    )
    return engine.shape(stream_schema(df))


def _engine(master: MasterTable, algorithm: str, **arguments: Any) -> Engine:
    if algorithm == AUTO:
        return micro_batch_engine(master, **arguments)
    return fixed_engine(master, algorithm=algorithm, **arguments)


def _refuse_shard(master: MasterTable) -> None:
    # The engine refuses what is not a master table; getattr lets it get that far.
    if getattr(master, "is_shard", False):
        raise OptionError(
            f"{master!r} is one shard of a master table, without the keys of the others. Give "
            "the whole: ss.MasterTable.open(path)."
        )
