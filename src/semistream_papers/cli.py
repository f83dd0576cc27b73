"""`semistream reproduce`: run the papers' experiments and draw their figures.

`semistream` finds the command by the entry point "reproduce" and loads this module to list it in
its help, so everything heavy is imported inside the command.
"""

from __future__ import annotations

import json
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from semistream.cli.progress import AsJson, Progress, Quiet
from semistream.cli.report import output, reported, side
from semistream.errors import OptionError

if TYPE_CHECKING:
    from semistream_papers.claims.claim import Verdict
    from semistream_papers.figures.reproduction import Reproduction
    from semistream_papers.runs.setting import Setting

__all__ = ["app"]

app = typer.Typer(add_completion=False)


class Timing(StrEnum):
    """How long an operation takes."""

    priced = "priced"
    measured = "measured"


class Scale(StrEnum):
    """How much of the papers' sizes is run."""

    smoke = "smoke"
    laptop = "laptop"
    paper = "paper"


@app.command()
def reproduce(
    figures: Annotated[
        list[str] | None,
        typer.Argument(
            help="meshjoin-6b …, meshjoin for all of a paper, or all.", metavar="FIGURE…"
        ),
    ] = None,
    timing: Annotated[
        Timing,
        typer.Option(
            help="At the prices of the papers' machines; or on this one, without those figures "
            "whose arrival rate is an overload only there."
        ),
    ] = Timing.priced,
    scale: Annotated[Scale, typer.Option(help="Sizes of R and memory.")] = Scale.laptop,
    folder: Annotated[
        Path, typer.Option(help="Where results and charts go; what has run is not run again.")
    ] = Path("reproduction"),
    processes: Annotated[
        int | None, typer.Option(help="Priced runs at a time; by default one for each core.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option(help="Also write the claims as a Markdown page to this file.")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run the papers' experiments and draw their figures beside what the papers claim."""
    with reported(side()):
        _check_installed()
        from semistream_papers.claims.table import our_numbers, verdicts
        from semistream_papers.figures.catalogue import FIGURES, chosen
        from semistream_papers.figures.reproduction import Reproduction
        from semistream_papers.report.claims_page import write_page
        from semistream_papers.report.html_report import write_report

        if not figures:
            _list_figures({name: one.title for name, one in FIGURES.items()})
            return
        some = chosen(figures)
        if timing is Timing.measured:
            some = [figure for figure in some if not figure.only_priced]
        _check_folder(folder)
        reproduction = Reproduction(folder, timing.value, scale.value)
        _run(reproduction, reproduction.missing(some), processes, quiet)
        drawn = [reproduction.drawn(figure) for figure in some]
        path = write_report(drawn, reproduction, folder)
        if page is not None:
            measured = Reproduction(folder, Timing.measured.value, scale.value)
            write_page(drawn, reproduction, page, our_numbers(measured.complete(some)))
        found = verdicts({one.figure.name: one for one in drawn})
        if as_json:
            typer.echo(json.dumps({"report": str(path), "claims": list(map(_told, found))}))
            return
        _print_verdicts(found)
        typer.echo(f"report: {path}")


def _check_installed() -> None:
    """The package comes with the library, what it needs with an extra."""
    if find_spec("matplotlib") is None:
        raise OptionError(
            "semistream reproduce draws charts with matplotlib, which is not installed. Install "
            'what it needs: pip install "semistream[reproduce]".'
        )


def _check_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"--folder {folder} cannot be written to: {error}.") from error


def _list_figures(titles: dict[str, str]) -> None:
    table = Table("figure", "shows", box=box.SIMPLE)
    for name, title in titles.items():
        table.add_row(name, title)
    output().print(table)


def _run(
    reproduction: Reproduction, settings: list[Setting], processes: int | None, quiet: bool
) -> None:
    """Run what is missing, and show how far it is."""
    with Progress(f"{len(settings):,} runs", len(settings), quiet) as progress:
        reproduction.run(settings, lambda one: progress.advance(what=str(one)[:48]), processes)


def _told(one: Verdict) -> dict[str, Any]:
    """A claim and its verdict, for scripts."""
    claim = one.claim
    return {
        "where": claim.where,
        "claim": claim.says,
        "unit": claim.unit,
        "paper": claim.paper,
        "ours": one.ours,
        "verdict": one.says,
    }


def _print_verdicts(found: list[Verdict]) -> None:
    from semistream_papers.report.numbers import short_number

    table = Table("where", "claim", "paper", "ours", "verdict", box=box.SIMPLE)
    for one in found:
        paper = "" if one.claim.paper is None else short_number(one.claim.paper)
        ours = f"{short_number(one.ours)} {one.claim.unit}"
        table.add_row(one.claim.where, one.claim.says, paper, ours, one.says)
    output().print(table)
