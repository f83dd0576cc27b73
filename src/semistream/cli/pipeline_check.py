"""What is wrong with a pipeline file, as far as that can be seen without Spark.

Everything is made and asked as the pipeline itself does it, so that both know the same rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from semistream.cli.pipeline_file import JoinTable, PipelineFile, SessionSettings, SourceTable
from semistream.cli.pipeline_parts import (
    lookups_of,
    options_of,
    sample_of,
    sink_of_table,
    unmatched_of,
)
from semistream.errors import OptionError, SemistreamError

if TYPE_CHECKING:
    import pyarrow as pa

    from semistream.relation import MasterTable
    from semistream.star.lookup import Lookup

__all__ = ["check_pipeline", "check_source"]

_AMPLE: Final = 1 << 40


def check_pipeline(asked: PipelineFile) -> None:
    """Raise what the pipeline would."""
    _check_outlets(asked)
    formats = {"[source]": asked.source.format}
    # A database is reached without Spark.
    formats |= {at: table.format for at, table in asked.sinks().items() if table.url is None}
    check_source(asked.source, asked, formats)
    for number, step in enumerate(asked.step, 1):
        with _naming(f"[step {number}]"):
            step.check(f"step {number}")
    if asked.master is not None:
        _check_join(asked.join, asked.master.opened())
    else:
        _check_star(lookups_of(asked.lookup), asked.join.memory)
    with _naming("[join]"):
        sample_of(asked.join)


def check_source(
    source: SourceTable, session: SessionSettings, formats: Mapping[str, str] | None = None
) -> None:
    """Raise what the stream would, and its session.

    `formats` has what else the session must know, by the table of the file.
    """
    from pyspark import __version__ as spark

    from semistream.spark.connectors import check_has, resolved
    from semistream.spark.pipeline.kafka_source import check_options, columns_of
    from semistream.spark.records import check_columns, check_schema
    from semistream.spark.sql_columns import column_names

    with _naming("[spark]"), resolved(session.connectors, spark, session.settings):
        pass
    with _naming("[source]"):
        options = options_of(source)
        columns = None
        if source.format == "kafka":
            check_options(options)
            columns = columns_of(options)
        if source.schema is not None and source.value is None:
            column_names(source.schema)
        for text in (source.schema, source.key):
            if text is not None and source.value is not None:
                check_schema(text, source.value)
        if columns is not None:
            check_columns(columns, source.keep)
    for where, name in (formats or {"[source]": source.format}).items():
        needed = str(options.get("url", "")) if name == "jdbc" else name
        check_has(needed, where, session.connectors, session.settings, spark)


def _check_outlets(asked: PipelineFile) -> None:
    """Raise what sinks, queues and settings of the whole pipeline would."""
    from semistream.durations import parse_duration
    from semistream.spark.pipeline.database_sink import DatabaseSink
    from semistream.spark.pipeline.outlets import Outlets
    from semistream.spark.pipeline.settings import checkpoint_folder, spark_trigger, target_seconds

    for where, table in asked.sinks().items():
        with _naming(where):
            sink = sink_of_table(table)
            if isinstance(sink, DatabaseSink):
                sink.check_settings()
    with _naming("[unmatched]"):
        unmatched = None if asked.unmatched is None else unmatched_of(asked.unmatched)
    rejected = None if asked.rejected is None else sink_of_table(asked.rejected)
    how = asked.join.how if asked.master is not None else "inner"
    whole, deferred = asked.pipeline, asked.deferred
    with _naming("[join]"):
        outlets = Outlets.of(sink_of_table(asked.sink), how, unmatched, rejected)
    with _naming("[pipeline]"):
        outlets.check_apart(checkpoint_folder(whole.checkpoint))
        target_seconds(whole.batch_target, None if deferred is None else deferred.path)
        spark_trigger(whole.trigger)
    if asked.master is not None and asked.master.max_staleness is not None:
        with _naming("[master]"):
            parse_duration(asked.master.max_staleness, "max_staleness")


@contextmanager
def _naming(table: str) -> Iterator[None]:
    """An error says which table of the file it is about."""
    try:
        yield
    except SemistreamError as error:
        if table not in str(error):
            error.args = (f"{table}: {error}",)
        raise


def _check_join(join: JoinTable, master: MasterTable) -> None:
    """Raise what the join would with a stream of keys only: what else it has, only Spark knows."""
    import pyarrow as pa

    from semistream.algorithms import fixed_engine
    from semistream.algorithms.registry import AUTO
    from semistream.cost.micro_batches import micro_batch_engine
    from semistream.matching.terms import Terms
    from semistream.parts.join_shape import resolve_on

    assert join.on is not None  # The file was checked.
    resolve_on(join.on, master.key)
    with _naming("[join]"):
        asked = Terms.of(join.how, join.where, join.valid, join.as_of, join.tolerance)
    of_master = (asked.valid or ())[1:] + (asked.as_of or ())[1:]
    missing = [name for name in of_master if name not in master.schema.names]
    if missing:
        raise OptionError(
            f"[join]: the master has no column {', '.join(missing)}; it has {master.schema.names}. "
            "Name the columns of its history."
        )
    fields = [pa.field(f"_key_{i}", _key_type(master, key)) for i, key in enumerate(master.key)]
    is_whole = master.shard_count == 1
    terms: dict[str, Any] = {
        "on": {field.name: name for field, name in zip(fields, master.key, strict=True)},
        # A pipeline makes every join of a left join.
        "how": "left",
        # How much the engines of several shards need together is known later.
        "memory": join.memory if is_whole else _AMPLE,
        "io": join.io,
        "columns": join.columns,
        **join.options,
    }
    one = master if is_whole else master.shard(0)
    if join.algorithm == AUTO:
        micro_batch_engine(one, **terms).shape(pa.schema(fields))
    else:
        fixed_engine(one, algorithm=join.algorithm, **terms).shape(pa.schema(fields))


def _check_star(lookups: Sequence[Lookup], memory: int | str) -> None:
    """Raise what a star would with a stream of keys only."""
    import pyarrow as pa

    from semistream.star.engine import star_engine
    from semistream.star.lookup import check_routes

    check_routes(lookups)
    engine = star_engine(lookups, memory=memory)
    found: dict[str, pa.DataType] = {}
    for one in lookups:
        types = {name: _key_type(one.master, key) for name, key in one.pairs().items()}
        if any(found.get(name, kind) != kind for name, kind in types.items()):
            # A column that is looked up in two masters by keys of two types: Spark knows which.
            return
        found |= types
    # What columns a condition has of the stream, and the memory of several shards, is known later.
    if all(one.asked.is_plain and one.master.shard_count == 1 for one in lookups):
        engine.planned(pa.schema(list(found.items())))


def _key_type(master: MasterTable, key: str) -> pa.DataType:
    """A type that a stream may have for this key, and that takes the least memory."""
    import pyarrow as pa

    kind = master.schema.field(key).type
    return pa.int8() if pa.types.is_integer(kind) else kind
