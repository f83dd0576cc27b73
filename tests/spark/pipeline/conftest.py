"""A shop: sales that arrive in files, goods as the master, a pipeline from one to the warehouse."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import semistream as ss
from semistream.relation.storage import Location
from semistream.spark.pipeline.pipeline import Pipeline
from semistream.testing import rows_of

KEYS = 400
FIRST_SALE = 1_700_000_000
# Some names are null: a master row of nulls is a match too.
NAMES = [None if i % 50 == 0 else f"name of number {i}" for i in range(KEYS)]


@dataclass
class Shop:
    spark: SparkSession
    folder: Path
    seed: int
    keys: int = KEYS
    goods: pa.Table = field(default_factory=lambda: pa.table({"id": range(KEYS), "name": NAMES}))
    sold: int = 0
    files: int = 0

    def master(self, goods: pa.Table | None = None) -> ss.MasterTable:
        """The goods as a master table; called again, its next version."""
        table = self.goods if goods is None else goods
        path = self.folder / "goods.master"
        return ss.MasterTable.from_arrow(table, path, key="id", page_bytes=4096, replace=True)

    def sales(self, rows: int) -> pa.Table:
        """Sales whose keys are skewed, some absent, some null; `n` numbers them."""
        random = np.random.default_rng(self.seed + self.sold)
        ids = np.minimum(random.zipf(1.3, rows) * 7 % (KEYS + 50), KEYS + 49)
        column = pa.array(ids, mask=random.random(rows) < 0.05)
        return pa.table({"id": column, "n": range(self.sold, self.sold + rows)})

    def sell(self, *tables: pa.Table | int) -> pa.Table:
        """Let sales arrive, a file for each table, or for so many random ones; all as one."""
        (self.folder / "sales").mkdir(exist_ok=True)
        made = []
        for given in tables:
            table = self.sales(given) if isinstance(given, int) else given
            hidden = self.folder / "unfinished"
            pq.write_table(table, hidden)
            # Spark takes files by their age, to a millisecond, which files can share.
            os.utime(hidden, (FIRST_SALE + self.files, FIRST_SALE + self.files))
            hidden.rename(self.folder / "sales" / f"{self.files:04d}.parquet")
            self.files += 1
            self.sold += len(table)
            made.append(table)
        return pa.concat_tables(made)

    def stream(self, schema: str = "id long, n long") -> DataFrame:
        """The files of sales as a stream, one in a micro-batch."""
        reader = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.folder / "sales"))

    def pipeline(
        self,
        source: DataFrame | None = None,
        master: ss.MasterTable | Location | list[ss.Lookup] | None = None,
        **options: Any,
    ) -> Pipeline:
        """A pipeline that ends with the sales there are."""
        wanted: dict[str, Any] = {"on": "id", "sink": str(self.folder / "out"), "memory": "1MB"}
        wanted |= {"checkpoint": self.folder / "checkpoint", "trigger": "availableNow"}
        goods = self.folder / "goods.master" if master is None else master
        source = self.stream() if source is None else source
        return Pipeline(source, goods, **(wanted | options))

    def run(self, *arguments: Any, **options: Any) -> Pipeline:
        """A pipeline, to its end."""
        pipeline = self.pipeline(*arguments, **options).start()
        assert pipeline.await_termination()
        return pipeline

    def rows(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        """The rows in a folder of Parquet files; none if there are no batches."""
        path = self.folder / name
        if not list(path.glob("*=*")):
            return []
        return rows_of(ds.dataset(path, partitioning="hive").to_table().select(list(columns)))

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The JSON lines of a file."""
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path, seed: int) -> Shop:
    """A shop of its own."""
    return Shop(spark, tmp_path, seed)
