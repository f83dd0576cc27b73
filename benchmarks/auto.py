"""What "auto" chooses, and how near that is to the best algorithm.

    python benchmarks/auto.py [--cells 0-53] [--measured]
    python benchmarks/auto.py --table

The grid: R of 0.5, 2 and 8 million rows of 120 bytes; memory of 1, 5 and 10 % of R; Zipf exponents
0, 0.5 and 1; frequent keys scattered over R, or in front. In every cell each algorithm gets its
tuned sizes and runs until it is warm; from there on its operations are counted and priced with the
shipped cost factors, so machine and load make no difference. Those that the model has below 80 % of
the best (60 % by the clock) are not run: it would have to be wrong by as much. Auto is the one that
the model has first.

`--measured` runs the cells by the clock instead, with direct I/O and the factors of this machine,
or those that are shipped if there are none. All algorithms of a cell take turns, and the fastest
run of each counts. Where the choice is below 0.90 of the best there are more turns. Cells that are
in the results already are passed over; each adds its line to benchmarks/results/auto.jsonl.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from itertools import groupby, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

import semistream as ss
from results import machine
from semistream.cost import ORDERS
from semistream.cost.empirical import steady_run
from semistream.cost.factors import known_factors, shipped_factors
from semistream.cost.model import CostModel
from semistream.cost.prediction import Prediction
from semistream.cost.pricing import priced_seconds
from semistream.cost.tuner import Tuner
from semistream.parts.join_shape import JoinShape
from semistream.workload import ZipfKeys
from semistream.workload.zipf import scattered

RESULTS = Path(__file__).parent / "results" / "auto.jsonl"
ROW_BYTES = 120
BATCH = 10_000
SEED = 20
WORTH_A_RUN = {"priced": 0.8, "measured": 0.6}
WARM, LEARNED, COUNTED, TIMED = 5, 10, 6, 4
"""How often the stream table is filled before, and while, operations are counted, or timed.

A front stage that learns which rows to keep needs longer until it is warm. Where a few partitions
have most of the stream, they are read in bursts, and a short time would have more of them, or less.
"""
MOST = 16_000_000
"""Tuples of a run by the clock; where it would take more, all of that is shortened."""
REPEAT, MOST_REPEATS = 3, 6
"""Runs by the clock, in turns; the fastest counts: whatever disturbs a run makes it slower."""
AIM = 0.90
"""A choice that is worse has more runs, beside all others of its cell."""


class Cell(NamedTuple):
    """One point of the grid."""

    rows: int
    share: float
    exponent: float
    order: str


GRID = [
    Cell(*values)
    for values in product(
        (500_000, 2_000_000, 8_000_000), (0.01, 0.05, 0.10), (0.0, 0.5, 1.0), ORDERS
    )
]


def stream(cell: Cell, tuples: int) -> Iterator[pa.RecordBatch]:
    """Tuples of 20 bytes with keys after Zipf's law."""
    keys = ZipfKeys(cell.rows, cell.exponent, SEED)
    rest = pa.array(np.zeros(BATCH, "V12").view("S12"), pa.binary(12))
    for _ in range(-(-tuples // BATCH)):
        ranks = keys.ranks(BATCH)
        if cell.order == "scattered":
            ranks = scattered(ranks, cell.rows, SEED)
        yield pa.record_batch({"key": ranks, "rest": rest})


_made: dict[Cell, list[pa.RecordBatch]] = {}


def made(cell: Cell, batches: int) -> list[pa.RecordBatch]:
    """The first batches of a stream, in memory; those of one cell are kept."""
    if len(_made.get(cell, ())) < batches:
        _made.clear()
        _made[cell] = list(stream(cell, batches * BATCH))
    return _made[cell][:batches]


def tuner(cell: Cell, master: ss.MasterTable, io: str) -> Tuner:
    """The tuner of a cell."""
    sample = next(stream(cell, BATCH))
    shape = JoinShape(sample.schema, master, "key", "inner", None)
    factors = shipped_factors() if io == "buffered" else known_factors(io)
    skew = ss.Skew(cell.exponent, cell.order)
    return Tuner(CostModel(master, shape, sample, skew, factors.factors, io))


def run(cell: Cell, master: ss.MasterTable, prediction: Prediction, io: str) -> tuple[float, float]:
    """The priced and the measured rate of a plan."""
    filling = max(prediction.plan.stream_slots, 5_000)
    if "inlj" in prediction.plan.algorithm:
        filling = 2_000
    # Hits never wait: with them, more tuples pass while the table is filled once.
    filling = int(filling / (1 - prediction.hit_share))
    counted = COUNTED if io == "buffered" else TIMED
    learns = prediction.plan.front_rows and prediction.plan.admission != "pinned"
    before = LEARNED if learns else WARM
    if io != "buffered":
        filling = min(filling, MOST // (before + counted))
    warm, batches = (-(-times * filling // BATCH) for times in (before, before + counted))
    engine = ss.engine(
        master,
        algorithm=prediction.plan.algorithm,
        on="key",
        memory=prediction.plan.memory,
        io=io,
        **prediction.options,
    )
    # What it takes to make a stream is not the join's time.
    operations, measured = steady_run(engine, made(cell, batches), warm)
    return 1 / priced_seconds(operations, prediction.factors), measured


def results(cell: Cell, master: ss.MasterTable, io: str, repeat: int) -> dict[str, Any]:
    """All algorithms that are worth a run in one cell."""
    some = tuner(cell, master, io)
    ranked = some.choose(int(cell.rows * ROW_BYTES * cell.share))
    way = "priced" if io == "buffered" else "measured"
    least = WORTH_A_RUN[way] * ranked[0].rate
    tried = [p for p in ranked if p.rate >= least and not plain(p)]
    runs: list[list[tuple[float, float]]] = []
    while len(runs) < repeat or (io != "buffered" and len(runs) < MOST_REPEATS and behind(runs)):
        runs.append([run(cell, master, one, io) for one in tried])
    lines = [
        {
            "algorithm": prediction.plan.algorithm,
            "options": dict(prediction.options),
            "predicted": prediction.rate,
            "priced": same[0][0],
            "measured": max(rate for _, rate in same),
            "rates": [rate for _, rate in same],
        }
        for prediction, same in zip(tried, zip(*runs, strict=True), strict=True)
    ]
    best = max(lines, key=lambda line: line[way])
    return cell._asdict() | {
        "way": way,
        "chosen": lines[0]["algorithm"],
        "best": best["algorithm"],
        "ratio": lines[0][way] / best[way],
        "runs": lines,
        "others": {p.plan.algorithm: p.rate for p in ranked[len(tried) :]},
    }


def behind(runs: list[list[tuple[float, float]]]) -> bool:
    """Whether the first, which is the choice, is clearly slower than another."""
    fastest = [max(rate for _, rate in same) for same in zip(*runs, strict=True)]
    return bool(fastest[0] < AIM * max(fastest))


def plain(prediction: Prediction) -> bool:
    """Whether it is HYBRIDJOIN under another name: nothing is pinned."""
    return prediction.plan.algorithm == "xhybridjoin" and not prediction.plan.pinned_partitions


def known() -> list[dict[str, Any]]:
    """The results so far."""
    return (
        [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    )


def fresh(cells: list[Cell], way: str) -> list[Cell]:
    """Those of the cells that have no result yet."""
    done = {tuple(line[name] for name in Cell._fields) for line in known() if line["way"] == way}
    return [cell for cell in cells if tuple(cell) not in done]


def note(line: dict[str, Any]) -> None:
    """Show a result and keep it."""
    print(
        f"{line['rows']:>9,} {line['share']:>4.0%} {line['exponent']:.1f} {line['order']:<10}"
        f"chosen {line['chosen']:<13}best {line['best']:<13}ratio {line['ratio']:.3f}",
        flush=True,
    )
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps(line | {"machine": machine(ss.__version__)}) + "\n")


def run_all(cells: list[Cell], io: str, repeat: int = 1) -> None:
    """Run cells on real files: buffered to be priced, directly for the clock."""
    for rows, same in groupby(cells, key=lambda cell: cell.rows):
        with tempfile.TemporaryDirectory() as folder:
            payload = pa.array(np.zeros(rows, f"S{ROW_BYTES - 8}"), pa.binary(ROW_BYTES - 8))
            table = pa.table({"key": np.arange(rows), "payload": payload})
            master = ss.MasterTable.from_arrow(table, Path(folder) / "m", key="key")
            del table, payload
            for cell in same:
                note(results(cell, master, io, repeat))


def markdown(lines: list[dict[str, Any]]) -> str:
    """What was chosen in each cell by the clock, and its rate beside that of the best."""
    kinds = [*product((0.0, 0.5, 1.0), ORDERS)]
    rows = [
        "| R | memory | " + " | ".join(f"{e:g}, {order}" for e, order in kinds) + " |",
        "| ---: | ---: |" + " --- |" * len(kinds),
    ]
    found = {
        tuple(line[name] for name in Cell._fields): f"{line['chosen']} {line['ratio']:.2f}"
        for line in lines
        if line["way"] == "measured"
    }
    for size, share in dict.fromkeys(cell[:2] for cell in GRID):
        cells = [found.get((size, share, *kind), "not run") for kind in kinds]
        rows.append(f"| {size / 1e6:g} M | {share:.0%} | {' | '.join(cells)} |")
    ratios = [line["ratio"] for line in lines if line["way"] == "measured"]
    enough = sum(ratio >= 0.9 for ratio in ratios)
    told = f"{enough} of {len(ratios)} cells, least {min(ratios):.2f}"
    return "\n".join([*rows, "", f"At 0.90 of the best or above in {told}."])


def main() -> None:
    """Run and write, or print what was written."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cells", default=f"0-{len(GRID) - 1}", help="numbers of cells, as 0-8")
    parser.add_argument("--measured", action="store_true", help="by the clock")
    parser.add_argument("--repeat", type=int, default=REPEAT, help="runs by the clock")
    parser.add_argument("--table", action="store_true", help="print the table of the last run")
    args = parser.parse_args()
    if args.table:
        print(markdown(known()))
        return
    first, last = (int(number) for number in args.cells.split("-"))
    cells = GRID[first : last + 1]
    if args.measured:
        run_all(fresh(cells, "measured"), "direct", args.repeat)
        return
    run_all(fresh(cells, "priced"), "buffered")


if __name__ == "__main__":
    main()
