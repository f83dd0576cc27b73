"""The command `semistream`.

    semistream demo        all of it on Spark, with made-up sales
    semistream run         a pipeline from a file
    semistream watch       a pipeline in the browser, while it runs or afterwards
    semistream unpin       lets a batch go on that stands still on a damaged version
    semistream master      master tables: build, look at, change, follow, clean up
    semistream compare     the algorithms side by side, without Spark
    semistream tune        the best plan for a master table; measure this machine
    semistream doctor      whether this machine has what is needed
    semistream compile     compile the kernels ahead of the first join

Other packages add commands by entry points, see `added_commands`; `semistream_papers` adds
`reproduce`.

Help and version must come at once, so the library, and with it Arrow, Numba and Spark, is imported
inside the commands. Results go to standard output, progress and errors to standard error.
"""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Annotated, Final

import typer

from semistream.cli import compare, compiling, demo, doctor, master, run, sync, tune, unpin, watch
from semistream.cli.added_commands import ExtensibleGroup

__all__ = ["app"]

_TOLD: Final = ("pyspark", "pyarrow", "numpy", "numba", "pandas")
"""Packages whose versions belong into a report of a mistake."""

app = typer.Typer(
    cls=ExtensibleGroup,
    help="Join a fast stream with master data far larger than the memory given to it.",
    no_args_is_help=True,
    add_completion=False,
)
app.add_typer(master.master_app, name="master")
master.master_app.command()(sync.sync)
app.command()(demo.demo)
app.command()(run.run)
app.command()(watch.watch)
app.command()(unpin.unpin)
app.command()(compare.compare)
app.command()(tune.tune)
app.command()(doctor.doctor)
app.command("compile")(compiling.compile_kernels)


def _version(wanted: bool) -> None:
    if wanted:
        from semistream import __version__

        found = ", ".join(f"{package} {_installed(package)}" for package in _TOLD)
        typer.echo(f"semistream {__version__}\nPython {platform.python_version()}, {found}")
        raise typer.Exit


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the versions."),
    ] = False,
) -> None:
    """Join a fast stream with master data far larger than the memory given to it."""
