"""The sizes that a join on Spark chooses, against others found by trying.

    python benchmarks/micro_batches.py [--rows 500000] [--memory 2 8 32] [--tuples 3000 50000] …

A task of a micro-batch is a short run: the engine, and what its front stage has learned, stay
from task to task, and nothing waits in between. For each cell of R's rows, the memory of a task in
MB, the stream tuples of a task and the exponent of their Zipf distribution, tasks are joined as a
worker of Spark does it, with the sizes that it chooses and with fixed ones: HYBRIDJOIN and
CHYBRIDJOIN with some look-ups and shares of the front stage, and MESHJOIN. Pages come from the
page cache, copied ("unmapped") or searched in place ("buffered").

Times are CPU seconds of the process: a worker has one core, and look-ups run in threads beside it.
Of several tasks the fastest counts. Prints the cells where what was chosen is worst against the
best of the others, and writes one JSON line per cell to
benchmarks/results/micro-batches-<io>.jsonl.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import semistream as ss
from results import machine, write_results
from semistream.algorithms import fixed_engine
from semistream.cost.auto import IN_MEMORY, in_memory
from semistream.cost.micro_batches import micro_batch_engine
from semistream.errors import BudgetError
from semistream.parts.join_shape import JoinShape
from semistream.workload import ZipfKeys, products, sales

RESULTS = Path(__file__).parent / "results"
ARROW_ROWS = 10_000
"""Rows that Spark gives a worker at a time."""
CHOSEN = "chosen"
Way = tuple[str, dict[str, Any]]
Cell = tuple[int, int, int, float]


def ways(look_ups: list[int], shares: list[int]) -> dict[str, Way]:
    """The fixed sizes to try, by what they are called."""
    found: dict[str, Way] = {"meshjoin": ("meshjoin", {})}
    for number in look_ups:
        found[f"hybridjoin {number}"] = ("hybridjoin", {"look_ups": number})
        for share in shares:
            sizes = {"look_ups": number, "front_percent": share}
            found[f"chybridjoin {number} {share}%"] = ("chybridjoin", sizes)
    return found


def seconds_of(engine: ss.Engine, tasks: list[list[pa.RecordBatch]], warm: int) -> float:
    """CPU seconds of a task, once the first ones have warmed the engine up."""
    taken = []
    for batches in tasks:
        started = time.process_time()
        rows = sum(batch.num_rows for batch in engine.run(batches))
        taken.append(time.process_time() - started)
        assert rows == sum(batch.num_rows for batch in batches)
    engine.close()
    return min(taken[warm:])


def streams(rows: int, tuples: int, exponent: float, count: int) -> list[list[pa.RecordBatch]]:
    """The stream of each task."""
    keys = ZipfKeys(rows, exponent, seed=20)
    batches = sales(tuples * count, keys, rows, batch_rows=tuples)
    return [pa.Table.from_batches([task]).to_batches(ARROW_ROWS) for task in batches]


def chosen_engine(
    master: ss.MasterTable, first: pa.RecordBatch, terms: dict[str, Any]
) -> ss.Engine:
    """What `ss.join` runs: all of R in memory if it fits, else what the worker chooses."""
    shape = JoinShape(first.schema, master, terms["on"], terms["how"], None)
    whole = in_memory(master, shape, first, terms["memory"] // 2)
    if whole is not None:
        return fixed_engine(master, algorithm=IN_MEMORY, **{**terms, **whole})
    return micro_batch_engine(master, **terms)


def measured(
    master: ss.MasterTable, cell: Cell, tried: dict[str, Way], io: str, tasks: int
) -> dict[str, Any]:
    """The seconds of all ways in one cell."""
    rows, megabytes, tuples, exponent = cell
    stream = streams(rows, tuples, exponent, tasks)
    terms: dict[str, Any] = {"on": "product_id", "memory": megabytes << 20, "how": "left", "io": io}
    chosen = chosen_engine(master, stream[0][0], terms)
    seconds = {CHOSEN: seconds_of(chosen, stream, tasks // 2)}
    for name, (algorithm, options) in tried.items():
        try:
            engine = fixed_engine(master, algorithm=algorithm, **terms, **options)
            seconds[name] = seconds_of(engine, stream, tasks // 2)
        except BudgetError:
            continue
    best = min(seconds, key=lambda name: seconds[name])
    plan = chosen.plan
    assert plan is not None
    return {
        "rows": rows,
        "memory": megabytes << 20,
        "tuples": tuples,
        "exponent": exponent,
        "io": io,
        "seconds": seconds,
        "best": best,
        "ratio": seconds[best] / seconds[CHOSEN],
        "chosen": f"{plan.algorithm}, {plan.look_ups} look-ups, partition {plan.partition_pages}, "
        f"{plan.front_rows:,} rows in front",
    }


def shown(line: dict[str, Any]) -> str:
    """A cell as a line of text."""
    seconds = line["seconds"]
    return (
        f"R {line['rows']:>10,} {line['memory'] >> 20:>4} MB {line['tuples']:>9,} tuples "
        f"z {line['exponent']:.1f}: {line['ratio']:.2f}  {seconds[CHOSEN] * 1e3:8.1f} ms "
        f"({line['chosen']}) best {seconds[line['best']] * 1e3:.1f} ({line['best']})"
    )


def cells(args: argparse.Namespace, rows: int) -> Iterator[Cell]:
    """The cells of one master table."""
    for rest in itertools.product(args.memory, args.tuples, args.exponent):
        yield (rows, *rest)


def main() -> None:
    """Try all cells, print the worst, write them all."""
    args = arguments()
    lines = []
    tried = ways(args.look_ups, args.front)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for rows in args.rows:
            path = Path(args.masters or folder) / f"m{rows}"
            if not path.exists():
                ss.MasterTable.from_arrow(products(rows, seed=20), path, key="product_id")
            master = ss.MasterTable.open(path)
            for cell in cells(args, rows):
                line = measured(master, cell, tried, args.io, args.tasks)
                lines.append(line)
                print(shown(line), flush=True)
    lines.sort(key=lambda line: line["ratio"])
    print(f"the least ratio is {lines[0]['ratio']:.2f}; the worst cells:")
    for line in lines[:5]:
        print(shown(line))
    write_results(RESULTS / f"micro-batches-{args.io}.jsonl", lines, machine(ss.__version__))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, nargs="+", default=[500_000])
    parser.add_argument("--memory", type=int, nargs="+", default=[2, 8, 32], help="MB of a task")
    parser.add_argument("--tuples", type=int, nargs="+", default=[3_000, 50_000])
    parser.add_argument("--exponent", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--look-ups", type=int, nargs="+", default=[0, 8, 32, 128])
    parser.add_argument("--front", type=int, nargs="+", default=[10, 50, 80])
    parser.add_argument("--tasks", type=int, default=6, help="tasks of a cell; half warm it up")
    parser.add_argument("--io", default="unmapped", choices=["unmapped", "buffered", "direct"])
    parser.add_argument("--folder", default=None, help="where to put R")
    parser.add_argument("--masters", default=None, help="a folder that has R, or will keep it")
    return parser.parse_args()


if __name__ == "__main__":
    main()
