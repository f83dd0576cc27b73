"""`semistream demo`: all of it on Spark, on this machine, with made-up sales.

    products ─► master table ─┐
    bursty sales ─────────────┴─► pipeline ─► Parquet warehouse

Then it runs the same join with Spark's own means, and prints both times in a table.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console

from semistream.cli.batch_view import totals
from semistream.cli.compiling import compiled_meanwhile
from semistream.cli.demo_comparison import BATCH_ROWS, compared
from semistream.cli.frames import spark_errors, spark_session
from semistream.cli.report import INTERRUPTED, output, reported, side, size_text
from semistream.cli.run import follow
from semistream.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from semistream import MasterTable
    from semistream.spark.pipeline.pipeline import Pipeline

__all__ = ["demo"]

_LEAST_BUDGET: Final = 1 << 20
"""The least bytes per task: a small share of a tiny R would not even hold a page."""

_WARM_ROWS: Final = 1 << 16
"""Enough rows for several blocks of the source, so that every task gets some."""


@dataclass(frozen=True)
class _Scene:
    """The settings of the demonstration."""

    folder: Path
    products: int
    rate: int
    seconds: float
    share: float
    seed: int
    tasks: int

    @property
    def tuples(self) -> int:
        """Tuples of the whole stream."""
        return max(int(self.rate * self.seconds), 1)

    @property
    def table(self) -> Path:
        """R as a Parquet file, from which both joins start."""
        return self.folder / "products.parquet"

    def budget(self, master: MasterTable) -> int:
        """Bytes for each task."""
        size = int(master.pages.length.sum())
        return max(int(self.share * size), _LEAST_BUDGET)

    def sales(self, spark: SparkSession, **options: object) -> DataFrame:
        """The stream of sales."""
        given = {"keys": self.products, "seed": self.seed, "numPartitions": self.tasks}
        reader = spark.readStream.format("semistream")
        return reader.options(**{name: str(v) for name, v in (given | options).items()}).load()


def demo(
    products: Annotated[int, typer.Option(min=1, help="Rows of the master table R.")] = 500_000,
    seconds: Annotated[float, typer.Option(min=1, help="How long sales arrive.")] = 30,
    rate: Annotated[int, typer.Option(min=1, help="Sales a second, on average.")] = 20_000,
    share: Annotated[
        float, typer.Option(min=0.0, help="Memory of each task as a share of R's bytes.")
    ] = 0.05,
    seed: Annotated[int, typer.Option(min=0, help="Seed of products and sales.")] = 1,
    keep: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Keep all files in this folder.")
    ] = None,
) -> None:
    """On Spark: build a master table, enrich bursty sales, and compare with Spark's own join."""
    out, console = output(), side()
    with reported(console), _folder(keep) as folder, spark_errors("demo"):
        from semistream.spark.source import check_streaming

        check_streaming()
        tasks = min(os.cpu_count() or 2, 4)
        scene = _Scene(folder, products, rate, seconds, share, seed, tasks)
        console.print("Starting Spark, and compiling if it is the first time …", style="dim")
        settings = {"spark.sql.shuffle.partitions": str(tasks)}
        with compiled_meanwhile(console, ("integer",)):
            spark = spark_session(log=folder / "spark.log", **settings)
        master = _built(scene, spark, out, console)
        _streamed(scene, spark, master, out, console)
        with console.status("The same join, here and by Spark itself"):
            sales = scene.sales(spark, rowsPerBatch=BATCH_ROWS, rows=BATCH_ROWS * 6)
            table, verdict = compared(sales, master, scene.budget(master), scene.table)
        out.print(table)
        out.print(verdict)
        if keep is not None:
            hint = f"All is kept: semistream master describe {keep / 'products.master'}"
            out.print(hint, soft_wrap=True)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """The folder for all files. A temporary one is removed however the command ends."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="semistream-") as folder:
            yield Path(folder)
        return
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise OptionError(f"--keep {keep} is there and not empty. Give a new folder, or empty it.")
    keep.mkdir(parents=True, exist_ok=True)
    yield keep.absolute()


def _built(scene: _Scene, spark: SparkSession, out: Console, console: Console) -> MasterTable:
    """Build the master table with a Spark job."""
    import pyarrow.parquet as pq

    from semistream import MasterTable, workload

    with console.status(f"Building a master table of {scene.products:,} products"):
        pq.write_table(workload.products(scene.products, scene.seed), scene.table)
        began = time.perf_counter()
        path = scene.folder / "products.master"
        frame = spark.read.parquet(str(scene.table))
        master = MasterTable.build(frame, path, key="product_id", progress=False)
        seconds = time.perf_counter() - began
    size, budget = int(master.pages.length.sum()), scene.budget(master)
    out.print(
        f"R: {master.row_count:,} products, {size_text(size)} in {master.page_count:,} pages, "
        f"built in {seconds:.1f} s."
    )
    out.print(
        f"Memory: {size_text(budget)} for each of {scene.tasks} tasks, "
        f"{100 * budget / size:.3g} % of R each."
    )
    out.print(f"S: {scene.tuples:,} sales, Zipf(1), about {scene.rate:,} a second, in bursts.")
    return master


def _streamed(
    scene: _Scene, spark: SparkSession, master: MasterTable, out: Console, console: Console
) -> None:
    """Join the stream and write the result to the warehouse."""
    with console.status("Starting Python workers, before sales arrive"):
        _warm(scene, spark, master)
    pipeline = _pipeline(scene, spark, master)
    was_stopped = follow(pipeline, console, lambda now: now.totals.source >= scene.tuples)
    if was_stopped:
        console.print("Interrupted.")
        raise typer.Exit(INTERRUPTED)
    out.print(f"Warehouse: {totals(pipeline.status())}")


def _warm(scene: _Scene, spark: SparkSession, master: MasterTable) -> None:
    """Join a few sales first, so that the stream's first tuples do not wait for start-up."""
    from semistream.spark.join import join

    options = {"keys": scene.products, "numPartitions": scene.tasks, "rows": _WARM_ROWS}
    few = spark.read.format("semistream").options(**options).load()
    joined = join(few, master, on="product_id", how="left", memory=scene.budget(master))
    joined.write.format("noop").mode("append").save()


def _pipeline(scene: _Scene, spark: SparkSession, master: MasterTable) -> Pipeline:
    from semistream.spark.pipeline.pipeline import Pipeline

    return Pipeline(
        scene.sales(spark, rate=scene.rate, rows=scene.tuples, bursty="true"),
        master,
        on="product_id",
        sink=str(scene.folder / "warehouse"),
        checkpoint=scene.folder / "checkpoint",
        memory=scene.budget(master),
        metrics=scene.folder / "metrics.jsonl",
    )
