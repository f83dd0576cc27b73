"""Three masters in one operator against a chain of three joins, side by side on Spark.

    python benchmarks/star.py [--rows 2000000 500000 100000] …

Every way gets the same micro-batches: Zipf keys of three masters, whose rows have about 120 bytes.
Both have the same memory in all. The ways take turns, with a streaming query each; its first
batches warm it up and are not counted. Times are those of the batches, from first job to last,
and the CPU seconds of Spark and all Python workers together, which other load on the machine hardly
changes. Medians are compared. `identity` hands its batches on, which no join can be faster than.
Writes one JSON line per way and batch size to benchmarks/results/star.jsonl.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)

import semistream as ss
from results import machine, write_results
from semistream.workload import ZipfKeys, products
from semistream.workload.zipf import scattered
from semistream_bench.ways import identity

RESULTS = Path(__file__).parent / "results" / "star.jsonl"
KEY = "product_id"
Way = Callable[[DataFrame], DataFrame]


def cpu_seconds() -> float:
    """CPU seconds so far of this process and all that it has started, which is all of Spark."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    total = 0
    for process in ticks:
        above = process
        while above not in (0, os.getpid()):
            above = parents.get(above, 0)
        total += ticks[process] if above else 0
    return total / os.sysconf("SC_CLK_TCK")


def lay_out(folder: Path, rows: list[int], tuples: int, batches: int, seed: int) -> None:
    """Write the stream as one Parquet file a batch."""
    folder.mkdir()
    laws = [ZipfKeys(count, 1.0, seed=seed + i) for i, count in enumerate(rows)]
    for number in range(batches):
        columns = {
            f"key{i}": pa.array(scattered(law.ranks(tuples), law.domain, seed))
            for i, law in enumerate(laws)
        }
        columns["sale"] = pa.array(range(number * tuples, (number + 1) * tuples))
        pq.write_table(pa.table(columns), folder / f"{number:05d}.parquet")


def ways(masters: list[ss.MasterTable], memory: int) -> dict[str, Way]:
    """The ways to compare."""
    lookups = [
        ss.Lookup(master, on={f"key{i}": KEY}, how="left", name=f"master{i}", prefix=f"m{i}_")
        for i, master in enumerate(masters)
    ]

    def chained(df: DataFrame) -> DataFrame:
        for i, master in enumerate(masters):
            added = [name for name in master.schema.names if name != KEY]
            df = ss.join(
                df, master, on={f"key{i}": KEY}, how="left", memory=memory // len(masters)
            ).withColumnsRenamed({name: f"m{i}_{name}" for name in added})
        return df

    return {
        "identity": lambda df: df.mapInArrow(identity, df.schema),
        "star": lambda df: ss.join_star(df, lookups, memory=memory),
        "chain": chained,
    }


def batch_costs(
    spark: SparkSession, folder: Path, way: Way, cores: int
) -> list[tuple[float, float]]:
    """Seconds and CPU seconds of each micro-batch of one query."""
    files = str(folder)
    stream = (
        spark.readStream.schema(spark.read.parquet(files).schema)
        .option("maxFilesPerTrigger", 1)
        .parquet(files)
        .repartition(cores)
    )
    found: list[tuple[float, float]] = []

    def write(batch: DataFrame, _: int) -> None:
        began, used = time.perf_counter(), cpu_seconds()
        batch.write.format("noop").mode("append").save()
        found.append((time.perf_counter() - began, cpu_seconds() - used))

    query = way(stream).writeStream.foreachBatch(write).trigger(availableNow=True).start()
    query.awaitTermination()
    return found


def check_alike(spark: SparkSession, folder: Path, tried: dict[str, Way]) -> None:
    """Raise unless star and chain give the same rows for the first batch."""
    batch = spark.read.parquet(str(folder / "00000.parquet"))
    sums = {}
    for name in ("star", "chain"):
        joined = tried[name](batch)
        hashes = F.xxhash64(*joined.columns).cast("decimal(38)")
        sums[name] = tuple(joined.agg(F.count("*"), F.sum(hashes)).first() or ())
    assert sums["star"] == sums["chain"], f"rows and checksums differ: {sums}"


def measure(spark: SparkSession, folder: Path, args: argparse.Namespace) -> None:
    """Print and write a line for each way and size of batches."""
    masters = []
    for rows in args.rows:
        path = Path(args.masters or folder) / f"m{rows}"
        if not path.exists():
            ss.MasterTable.from_arrow(products(rows, seed=args.seed), path, key=KEY)
        masters.append(ss.MasterTable.open(path))
    tried = ways(masters, args.memory << 20)
    lines: list[dict[str, Any]] = []
    for tuples in args.tuples:
        files = folder / f"sales-{tuples}"
        lay_out(files, args.rows, tuples, args.warm + args.batches, args.seed)
        if tuples == min(args.tuples):
            check_alike(spark, files, tried)
        costs: dict[str, list[tuple[float, float]]] = {name: [] for name in tried}
        for _ in range(args.rounds):
            for name, way in tried.items():
                costs[name] += batch_costs(spark, files, way, args.cores)[args.warm :]
        for name, found in costs.items():
            seconds, cpu = ([round(one[i], 4) for one in found] for i in (0, 1))
            line = {
                "way": name,
                "tuples": tuples,
                "seconds": seconds,
                "cpu_seconds": cpu,
                "median_seconds": statistics.median(seconds),
                "median_cpu_seconds": statistics.median(cpu),
                "parameters": vars(args),
            }
            lines.append(line)
            print(
                f"{tuples:>8,} a batch, {name:<9} {line['median_seconds']:7.3f} s, "
                f"{line['median_cpu_seconds']:7.3f} s of CPU",
                flush=True,
            )
        star, chain = (next(x for x in lines[-3:] if x["way"] == n) for n in ("star", "chain"))
        ratios = [star[m] / chain[m] for m in ("median_seconds", "median_cpu_seconds")]
        print(f"{tuples:>8,} a batch, star / chain: {ratios[0]:.2f}, of CPU {ratios[1]:.2f}")
        write_results(RESULTS, lines, machine(ss.__version__))


def main() -> None:
    """Run the ways in turns, print and write what they took."""
    args = arguments()
    spark = ss.local_session(
        cores=str(args.cores), memory="3g", **{"spark.sql.shuffle.partitions": args.cores}
    )
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        measure(spark, Path(name), args)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, nargs="+", default=[2_000_000, 500_000, 100_000])
    parser.add_argument("--tuples", type=int, nargs="+", default=[3_000, 100_000])
    parser.add_argument("--memory", type=int, default=48, help="MB of a task, for all masters")
    parser.add_argument("--batches", type=int, default=4, help="counted batches of a query")
    parser.add_argument("--warm", type=int, default=2, help="batches before those")
    parser.add_argument("--rounds", type=int, default=3, help="queries of each way")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--folder", default=None, help="where to put the data")
    parser.add_argument("--masters", default=None, help="a folder that has R, or will keep it")
    return parser.parse_args()


if __name__ == "__main__":
    main()
