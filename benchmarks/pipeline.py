"""What a micro-batch costs: ss.join and ss.Pipeline against Spark doing nothing, in one run.

    python benchmarks/pipeline.py [--rows 500000] [--small 3000] [--large 60000] …

All ways read the same micro-batches of Zipf sales, as a streaming query over Parquet files, two
files a batch. Some sales have a product that is not in R, some have none at all.

| way | tuples | what it does |
| --- | --- | --- |
| identity | small | a mapInArrow that hands its batches on, to the noop sink |
| join | small | ss.join, to the noop sink |
| write | small | foreachBatch that writes its rows as Parquet |
| pipeline | small | ss.Pipeline with a Parquet sink |
| all routes | small | the same with retry, rejected and batch_target |
| join, write | large | ss.join in a foreachBatch that writes Parquet |
| two routes | large | ss.Pipeline with retry and rejected |

A batch's time is that of its whole trigger, by Spark's own progress. The ways run in turn, several
rounds; the first batches of each run are not counted. Medians are compared. Writes one JSON line
per way.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import semistream as ss
from results import machine, write_results
from semistream.workload import ZipfKeys, products, sales

RESULTS = Path(__file__).parent / "results" / "pipeline.jsonl"
RATIOS = (
    ("join", "identity", "at most 1.4"),
    ("pipeline", "write", "at most 2.0"),
    ("all routes", "write", "at most 3.0"),
    ("two routes", "join, write", "at most 1.43 (0.7 of the rate)"),
)
Awaited = Callable[[], object]
"""Waits for the end of a query."""
FILES = 2
"""Of a batch; Spark reads each in a task of its own."""


def identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Hand the batches on: what Spark and Python cost without a join."""
    yield from batches


def lay_out(folder: Path, args: argparse.Namespace) -> None:
    """Write R as a master table, and both streams as Parquet files."""
    table = products(args.rows, seed=args.seed)
    ss.MasterTable.from_arrow(table, folder / "products.master", key="product_id")
    keys = ZipfKeys(args.rows, args.exponent, seed=args.seed)
    random = np.random.default_rng(args.seed)
    for name, tuples, batches in (
        ("small", args.small, args.warm + args.batches),
        ("large", args.large, args.warm + args.large_batches),
    ):
        (folder / name).mkdir()
        part = tuples // FILES
        made = sales(part * FILES * batches, keys, args.rows, batch_rows=part)
        for number, batch in enumerate(made):
            dice = random.random(batch.num_rows)
            key = batch.column("product_id")
            key = pc.if_else(dice < args.absent, pc.add(key, args.rows), key)
            key = pc.if_else(dice > 1 - args.bad, pa.scalar(None, key.type), key)
            at = batch.schema.get_field_index("product_id")
            out = pa.Table.from_batches([batch]).set_column(at, "product_id", key)
            pq.write_table(out, folder / name / f"{number:05d}.parquet")


class Ways:
    """The ways; each starts queries over all micro-batches, with folders of its own."""

    def __init__(self, spark: SparkSession, folder: Path, args: argparse.Namespace) -> None:
        self.spark, self.folder, self.args = spark, folder, args
        self.master = ss.MasterTable.open(folder / "products.master")
        self.runs = 0

    def stream(self, name: str) -> DataFrame:
        """The micro-batches of a size."""
        path = str(self.folder / name)
        schema = self.spark.read.parquet(path).schema
        reader = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", FILES)
        return reader.parquet(path)

    def joined(self, name: str) -> DataFrame:
        """ss.join of that."""
        memory = self.args.memory
        return ss.join(self.stream(name), self.master, on="product_id", how="left", memory=memory)

    def to_noop(self, made: Callable[[], DataFrame], place: Path) -> Awaited:
        """Run a streaming frame into the noop sink."""
        writer = made().writeStream.format("noop").option("checkpointLocation", str(place / "c"))
        return writer.trigger(availableNow=True).start().awaitTermination

    def to_parquet(self, made: Callable[[], DataFrame], place: Path) -> Awaited:
        """Write each batch of a streaming frame in a foreachBatch."""

        def write(batch: DataFrame, number: int) -> None:
            batch.write.parquet(str(place / "out" / f"batch={number}"))

        writer = made().writeStream.foreachBatch(write)
        writer = writer.option("checkpointLocation", str(place / "c"))
        return writer.trigger(availableNow=True).start().awaitTermination

    def pipeline(self, name: str, rejects: bool, options: dict[str, Any], place: Path) -> Awaited:
        """Run an ss.Pipeline."""
        if rejects:
            options = options | {"rejected": str(place / "rejected")}
        pipeline = ss.Pipeline(
            self.stream(name),
            self.master,
            on="product_id",
            sink=str(place / "out"),
            checkpoint=place / "c",
            memory=self.args.memory,
            trigger="availableNow",
            **options,
        )
        return pipeline.start().await_termination

    def by_name(self) -> dict[str, Callable[[Path], Awaited]]:
        """A function that starts the query, for each way."""
        stream = partial(self.stream, "small")
        retry = {"unmatched": ss.Retry(backoff="1s")}
        return {
            "identity": partial(
                self.to_noop, lambda: stream().mapInArrow(identity, stream().schema)
            ),
            "join": partial(self.to_noop, partial(self.joined, "small")),
            "write": partial(self.to_parquet, stream),
            "pipeline": partial(self.pipeline, "small", False, {}),
            "all routes": partial(self.pipeline, "small", True, retry | {"batch_target": "10s"}),
            "join, write": partial(self.to_parquet, partial(self.joined, "large")),
            "two routes": partial(self.pipeline, "large", True, retry),
        }

    def run(self, start: Callable[[Path], Awaited]) -> list[float]:
        """Seconds of each trigger of one run."""
        self.runs += 1
        wait = start(self.folder / f"run-{self.runs}")
        (query,) = self.spark.streams.active
        wait()
        times = [progress.durationMs for progress in query.recentProgress if progress.numInputRows]
        return [taken["triggerExecution"] / 1000 for taken in times]


def main() -> None:
    """Lay out the data, run the ways in turn, print and write the ratios."""
    args = arguments()
    spark = ss.local_session(
        cores=str(args.cores), memory="4g", **{"spark.sql.shuffle.partitions": str(args.cores)}
    )
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        lay_out(folder, args)
        lines = measure(Ways(spark, folder, args), args)
    if args.only is None:
        write_results(RESULTS, lines, machine(ss.__version__))


def measure(ways: Ways, args: argparse.Namespace) -> list[dict[str, object]]:
    """The ways in turn, several rounds; a line each."""
    starts = {
        way: start
        for way, start in ways.by_name().items()
        if args.only is None or way in args.only.split("/")
    }
    found: dict[str, list[float]] = {way: [] for way in starts}
    for _ in range(args.rounds):
        for way, start in starts.items():
            found[way] += ways.run(start)[args.warm :]
            print(f"{way}: {statistics.median(found[way]):.3f} s", flush=True)
    medians = {way: statistics.median(seconds) for way, seconds in found.items()}
    print(f"{'way':<13}{'s/batch':>9}{'best':>9}   batches")
    for way, seconds in found.items():
        print(f"{way:<13}{medians[way]:>9.3f}{min(seconds):>9.3f}   {len(seconds)}")
    for way, other, wanted in RATIOS:
        if {way, other} <= medians.keys():
            best = min(found[way]) / min(found[other])
            ratio = medians[way] / medians[other]
            print(f"{way} / {other}: {ratio:.2f} (of the best {best:.2f}); wanted {wanted}")
    return [
        {"way": way, "seconds": seconds, "median": medians[way], "parameters": vars(args)}
        for way, seconds in found.items()
    ]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--small", type=int, default=3000, help="tuples of a small batch")
    parser.add_argument("--large", type=int, default=60_000)
    parser.add_argument("--memory", default="32MB")
    parser.add_argument("--exponent", type=float, default=1.0)
    parser.add_argument("--absent", type=float, default=0.01, help="share of unknown products")
    parser.add_argument("--bad", type=float, default=0.01, help="share without a product")
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--large-batches", type=int, default=6)
    parser.add_argument("--warm", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--seed", type=int, default=21)
    parser.add_argument("--only", default=None, help="some ways, as a/b; writes no results")
    parser.add_argument("--folder", default=None, help="where to put the data")
    return parser.parse_args()


if __name__ == "__main__":
    main()
