"""The cost model against runs: predicted, priced and measured rates of every algorithm.

    python benchmarks/cost_model.py [--algorithms hybridjoin,…] [--rows 200000] [--io direct]
    python benchmarks/cost_model.py --table

R has `rows` products of about 120 bytes, in key order with frequent keys scattered, and in order of
frequency; S has sales of 20 bytes with Zipf exponents 0, 0.5 and 1; the budget is a tenth of R.
Each algorithm runs with the sizes that it has by default until it is warm; from there on its
operations are counted, priced with the cost factors known for this machine, and timed. The factors
are those of `semistream tune --calibrate`, or shipped if there are none. As there, the fastest of
some runs counts: whatever disturbs a run makes it slower.

Adds a JSON line per run to benchmarks/results/cost_model.jsonl, in place of an earlier one.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pyarrow as pa

import semistream as ss
from results import machine
from semistream.cost.empirical import steady_run
from semistream.cost.factors import known_factors
from semistream.cost.model import CostModel
from semistream.cost.pricing import priced_seconds
from semistream.parts.join_shape import JoinShape
from semistream.workload import ZipfKeys, products, sales
from semistream.workload.zipf import scattered

RESULTS = Path(__file__).parent / "results" / "cost_model.jsonl"
SHARE = 0.1
BATCH = 5_000
SEED = 20
FILLINGS, LEARNING = 10, 30
"""How often the stream table is filled in a run, without and with a front stage that learns."""
WAYS = ("predicted", "priced", "measured")


def masters(rows: int, folder: Path) -> dict[str, ss.MasterTable]:
    """R in key order, and in order of frequency."""
    table = products(rows, seed=SEED)
    by_rank = table.take(pa.array(scattered(np.arange(rows), rows, SEED)))
    options: dict[str, Any] = {"key": "product_id", "page_bytes": 32768}
    return {
        "key": ss.MasterTable.from_arrow(table, folder / "key", **options),
        "given": ss.MasterTable.from_arrow(by_rank, folder / "given", layout="given", **options),
    }


def run(
    master: ss.MasterTable, algorithm: str, exponent: float, io: str, repeat: int
) -> dict[str, Any]:
    """One algorithm on one stream."""
    rows, memory = master.row_count, int(master.pages.length.sum() * SHARE)
    keys = ZipfKeys(rows, exponent, SEED)
    sample = next(sales(BATCH, ZipfKeys(rows, exponent, SEED), rows, batch_rows=BATCH))
    shape = JoinShape(sample.schema, master, "product_id", "inner", None)
    factors = known_factors(io).factors
    model = CostModel(master, shape, sample, ss.Skew(exponent), factors, io)
    predicted = model.planned(algorithm, memory)
    per_filling = predicted.plan.stream_slots / (1 - predicted.hit_share)
    fillings = LEARNING if algorithm.startswith("c") else FILLINGS
    tuples = max(int(fillings * per_filling), 100_000)
    if "inlj" in algorithm:
        # A page is read for every tuple that misses, and nothing waits.
        tuples = 12 * BATCH if algorithm == "cinlj" else 2 * BATCH
    warm = max(1, -(-tuples // BATCH) // 3)
    batches = list(sales(tuples, keys, rows, batch_rows=BATCH))
    rates = []
    for _ in range(repeat):
        engine = ss.engine(algorithm, master, on="product_id", memory=memory, io=io)
        counted, rate = steady_run(engine, batches, warm)
        rates.append(rate)
    return {
        "algorithm": algorithm,
        "layout": master.layout,
        "exponent": exponent,
        "predicted": predicted.rate,
        "priced": 1 / priced_seconds(counted, factors),
        "measured": max(rates),
        "rates": rates,
        "operations": asdict(counted),
        "look_ups": predicted.plan.look_ups,
        "tuples": tuples,
        "io": io,
        "rows": rows,
    }


def known() -> list[dict[str, Any]]:
    """The results so far."""
    if not RESULTS.exists():
        return []
    return [json.loads(line) for line in RESULTS.read_text().splitlines()]


def markdown(lines: list[dict[str, Any]]) -> str:
    """How far the model is off, by algorithm."""
    rows = [
        "| algorithm | off the priced rate, mean | most | off the clock, mean | most |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for algorithm in ss.ALGORITHMS:
        mine = [line for line in lines if line["algorithm"] == algorithm]
        if not mine:
            continue
        priced = [abs(x["predicted"] / x["priced"] - 1) for x in mine]
        timed = [abs(x["predicted"] / x["measured"] - 1) for x in mine]
        rows.append(
            f"| {algorithm} | {mean(priced):.1%} | {max(priced):.1%} | {mean(timed):.0%} "
            f"| {max(timed):.0%} |"
        )
    return "\n".join(rows)


def main() -> None:
    """Run and write, or print what was written."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--algorithms", default=",".join(ss.ALGORITHMS))
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--io", default="direct")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each; the fastest counts")
    parser.add_argument("--table", action="store_true", help="print the table of the last run")
    args = parser.parse_args()
    if args.table:
        print(markdown(known()))
        return
    chosen = args.algorithms.split(",")
    lines = [line for line in known() if line["algorithm"] not in chosen]
    with tempfile.TemporaryDirectory() as folder:
        tables = masters(args.rows, Path(folder))
        for algorithm, layout, exponent in product(chosen, tables, (0.0, 0.5, 1.0)):
            line = run(tables[layout], algorithm, exponent, args.io, args.repeat)
            rates = " ".join(f"{way} {line[way]:,.0f}" for way in WAYS)
            print(f"{algorithm:<13}{layout:<6}{exponent:<4}{rates}", flush=True)
            lines.append(line | {"machine": machine(ss.__version__)})
            RESULTS.write_text("".join(json.dumps(x) + "\n" for x in lines))


if __name__ == "__main__":
    main()
