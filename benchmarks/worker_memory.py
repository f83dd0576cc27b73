"""Anonymous memory of Spark's Python workers above idle ones, side by side in one run.

    python benchmarks/worker_memory.py [--rows 500000] [--tuples 100000] [--batches 5]

An idle worker has run `mapInArrow` with a function that hands its batches on. Ours has run
`ss.join` on several micro-batches, with the same batches and another budget each time. A query
with other settings of Python gets workers of its own, so each way has fresh ones. The memory is
RssAnon of /proc: pages of files, such as those of a mapped master table, are not in it. It counts
for each worker what all of them share since they were forked from one process; that is in idle
workers too, and so drops out. What is allowed above idle is 1.25 times the budget and 64 MB.
Besides it notes VmSize, the address space, which `spark.executor.pyspark.memory` limits.

Run it twice: what compiled kernels has held the compiler ever since. Writes one JSON line per
budget.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import semistream as ss
from results import machine, write_results
from semistream.workload import ZipfKeys, products, sales

RESULTS = Path(__file__).parent / "results" / "worker_memory.jsonl"
MB = 1_000_000
BUDGETS = (6, 32, 128)
FIXED = 64
FACTOR = 1.25


def identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Hand the batches on."""
    yield from batches


def measured(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A row with the bytes of this worker's anonymous memory, and of its address space."""
    for _ in batches:
        pass
    status = Path("/proc/self/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    row = {name: int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "VmSize")}
    yield pa.RecordBatch.from_pylist([row])


def workers(spark: SparkSession) -> tuple[int, int]:
    """The most anonymous memory and the most address space of the workers that answer."""
    cores = spark.sparkContext.defaultParallelism
    frame = spark.range(0, cores, 1, cores).mapInArrow(measured, "RssAnon long, VmSize long")
    found = frame.collect()
    return max(row["RssAnon"] for row in found), max(row["VmSize"] for row in found)


def run(stream: DataFrame, times: int) -> None:
    """Run a query several times, as micro-batches do."""
    for _ in range(times):
        stream.write.format("noop").mode("append").save()


def fresh(spark: SparkSession, number: int) -> None:
    """From now on queries get new workers: Spark keeps workers apart by their environment."""
    spark.sparkContext.environment["SEMISTREAM_BENCHMARK"] = str(number)


def line(
    budget: int, idle: int, ours: int, address: int, args: argparse.Namespace
) -> dict[str, Any]:
    """What is written of one budget; MB of a million bytes."""
    allowed = FACTOR * budget * MB + FIXED * MB
    figures = {"idle": idle, "ours": ours, "above idle": ours - idle, "allowed": allowed}
    figures["address space"] = address
    shown = ", ".join(f"{name} {size / MB:.0f} MB" for name, size in figures.items())
    print(f"memory {budget} MB: {shown}")
    named = {f"{name.replace(' ', '_')}_mb": round(size / MB, 1) for name, size in figures.items()}
    return {"memory_mb": budget, **named, "rows": args.rows, "tuples": args.tuples}


def main() -> None:
    """Measure idle workers, then ours with each budget."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--tuples", type=int, default=100_000, help="of a micro-batch")
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--io", default="buffered")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    spark = ss.local_session(2)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "products.master"
        table = products(args.rows, seed=args.seed)
        master = ss.MasterTable.from_arrow(table, path, key="product_id")
        keys = ZipfKeys(args.rows, exponent=1.0, seed=args.seed)
        halves = sales(args.tuples, keys, args.rows, batch_rows=(args.tuples + 1) // 2)
        for number, half in enumerate(halves):
            pq.write_table(pa.table(half), Path(folder) / f"sales-{number}.parquet")
        stream = spark.read.parquet(str(Path(folder) / "sales-*.parquet"))
        lines = []
        run(stream.mapInArrow(identity, stream.schema), args.batches)
        idle, _ = workers(spark)
        for number, budget in enumerate(BUDGETS):
            fresh(spark, number)
            joined = ss.join(
                stream, master, on="product_id", how="left", memory=budget * MB, io=args.io
            )
            run(joined, args.batches)
            lines.append(line(budget, idle, *workers(spark), args))
    write_results(RESULTS, lines, machine(ss.__version__))


if __name__ == "__main__":
    main()
