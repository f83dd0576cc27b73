"""`semistream compare`: the same stream through every algorithm, without Spark."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from semistream.cli.progress import AsJson, Progress, Quiet
from semistream.cli.report import MIB, output, reported, side, size_text
from semistream.errors import BudgetError, UnknownAlgorithmError

if TYPE_CHECKING:
    import pyarrow as pa

    from semistream import Engine, MasterTable, Metrics

_BATCH_ROWS: Final = 20_000
_WARM_ROWS: Final = 256
_INLJ_ROWS: Final = 100_000
"""INLJ reads a page per tuple: this many take about as long as a million in the others."""


class Io(StrEnum):
    """How pages are read."""

    BUFFERED = "buffered"
    UNMAPPED = "unmapped"
    DIRECT = "direct"


@dataclass(frozen=True)
class _Scene:
    """What every algorithm of a comparison gets: R, S and a budget."""

    master: MasterTable
    stream: list[pa.RecordBatch]
    sales: int
    exponent: float
    budget: int
    io: str

    @property
    def master_bytes(self) -> int:
        return int(self.master.pages.length.sum())

    def rows_for(self, algorithm: str) -> int:
        return min(self.sales, _INLJ_ROWS) if algorithm == "inlj" else self.sales

    def engine(self, algorithm: str) -> Engine:
        import semistream as ss

        return ss.engine(
            self.master, algorithm=algorithm, on="product_id", memory=self.budget, io=self.io
        )


def compare(
    products: Annotated[int, typer.Option(min=1, help="Rows of the master table R.")] = 500_000,
    sales: Annotated[int, typer.Option(min=1, help="Tuples of the stream S.")] = 1_000_000,
    share: Annotated[
        float, typer.Option(min=0.0, help="The memory budget as a share of R's bytes.")
    ] = 0.05,
    exponent: Annotated[
        float, typer.Option(min=0.0, help="Skew of the Zipf keys; 0 is uniform.")
    ] = 1.0,
    io: Annotated[
        Io,
        typer.Option(
            help="Read through the page cache, or bypass it (O_DIRECT). With buffered, rows of "
            "pages in memory are found in place, whatever the algorithm."
        ),
    ] = Io.UNMAPPED,
    seed: Annotated[int, typer.Option(min=0, help="Seed of products and sales.")] = 1,
    algorithms: Annotated[
        str | None, typer.Option(help="Names, separated by commas; all by default.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Keep the master table in this folder.")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Join sales with products by every algorithm, and compare them in one table."""
    out, console = output(), side()
    with reported(console), _master_folder(keep) as folder:
        names = _chosen(algorithms)
        scene = _scene(folder, products, sales, share, exponent, io, seed)
        if as_json:
            measured = _measure(scene, names, console, quiet)
            typer.echo(json.dumps({name: asdict(one) for name, one in measured.items()}))
            return
        out.print(_setting(scene))
        out.print(_remark(scene, names), style="dim")
        measured = _measure(scene, names, console, quiet)
        out.print(_table(scene, measured))
        out.print(_verdict(measured))
        if keep is not None:
            out.print(
                f"The master table is kept: semistream master describe {keep}", soft_wrap=True
            )


@contextmanager
def _master_folder(keep: Path | None) -> Iterator[Path]:
    """The folder for the master table. A temporary one is removed however the command ends."""
    if keep is not None:
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="semistream-") as folder:
        yield Path(folder) / "products.master"


def _chosen(algorithms: str | None) -> list[str]:
    from semistream import ALGORITHMS

    if algorithms is None:
        return list(ALGORITHMS)
    names = list(dict.fromkeys(name.strip() for name in algorithms.split(",")))
    for name in names:
        if name not in ALGORITHMS:
            raise UnknownAlgorithmError(
                f"--algorithms: {name!r} is not known. Choose from: {', '.join(ALGORITHMS)}."
            )
    return names


def _scene(
    folder: Path, products: int, sales: int, share: float, exponent: float, io: str, seed: int
) -> _Scene:
    """Build R on disk and hold S in memory, so that no measured rate includes making them."""
    from semistream import MasterTable, workload

    table = workload.products(products, seed)
    master = MasterTable.from_arrow(table, folder, key="product_id")
    keys = workload.ZipfKeys(products, exponent, seed)
    stream = list(workload.sales(sales, keys, products, _BATCH_ROWS))
    budget = max(1, int(share * int(master.pages.length.sum())))
    return _Scene(master, stream, sales, exponent, budget, io)


def _measure(scene: _Scene, names: list[str], console: Console, quiet: bool) -> dict[str, Metrics]:
    """Run the algorithms one after the other."""
    engines = {name: scene.engine(name) for name in names}
    for engine in engines.values():
        _warm(engine, scene)
    measured = {}
    total = sum(scene.rows_for(name) for name in names)
    with Progress("Comparing", total, quiet, console) as progress:
        for name, engine in engines.items():
            batches = _first(scene.stream, scene.rows_for(name))
            _drain(engine, _watched(batches, partial(progress.advance, what=f"{name:<12}")))
            measured[name] = engine.metrics()
    return measured


def _warm(engine: Engine, scene: _Scene) -> None:
    """Compile kernels before the measurement. A budget that is too small fails here already."""
    try:
        _drain(engine, _first(scene.stream, _WARM_ROWS))
    except BudgetError as error:
        raise BudgetError(f"{error} Here --share sets it, as a share of R's bytes.") from error


def _drain(engine: Engine, batches: Iterable[pa.RecordBatch]) -> None:
    for _ in engine.run(batches):
        pass


def _first(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The first `rows` rows of the stream."""
    for batch in batches:
        if rows <= 0:
            return
        yield batch.slice(0, rows)
        rows -= batch.num_rows


def _watched(
    batches: Iterable[pa.RecordBatch], advance: Callable[[int], None]
) -> Iterator[pa.RecordBatch]:
    """The batches; each is reported once the join asks for the next one."""
    for batch in batches:
        yield batch
        advance(batch.num_rows)


def _setting(scene: _Scene) -> str:
    share = 100 * scene.budget / scene.master_bytes
    return (
        f"R: {scene.master.row_count:,} products, {size_text(scene.master_bytes)}; "
        f"S: {scene.sales:,} Zipf({scene.exponent:g}) sales; "
        f"budget: {size_text(scene.budget)} ({share:.3g} %)"
    )


def _remark(scene: _Scene, names: list[str]) -> str:
    reads = "past the page cache" if scene.io == Io.DIRECT else "through the page cache"
    remark = (
        f"Pages are read {reads}. Kernels are warmed on {min(_WARM_ROWS, scene.sales)} sales "
        "first, so that rates are not compile time; a first run compiles for some seconds."
    )
    if "inlj" in names and scene.rows_for("inlj") < scene.sales:
        remark += f" inlj, the slowest, gets the first {scene.rows_for('inlj'):,} sales only."
    return remark


def _table(scene: _Scene, measured: Mapping[str, Metrics]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("algorithm")
    for title in ("rate\ntuples/s", "pages read\nper 1,000", "peak memory\nof budget", "p99\ntime"):
        table.add_column(title, justify="right", no_wrap=True)
    for name, metrics in measured.items():
        rows = scene.rows_for(name)
        table.add_row(
            name if rows == scene.sales else f"{name} ({rows:,} sales)",
            f"{metrics.service_rate:,.0f}",
            f"{_pages(metrics):,.1f}",
            f"{metrics.peak_memory / MIB:,.2f} of {metrics.budget / MIB:,.2f} MiB",
            _duration(metrics.processing_time.p99),
        )
    return table


def _verdict(measured: Mapping[str, Metrics]) -> str:
    """The fastest compared with INLJ, or with the slowest if INLJ did not run or was fastest."""
    ranked = sorted(measured, key=lambda name: measured[name].service_rate)
    fastest = ranked[-1]
    if len(ranked) == 1:
        tuples = 1000 / _pages(measured[fastest]) if _pages(measured[fastest]) else 0.0
        return f"{fastest} shared each page read among {tuples:,.1f} tuples."
    other = "inlj" if "inlj" in measured and fastest != "inlj" else ranked[0]
    times = measured[fastest].service_rate / max(measured[other].service_rate, 1e-9)
    return (
        f"{fastest} is fastest, {times:,.{0 if times >= 10 else 1}f} times {other}: "
        f"{_pages(measured[fastest]):,.1f} pages per 1,000 tuples, "
        f"not {_pages(measured[other]):,.1f}."
    )


def _pages(metrics: Metrics) -> float:
    """Pages read per 1,000 stream tuples."""
    return 1000 * metrics.pages_read / max(metrics.arrived, 1)


def _duration(seconds: float) -> str:
    return f"{seconds:,.2f} s" if seconds >= 1 else f"{1000 * seconds:,.1f} ms"
