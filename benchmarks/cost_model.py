"""The cost model against runs: predicted, priced and measured rates of every algorithm.

    python benchmarks/cost_model.py [--algorithms hybridjoin,…] [--rows 200000] [--io direct]
    python benchmarks/cost_model.py --predict
    python benchmarks/cost_model.py --table

R has `rows` products of about 120 bytes, of ten columns or of two, in key order with frequent keys
scattered, and in order of frequency; S has sales of 20 bytes with Zipf exponents 0, 0.5 and 1; the
budget is a tenth of R. Each algorithm runs with the sizes that it has by default until it is warm;
from there on its operations are counted, priced and timed. All cells run once before any runs
again, and between them, again and again, the joins of `semistream tune --calibrate`: how fast a
shared machine is changes, so factors and rates have to come from the same hour. Of both the median
counts.

Adds a JSON line per cell to benchmarks/results/cost_model.jsonl, in place of an earlier one. After
a change of the model that leaves costs and factors as they are, `--predict` predicts anew what was
measured.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import mean, median
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
from semistream.cost.factors import CostFactors, shipped_factors
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
LONGEST = 2.0
"""Seconds that a run should take at most, unless the stream table is not filled five times then."""
EXPONENTS = (0.0, 0.5, 1.0)

Cell = tuple[str, int, str, float]
"""Algorithm, columns of R, layout and exponent."""


def masters(rows: int, folder: Path) -> dict[tuple[int, str], ss.MasterTable]:
    """R with ten columns and with two, in key order and in order of frequency."""
    wide = products(rows, seed=SEED)
    rest = pa.array(np.zeros(rows, "S112"), pa.binary(112))
    narrow = pa.table({"product_id": wide["product_id"], "rest": rest})
    order = pa.array(scattered(np.arange(rows), rows, SEED))
    return {
        (len(table.schema), layout): ss.MasterTable.from_arrow(
            table.take(order) if layout == "given" else table,
            folder / f"{len(table.schema)}-{layout}",
            key="product_id",
            page_bytes=32768,
            layout=layout,
        )
        for table in (wide, narrow)
        for layout in ("key", "given")
    }


def measured(algorithms: list[str], rows: int, io: str, repeat: int) -> list[dict[str, Any]]:
    """All cells, each as often as `repeat`, with the joins of a calibration between them."""
    found: dict[Cell, list[tuple[Operations, float]]] = {}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as another:
        tables, own = masters(rows, Path(folder)), calibration_masters(Path(another))
        reads = tuple(read_costs(own["key"]))
        timed_joins(own, io)
        rounds = []
        for number, algorithm in product(range(repeat), algorithms):
            for (columns, layout), exponent in product(tables, EXPONENTS):
                cell = algorithm, columns, layout, exponent
                found.setdefault(cell, []).append(
                    run(tables[columns, layout], algorithm, exponent, io)
                )
                print(number, *cell, f"{1e6 / found[cell][-1][1]:.2f} µs", flush=True)
            if algorithm in (*algorithms[2::3], algorithms[-1]):
                rounds.append(timed_joins(own, io))
        calibration = calibration_of(io, rounds, reads, 0.0)
        return [
            compared(tables[cell[1:3]], cell, runs, calibration) for cell, runs in found.items()
        ]


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
    factors = shipped_factors(io).factors
    predicted = model_of(master, exponent, factors, io).planned(algorithm, memory)
    per_filling = predicted.plan.stream_slots / (1 - predicted.hit_share)
    # Those that learn which rows to keep.
    fillings = LEARNING if algorithm[0] in "cd" else FILLINGS
    tuples = max(int(fillings * per_filling), 100_000)
    tuples = int(min(tuples, max(LONGEST * predicted.rate, 5 * per_filling)))
    warm = -(-tuples // BATCH) // 3
    batches = list(sales(tuples, ZipfKeys(rows, exponent, SEED), rows, batch_rows=BATCH))
    engine = ss.engine(master, algorithm=algorithm, on="product_id", memory=memory, io=io)
    return steady_run(engine, batches, warm)


def compared(
    master: ss.MasterTable,
    cell: Cell,
    runs: list[tuple[Operations, float]],
    calibration: Calibration,
) -> dict[str, Any]:
    """What was predicted of a cell, and what came."""
    algorithm, columns, layout, exponent = cell
    factors, counted = calibration.factors, runs[0][0]
    memory = int(master.pages.length.sum() * SHARE)
    predicted = model_of(master, exponent, factors, calibration.io).planned(algorithm, memory)
    rates = [rate for _, rate in runs]
    return {
        "algorithm": algorithm,
        "columns": columns,
        "layout": layout,
        "exponent": exponent,
        "predicted": predicted.rate,
        "priced": 1 / priced_seconds(counted, factors),
        "measured": median(rates),
        "rates": rates,
        "operations": asdict(counted),
        "factors": asdict(factors),
        "look_ups": predicted.plan.look_ups,
        "io": calibration.io,
        "rows": master.row_count,
        "machine": machine(ss.__version__),
    }


def predicted_again(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same measurements and factors, with what the model says now."""
    with tempfile.TemporaryDirectory() as folder:
        tables = masters(lines[0]["rows"], Path(folder))
        for line in lines:
            master, factors = (
                tables[line["columns"], line["layout"]],
                CostFactors(**line["factors"]),
            )
            memory = int(master.pages.length.sum() * SHARE)
            model = model_of(master, line["exponent"], factors, line["io"])
            line["predicted"] = model.planned(line["algorithm"], memory).rate
    return lines


def known() -> list[dict[str, Any]]:
    """The results so far."""
    if not RESULTS.exists():
        return []
    return [json.loads(line) for line in RESULTS.read_text().splitlines()]


def markdown(lines: list[dict[str, Any]]) -> str:
    """How far the model is off, by algorithm: mean, and most."""
    rows = [
        "| algorithm | off the priced rate | off the clock, ten columns | off the clock, two |",
        "| --- | ---: | ---: | ---: |",
    ]

    def off(what: str, some: list[dict[str, Any]]) -> str:
        found = [abs(line["predicted"] / line[what] - 1) for line in some]
        return f"{mean(found):.0%} (most {max(found):.0%})"

    for algorithm in ss.ALGORITHMS:
        mine = [line for line in lines if line["algorithm"] == algorithm]
        if mine:
            wide, narrow = ([x for x in mine if x["columns"] == n] for n in (10, 2))
            told = off("priced", mine), off("measured", wide), off("measured", narrow)
            rows.append(f"| {algorithm} | {' | '.join(told)} |")
    return "\n".join(rows)


def write(lines: list[dict[str, Any]]) -> None:
    """Keep the results, and show them."""
    RESULTS.write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(markdown(lines))


def main() -> None:
    """Run and write, or print what was written."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--algorithms", default=",".join(ss.ALGORITHMS))
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--io", default="direct")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each; the median counts")
    parser.add_argument("--predict", action="store_true", help="predict anew, and run nothing")
    parser.add_argument("--table", action="store_true", help="print the table of the last run")
    args = parser.parse_args()
    if args.table:
        print(markdown(known()))
        return
    if args.predict:
        write(predicted_again(known()))
        return
    chosen = args.algorithms.split(",")
    lines = [line for line in known() if line["algorithm"] not in chosen]
    lines += measured(chosen, args.rows, args.io, args.repeat)
    write(lines)


if __name__ == "__main__":
    main()
