"""Joins on executors of their own against Spark's own joins; prints what differs, as JSON.

python cluster_script.py FOLDER SEED
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from pyspark.sql import DataFrame, SparkSession

import semistream as ss

KEYS = {"integer": ["id"], "string": ["code"], "composite": ["id", "part"]}
HOWS = ("inner", "left")
STREAMED = {"integer": "left", "string": "inner", "composite": "left"}
ROWS = 600


def rows(count: int, seed: int, name: str) -> pa.Table:
    """Rows whose keys come several times, are absent from the other side, or null."""
    random = np.random.default_rng(seed)
    ids = random.integers(0, ROWS, count)
    return pa.table(
        {
            "id": pa.array(ids, mask=random.random(count) < 0.03),
            "code": pa.array([f"c{i}" for i in ids], mask=random.random(count) < 0.03),
            "part": pa.array(random.integers(0, 3, count), pa.int32()),
            name: pa.array(np.arange(count)),
        }
    )


def counted(frame: DataFrame) -> dict[str, int]:
    """A frame's rows as text, with how often each comes."""
    found: dict[str, int] = {}
    for row in frame.collect():
        found[str(tuple(row))] = found.get(str(tuple(row)), 0) + 1
    return found


def streamed(
    spark: SparkSession,
    folder: Path,
    on: list[str],
    master: ss.MasterTable,
    how: str,
    algorithm: str,
) -> DataFrame:
    """The sales as a stream, joined and collected."""
    sales = spark.readStream.schema(spark.read.parquet(str(folder / "sales")).schema)
    frame = sales.option("maxFilesPerTrigger", 1).parquet(str(folder / "sales"))
    joined = ss.join(frame, master, on=on, how=how, algorithm=algorithm, memory="1MB")
    name = f"out_{algorithm}_{how}_{'_'.join(on)}"
    query = joined.writeStream.format("parquet").option("path", str(folder / name))
    query = query.option("checkpointLocation", str(folder / f"{name}.checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    return spark.read.parquet(str(folder / name))


def main(folder: Path, seed: int) -> None:
    """All kinds of keys, every algorithm, in turn both joins; streams for the one auto chooses."""
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    (folder / "sales").mkdir()
    for number in range(2):
        pq.write_table(rows(700, seed + number, "n"), folder / "sales" / f"{number}.parquet")
    sales = spark.read.parquet(str(folder / "sales")).repartition(3)
    pq.write_table(rows(900, seed + 9, "stock"), folder / "goods.parquet")
    differing, done = [], 0
    for kind, on in KEYS.items():
        goods = spark.read.parquet(str(folder / "goods.parquet")).select(*on, "stock")
        path = str(folder / f"{kind}.master")
        master = ss.MasterTable.build(goods, path, key=on, page_bytes=4096, shards=2)
        whole = ss.MasterTable.build(goods, path + ".whole", key=on, page_bytes=4096)
        wanted = {
            how: counted(sales.join(goods, on, how).select(*sales.columns, "stock")) for how in HOWS
        }
        names = ss.ALGORITHMS if kind == "integer" else ("meshjoin", "chybridjoin")
        ways = [(name, HOWS[i % 2], whole) for i, name in enumerate(names)]
        for name, how, table in (*ways, *(("auto", how, master) for how in HOWS)):
            joined = ss.join(sales, table, on=on, how=how, algorithm=name, memory="1MB")
            found = counted(joined.select(*sales.columns, "stock"))
            differing += [] if found == wanted[how] else [f"{name} {how} {kind}"]
            done += 1
        how = STREAMED[kind]
        found = counted(streamed(spark, folder, on, whole, how, "chybridjoin"))
        differing += [] if found == wanted[how] else [f"stream {how} {kind}"]
        done += 1
    spark.stop()
    print(json.dumps({"done": done, "differing": differing}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
