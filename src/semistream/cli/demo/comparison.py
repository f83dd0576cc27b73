"""The last part of the demo: the same micro-batches with `ss.join` and with Spark's own join."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from rich.text import Text

from semistream.cli.demo.scene import KEY
from semistream.cli.report import size_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from semistream import MasterTable
    from semistream.cli.demo.scene import Scene

__all__ = ["OURS", "THEIRS", "bars", "compared", "verdict"]

OURS: Final = "semistream"
THEIRS: Final = "Spark's own join"
_WARM: Final = 1
"""First batches of each join that do not count: they start workers and list files."""
_COUNTED: Final = 3
_ALIKE: Final = 1.1
"""Below this factor, two rates are about the same."""
_WIDTH: Final = 36


def compared(scene: Scene, spark: SparkSession, master: MasterTable) -> dict[str, float]:
    """Sales per second of both joins, from the median of whole micro-batches."""
    from semistream.spark.join import join

    size = scene.rate
    sales = scene.sales(spark, rowsPerBatch=size, rows=size * (_WARM + _COUNTED))
    static = spark.read.parquet(str(scene.table))
    ways = {
        OURS: join(sales, master, on=KEY, how="left", memory=scene.memory),
        THEIRS: sales.join(static, KEY, "left"),
    }
    return {way: size / statistics.median(_seconds(frame)[_WARM:]) for way, frame in ways.items()}


def _seconds(frame: DataFrame) -> list[float]:
    """Seconds per micro-batch of a stream, as Spark counts them; the rows are discarded."""
    query = frame.writeStream.format("noop").trigger(availableNow=True).start()
    query.awaitTermination()
    done = [one for one in query.recentProgress if one.numInputRows]
    return [one.durationMs["triggerExecution"] / 1000 for one in done]


def bars(rates: Mapping[str, float]) -> Text:
    """A bar for each way, as long as its rate."""
    text, most = Text(), max(rates.values())
    for way, rate in rates.items():
        text.append(f"  {way:<17} ")
        text.append("█" * max(round(_WIDTH * rate / most), 1), style=_STYLES.get(way, ""))
        text.append(f" {_shown(rate)} sales/s\n")
    text.right_crop()
    return text


_STYLES: Final = {OURS: "green", THEIRS: "bright_black"}


def verdict(rates: Mapping[str, float], scene: Scene) -> str:
    """What the rates say, whichever is higher."""
    ours, theirs = rates[OURS], rates[THEIRS]
    if ours >= theirs * _ALIKE:
        said = f"semistream was {_times(ours / theirs)} as fast as Spark's own join"
    elif theirs >= ours * _ALIKE:
        said = f"Spark's own join was {_times(theirs / ours)} as fast as semistream"
    else:
        said = "Both were about as fast"
    said += (
        f" here: R of {scene.products:,} rows, {scene.rate:,} sales a micro-batch, "
        f"{size_text(scene.memory)} for each task, R just written and so in the page cache."
    )
    if ours >= scene.rate > theirs:
        said += f" At {scene.rate:,} sales a second, Spark's own join would fall behind."
    elif theirs > ours:
        said += " Spark reads all of R for each micro-batch: that is cheap if R is small."
    return said


def _times(ratio: float) -> str:
    return f"{ratio:.1f} times" if ratio < 10 else f"{ratio:.0f} times"


def _shown(rate: float) -> str:
    """A rate, to three digits: more would be noise."""
    digits = len(str(int(rate)))
    return f"{round(rate, min(3 - digits, 0)):,.0f}"
