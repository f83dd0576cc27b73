"""The last part of the demo: the same micro-batches with `ss.join` and with Spark's own join."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich import box
from rich.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from semistream import MasterTable

__all__ = ["BATCH_ROWS", "compared"]

BATCH_ROWS: Final = 50_000
_WARM: Final = 2
"""First batches of each join that do not count: they start workers, compile and list files."""


def compared(
    sales: DataFrame, master: MasterTable, budget: int, products: Path
) -> tuple[Table, str]:
    """The times of both joins as a table, and a sentence that compares them.

    `sales` is a stream that ends; `products` has the master's rows as Parquet.
    """
    from semistream.spark.join import join

    static = sales.sparkSession.read.parquet(str(products))
    ways = {
        "semistream": join(sales, master, on="product_id", how="left", memory=budget),
        "Spark stream-static": sales.join(static, "product_id", "left"),
    }
    taken = {name: _batch_seconds(frame)[_WARM:] for name, frame in ways.items()}
    return _table(taken), _verdict(taken)


def _batch_seconds(frame: DataFrame) -> list[float]:
    """Seconds per micro-batch of a stream; the rows are discarded."""
    seconds: list[float] = []

    def write(batch: DataFrame, _: int) -> None:
        began = time.perf_counter()
        batch.write.format("noop").mode("append").save()
        seconds.append(time.perf_counter() - began)

    query = frame.writeStream.foreachBatch(write).trigger(availableNow=True).start()
    query.awaitTermination()
    return seconds


def _table(taken: dict[str, list[float]]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title=f"Left join of micro-batches of {BATCH_ROWS:,} sales, written to nowhere, warm",
        title_justify="left",
        title_style="",
    )
    table.add_column("way")
    for title in ("seconds per batch\n(median)", "tuples/s", "each batch"):
        table.add_column(title, justify="right", no_wrap=True)
    for way, seconds in taken.items():
        median = statistics.median(seconds)
        each = " ".join(f"{one:.2f}" for one in seconds)
        table.add_row(way, f"{median:.2f}", f"{BATCH_ROWS / median:,.0f}", each)
    return table


def _verdict(taken: dict[str, list[float]]) -> str:
    ours, theirs = (statistics.median(seconds) for seconds in taken.values())
    if ours <= theirs:
        return f"semistream was {theirs / ours:.1f} times as fast as Spark's own join."
    return f"Here Spark's own join was {ours / theirs:.1f} times as fast as semistream."
