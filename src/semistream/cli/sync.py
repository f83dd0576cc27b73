"""`semistream master sync`: a master follows its source, as a file says."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from semistream.cli.frames import spark_errors, spark_session
from semistream.cli.pipeline_file import MasterRef, SessionSettings, SourceTable, read_file
from semistream.cli.report import reported, side
from semistream.cli.run import stopped_by_signals, stream_of
from semistream.errors import SparkLostError

if TYPE_CHECKING:
    from semistream.spark.sync.sync import Sync, SyncStatus

__all__ = ["sync"]

_LOOK_SECONDS: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class SyncTable:
    """`[sync]`: the arguments of `MasterTable.sync`."""

    checkpoint: str
    sequence_by: str | list[str] | None = None
    apply_as_deletes: str | None = None
    format: str = "auto"
    trigger: int | float | str | None = None
    every: int | float | str = "30s"
    stored_as: str = "scd1"
    keep: int | float | str = "1h"
    pinned_by: list[str] | None = None
    metrics: str | None = None


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
        asked = read_file(SyncFile, file)
        master = asked.master.opened()
        terms = replace(asked.sync, trigger="availableNow") if once else asked.sync
        with spark_errors(str(file)), stopped_by_signals() as signalled:
            spark = spark_session(None, asked.connectors, **asked.settings)
            changes = stream_of(asked.source, spark)
            arguments = asdict(terms) | {"pinned_by": terms.pinned_by or ()}
            running: Sync = master.sync(changes, **arguments)
            try:
                shown = 0
                while not running.await_termination(_LOOK_SECONDS):
                    status = running.status()
                    if status.version != shown:
                        shown = status.version
                        console.print(_line(status), soft_wrap=True)
                    if signalled.is_set():
                        running.stop()
            except SparkLostError:
                # Java gets the signal too if it goes to all processes.
                if not signalled.is_set():
                    raise
        typer.echo(_line(running.status()))
        if signalled.is_set():
            console.print(f"Stopped. To go on: semistream master sync {file}", soft_wrap=True)


def _line(status: SyncStatus) -> str:
    return (
        f"version {status.version}: {status.changes:,} changes, {status.upserted:,} keys upserted, "
        f"{status.deleted:,} deleted, {status.lag_seconds:,.0f} s behind"
    )
