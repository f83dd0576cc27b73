"""Joins and a pipeline on a standalone cluster; prints what was found, as JSON.

python standalone_script.py FOLDER CLUSTER_URL SHARDS
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import semistream as ss
from tests.chaos.pipeline_script import CLUSTER
from tests.recovery.cluster_script import counted
from tests.recovery.shop_script import SETTINGS


def places(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The folder of the executor that this task runs on, if the task has any rows."""
    if sum(batch.num_rows for batch in batches):
        yield pa.RecordBatch.from_pydict({"place": [os.getcwd()]})


def executors(spark: SparkSession) -> int:
    """How many there are; Spark counts the driver too."""
    return int(spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1


def main(folder: Path, url: str, shards: int) -> None:
    """Build, join, and run a pipeline whose executors are killed meanwhile."""
    settings = {**SETTINGS, **CLUSTER, "spark.cores.max": str(shards), "spark.master": url}
    more = {
        "spark.port.maxRetries": "100",
        # So that the first job waits until all executors are there.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    }
    spark = ss.local_session(2, "1g", **settings, **more)
    goods = spark.read.parquet(str(folder / "goods.parquet"))
    sales = spark.read.parquet(str(folder / "sales"))
    master = ss.MasterTable.build(
        goods, folder / "goods.master", key="id", page_bytes=4096, shards=shards
    )
    wanted = counted(sales.join(goods, "id", "left").select("id", "n", "name"))
    found: dict[str, object] = {"executors": executors(spark), "shards": master.shard_count}
    for way, shuffle in (("divided", True), ("as it is", False)):
        joined: DataFrame = ss.join(
            sales.repartition(shards), master, on="id", how="left", shuffle=shuffle, memory="1MB"
        )
        found[way] = counted(joined.select("id", "n", "name")) == wanted
    places_of = joined.mapInArrow(places, "place string")
    found["places"] = len({row.place for row in places_of.collect()})
    reader = spark.readStream.schema(sales.schema).option("maxFilesPerTrigger", 1)
    pipeline = ss.Pipeline(
        reader.parquet(str(folder / "sales")),
        master,
        on="id",
        sink=str(folder / "out"),
        unmatched=str(folder / "unmatched"),
        checkpoint=folder / "checkpoint",
        memory="1MB",
        trigger="availableNow",
    ).start()
    pipeline.await_termination()
    written = counted(spark.read.parquet(str(folder / "out")).select("id", "n", "name"))
    alone = counted(
        spark.read.parquet(str(folder / "unmatched")).selectExpr("id", "n", "null as name")
    )
    found["pipeline"] = {**written, **alone} == wanted
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
