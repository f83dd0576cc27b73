"""`semistream master sync`: a master follows its source, as a file says."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from semistream.cli.frames import naming_log, spark_errors, spark_session
from semistream.cli.pipeline_file import MasterRef, SessionSettings, SourceTable, read_file
from semistream.cli.report import reported, side
from semistream.cli.run import log_file, stopped_by_signals, stream_of
from semistream.durations import parse_duration
from semistream.errors import SparkLostError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from semistream.relation import MasterTable
    from semistream.spark.sync.sync import Sync, SyncStatus

__all__ = ["sync"]

_LOOK_SECONDS: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class SyncTable:
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
class SyncFile(SessionSettings):
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
) -> None:
    """Let a master follow its source until Ctrl-C; run it again to go on where it stopped."""
    console = side()
    with reported(console):
        from semistream.relation import MasterTable

        asked = read_file(SyncFile, file)
        master = MasterTable.open(asked.master.path)
        terms = replace(asked.sync, trigger="availableNow") if once else asked.sync
        log = log_file(terms.log, terms.checkpoint)
        with naming_log(log), spark_errors(str(file)), stopped_by_signals() as signalled:
            spark = spark_session(log, asked.connectors, **asked.settings)
            arguments = asdict(terms) | {"pinned_by": terms.pinned_by or ()}
            del arguments["log"]

            def tell(status: SyncStatus) -> None:
                console.print(_line(status), soft_wrap=True)

            follow = _poll if asked.source.format == "jdbc" else _stream
            try:
                last = follow(master, asked.source, spark, arguments, once, signalled, tell)
            except SparkLostError:
                # Java gets the signal too if it goes to all processes.
                if not signalled.is_set():
                    raise
                last = None
        if last is not None:
            typer.echo(_line(last))
        if signalled.is_set():
            console.print(f"Stopped. To go on: semistream master sync {file}", soft_wrap=True)


def _stream(
    master: MasterTable,
    source: SourceTable,
    spark: SparkSession,
    arguments: dict[str, Any],
    once: bool,
    signalled: threading.Event,
    tell: Callable[[SyncStatus], None],
) -> SyncStatus:
    """Follow a stream until it ends, or a signal comes."""
    del arguments["overlap"]
    running: Sync = master.sync(stream_of(source, spark), **arguments)
    shown = 0
    while not running.await_termination(_LOOK_SECONDS):
        status = running.status()
        if status.version != shown:
            shown = status.version
            tell(status)
        if signalled.is_set():
            running.stop()
    return running.status()


def _poll(
    master: MasterTable,
    source: SourceTable,
    spark: SparkSession,
    arguments: dict[str, Any],
    once: bool,
    signalled: threading.Event,
    tell: Callable[[SyncStatus], None],
) -> SyncStatus:
    """Ask a table of a database for its changes, now and then."""
    from semistream.spark.sync.polling import Polling

    wait = parse_duration(arguments.pop("every"), "every")
    for name in ("checkpoint", "trigger"):
        del arguments[name]

    def read() -> DataFrame:
        frame = spark.read.format(source.format).options(**source.options).load()
        return frame.selectExpr(*source.select) if source.select else frame

    polling = Polling(master, read, **arguments)
    status = polling.poll().status()
    while not once and not signalled.is_set():
        tell(status)
        signalled.wait(wait)
        status = polling.poll().status()
    return status


def _line(status: SyncStatus) -> str:
    at = "" if status.position is None else f"at batch {status.position:,} of the source, "
    return (
        f"version {status.version}: {status.changes:,} changes, {status.upserted:,} keys upserted, "
        f"{status.deleted:,} deleted; {at}{status.lag_seconds:,.0f} s behind"
    )
