"""The command: its options, and the order in which it shows things."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.text import Text

from semistream.cli.compiling import are_compiled, compiled_meanwhile
from semistream.cli.demo.comparison import bars, compared, verdict
from semistream.cli.demo.counted import counted
from semistream.cli.demo.events import POPULAR, Events
from semistream.cli.demo.scene import Products, Scene
from semistream.cli.demo.view import LiveLine
from semistream.cli.frames import spark_errors, spark_session
from semistream.cli.report import INTERRUPTED, output, reported, side, size_text
from semistream.cli.run import follow
from semistream.cli.watch import served
from semistream.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from semistream.spark.pipeline.pipeline import Status

__all__ = ["demo"]

_TRIES: Final = 4
"""How often Spark runs a task before it gives up; a local Spark by itself does so once."""


def demo(
    products: Annotated[int, typer.Option(min=1, help="Rows of the master table R.")] = 3_000_000,
    seconds: Annotated[float, typer.Option(min=1, help="How long sales arrive.")] = 20,
    rate: Annotated[int, typer.Option(min=1, help="Sales a second, on average.")] = 20_000,
    memory: Annotated[str, typer.Option(help="Memory of each task.")] = "4MB",
    seed: Annotated[int, typer.Option(min=0, help="Seed of products and sales.")] = 1,
    page: Annotated[
        bool, typer.Option("--page", help="Show the stream on a page for the browser instead.")
    ] = False,
    keep: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Keep all files in this folder.")
    ] = None,
) -> None:
    """Enrich a stream on Spark while its master changes and a worker dies, count, and compare."""
    from semistream.budget import parse_memory

    console = side()
    with reported(console), _folder(keep) as folder, spark_errors("demo"):
        from semistream.spark.source import check_streaming

        check_streaming()
        tasks = min(os.cpu_count() or 2, 4)
        scene = Scene(folder, products, rate, seconds, parse_memory(memory), seed, tasks)
        _Demo(scene, output(), console).run(page)
        if keep is not None:
            hint = f"All is kept: semistream master describe {keep / 'products.master'}"
            output().print(hint, soft_wrap=True)


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


class _Demo:
    """The demonstration, step by step."""

    def __init__(self, scene: Scene, out: Console, console: Console) -> None:
        """Nothing runs yet."""
        self._scene, self._out, self._console = scene, out, console

    def run(self, page: bool) -> None:
        """All of it."""
        began = time.perf_counter()
        spark, products = self._started()
        with self._page() if page else nullcontext():
            events = self._streamed(spark, products, page)
            self._counted(events)
            self._compared(spark, products)
            self._out.print(f"[dim]{time.perf_counter() - began:.0f} seconds in all.[/]")
            if page and self._console.is_terminal:
                self._console.print("The page stays until Ctrl-C.")
                threading.Event().wait()

    def _title(self, text: str) -> None:
        self._out.print(Text(f"\n{text}", style="bold"))

    def _tell(self, text: str) -> None:
        self._out.print(f"  {text}", soft_wrap=True)

    @contextmanager
    def _working(self, what: str) -> Iterator[None]:
        """A sign of life on a terminal; elsewhere a plain line."""
        if not self._console.is_terminal:
            self._console.print(f"  {what} …")
            yield
            return
        with self._console.status(f"{what} …"):
            yield

    def _started(self) -> tuple[SparkSession, Products]:
        """Make R while Spark starts."""
        scene = self._scene
        self._title("The master: products on disk, far more than the memory of the join")
        settings = {
            "spark.sql.shuffle.partitions": str(scene.tasks),
            "spark.master": f"local[{scene.tasks},{_TRIES}]",
        }
        is_first = not are_compiled()
        what = f"Making {scene.products:,} products, and starting Spark"
        meanwhile = compiled_meanwhile(self._console, ("integer",)) if is_first else nullcontext()
        with ThreadPoolExecutor(1) as thread:
            making = thread.submit(Products.made, scene, POPULAR)
            with meanwhile, self._working(what + ("; compiling, once" if is_first else "")):
                spark = spark_session(log=scene.folder / "spark.log", **settings)
                products = making.result()
        self._tell(
            f"{scene.products:,} products, {size_text(products.bytes)} in "
            f"{products.master.page_count:,} pages: made in {products.made_seconds:.1f} s, "
            f"built in {products.built_seconds:.1f} s."
        )
        share = 100 * scene.memory / products.bytes
        self._tell(
            f"Memory: {size_text(scene.memory)} for each of {scene.tasks} tasks, "
            f"{share:.2g} % of R."
        )
        with self._working("Starting Python workers, before sales arrive"):
            scene.warm(spark, products.master)
        return spark, products

    @contextmanager
    def _page(self) -> Iterator[None]:
        self._scene.checkpoint.mkdir(parents=True)
        with served(self._scene.checkpoint, self._scene.metrics, "127.0.0.1", 0, self._out):
            yield

    def _streamed(self, spark: SparkSession, products: Products, page: bool) -> Events:
        """Join the stream and write the result to the warehouse."""
        scene, console = self._scene, self._console
        self._title(f"The stream: {scene.tuples:,} sales in {scene.seconds:g} s, in bursts")
        view = LiveLine(console, scene.arrivals, has_line=not page)
        events = Events(spark, products, scene.seconds, view.say)

        def is_enough(now: Status) -> bool:
            events.tick()
            return now.totals.source >= scene.tuples and events.are_over

        pipeline = scene.pipeline(spark, products.master)
        try:
            if follow(pipeline, console, is_enough, view):
                console.print("Interrupted.")
                raise typer.Exit(INTERRUPTED)
        finally:
            events.close()
        return events

    def _counted(self, events: Events) -> None:
        """Say whether anything is lost; leave with an error if so."""
        self._title("The count: is every sale in the warehouse, once, with the right price?")
        with self._working("Making all sales again, without Spark, and comparing"):
            found = counted(self._scene, events.changes)
        self._tell(f"{found.sold:>9,}  sales, made again without Spark")
        self._tell(f"{found.stored:>9,}  rows in the warehouse")
        for wrong, what in (
            (found.wrong_sales, "lost or doubled"),
            (found.wrong_names, "with the row of another product"),
            (found.wrong_prices, "with a price of another version than their batch's"),
        ):
            self._tell(f"{wrong:>9,}  {what}")
        used = ", ".join(map(str, found.versions))
        self._tell(
            f"Master versions that batches took: {used}. Workers killed: {len(events.killed)}."
        )
        if not found.is_right:
            self._console.print("The warehouse is not right. Please report this.", style="red")
            raise typer.Exit(1)

    def _compared(self, spark: SparkSession, products: Products) -> None:
        scene = self._scene
        self._title(f"The comparison: the same join in micro-batches of {scene.rate:,} sales")
        with self._working("Running both joins"):
            rates = compared(scene, spark, products.master)
        self._out.print(bars(rates))
        self._out.print(Text(verdict(rates, scene)))
