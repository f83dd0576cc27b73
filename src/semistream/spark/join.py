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

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from semistream.algorithms import fixed_engine
from semistream.algorithms.registry import AUTO
from semistream.arrow_arrays import no_rows
from semistream.budget import parse_memory
from semistream.cost.auto import IN_MEMORY, in_memory
from semistream.cost.micro_batches import micro_batch_engine
from semistream.errors import OptionError
from semistream.parts.join_shape import JoinShape, On, resolve_on
from semistream.relation import MasterTable
from semistream.relation.storage import Location
from semistream.sampling import Sample
from semistream.scanning.conditions import Condition
from semistream.scanning.engine import scan_engine
from semistream.scanning.sizing import ALGORITHM as SCAN
from semistream.spark.schema import carried_types, joined_schema, stream_schema
from semistream.spark.shards.division import divided
from semistream.spark.shards.memory import is_divided
from semistream.spark.worker import JoinTask, Option, key_types, operator

__all__ = ["JoinTask", "Option", "join", "join_task", "operator", "placed"]

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
    freshness: str = "pinned",
    io: str = "buffered",
    shuffle: bool | None = None,
    metrics: Location | None = None,
    learned: Location | None = None,
    sample: float | Sample | None = None,
    **options: Option,
) -> DataFrame:
    """Join a batch or streaming DataFrame with a master table; the result is of the same kind.

    Its columns are the stream's, then the master's without its key. Rows come in no particular
    order. A stream tuple whose key is null is unmatched.

    Args:
        df: the stream, of a classic or a Connect session.
        master: the master table; every executor must be able to read its path.
        on: the stream's key columns: a name, a list, or a dict from stream column to master key
            column. Or a condition, such as `between("ip", "low", "high")`; then the result has the
            master's key too.
        memory: the budget of each task that runs at a time, as bytes or "64MB". A Python worker
            keeps its engine, and so the memory, between micro-batches.
        how: "inner", or "left" to keep stream tuples that are unmatched, with nulls. For a
            condition also "semi" for the tuples that match, or "anti" for those that do not.
        algorithm: one of `ALGORITHMS`, or "auto": then all of R is kept in memory if it fits, and
            else each worker chooses algorithm and sizes by how many tuples its tasks have;
            `plan(…, task_tuples=…)` says what it will be.
        columns: the master's columns to add, by default all but its key.
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
        sample: the share of the stream's tuples to join, or a `Sample`, as in `engine`. A replay
            of a micro-batch has the same tuples.
        options: sizes and rules of the algorithm, as `engine` takes them.
    """
    task, schema = join_task(
        df,
        master,
        on=on,
        memory=memory,
        how=how,
        algorithm=algorithm,
        columns=columns,
        freshness=freshness,
        io=io,
        shuffle=shuffle,
        metrics=metrics,
        learned=learned,
        **options,
    )
    if sample is not None:
        task = replace(task, sample=Sample.of(sample).of_columns(stream_schema(df)))
    return placed(df, task, master).mapInArrow(operator(task), schema)


def join_task(
    df: DataFrame,
    master: MasterTable,
    *,
    on: On | Condition,
    memory: int | str,
    how: str = "inner",
    algorithm: str = "auto",
    columns: Sequence[str] | None = None,
    freshness: str = "pinned",
    io: str = "buffered",
    shuffle: bool | None = None,
    metrics: Location | None = None,
    learned: Location | None = None,
    **options: Option,
) -> tuple[JoinTask, StructType]:
    """What each task of a join does, after all checks, and the schema of the result.

    It serves every frame with the columns of `df`, after `placed`. Arguments are those of `join`.
    """
    _check(df, freshness, shuffle, options)
    if isinstance(on, Condition):
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
    may_broadcast = algorithm == AUTO and not options and freshness == "pinned"
    chosen: dict[str, Any] = dict(options)
    given: dict[str, Any] = {"on": on, "how": how, "memory": memory, "io": io, "columns": columns}
    shape = _checked_shape(df, master, algorithm, given | chosen)
    pinned = freshness == "pinned"
    if may_broadcast and master.shard_count == 1:
        algorithm, chosen = _broadcast(master, shape, parse_memory(memory)) or (algorithm, chosen)
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
        metrics=None if metrics is None else os.path.abspath(metrics),
        learned=None if learned is None else os.path.abspath(learned),
        shards=master.shard_count,
    )
    schema = joined_schema(df, shape, pinned)
    if is_divided(task, master, shape, task.memory, shuffle):
        task = replace(task, divided_by=key_types(master))
    return task, schema


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
        metrics=None if metrics is None else os.path.abspath(metrics),
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


def _check(
    df: DataFrame, freshness: str, shuffle: bool | None, options: Mapping[str, Option]
) -> None:
    given: object = df
    if not isinstance(given, DataFrame):
        raise OptionError(
            f"df is a {type(given).__module__}.{type(given).__name__}; it must be a Spark "
            "DataFrame. Make one with spark.createDataFrame(…), or join Arrow batches without "
            "Spark with ss.engine(…)."
        )
    if freshness not in _FRESHNESS:
        raise OptionError(
            f"freshness={freshness!r} is not known. Use one of: {', '.join(_FRESHNESS)}."
        )
    if shuffle not in (None, True, False):
        raise OptionError(f"shuffle={shuffle!r} must be True, False or None.")
    if "clock" in options:
        raise OptionError("clock is not an option of a join on Spark. Leave it out.")


def _checked_shape(
    df: DataFrame, master: MasterTable, algorithm: str, arguments: Mapping[str, Any]
) -> JoinShape:
    """The shape of the join, after all checks that an engine makes when it starts."""
    if isinstance(master, MasterTable):
        resolve_on(arguments["on"], master.key, df.columns)
    _refuse_shard(master)
    if getattr(master, "shard_count", 1) > 1:
        # `is_divided` checks the memory later, once it knows how the shards share it.
        master, arguments = master.shard(0), {**arguments, "memory": _AMPLE}
    if algorithm == AUTO:
        return micro_batch_engine(master, **arguments).shape(stream_schema(df))
    return fixed_engine(master, algorithm=algorithm, **arguments).shape(stream_schema(df))


def _refuse_shard(master: MasterTable) -> None:
    # The engine refuses what is not a master table; getattr lets it get that far.
    if getattr(master, "is_shard", False):
        raise OptionError(
            f"{master!r} is one shard of a master table, without the keys of the others. Give "
            "the whole: ss.MasterTable.open(path)."
        )
