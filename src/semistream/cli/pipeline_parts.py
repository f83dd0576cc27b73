"""What the tables of a pipeline file stand for: its stream, its sinks, its look-ups."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semistream.cli.pipeline_file import (
    JoinTable,
    LookupTable,
    PipelineFile,
    SampleTable,
    SinkTable,
    SourceTable,
    UnmatchedTable,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from semistream.sampling import Sample
    from semistream.spark.pipeline.pipeline import Pipeline
    from semistream.spark.pipeline.routes import Retry
    from semistream.spark.pipeline.sinks import SinkLike
    from semistream.star.lookup import Lookup

__all__ = [
    "lookups_of",
    "options_of",
    "pipeline_of",
    "sample_of",
    "sink_of_table",
    "stream_of",
    "unmatched_of",
]


def pipeline_of(asked: PipelineFile, spark: SparkSession, metrics: Path, once: bool) -> Pipeline:
    """The pipeline that a file asks for, not started."""
    from semistream.spark.pipeline.pipeline import Pipeline

    join, whole, rejected = asked.join, asked.pipeline, asked.rejected
    terms: dict[str, Any] = {}
    if asked.master is not None:
        terms = {"on": join.on, "how": join.how, "algorithm": join.algorithm}
        terms |= {"columns": join.columns, "where": join.where, "valid": join.valid}
        terms |= {"as_of": join.as_of, "tolerance": join.tolerance, "io": join.io}
        terms |= {"max_staleness": asked.master.max_staleness, **join.options}
    return Pipeline(
        stream_of(asked.source, spark, whole=rejected is not None),
        lookups_of(asked.lookup) if asked.master is None else asked.master.opened(),
        sink=sink_of_table(asked.sink),
        checkpoint=whole.checkpoint,
        memory=join.memory,
        sample=sample_of(join),
        steps=asked.step,
        unmatched=None if asked.unmatched is None else unmatched_of(asked.unmatched),
        deferred=None if asked.deferred is None else asked.deferred.path,
        rejected=None if rejected is None else sink_of_table(rejected),
        checks=None if rejected is None else rejected.checks,
        batch_target=whole.batch_target,
        trigger="availableNow" if once else whole.trigger,
        metrics=metrics,
        metrics_prometheus=whole.metrics_prometheus,
        name=whole.name,
        **terms,
    )


def stream_of(source: SourceTable, spark: SparkSession, whole: bool = False) -> DataFrame:
    """The stream that a file asks for; `whole` as for `ss.parsed`."""
    from semistream.spark.records import parsed, selected

    if source.format == "semistream":
        from semistream.spark.source import check_streaming

        check_streaming()
    reader = spark.readStream.format(source.format).options(**options_of(source))
    if source.schema is not None and source.value is None:
        reader = reader.schema(source.schema)
    frame = reader.load() if source.path is None else reader.load(source.path)
    if source.value is not None:
        assert source.schema is not None  # The file was checked.
        keep, kind = tuple(source.keep), source.value
        frame = parsed(frame, source.schema, format=kind, keep=keep, key=source.key, whole=whole)
    return selected(frame, source.select) if source.select else frame


def options_of(source: SourceTable) -> dict[str, Any]:
    """The options of a source, with the values of the environment's variables that they name."""
    from semistream.environment import filled

    return {
        name: filled(value) if isinstance(value, str) else value
        for name, value in source.options.items()
    }


def sink_of_table(table: SinkTable) -> SinkLike:
    """The sink that a table of a file asks for."""
    from semistream.spark.pipeline.database_sink import DatabaseSink
    from semistream.spark.pipeline.iceberg_sink import IcebergSink
    from semistream.spark.pipeline.kafka_sink import KafkaSink
    from semistream.spark.pipeline.sinks import ParquetSink, TableSink

    options = {name: str(value) for name, value in table.options.items()}
    if table.format == "parquet":
        named: dict[str, Any] = {"batch_column": table.batch_column} if table.batch_column else {}
        return ParquetSink(table.path or "", **named)
    if table.url is not None:
        waits: dict[str, Any] = {} if table.patience is None else {"patience": table.patience}
        return DatabaseSink(table.table or "", table.url, **waits)
    if table.format == "kafka":
        return KafkaSink(table.topic or "", table.key or (), options)
    if table.format == "iceberg":
        return IcebergSink(table.table or "", options)
    return TableSink(table.table, table.path, table.format, options)


def unmatched_of(table: UnmatchedTable) -> Retry | SinkLike:
    """The sink for unmatched tuples, or how they wait."""
    from semistream.spark.pipeline.routes import Retry

    if not table.retry:
        return sink_of_table(table)
    letters = None if table.dead_letters is None else sink_of_table(table.dead_letters)
    return Retry(**table.retry_options(), dead_letters=letters)


def sample_of(join: JoinTable) -> Sample | None:
    """The sample that a file asks for."""
    from semistream.sampling import Sample

    if isinstance(join.sample, SampleTable):
        return Sample(join.sample.share, join.sample.seed, join.sample.by)
    return None if join.sample is None else Sample(join.sample)


def lookups_of(tables: Sequence[LookupTable]) -> list[Lookup]:
    """The look-ups that a file asks for."""
    from semistream.star.lookup import Lookup

    return [
        Lookup(
            table.opened(),
            on=table.on,
            how=table.how,
            algorithm=table.algorithm,
            columns=table.columns,
            where=table.where,
            valid=table.valid,
            as_of=table.as_of,
            tolerance=table.tolerance,
            io=table.io,
            name=table.name,
            prefix=table.prefix,
            max_staleness=table.max_staleness,
            **table.options,
        )
        for table in tables
    ]
