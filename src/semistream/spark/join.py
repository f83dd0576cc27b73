"""`join`: a Spark DataFrame with a master table, as one `mapInArrow`.

When the master table is in shards and the stream is divided to match, another one goes before it,
which finds each tuple's shard, and a shuffle.

Nothing of the stream passes through the driver. All that can be wrong is found here, before
anything starts, with the messages of the engine itself; the rest is `worker`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame

from semistream.algorithms import fixed_engine
from semistream.budget import parse_memory
from semistream.cost.auto import IN_MEMORY, in_memory
from semistream.errors import OptionError
from semistream.parts.join_shape import JoinShape, On, resolve_on
from semistream.relation import MasterTable
from semistream.spark.schema import carried_types, joined_schema, stream_schema
from semistream.spark.shard_choice import is_divided
from semistream.spark.shard_routes import divided
from semistream.spark.worker import JoinTask, Option, key_types, operator

__all__ = ["AUTO", "join"]

AUTO: Final[tuple[str, Mapping[str, Option]]] = ("chybridjoin", {"front_percent": 50})
"""What algorithm="auto" stands for unless all of R fits the memory: an algorithm, and options
unless others are given.

A task ends with its micro-batch, so few tuples ever wait: the front stage has use for more."""
_FRESHNESS: Final = ("pinned", "latest")
_AMPLE: Final = 1 << 40
"""Memory that is enough for any engine."""


def join(
    df: DataFrame,
    master: MasterTable,
    *,
    on: On,
    how: str = "inner",
    algorithm: str = "auto",
    memory: int | str,
    columns: Sequence[str] | None = None,
    freshness: str = "pinned",
    io: str = "buffered",
    shuffle: bool | None = None,
    metrics_dir: str | os.PathLike[str] | None = None,
    **options: Option,
) -> DataFrame:
    """Join a batch or streaming DataFrame with a master table; the result is of the same kind.

    Its columns are the stream's, then the master's without its key. Rows come in no particular
    order. A stream tuple whose key is null is unmatched.

    Args:
        df: the stream, of a classic or a Connect session.
        master: the master table; every executor must be able to read its path.
        on: the stream's key columns: a name, a list, or a dict from stream column to master key
            column.
        how: "inner", or "left" to keep stream tuples that are unmatched, with nulls.
        algorithm: one of `ALGORITHMS`, or "auto".
        memory: the budget of each task that runs at a time, as bytes or "64MB". Between
            micro-batches a Python worker keeps its engine, and so the memory.
        columns: the master's columns to add, by default all but its key.
        freshness: "pinned" for the version that `master` has open, "latest" for the newest when
            a task starts, so that tasks of one batch, or a batch and its replay, may see
            different ones. A version without one of the columns, or with another type of it,
            stops the query.
        io: "buffered", or "direct" to pass by the page cache of a local disk.
        shuffle: for a master in shards, whether Spark divides the stream to match, so that each
            task joins with one shard (and hot keys are spread over all); if not, each task joins
            with all of them. By default if the master is larger than 4 times `memory`.
        metrics_dir: a folder that every executor can write to; each task that finishes leaves
            its metrics there as a JSON file.
        options: sizes and rules of the algorithm, as `engine` takes them.
    """
    _check(df, freshness, shuffle, options)
    may_broadcast = algorithm == "auto" and not options and freshness == "pinned"
    algorithm, chosen = _resolved(algorithm, options)
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
        metrics_dir=None if metrics_dir is None else os.path.abspath(metrics_dir),
        shards=master.shard_count,
    )
    schema = joined_schema(df, shape, pinned)
    if is_divided(task, master, shape, task.memory, shuffle):
        task = replace(task, divided_by=key_types(master))
        df = divided(df, task.key_shards(master))
    return df.mapInArrow(operator(task), schema)


def _broadcast(
    master: MasterTable, shape: JoinShape, memory: int
) -> tuple[str, dict[str, Any]] | None:
    """All of R in every worker, if it fits: a broadcast that does not pass through the driver."""
    nothing = pa.RecordBatch.from_pylist([], shape.stream_schema)
    # Half stays free for tuples that are wider than their schema says.
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
    """The shape of the join, after all that an engine checks when it starts."""
    # What is no master table, the engine refuses.
    if getattr(master, "is_shard", False):
        raise OptionError(
            f"{master!r} is one shard of a master table, without the keys of the others. Give "
            "the whole: ss.MasterTable.open(path)."
        )
    if getattr(master, "shard_count", 1) > 1:
        # How the shards share the memory is checked when that is decided.
        master, arguments = master.shard(0), {**arguments, "memory": _AMPLE}
    return fixed_engine(master, algorithm=algorithm, **arguments).shape(stream_schema(df))


def _resolved(algorithm: str, options: Mapping[str, Option]) -> tuple[str, dict[str, Any]]:
    """The algorithm and options that "auto" stands for; others as they are."""
    if algorithm != "auto":
        return algorithm, dict(options)
    chosen, defaults = AUTO
    return chosen, {**defaults, **options}
