"""`semistream tune`: the best plan for a master table, and the cost factors it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from semistream.cli.compare import Io
from semistream.cli.progress import Progress, Quiet
from semistream.cli.report import output, reported, side
from semistream.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

    from semistream.cost.calibration import Calibration
    from semistream.cost.empirical import Measured
    from semistream.cost.skew_estimate import SkewEstimate
    from semistream.parts.join_shape import On
    from semistream.plan import JoinPlan
    from semistream.relation import MasterTable

__all__ = ["tune"]

_UNEVEN: Final = 0.3
"""Above this spread of most factors, they are not to be relied on."""
_LEAST_TUPLES: Final = 240_000
_MOST_TUPLES: Final = 4_000_000
_LONGEST: Final = 10.0
"""Seconds that a run should take at most."""
_LEAST_BATCH: Final = 100
_FILLINGS: Final = 20
"""A front stage has learned, mostly, when the stream table has been filled so many times."""


def tune(
    path: Annotated[
        str | None,
        typer.Argument(metavar="[PATH]", help="The folder, or the URI, of a master table."),
    ] = None,
    memory: Annotated[str | None, typer.Option(help='The budget, such as "64MB".')] = None,
    rate: Annotated[
        float | None, typer.Option(help="Tuples per second; without --memory, its least memory.")
    ] = None,
    skew: Annotated[
        float | None, typer.Option(help="Zipf exponent of the stream; 0 is uniform.")
    ] = None,
    algorithm: Annotated[str, typer.Option(help='An algorithm, or "auto".')] = "auto",
    io: Annotated[Io, typer.Option(help="How pages are read.")] = Io.BUFFERED,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure this machine first, in about two minutes.")
    ] = False,
    empirical: Annotated[
        bool, typer.Option("--empirical", help="Run sizes near the best, and compare.")
    ] = False,
    chart: Annotated[
        bool, typer.Option("--chart", help="Draw rate against memory, and name the knee.")
    ] = False,
    sample: Annotated[
        Path | None,
        typer.Option(help="A Parquet file of stream tuples; tells the skew and is reported on."),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN,…", help="The sample's key columns, if they have other names."
        ),
    ] = None,
    task_tuples: Annotated[
        int | None, typer.Option(help="Plan what a task of so many tuples runs on Spark.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Plan a join: the fastest for a budget, or the least memory for a rate."""
    with reported(side()):
        if not calibrate and path is None:
            raise OptionError("Name a master table to plan for, or use --calibrate, or both.")
        if calibrate:
            _calibrate(io, quiet)
        if empirical and task_tuples is not None:
            raise OptionError(
                "--empirical runs a join that goes on and on: leave --task-tuples out."
            )
        if on is not None and sample is None:
            raise OptionError("--on names key columns of a sample: give one with --sample.")
        if path is not None:
            asked = {"memory": memory, "rate": rate, "skew": skew, "algorithm": algorithm}
            asked |= {"io": io, "task_tuples": task_tuples}
            found = _plan(path, sample, on, asked)
            if chart:
                output().print(str(found.chart()), soft_wrap=True)
            if empirical:
                exponent = found.expected and found.expected.exponent
                _measure(path, found, exponent or 0.0, io, quiet)


def _calibrate(io: str, quiet: bool) -> None:
    from semistream.cost.calibration import calibrate

    with Progress("Measuring", 1.0, quiet) as progress:
        found = calibrate(io, progress=lambda what, done: progress.to(done, f"Measuring {what}"))
    output().print(_factor_table(found))
    if median(found.spread.values()) > _UNEVEN:
        output().print(
            "The rounds differ much: this machine had other work. Measure again when it has none."
        )
    output().print(_read_table(found))
    stored = found.save()
    output().print(f"Measured in {found.seconds:.0f} s, kept in {stored}", soft_wrap=True)


def _plan(path: str, sample: Path | None, on: str | None, asked: dict[str, Any]) -> JoinPlan:
    import semistream as ss

    master = ss.MasterTable.open(path)
    if sample is not None:
        pairs = _pairs(on, master.key)
        asked |= {"stream": _sample(sample), "on": pairs}
        estimate = _estimate(master, asked["stream"], pairs)
        output().print(estimate.explain(), soft_wrap=True)
        if asked["skew"] is None:
            asked["skew"] = estimate
    found = ss.plan(master, **asked)
    output().print(found.explain(), soft_wrap=True)
    return found


def _pairs(on: str | None, key: Sequence[str]) -> On:
    """The sample's key columns, each with the master's."""
    if on is None:
        return list(key)
    names = [on] if len(key) == 1 else [name.strip() for name in on.split(",")]
    if len(names) != len(key):
        raise OptionError(
            f"--on names {len(names)} columns, and the master's key has {len(key)}: "
            f"{', '.join(key)}. Name as many, in this order, with commas between them."
        )
    return dict(zip(names, key, strict=True))


def _sample(path: Path) -> pa.Table:
    """The tuples of a sample, as a table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise OptionError(
            f"{path} cannot be read as Parquet: {str(error).rstrip('.')}. Give a file of stream "
            "tuples."
        ) from error


def _estimate(master: MasterTable, sample: pa.Table, on: On) -> SkewEstimate:
    """The skew of a sample."""
    from semistream.cost.planning import LEAST_SAMPLE, as_sample, keyed_codes
    from semistream.cost.popularity import key_count
    from semistream.cost.skew_estimate import estimate_skew
    from semistream.parts.join_shape import JoinShape

    shape = JoinShape(sample.schema, master, on, "inner", None)
    codes = keyed_codes(shape, as_sample(sample, master))
    if len(codes) < LEAST_SAMPLE:
        raise OptionError(
            f"The sample has {len(codes)} tuples with a key, which tell no skew. Give one with "
            "some thousands."
        )
    return estimate_skew(codes, key_count(master))


def _measure(path: str, found: JoinPlan, exponent: float, io: str, quiet: bool) -> None:
    from semistream import MasterTable, Skew
    from semistream.cost.empirical import BATCHES, measure_grid, zipf_stream
    from semistream.cost.factors import known_factors
    from semistream.cost.model import CostModel
    from semistream.cost.read_costs import copying
    from semistream.cost.tuner import Tuner
    from semistream.parts.join_shape import JoinShape

    master, io = MasterTable.open(path), copying(io)
    if master.shard_count > 1:
        master = master.shard(0)
    tuples = _FILLINGS * found.stream_slots
    if found.expected is not None:
        tuples = int(tuples / max(1 - found.expected.hit_share, 0.01))
    tuples = min(max(tuples, _LEAST_TUPLES), _MOST_TUPLES)
    if found.expected is not None:
        tuples = min(tuples, max(int(_LONGEST * found.expected.rate), _LEAST_BATCH * BATCHES))
    batches = zipf_stream(master, exponent, tuples, master.layout == "given")
    shape = JoinShape(batches[0].schema, master, list(master.key), "inner", None)
    factors = known_factors(io).factors
    model = CostModel(master, shape, batches[0], Skew(exponent), factors, io)
    points = []
    with Progress("Running sizes near the best", None, quiet) as progress:
        for point in measure_grid(Tuner(model), found.algorithm, found.memory, batches):
            points.append(point)
            progress.to(len(points), f"Running sizes near the best: {len(points)} so far")
    read = "read with direct I/O" if io == "direct" else "copied, as those that are not in memory"
    output().print(f"{tuples:,} tuples each; pages are {read}:", highlight=False)
    _print_points(output(), points)


def _print_points(console: Console, points: list[Measured]) -> None:
    table = Table(box=box.SIMPLE)
    table.add_column("sizes")
    for name in ("predicted", "priced", "off", "measured", "off"):
        table.add_column(name, justify="right")
    for point in points:
        sizes = ", ".join(f"{name} {value}" for name, value in point.options.items()) or "default"
        table.add_row(
            sizes,
            f"{point.predicted:,.0f}",
            f"{point.priced:,.0f}",
            f"{point.predicted / point.priced - 1:+.1%}",
            f"{point.measured:,.0f}",
            f"{point.predicted / point.measured - 1:+.0%}",
        )
    console.print(table)
    priced = sum(abs(p.predicted / p.priced - 1) for p in points) / len(points)
    timed = sum(abs(p.predicted / p.measured - 1) for p in points) / len(points)
    best = max(points, key=lambda p: p.priced)
    console.print(
        f"Deviation of the model: {priced:.1%} from the priced rate, {timed:.0%} from the clock. "
        + (
            f"The tuned sizes give {points[0].priced / best.priced:.1%} of the best priced rate."
            if len(points) > 1
            else "There were no other sizes to compare with: all near it end as these."
        )
    )


def _factor_table(found: Calibration) -> Table:
    from dataclasses import asdict

    table = Table("cost factor", box=box.SIMPLE, title=f"{found.io}: cost of an operation")
    table.add_column("µs", justify="right")
    table.add_column("spread", justify="right")
    for name, value in asdict(found.factors).items():
        if name != "overlap":
            table.add_row(name, f"{(value or 0) * 1e6:,.4f}", f"{found.spread[name]:.0%}")
    return table


def _read_table(found: Calibration) -> Table:
    table = Table("read", box=box.SIMPLE, title="reads by themselves, decoding included")
    for name in ("bytes", "median µs", "p90 µs"):
        table.add_column(name, justify="right")
    for read in found.reads:
        way = f"{read.io}, {'in a row' if read.sequential else 'at random'}"
        table.add_row(way, f"{read.size:,}", f"{read.median * 1e6:,.0f}", f"{read.p90 * 1e6:,.0f}")
    return table
