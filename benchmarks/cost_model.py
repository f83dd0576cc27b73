"""The cost model against runs: predicted, priced and measured rates of every algorithm.

    python benchmarks/cost_model.py [--algorithms hybridjoin,…] [--rows 200000] [--io direct]
    python benchmarks/cost_model.py --table

R has `rows` products of about 120 bytes, in key order with frequent keys scattered, and in order of
frequency; S has sales of 20 bytes with Zipf exponents 0, 0.5 and 1; the budget is a tenth of R.
Each algorithm runs with the sizes that it has by default until it is warm; from there on its
operations are counted, priced and timed. All algorithms run once before any runs again, and before
and after each time the joins of `semistream tune --calibrate` run: how fast a shared machine is
changes, so factors and rates have to come from the same hour. As there, the fastest run counts:
whatever disturbs a run makes it slower, here by up to a half.

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
from semistream.cost.calibration import (
    Calibration,
    calibration_masters,
    calibration_of,
    timed_joins,
)
from semistream.cost.empirical import steady_run
from semistream.cost.factors import CostFactors
from semistream.cost.model import CostModel
from semistream.cost.prediction import Operations
from semistream.cost.pricing import priced_seconds
from semistream.cost.read_costs import read_costs
from semistream.parts.join_shape import JoinShape
from semistream.workload import ZipfKeys, products, sales
from semistream.workload.zipf import scattered

RESULTS = Path(__file__).parent / "results" / "cost_model.jsonl"
SHARE = 0.1
BATCH = 10_000
SEED = 20
FILLINGS, LEARNING = 10, 24
"""How often the stream table is filled in a run, without and with a front stage that learns."""
EXPONENTS = (0.0, 0.5, 1.0)


def masters(rows: int, folder: Path) -> dict[str, ss.MasterTable]:
    """R in key order, and in order of frequency."""
    table = products(rows, seed=SEED)
    by_rank = table.take(pa.array(scattered(np.arange(rows), rows, SEED)))
    options: dict[str, Any] = {"key": "product_id", "page_bytes": 32768}
    return {
        "key": ss.MasterTable.from_arrow(table, folder / "key", **options),
        "given": ss.MasterTable.from_arrow(by_rank, folder / "given", layout="given", **options),
    }


def measured(algorithms: list[str], rows: int, io: str, repeat: int) -> list[dict[str, Any]]:
    """All cells, each as often as `repeat`, with a calibration before and after each time."""
    found: dict[tuple[str, str, float], list[tuple[Operations, float]]] = {}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as another:
        tables, own = masters(rows, Path(folder)), calibration_masters(Path(another))
        reads = tuple(read_costs(own["key"]))
        timed_joins(own, io)
        rounds = [timed_joins(own, io)]
        for number in range(repeat):
            for cell in product(algorithms, tables, EXPONENTS):
                algorithm, layout, exponent = cell
                print(number, *cell, flush=True)
                found.setdefault(cell, []).append(run(tables[layout], algorithm, exponent, io))
            rounds += [timed_joins(own, io) for _ in range(2)]
        calibration = calibration_of(io, rounds, reads, 0.0)
        return [compared(tables[cell[1]], cell, runs, calibration) for cell, runs in found.items()]


def model_of(master: ss.MasterTable, exponent: float, factors: CostFactors, io: str) -> CostModel:
    """The cost model of a cell."""
    sample = next(sales(BATCH, ZipfKeys(master.row_count, exponent, SEED), master.row_count, BATCH))
    shape = JoinShape(sample.schema, master, "product_id", "inner", None)
    return CostModel(master, shape, sample, ss.Skew(exponent), factors, io)


def run(
    master: ss.MasterTable, algorithm: str, exponent: float, io: str
) -> tuple[Operations, float]:
    """One algorithm on one stream."""
    rows, memory = master.row_count, int(master.pages.length.sum() * SHARE)
    predicted = model_of(master, exponent, CostFactors(), io).planned(algorithm, memory)
    per_filling = predicted.plan.stream_slots / (1 - predicted.hit_share)
    # Those that learn which rows to keep.
    fillings = LEARNING if algorithm[0] in "cd" else FILLINGS
    tuples = max(int(fillings * per_filling), 100_000)
    if "inlj" in algorithm:
        # A page is read for every tuple that misses, and nothing waits.
        tuples = 2 * BATCH if algorithm == "inlj" else 4 * BATCH
    warm = -(-tuples // BATCH) // 3
    batches = list(sales(tuples, ZipfKeys(rows, exponent, SEED), rows, batch_rows=BATCH))
    engine = ss.engine(master, algorithm=algorithm, on="product_id", memory=memory, io=io)
    return steady_run(engine, batches, warm)


def compared(
    master: ss.MasterTable,
    cell: tuple[str, str, float],
    runs: list[tuple[Operations, float]],
    calibration: Calibration,
) -> dict[str, Any]:
    """What was predicted of a cell, and what came."""
    algorithm, layout, exponent = cell
    factors, counted = calibration.factors, runs[0][0]
    memory = int(master.pages.length.sum() * SHARE)
    predicted = model_of(master, exponent, factors, calibration.io).planned(algorithm, memory)
    rates = [rate for _, rate in runs]
    return {
        "algorithm": algorithm,
        "layout": layout,
        "exponent": exponent,
        "predicted": predicted.rate,
        "priced": 1 / priced_seconds(counted, factors),
        "measured": max(rates),
        "rates": rates,
        "operations": asdict(counted),
        "factors": asdict(factors),
        "look_ups": predicted.plan.look_ups,
        "io": calibration.io,
        "rows": master.row_count,
        "machine": machine(ss.__version__),
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
    lines += measured(chosen, args.rows, args.io, args.repeat)
    RESULTS.write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(markdown(lines))


if __name__ == "__main__":
    main()
