"""`semistream unpin`: a batch that stands still on a damaged version takes the newest one."""

from __future__ import annotations

from typing import Annotated

import typer

from semistream.cli.report import reported, side

__all__ = ["unpin"]


def unpin(
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="Of a pipeline that does not run now.")
    ],
) -> None:
    """Let an unfinished batch take the newest version, if the one it began with is damaged."""
    with reported(side()):
        from semistream.spark.pipeline.unpin import unpin as unpinned

        done = unpinned(checkpoint)
        record = done.record
        names = dict(record.versions) or {"": record.version}
        versions = ", ".join(f"{name} {number}".strip() for name, number in names.items())
        typer.echo(
            f"Batch {record.number} began with version {versions}, and takes the newest when the "
            f"pipeline is started again. Its record is kept as {done.kept}."
        )
