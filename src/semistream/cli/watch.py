"""`semistream watch`: the page of a pipeline that runs, or has run, by its checkpoint."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console

from semistream.cli.report import output, reported, side

if TYPE_CHECKING:
    from semistream.page.server import PageServer

__all__ = ["TOKEN", "Host", "PortNumber", "served", "watch"]

TOKEN: Final = "SEMISTREAM_PAGE_TOKEN"
"""The token is given in the environment: arguments can be read by other users of a machine."""

Host = Annotated[
    str, typer.Option(help=f"Where the page listens; beyond this machine needs {TOKEN} to be set.")
]
PortNumber = Annotated[int, typer.Option(help="Its port; 0 for any that is free.")]


def watch(
    place: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="A checkpoint, or a file of metrics.")
    ],
    metrics: Annotated[
        Path | None,
        typer.Option(help="A file of metrics, for batches that the checkpoint has forgotten."),
    ] = None,
    host: Host = "127.0.0.1",
    port: PortNumber = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the status as JSON instead, once.")
    ] = False,
) -> None:
    """Serve a page that shows a pipeline, while it runs or afterwards, until Ctrl-C."""
    with reported(side()):
        if as_json:
            import json

            from semistream.page.status import Watched

            output().print_json(json.dumps(Watched(place, metrics).status(wait=True)))
            return
        with served(place, metrics, host, port, output()):
            # A wait with a limit: without one, some systems do not let Ctrl-C through.
            ended = threading.Event()
            while not ended.wait(3600):
                pass


@contextmanager
def served(
    place: str | os.PathLike[str],
    metrics: str | os.PathLike[str] | None,
    host: str,
    port: int,
    console: Console,
) -> Iterator[PageServer]:
    """The page of a checkpoint, while open; says where it is."""
    from semistream.page.server import PageServer
    from semistream.page.status import Watched

    watched = Watched(place, metrics)
    with PageServer(watched, host, port, os.environ.get(TOKEN)) as server:
        console.print(f"The page is at {server.url}", soft_wrap=True)
        yield server
