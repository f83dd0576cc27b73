"""`semistream bench`: compare ss.join with what a user could pick instead, on this machine.

`semistream` finds the command by the entry point "bench" and loads this module to list it in its
help, so everything heavy is imported inside the command.
"""

from __future__ import annotations

import json
import signal
import threading
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from semistream.cli.progress import AsJson, Progress, Quiet
from semistream.cli.report import output, reported, side
from semistream.errors import OptionError

if TYPE_CHECKING:
    from semistream_bench.measure import Measured

__all__ = ["app"]

app = typer.Typer(add_completion=False)


@app.command()
def bench(
    rows: Annotated[int, typer.Option(help="Rows of R, about 120 bytes each.")] = 2_000_000,
    batch: Annotated[int, typer.Option(help="Tuples of a micro-batch.")] = 100_000,
    batches: Annotated[int, typer.Option(help="Micro-batches of a round that count.")] = 5,
    rounds: Annotated[int, typer.Option(help="Rounds in which all ways take turns.")] = 3,
    memory: Annotated[float, typer.Option(help="Memory of a task, in per cent of R.")] = 5.0,
    exponent: Annotated[float, typer.Option(help="Skew of the keys; 0 for none.")] = 1.0,
    only: Annotated[
        str | None, typer.Option(metavar="WAY,…", help="Just these ways; --list names all.")
    ] = None,
    cold: Annotated[bool, typer.Option(help="Also with nothing of R in the page cache.")] = True,
    resident: Annotated[bool, typer.Option(help="Also measure each way's memory.")] = True,
    cores: Annotated[int, typer.Option(help="Tasks at a time.")] = 2,
    seed: Annotated[int, typer.Option(help="For R and the stream.")] = 20,
    folder: Annotated[
        Path | None, typer.Option(help="Where to put R for the time; its disk is measured.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where results and charts go.")] = Path("bench"),
    list_ways: Annotated[bool, typer.Option("--list", help="List the ways and stop.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Compare ss.join with Spark's own joins, with key-value stores by hand, and with limits.

    All ways get the same data and take turns. Appends to OUT/results.jsonl, and draws charts there:
    the warm results when all their rounds are done, then the cold ones. A cold task has the tuples
    of a batch over --cores.
    """
    with reported(side()):
        from semistream_bench.ways import PACKED, STORES, WAYS

        if list_ways:
            for name, what in WAYS.items():
                output().print(f"{name:<24} {what}", highlight=False)
            return
        names = _chosen(only, list(WAYS))
        _check(rows, batch, batches, rounds, memory, exponent, cores, seed)
        if folder is not None and not folder.is_dir():
            raise OptionError(f"--folder is {folder}, and there is no such folder.")
        if cold and batch < cores:
            raise OptionError(
                f"--batch is {batch} and --cores {cores}: give each task a tuple, or --no-cold."
            )
        _check_installed([(name, STORES[name]) for name in names if name in STORES])
        _check_writable(out)
        from semistream_bench.measure import Comparison
        from semistream_bench.report import draw, legend, memory_told, sentence, table, write_lines

        colds = 1 + sum(name in names for name in (PACKED, *STORES))
        # Every way in every round and the one that warms up, and the same of the cold ones.
        turns = len(names) * (rounds + 1) + len(names) * resident + colds * (rounds + 1) * cold
        settings = {
            "rows": rows, "memory_percent": memory, "exponent": exponent, "cores": cores,
            "seed": seed, "rounds": rounds, "batches": batches,
        }  # fmt: skip
        found: list[Measured] = []
        results = out / "results.jsonl"
        if threading.current_thread() is threading.main_thread():
            # As Ctrl-C does it: the data is removed.
            for ending in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(ending, signal.default_int_handler)
        with Progress("Comparing", turns, quiet) as progress:

            def say(text: str) -> None:
                progress.say(text)
                # A line of its own for each turn is indented.
                if text.startswith("  "):
                    progress.advance()

            comparison = Comparison(
                rows, batch, batches, rounds, memory / 100, exponent, cores, seed, names,
                cold, resident, say,
            )  # fmt: skip
            try:
                for some in comparison.run(folder):
                    write_lines(results, some, settings)
                    found += some
            finally:
                if not results.stat().st_size:
                    results.unlink()
        for where, told in _WHERE.items():
            some = [one for one in found if one.where == where]
            if not some:
                continue
            title = f"R of {rows:,} rows, {told.format(batch=batch, task=batch // cores)}"
            if find_spec("matplotlib") is not None:
                draw(out / f"{where}.svg", some, title)
            if as_json:
                continue
            output().print(f"\n{title}", highlight=False)
            output().print(table(some, where, output().width))
            for line in (legend(some), sentence(some, where.capitalize()), memory_told(some)):
                if line:
                    output().print(line, highlight=False)
        if as_json:
            typer.echo(json.dumps([{**settings, **asdict(one), "rate": one.rate} for one in found]))
        if not quiet:
            side().print(f"written: {results}", soft_wrap=True)


_WHERE = {
    "warm": "{batch:,} tuples a batch, R in the page cache",
    "cold": "{task:,} tuples a task without Spark, nothing of R in the page cache",
}


def _chosen(only: str | None, known: list[str]) -> list[str]:
    """Ours, and those that are named; names may have commas of their own."""
    if only is None:
        return known
    asked = only.replace(", ", "\0").split(",")
    names = [name.replace("\0", ", ").strip() for name in asked]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise OptionError(f"There is no way {unknown[0]!r}. The ways: {'; '.join(known)}.")
    return [name for name in known if name in names or name == known[0]]


def _check(
    rows: int, batch: int, batches: int, rounds: int, memory: float, exponent: float, cores: int,
    seed: int,
) -> None:  # fmt: skip
    least = {"rows": rows, "batch": batch, "batches": batches, "rounds": rounds, "cores": cores}
    for name, value in least.items():
        if value < 1:
            raise OptionError(f"--{name} is {value}; give at least 1.")
    if not 0 < memory <= 100:
        raise OptionError(f"--memory is {memory}; give per cent of R, above 0 and up to 100.")
    if not 0 <= exponent < 10:
        raise OptionError(f"--exponent is {exponent}; give 0 (no skew) or more, below 10.")
    if seed < 0:
        raise OptionError(f"--seed is {seed}; give 0 or more.")


def _check_installed(stores: list[tuple[str, str]]) -> None:
    missing = [name for name, package in stores if not find_spec(package)]
    if missing:
        raise OptionError(
            f"Not installed: {', '.join(missing)}. pip install 'semistream[bench]', or choose "
            "other ways with --only."
        )


def _check_writable(out: Path) -> None:
    """Make the folder of the results, before anything is measured for it."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with (out / "results.jsonl").open("a"):
            pass
    except OSError as error:
        raise OptionError(f"--out is {out}, which cannot be written: {error}.") from error
