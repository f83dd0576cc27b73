"""What the demonstration plays with: products, their master table, and a stream of sales."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from semistream import MasterTable
    from semistream.spark.pipeline.pipeline import Pipeline
    from semistream.spark.sales import SourceOptions

__all__ = ["KEY", "Products", "Scene"]

KEY: Final = "product_id"
_WARM_ROWS: Final = 1 << 16
"""Enough rows for several blocks of the source, so that every task gets some."""


@dataclass(frozen=True)
class Scene:
    """The settings of the demonstration."""

    folder: Path
    products: int
    rate: int
    seconds: float
    memory: int
    """Bytes for each task."""
    seed: int
    tasks: int

    @property
    def tuples(self) -> int:
        """Tuples of the whole stream."""
        return max(int(self.rate * self.seconds), 1)

    @property
    def table(self) -> Path:
        """R as a Parquet file, which Spark's own join reads."""
        return self.folder / "products.parquet"

    @property
    def warehouse(self) -> Path:
        """Where joined rows go."""
        return self.folder / "warehouse"

    @property
    def checkpoint(self) -> Path:
        """The pipeline's checkpoint."""
        return self.folder / "checkpoint"

    @property
    def metrics(self) -> Path:
        """A line per batch."""
        return self.folder / "metrics.jsonl"

    @property
    def arrivals(self) -> SourceOptions:
        """When which sale arrives."""
        from semistream.spark.sales import SourceOptions

        return SourceOptions(
            keys=self.products, seed=self.seed, rate=self.rate, rows=self.tuples, bursty=True
        )

    def sales(self, spark: SparkSession, **options: object) -> DataFrame:
        """The stream of sales."""
        given = {"keys": self.products, "seed": self.seed, "numPartitions": self.tasks}
        reader = spark.readStream.format("semistream")
        return reader.options(**{name: str(v) for name, v in (given | options).items()}).load()

    def pipeline(self, spark: SparkSession, master: MasterTable) -> Pipeline:
        """The pipeline, not started."""
        from semistream.spark.pipeline.pipeline import Pipeline

        return Pipeline(
            self.sales(spark, rate=self.rate, rows=self.tuples, bursty="true"),
            master,
            on=KEY,
            sink=str(self.warehouse),
            checkpoint=self.checkpoint,
            memory=self.memory,
            metrics=self.metrics,
            name="demo",
        )

    def warm(self, spark: SparkSession, master: MasterTable) -> None:
        """Join a few sales first, so that the stream's first tuples do not wait for start-up."""
        from semistream.spark.join import join

        options: dict[str, Any] = {"keys": self.products, "numPartitions": self.tasks}
        few = spark.read.format("semistream").options(rows=_WARM_ROWS, **options).load()
        joined = join(few, master, on=KEY, how="left", memory=self.memory)
        joined.write.format("noop").mode("append").save()


@dataclass
class Products:
    """R: the master table, its best-selling rows, and how long it took."""

    master: MasterTable
    popular: pa.Table
    """The rows of the products that sell best, the best ones first."""
    made_seconds: float
    built_seconds: float

    @classmethod
    def made(cls, scene: Scene, popular: int) -> Products:
        """Make the products, and store them as a master table and as Parquet."""
        import numpy as np
        import pyarrow.parquet as pq

        from semistream import MasterTable, workload

        began = time.perf_counter()
        table = workload.products(scene.products, scene.seed)
        pq.write_table(table, scene.table)
        made = time.perf_counter()
        path = scene.folder / "products.master"
        master = MasterTable.from_arrow(table, path, key=KEY)
        built = time.perf_counter()
        ranks = np.arange(min(popular, scene.products))
        ids = workload.scattered(ranks, scene.products, scene.seed)
        return cls(master, table.take(ids), made - began, built - made)

    @property
    def bytes(self) -> int:
        """Bytes of the master's pages."""
        return int(self.master.pages.length.sum())
