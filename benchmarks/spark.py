"""ss.join on Spark against what users could pick instead, side by side in one run.

    python benchmarks/spark.py [--rows 5000000] [--tuples 100000] [--share 0.05] …

R has `rows` rows of about 120 bytes; every way gets the same micro-batches of `tuples` Zipf
sales, as a streaming query over Parquet files, one file a batch, and writes to the noop sink.

| way | what it does |
| --- | --- |
| semistream | ss.join, memory a share of R per task |
| stream-static | Spark's own left join of the stream with R as Parquet, in no order |
| … at its best | the same with R already sorted by key, which spares Spark's join its sort |
| hand-written | foreachBatch: broadcast the batch's keys, semi-join R with them, then left join |
| identity | the same query with a mapInArrow that hands its batches on |

All have as many shuffle partitions as cores. The first batches of each way warm workers, kernels
and files and are not counted. Medians of the other batches' times are compared. Writes one JSON
line per way.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)

import semistream as ss
from results import machine, write_results
from semistream.workload import ZipfKeys, products, sales

RESULTS = Path(__file__).parent / "results" / "spark.jsonl"


def identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Hand the batches on: what Spark and Python cost without a join."""
    yield from batches


def lay_out(folder: Path, args: argparse.Namespace) -> None:
    """Write R as Parquet and as a master table, and the stream as one Parquet file a batch."""
    table = products(args.rows, seed=args.seed)
    pq.write_table(table, folder / "in-order.parquet", row_group_size=500_000)
    scattered = table.take(np.random.default_rng(args.seed).permutation(args.rows))
    pq.write_table(scattered, folder / "products.parquet", row_group_size=500_000)
    ss.MasterTable.from_arrow(
        table,
        folder / "products.master",
        key="product_id",
        page_bytes=args.page_bytes,
        shards=args.shards,
    )
    keys = ZipfKeys(args.rows, args.exponent, seed=args.seed)
    (folder / "sales").mkdir()
    total = args.tuples * (args.warm + args.batches)
    for number, batch in enumerate(sales(total, keys, args.rows, batch_rows=args.tuples)):
        pq.write_table(pa.Table.from_batches([batch]), folder / "sales" / f"{number:05d}.parquet")


def batch_seconds(
    spark: SparkSession,
    folder: Path,
    way: Callable[[DataFrame], DataFrame] | None,
    each: Callable[[DataFrame], DataFrame] | None,
    parts: int,
) -> list[float]:
    """Run one way over all micro-batches; seconds of each, from its first job to its last."""
    schema = spark.read.parquet(str(folder / "sales")).schema
    stream = (
        spark.readStream.schema(schema)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(folder / "sales"))
        .repartition(parts)
    )
    seconds: list[float] = []

    def write(batch: DataFrame, _: int) -> None:
        started = time.perf_counter()
        (batch if each is None else each(batch)).write.format("noop").mode("append").save()
        seconds.append(time.perf_counter() - started)

    query = (stream if way is None else way(stream)).writeStream.foreachBatch(write)
    query.trigger(availableNow=True).start().awaitTermination()
    return seconds


def main() -> None:
    """Lay out the data, run the ways one after the other, print and write the ratios."""
    args = arguments()
    spark = ss.local_session(
        cores=str(args.cores),
        memory="4g",
        **{"spark.sql.shuffle.partitions": args.cores, "spark.sql.files.openCostInBytes": 1 << 20},
    )
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        lay_out(folder, args)
        lines = measure(spark, folder, args)
    write_results(RESULTS, lines, machine(ss.__version__))


def measure(spark: SparkSession, folder: Path, args: argparse.Namespace) -> list[dict[str, object]]:
    """The ways in turn; a line each."""
    master = ss.MasterTable.open(folder / "products.master")
    budget = int(master.pages.length.sum() * args.share)
    static = spark.read.parquet(str(folder / "products.parquet"))
    in_order = spark.read.parquet(str(folder / "in-order.parquet"))

    def joined(stream: DataFrame) -> DataFrame:
        return ss.join(stream, master, on="product_id", how="left", memory=budget)

    def hand_written(batch: DataFrame) -> DataFrame:
        batch = batch.persist()
        keys = F.broadcast(batch.select("product_id").distinct())
        found = static.join(keys, "product_id", "left_semi")
        return batch.join(F.broadcast(found), "product_id", "left")

    ways: dict[str, tuple[Callable[..., DataFrame] | None, Callable[..., DataFrame] | None]] = {
        "identity": (lambda stream: stream.mapInArrow(identity, stream.schema), None),
        "semistream": (joined, None),
        "hand-written": (None, hand_written),
        "stream-static": (lambda stream: stream.join(static, "product_id", "left"), None),
        "… at its best": (lambda stream: stream.join(in_order, "product_id", "left"), None),
    }
    found = {
        way: batch_seconds(spark, folder, *functions, args.cores)[args.warm :]
        for way, functions in ways.items()
    }
    medians = {way: statistics.median(seconds) for way, seconds in found.items()}
    ours = medians["semistream"]
    print(f"R {args.rows:,} rows, {args.tuples:,} tuples a batch, budget {budget:,} bytes a task")
    print(f"{'way':<15}{'s/batch':>9}{'times ours':>12}   each batch")
    for way, seconds in found.items():
        each = " ".join(f"{taken:.2f}" for taken in seconds)
        print(f"{way:<15}{medians[way]:>9.3f}{medians[way] / ours:>12.2f}   {each}")
    return [
        {
            "way": way,
            "seconds": seconds,
            "median": medians[way],
            "times_semistream": medians[way] / ours,
            "parameters": vars(args) | {"budget": budget},
        }
        for way, seconds in found.items()
    ]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--tuples", type=int, default=100_000)
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--exponent", type=float, default=1.0)
    parser.add_argument("--page-bytes", type=int, default=65536)
    parser.add_argument("--shards", type=int, default=1, help="of the master table")
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--warm", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--folder", default=None, help="where to put the data")
    return parser.parse_args()


if __name__ == "__main__":
    main()
