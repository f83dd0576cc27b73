"""`semistream master sync`: a master follows its source, as a file says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from semistream.cli.file_tables import FileTable, read_file
from semistream.cli.frames import naming_log, spark_errors, spark_session
from semistream.cli.pipeline_check import check_source
from semistream.cli.pipeline_file import MasterRef, SessionSettings, SourceTable
from semistream.cli.pipeline_parts import options_of, stream_of
from semistream.cli.progress import AsJson, Quiet
from semistream.cli.report import reported, side
from semistream.cli.run import log_file, stopped_by_signals
from semistream.durations import parse_duration
from semistream.errors import SparkLostError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from semistream.relation import MasterTable
    from semistream.spark.sync.polling import Polling
    from semistream.spark.sync.sync import Sync, SyncStatus

__all__ = ["sync"]

_LOOK_SECONDS: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class SyncTable(FileTable):
    """`[sync]`: the arguments of `MasterTable.sync`."""

    checkpoint: str | None = None
    """A stream needs one; a table that is polled does not."""
    sequence_by: str | list[str] | None = None
    apply_as_deletes: str | None = None
    format: str = "auto"
    trigger: int | float | str | None = None
    every: int | float | str = "30s"
    overlap: int | float | str = "1m"
    """How far back each poll of a table goes: longer than any transaction takes."""
    stored_as: str = "scd1"
    keep: int | float | str = "1h"
    pinned_by: list[str] | None = None
    metrics: str | None = None
    log: str | None = None
    """A file for Spark's own messages; by default inside the checkpoint."""


@dataclass(frozen=True, kw_only=True)
class SyncFile(FileTable, SessionSettings):
    """A whole file: the source of changes, the master, and how it follows."""

    source: SourceTable
    master: MasterRef
    sync: SyncTable
    spark: dict[str, str | list[str]] = field(default_factory=dict)


def sync(
    file: Annotated[Path, typer.Argument(metavar="SYNC.TOML", help="What to follow, and how.")],
    once: Annotated[
        bool, typer.Option("--once", help="Apply what the source has now, then stop.")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Let a master follow its source until Ctrl-C; run it again to go on where it stopped."""
    console = side()
    with reported(console):
        asked = read_file(SyncFile, file)
        check_source(asked.source, asked)
        master = asked.master.opened()
        terms = replace(asked.sync, trigger="availableNow") if once else asked.sync
        log = log_file(terms.log, terms.checkpoint)
        with naming_log(log), spark_errors(str(file)), stopped_by_signals() as signalled:
            from semistream.spark.sync.polling import jdbc_errors

            spark = spark_session(log, asked.connectors, **asked.settings)
            shown = 0

            def tell(status: SyncStatus) -> None:
                nonlocal shown
                if status.version != shown and not quiet:
                    shown = status.version
                    console.print(_line(status), soft_wrap=True)

            try:
                if asked.source.format == "jdbc":
                    wait = None if once else parse_duration(terms.every, "every")
                    last: SyncStatus | None
                    with jdbc_errors(options_of(asked.source)):
                        polling = _polling(master, asked, spark)
                        last = _polled(polling, wait, signalled, tell)
                else:
                    arguments = asdict(terms) | {"pinned_by": terms.pinned_by or ()}
                    for name in ("log", "overlap"):
                        del arguments[name]
                    running = master.sync(stream_of(asked.source, spark), **arguments)
                    last = _streamed(running, signalled, tell)
            except SparkLostError:
                # Java gets the signal too if it goes to all processes.
                if not signalled.is_set():
                    raise
                last = None
        if last is not None:
            typer.echo(json.dumps(asdict(last)) if as_json else _line(last))
        if signalled.is_set():
            console.print(f"Stopped. To go on: semistream master sync {file}", soft_wrap=True)


def _streamed(
    running: Sync, signalled: threading.Event, tell: Callable[[SyncStatus], None]
) -> SyncStatus:
    """Follow a stream until it ends, or a signal comes."""
    while not running.await_termination(_LOOK_SECONDS):
        tell(running.status())
        if signalled.is_set():
            running.stop()
    return running.status()


def _polled(
    polling: Polling,
    wait: float | None,
    signalled: threading.Event,
    tell: Callable[[SyncStatus], None],
) -> SyncStatus:
    """Ask a table for its changes now and then until a signal comes; once if `wait` is None."""
    while True:
        status = polling.poll().status()
        tell(status)
        if wait is None or signalled.wait(wait):
            return status


def _polling(master: MasterTable, asked: SyncFile, spark: SparkSession) -> Polling:
    """What the file says of a table that is polled."""
    from semistream.spark.sync.polling import Polling, with_driver

    source, terms, options = asked.source, asked.sync, options_of(asked.source)

    def read() -> DataFrame:
        frame = spark.read.format(source.format).options(**with_driver(options)).load()
        return frame.selectExpr(*source.select) if source.select else frame

    return Polling(
        master,
        read,
        terms.overlap,
        terms.sequence_by,
        apply_as_deletes=terms.apply_as_deletes,
        format=terms.format,
        stored_as=terms.stored_as,
        keep=terms.keep,
        pinned_by=terms.pinned_by or (),
        metrics=terms.metrics,
    )


def _line(status: SyncStatus) -> str:
    at = "" if status.position is None else f"at batch {status.position:,} of the source, "
    return (
        f"version {status.version}: {status.changes:,} changes, {status.upserted:,} keys upserted, "
        f"{status.deleted:,} deleted; {at}{status.lag_seconds:,.0f} s behind"
    )
