"""`semistream master …`: build master tables, look at them, change them and clean them up."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich import box
from rich.table import Table

from semistream.cli.frames import file_format, read_frame, spark_errors
from semistream.cli.progress import AsJson, Quiet, growing
from semistream.cli.report import output, reported, side, size_text

if TYPE_CHECKING:
    from semistream import MasterTable

__all__ = ["master_app"]

_HEAD_ROWS: Final = 1000

master_app = typer.Typer(
    help="Build master tables, look at them, change them and clean them up.", no_args_is_help=True
)

MasterPath = Annotated[
    str, typer.Argument(metavar="PATH", help="The folder, or the URI, of a master table.")
]
RowsPath = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE", help="A Parquet, CSV (with a header), JSON or ORC file, or a folder."
    ),
]


@master_app.command()
def build(
    source: RowsPath,
    path: MasterPath,
    key: Annotated[str, typer.Option(help="The key column, or several separated by commas.")],
    shards: Annotated[int, typer.Option(help="The number of parts, by a hash of the key.")] = 1,
    filter_bits: Annotated[
        int, typer.Option(help="Bits per key of a membership filter, 4 to 32; 0 for none.")
    ] = 0,
    page_bytes: Annotated[
        int | None,
        typer.Option(help="The most bytes of a page: 65536 by default, 32768 if packed."),
    ] = None,
    order_by: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Lay out keys by this, the highest first."),
    ] = None,
    compression: Annotated[
        str | None,
        typer.Option(help="packed, lz4 or zstd, for R larger than memory; none by default."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Write the next version if PATH has one.")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Build a master table from files, with Spark."""
    with reported(side()):
        from semistream import MasterTable

        frame = read_frame(source)
        size = _expected_bytes(source)
        with spark_errors(source), growing("Building", path, size, quiet):
            master = MasterTable.build(
                frame,
                path,
                key=[name.strip() for name in key.split(",")],
                page_bytes=page_bytes,
                order_by=order_by,
                shards=shards,
                filter_bits=filter_bits,
                compression=compression,
                replace=replace,
                progress=False,
            )
        typer.echo(json.dumps(_facts(master)) if as_json else master.describe())


@master_app.command()
def describe(path: MasterPath, as_json: AsJson = False) -> None:
    """Print what a master table holds."""
    with reported(side()):
        from semistream import MasterTable

        master = MasterTable.open(path)
        if as_json:
            typer.echo(json.dumps(_facts(master)))
            return
        typer.echo(master.describe())
        if not master.is_live:
            _tell_progress(master.location)


@master_app.command()
def upsert(path: MasterPath, source: RowsPath, as_json: AsJson = False) -> None:
    """Replace the rows of the keys in SOURCE with its rows; new keys are added."""
    with reported(side()):
        from semistream import MasterTable

        master = MasterTable.open(path)
        frame = read_frame(source)
        with spark_errors(source):
            _tell_latest(master.upsert(frame.toArrow()), as_json)


@master_app.command()
def delete(path: MasterPath, source: RowsPath, as_json: AsJson = False) -> None:
    """Remove all rows of the keys in SOURCE, which has the key columns."""
    with reported(side()):
        from semistream import MasterTable

        master = MasterTable.open(path)
        frame = read_frame(source)
        with spark_errors(source):
            _tell_latest(master.delete(frame.toArrow()), as_json)


@master_app.command()
def compact(path: MasterPath, quiet: Quiet = False, as_json: AsJson = False) -> None:
    """Pack all rows into full pages of fresh files, as the next version."""
    with reported(side()):
        from semistream import MasterTable

        master = MasterTable.open(path)
        size = master.pages.stored_bytes(0, master.page_count)
        with growing("Compacting", path, size, quiet):
            packed = master.compact()
        _tell_latest(packed, as_json)


@master_app.command()
def vacuum(
    path: MasterPath,
    keep_versions: Annotated[int, typer.Option(help="How many of the newest to keep.")] = 2,
    grace: Annotated[
        str,
        typer.Option(help="Remove left-overs of builds from this age on: 90s, 15m, 1h."),
    ] = "1h",
    pinned_by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CHECKPOINT",
            help="Keep versions that this pipeline may still need; repeat it for several.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove old versions, and files that no remaining version names."""
    with reported(side()):
        from semistream import MasterTable
        from semistream.spark.pipeline.routes import parse_duration

        seconds = parse_duration(grace, "--grace")
        pinned = set().union(*map(_pinned, pinned_by or []))
        gone = MasterTable.open(path).vacuum(keep_versions, pinned, seconds)
        if as_json:
            typer.echo(json.dumps(asdict(gone)))
            return
        versions = ", ".join(map(str, gone.versions)) or "none"
        kept = f" Pinned: {', '.join(map(str, sorted(pinned)))}." if pinned else ""
        typer.echo(
            f"Versions removed: {versions}. Files removed: {len(gone.files):,}, "
            f"{size_text(gone.bytes)}.{kept}"
        )
        if gone.left:
            typer.echo(
                f"{len(gone.left):,} files could not be removed: {', '.join(gone.left[:3])}"
                f"{', …' if len(gone.left) > 3 else ''}. Check the permissions of the folder.",
                err=True,
            )


@master_app.command()
def history(path: MasterPath, as_json: AsJson = False) -> None:
    """List the versions that are still there, and what made each."""
    with reported(side()):
        from semistream import MasterTable

        if as_json:
            typer.echo(json.dumps([asdict(one) for one in MasterTable.open(path).history()]))
            return

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for title in ("version", "rows", "pages"):
            table.add_column(title, justify="right", no_wrap=True)
        table.add_column("made by")
        table.add_column("at (UTC)", no_wrap=True)
        for one in MasterTable.open(path).history():
            numbers = (str(one.version), f"{one.row_count:,}", f"{one.page_count:,}")
            # To the second, and without the time zone, which the column's title names.
            table.add_row(*numbers, one.operation, one.created[:19].replace("T", " "))
        output().print(table)


def _pinned(checkpoint: str) -> set[int]:
    """The versions that a pipeline may still ask for; raises if its checkpoint has none."""
    from semistream.errors import CheckpointError
    from semistream.relation.storage import without_secrets
    from semistream.spark.pipeline.batch_log import pinned_versions

    versions = pinned_versions(checkpoint)
    if not versions:
        # A mistyped path must not mean "nothing is pinned": the vacuum would remove needed files.
        raise CheckpointError(
            f"--pinned-by {without_secrets(checkpoint)}: no pipeline has run a batch with that "
            "checkpoint. Give the folder that the pipeline has as its checkpoint."
        )
    return versions


def _tell_progress(location: str) -> None:
    """Print how far a master has come with its source, if it follows one."""
    from datetime import UTC, datetime

    from semistream.relation.following import progress

    known = progress(location)
    if known is not None:
        at = "" if known.position is None else f"up to batch {known.position:,} of it, "
        made = datetime.fromtimestamp(known.committed, UTC).isoformat(timespec="seconds")
        typer.echo(
            f"It follows a source by {', '.join(known.sequence_by)}: {at}committed at {made}, "
            f"{known.lag_seconds:,.0f} seconds behind."
        )


def _tell_latest(master: MasterTable, as_json: bool) -> None:
    """Print a version that was just made, and what made it."""
    if as_json:
        typer.echo(json.dumps(_facts(master)))
        return
    last = next(one for one in master.history() if one.version == master.version)
    typer.echo(
        f"{master.path}: version {last.version} ({last.operation}), {last.row_count:,} rows in "
        f"{last.page_count:,} pages"
    )


def _facts(master: MasterTable) -> dict[str, Any]:
    """A version for scripts."""
    return {
        "path": str(master.path),
        "version": master.version,
        "key": list(master.key),
        "layout": master.layout,
        "shards": master.shard_count,
        "rows": master.row_count,
        "pages": master.page_count,
        "bytes": master.pages.stored_bytes(0, master.page_count),
        "columns": {field.name: str(field.type) for field in master.schema},
    }


def _expected_bytes(source: str) -> int | None:
    """About how many bytes the pages of these rows will have; None if that is not known.

    Only Parquet tells how many rows it has before all of them are read.
    """
    if file_format(source) != "parquet":
        return None
    import pyarrow as pa
    import pyarrow.dataset as ds

    try:
        rows = ds.dataset(source, format="parquet")
        head = rows.head(_HEAD_ROWS)
        return int(rows.count_rows() * head.nbytes // max(head.num_rows, 1))
    except (OSError, ValueError, pa.ArrowException):
        return None
