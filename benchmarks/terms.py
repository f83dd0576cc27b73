"""What terms cost: the same stream joined plainly, in stream order, with a condition, semi, anti.

    python benchmarks/terms.py --master folder [--tuples 300000] [--memory 8MB] [--repetitions 5]

The master is one that exists, with an integer key from 0 on. With io="buffered" its pages are in
memory and searched in place; with "unmapped" tuples wait, and results come in another order. The
stream has Zipf-distributed keys and is made beforehand, in batches of 10,000. A plain left join is
the measure: each way is run beside it, in turns, with warm engines. CPU time of the process is
reported, since it says more on a machine that has other work; medians of the ratios of neighbouring
runs. `--shares` tries other shares of the memory for a round: 4 is a quarter.

Writes one JSON line per way to benchmarks/results/terms.jsonl.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import semistream as ss
from results import machine, write_results
from semistream.matching import round_memory
from semistream.workload.zipf import ZipfKeys

RESULTS = Path(__file__).parent / "results"
WAYS: dict[str, dict[str, Any]] = {
    "left": {"how": "left"},
    "left, in stream order": {"how": "left", "preserve_order": True},
    "left, where": {"how": "left", "where": "quantity >= 50"},
    "inner, where": {"how": "inner", "where": "quantity >= 50"},
    "semi": {"how": "semi"},
    "anti": {"how": "anti"},
}


def sales(master: ss.MasterTable, tuples: int, exponent: float) -> list[pa.RecordBatch]:
    """Zipf-distributed keys, each rank a random row of the master."""
    rng = np.random.default_rng(1)
    ids = rng.permutation(master.row_count)
    ranks = np.minimum(ZipfKeys(master.row_count, exponent, 1).ranks(tuples), len(ids) - 1)
    stream = pa.table(
        {
            "sale": np.arange(tuples),
            master.key[0]: ids[ranks],
            "quantity": rng.integers(0, 100, tuples).astype(np.int32),
            "shop": rng.integers(0, 50, tuples).astype(np.int32),
        }
    )
    return list(stream.to_batches(max_chunksize=10_000))


def seconds(engine: ss.Engine, stream: list[pa.RecordBatch]) -> tuple[float, int]:
    """CPU seconds of a run, and its result rows."""
    start = time.process_time()
    rows = sum(batch.num_rows for batch in engine.run(stream))
    return time.process_time() - start, rows


def measured(
    master: ss.MasterTable,
    stream: list[pa.RecordBatch],
    args: argparse.Namespace,
    share: int,
    io: str,
) -> list[dict[str, Any]]:
    """A line for each way, side by side with the plain join."""
    # A constant of the library, which this benchmark tries other values of.
    round_memory._SHARE = share  # type: ignore[misc]
    made = {
        name: ss.engine(
            master, on=master.key[0], memory=args.memory, algorithm=args.algorithm, io=io, **terms
        )
        for name, terms in WAYS.items()
    }
    for engine in made.values():
        seconds(engine, stream)
    taken: dict[str, list[float]] = {name: [] for name in WAYS}
    rows: dict[str, int] = {}
    for _ in range(args.repetitions):
        for name, engine in made.items():
            spent, rows[name] = seconds(engine, stream)
            taken[name].append(spent)
    lines = []
    for name, engine in made.items():
        ratios = [one / plain for one, plain in zip(taken[name], taken["left"], strict=True)]
        metrics = engine.metrics()
        lines.append(
            {
                "way": name,
                "io": io,
                "share": share,
                "cpu_seconds": round(statistics.median(taken[name]), 4),
                "ratio_to_left": round(statistics.median(ratios), 3),
                "tuples": metrics.arrived,
                "rows": rows[name],
                "peak_memory": metrics.peak_memory,
                "budget": metrics.budget,
                "algorithm": metrics.algorithm,
            }
        )
        line = lines[-1]
        told = f"{line['cpu_seconds']} s  × {line['ratio_to_left']}"
        print(f"{io} 1/{share}  {name:24} {told}", flush=True)
    return lines


def main() -> None:
    """Measure all ways."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--master", required=True)
    parser.add_argument("--tuples", type=int, default=300_000)
    parser.add_argument("--memory", default="8MB")
    parser.add_argument("--algorithm", default="chybridjoin")
    parser.add_argument("--exponent", type=float, default=1.0)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--io", nargs="*", default=["buffered", "unmapped"])
    parser.add_argument("--shares", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument("--append", action="store_true", help="keep the results of other runs")
    args = parser.parse_args()
    master = ss.MasterTable.open(args.master)
    stream = sales(master, args.tuples, args.exponent)
    about = {
        "master_rows": master.row_count,
        "master_bytes": int(master.pages.length.sum()),
        "exponent": args.exponent,
        "repetitions": args.repetitions,
    }
    lines = [
        about | line
        for io in args.io
        for share in args.shares
        for line in measured(master, stream, args, share, io)
    ]
    write_results(RESULTS / "terms.jsonl", lines, machine(ss.__version__), append=args.append)


if __name__ == "__main__":
    main()
