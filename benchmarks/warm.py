"""How steady the hit ratio of a pipeline is from batch to batch, and what a change does to it.

    python benchmarks/warm.py [--rows 500000] [--tuples 60000] [--batches 8] …

R has `rows` rows; the stream is Zipf with exponent 1, and some keys are not in R. Each micro-batch
has four partitions, which two cores join two at a time. Pages are read (io="unmapped"), so that
what is not in the front stage is a miss. Unmatched tuples wait and come back, with the stream's
batches and in batches of their own. The stream has three parts:

| part | what is new in it |
| --- | --- |
| steady | all: nothing is learned yet |
| version | the master has a new version: one key in a hundred is changed, on all pages |
| restart | another process and another Spark session go on from the checkpoint |

Prints the hit ratio of each batch of the stream, and the greatest step to it from the one before;
the first batches of a checkpoint do not count. Writes one JSON line per part.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import semistream as ss
from results import machine, write_results

RESULTS = Path(__file__).parent / "results" / "warm.jsonl"
COLD = 2
"""Batches with which a checkpoint begins and that are not compared."""


def rows_of_round(keys: range, number: int) -> pa.Table:
    """Rows of R for some keys; each round gives them other values."""
    return pa.table(
        {
            "id": np.array(keys),
            "name": [f"name of key {key} in round {number:03d}" for key in keys],
            "price": np.array(keys) * 7 + number,
        }
    )


def zipf_stream(spark: SparkSession, args: argparse.Namespace) -> DataFrame:
    """Micro-batches of Zipf keys; the hot ones are scattered over R."""
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", args.tuples)
    stream = numbers.option("numPartitions", args.partitions).load()
    # rows**u, with u uniform by a hash of the tuple's number, has density 1 / key.
    uniform = "(pmod(xxhash64(value), 1000000007) / 1000000007.0)"
    rank = f"cast(pow({args.rows * 1.1}, {uniform}) as long)"
    key = f"if({rank} <= {args.rows}, {rank} * 611953 % {args.rows}, {args.rows} + {rank})"
    # Most notes are short, a few are long, and now and then one is longer than all before.
    note = "repeat('word ', cast(pow(rand(7) + 1e-9, -0.5) as int))"
    return stream.selectExpr(f"{key} as id", "value as number", f"{note} as note")


def run_part(args: argparse.Namespace) -> None:
    """Run the pipeline in this process until `until` batches of the stream are done."""
    folder = Path(args.folder)
    spark = ss.local_session(cores=args.cores)
    pipeline = ss.Pipeline(
        zipf_stream(spark, args),
        folder / "r.master",
        on="id",
        sink=str(folder / "out"),
        checkpoint=folder / "checkpoint",
        memory=args.memory,
        unmatched=ss.Retry(backoff="1s", deadline="1h"),
        rejected=str(folder / "rejected"),
        trigger=args.trigger,
        metrics=folder / "metrics.jsonl",
        io="unmapped",
    )
    pipeline.start()
    master, updated = ss.MasterTable.open(folder / "r.master"), args.until > 2 * args.batches
    while (done := len(stream_lines(folder))) < args.until and not pipeline.await_termination(0.1):
        if done == args.batches and not updated:
            master.upsert(rows_of_round(range(0, args.rows, 100), 1))
            updated = True
    pipeline.stop()
    spark.stop()


def stream_lines(folder: Path) -> list[dict[str, Any]]:
    """The metrics of the stream's batches so far, without those of waiting tuples only."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in map(json.loads, lines) if line["source"]]


def measured(args: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Run the parts one after the other, and print them; a line each."""
    master = folder / "r.master"
    ss.MasterTable.from_arrow(rows_of_round(range(args.rows), 0), master, key="id")
    child(args, folder, 2 * args.batches)
    child(args, folder, 3 * args.batches)
    batches = stream_lines(folder)
    newer = sum(line["master_version"] == 1 for line in batches)
    after = sum(line["batch"] <= batches[2 * args.batches - 1]["batch"] for line in batches)
    edges = {"steady": (0, newer), "version": (newer, after), "restart": (after, len(batches))}
    ratios = [line["hit_ratio"] for line in batches]
    lines = []
    for part, (start, stop) in edges.items():
        before = max(start - 1, COLD)
        step = max(abs(ratios[i + 1] - ratios[i]) for i in range(before, stop - 1))
        shown = " ".join(f"{100 * ratio:.0f}" for ratio in ratios[start:stop])
        print(f"{part:<9}hit ratios in %: {shown};  greatest step {100 * step:.1f} points")
        lines.append({"part": part, "hit_ratios": ratios[start:stop], "greatest_step": step})
    return lines


def child(args: argparse.Namespace, folder: Path, until: int) -> None:
    """Run the pipeline in another process until so many batches of the stream are done."""
    names = ("rows", "tuples", "partitions", "cores", "memory", "trigger", "batches")
    given = [part for name in names for part in (f"--{name}", str(getattr(args, name)))]
    command = [sys.executable, __file__, *given, "--folder", str(folder), "--until", str(until)]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


def main() -> None:
    """Lay out R, run the parts, print and write the hit ratios."""
    args = arguments()
    if args.until:
        run_part(args)
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        lines = measured(args, Path(name))
    setting = {name: value for name, value in vars(args).items() if name not in ("folder", "until")}
    write_results(RESULTS, [line | setting for line in lines], machine(ss.__version__))


def arguments() -> argparse.Namespace:
    """The settings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--tuples", type=int, default=60_000, help="in a micro-batch")
    parser.add_argument("--partitions", type=int, default=4, help="of a micro-batch")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--memory", default="4MB", help="of each task")
    parser.add_argument("--trigger", type=float, default=3.0, help="seconds between micro-batches")
    parser.add_argument("--batches", type=int, default=8, help="of each part")
    parser.add_argument("--folder", help="where to put the data for the time of the run")
    parser.add_argument("--until", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
