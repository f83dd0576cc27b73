"""`semistream run`: a pipeline from a file."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console

from semistream.cli.batch_view import BatchView, MetricsTail, View, totals
from semistream.cli.frames import naming_log, spark_errors, spark_session
from semistream.cli.pipeline_file import (
    JoinTable,
    LookupTable,
    PipelineFile,
    SampleTable,
    SinkTable,
    SourceTable,
    UnmatchedTable,
)
from semistream.cli.report import output, reported, side
from semistream.cli.watch import Host, PortNumber, served
from semistream.errors import OptionError, SemistreamError, SparkLostError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from semistream.relation import MasterTable
    from semistream.sampling import Sample
    from semistream.spark.pipeline.pipeline import Pipeline, Status
    from semistream.spark.pipeline.routes import Retry
    from semistream.spark.pipeline.sinks import SinkLike
    from semistream.star.lookup import Lookup

__all__ = [
    "follow",
    "log_file",
    "pipeline_of",
    "run",
    "sink_of_table",
    "stopped_by_signals",
    "stream_of",
]

_LOOK_SECONDS: Final = 0.2
_AMPLE: Final = 1 << 40


def run(
    file: Annotated[Path, typer.Argument(metavar="PIPELINE.TOML", help="What to run.")],
    once: Annotated[
        bool, typer.Option("--once", help="Process what the source has now, then stop.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Say what is wrong with file and masters, then stop.")
    ] = False,
    page: Annotated[
        bool, typer.Option("--page", help="Show the pipeline on a page for the browser, too.")
    ] = False,
    host: Host = "127.0.0.1",
    port: PortNumber = 0,
) -> None:
    """Run a pipeline from a file until Ctrl-C; run it again to continue where it stopped."""
    console = side()
    with reported(console), tempfile.TemporaryDirectory(prefix="semistream-") as folder:
        asked = PipelineFile.read(file)
        metrics = Path(asked.pipeline.metrics or Path(folder) / "metrics.jsonl")
        _check(asked)
        if check:
            output().print("Nothing is wrong as far as that can be seen without Spark.")
            return
        _check_free(asked.pipeline.checkpoint)
        log = log_file(asked.pipeline.log, asked.pipeline.checkpoint)
        with naming_log(log), spark_errors(str(file)):
            spark = spark_session(log=log, connectors=asked.connectors, **asked.settings)
            pipeline = pipeline_of(asked, spark, metrics, once)
            with _page(asked.pipeline.checkpoint, host, port, console) if page else nullcontext():
                was_stopped = follow(pipeline, console)
        output().print(totals(pipeline.status()))
        if was_stopped:
            console.print(f"Stopped. To go on: semistream run {file}", soft_wrap=True)


@contextmanager
def _page(checkpoint: str, host: str, port: int, console: Console) -> Iterator[None]:
    """The page of a pipeline that is about to start."""
    from semistream.relation.storage import is_uri

    if not is_uri(checkpoint):
        Path(checkpoint).mkdir(parents=True, exist_ok=True)
    with served(checkpoint, None, host, port, console):
        yield


def _check(asked: PipelineFile) -> None:
    """Raise what the pipeline would, as far as that can be seen without Spark."""
    for number, step in enumerate(asked.step, 1):
        with _naming(f"[step {number}]"):
            step.check(f"step {number}")
    if asked.master is not None:
        _check_join(asked.join, asked.master.opened())
    else:
        _check_star(_lookups(asked.lookup), asked.join.memory)
    with _naming("[join]"):
        _sample(asked.join)


@contextmanager
def _naming(table: str) -> Iterator[None]:
    """An error says which table of the file it is about."""
    try:
        yield
    except SemistreamError as error:
        if table not in str(error):
            error.args = (f"{table}: {error}",)
        raise


def _sample(join: JoinTable) -> Sample | None:
    """The sample that a file asks for."""
    from semistream.sampling import Sample

    if isinstance(join.sample, SampleTable):
        return Sample(join.sample.share, join.sample.seed, join.sample.by)
    return None if join.sample is None else Sample(join.sample)


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


def _lookups(tables: Sequence[LookupTable]) -> list[Lookup]:
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
            **table.options,
        )
        for table in tables
    ]


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


def _check_free(checkpoint: str) -> None:
    """Raise if a pipeline of this machine uses the checkpoint; Spark takes seconds to start."""
    from semistream.relation.storage import is_uri
    from semistream.spark.pipeline.lease import check_free

    if not is_uri(checkpoint):
        check_free(Path(checkpoint) / "semistream")


def log_file(asked: str | None, checkpoint: str | None) -> Path:
    """Where the messages of Spark go: not to the terminal, where they would drown ours."""
    from semistream.relation.storage import is_uri

    if asked is not None:
        log = Path(asked)
    elif checkpoint is None or is_uri(checkpoint):
        log = Path(tempfile.gettempdir()) / f"semistream-{os.getpid()}.log"
    else:
        log = Path(checkpoint) / "semistream" / "spark.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    return log.absolute()


def follow(
    pipeline: Pipeline,
    console: Console,
    is_enough: Callable[[Status], bool] = lambda _: False,
    view: View | None = None,
) -> bool:
    """Start a pipeline and show its batches until it ends or `is_enough`; True after a signal.

    The pipeline has `metrics`. By default each batch is a line.
    """
    assert pipeline.metrics_file is not None
    tail, view = MetricsTail(pipeline.metrics_file), view or BatchView(console)
    with stopped_by_signals() as signalled, view.following(pipeline, "Ctrl-C stops."):
        try:
            pipeline.start()
            while not pipeline.await_termination(_LOOK_SECONDS):
                for line in tail.new():
                    view.show(line)
                if signalled.is_set() or is_enough(pipeline.status()):
                    pipeline.stop()
                    break
        except SparkLostError:
            # Java gets the signal too if it goes to all processes, as when a service is stopped.
            if not signalled.is_set():
                raise
        for line in tail.new():
            view.show(line)
    return signalled.is_set()


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """While open, Ctrl-C and SIGTERM only set the event; a second signal interrupts.

    Spark's own handler of Ctrl-C cancels all jobs, which would look like a failure. And an
    exception while a line is being printed would print that line twice.
    """
    signalled = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield signalled
        return

    def note(number: int, _: object) -> None:
        signalled.set()
        signal.signal(number, signal.default_int_handler)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield signalled
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
        stream_of(asked.source, spark),
        _lookups(asked.lookup) if asked.master is None else asked.master.opened(),
        sink=sink_of_table(asked.sink),
        checkpoint=whole.checkpoint,
        memory=join.memory,
        sample=_sample(join),
        steps=asked.step,
        unmatched=None if asked.unmatched is None else _unmatched(asked.unmatched),
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


def stream_of(source: SourceTable, spark: SparkSession) -> DataFrame:
    """The stream that a file asks for."""
    if source.format == "semistream":
        from semistream.spark.source import check_streaming

        check_streaming()
    from semistream.environment import filled

    given = {
        name: filled(value) if isinstance(value, str) else value
        for name, value in source.options.items()
    }
    reader = spark.readStream.format(source.format).options(**given)
    if source.schema is not None and source.value is None:
        reader = reader.schema(source.schema)
    frame = reader.load() if source.path is None else reader.load(source.path)
    if source.value is not None:
        from semistream.spark.records import parsed

        assert source.schema is not None  # The file was checked.
        keep = tuple(source.keep)
        frame = parsed(frame, source.schema, format=source.value, keep=keep, key=source.key)
    return frame.selectExpr(*source.select) if source.select else frame


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


def _unmatched(table: UnmatchedTable) -> Retry | SinkLike:
    from semistream.spark.pipeline.routes import Retry

    if not table.retry:
        return sink_of_table(table)
    letters = None if table.dead_letters is None else sink_of_table(table.dead_letters)
    return Retry(**table.retry_options(), dead_letters=letters)
