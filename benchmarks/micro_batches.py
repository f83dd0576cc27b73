"""The sizes that a join on Spark chooses, against others found by trying.

    python benchmarks/micro_batches.py [--rows 500000] [--memory 2 8 32] [--tuples 3000 50000] …
    python benchmarks/micro_batches.py --table

A task of a micro-batch is a short run: the engine, and what its front stage has learned, stay
from task to task, and nothing waits in between. For each cell of R's rows, the memory of a task in
MB, the stream tuples of a task and the exponent of their Zipf distribution, tasks are joined as a
worker of Spark does it, with the sizes that it chooses and with fixed ones: HYBRIDJOIN and
CHYBRIDJOIN with some look-ups, pages of a partition and shares of the front stage, and MESHJOIN.
Pages come from the page cache, copied ("unmapped") or searched in place ("buffered"), or from the
disk ("direct").

Times are CPU seconds of the process: a worker has one core, and look-ups run in threads beside it.
Each way has two tasks to warm up. Those that are far from the best in the second are dropped; the
others take turns, each first at times, and of their tasks the fastest counts. Each cell adds its
line, with the pages that a task reads, to benchmarks/results/micro-batches-<io>.jsonl; cells that
are there already are passed over. At the end, and with `--table`, the worst cells are printed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
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
SEED = 20
WARM = 2
HOPELESS, FAR = 2.5, 1.5
"""A way that takes so many times the best so far, cold or warm, has no chance."""
FINALISTS = 4
FIELDS = ("rows", "memory", "tuples", "exponent")
Way = tuple[str, dict[str, Any]]
Cell = tuple[int, int, int, float]


def ways() -> dict[str, Way]:
    """The fixed sizes to try, by what they are called; without pages, they are the usual ones."""
    tried: list[Way] = [("meshjoin", {})]
    for sizes in (
        {"look_ups": 0},
        {"look_ups": 0, "partition_pages": 8},
        {"look_ups": 128},
        {"look_ups": 128, "partition_pages": 1},
    ):
        tried.append(("hybridjoin", sizes))
    for share in (15, 60):
        tried.append(("chybridjoin", {"look_ups": 128, "front_percent": share}))
    tried.append(("chybridjoin", {"look_ups": 32, "partition_pages": 1, "front_percent": 60}))
    return {
        ", ".join([algorithm, *(f"{name}={size}" for name, size in sizes.items())]): (
            algorithm,
            sizes,
        )
        for algorithm, sizes in tried
    }


def seconds_of(engine: ss.Engine, batches: list[pa.RecordBatch]) -> float:
    """CPU seconds of a task."""
    started = time.process_time()
    rows = sum(batch.num_rows for batch in engine.run(batches))
    taken = time.process_time() - started
    assert rows == sum(batch.num_rows for batch in batches)
    return taken


def streams(rows: int, tuples: int, exponent: float, count: int) -> list[list[pa.RecordBatch]]:
    """The stream of each task."""
    keys = ZipfKeys(rows, exponent, seed=SEED)
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


def meet_pages(master: ss.MasterTable, rows: int, io: str) -> None:
    """Touch every page once: a process checks a page only when it first meets it."""
    if io == "buffered" and rows:
        ids = np.arange(0, rows, max(1, rows // (4 * master.page_count)))
        stream = [pa.record_batch({"product_id": ids})]
        engine = fixed_engine(master, algorithm="hybridjoin", on="product_id", memory=64 << 20)
        for _ in engine.run(iter(stream)):
            pass
        engine.close()


def measured(
    master: ss.MasterTable, cell: Cell, tried: dict[str, Way], io: str, tasks: int
) -> dict[str, Any]:
    """The seconds of all ways in one cell."""
    rows, megabytes, tuples, exponent = cell
    stream = streams(rows, tuples, exponent, WARM + tasks)
    terms: dict[str, Any] = {"on": "product_id", "memory": megabytes << 20, "how": "left", "io": io}
    engines = {CHOSEN: chosen_engine(master, stream[0][0], terms)}
    seconds = {CHOSEN: min(seconds_of(engines[CHOSEN], task) for task in stream[:WARM])}
    for name, (algorithm, options) in tried.items():
        try:
            engine = fixed_engine(master, algorithm=algorithm, **terms, **options)
            best = min(seconds.values())
            first = seconds_of(engine, stream[0])
            if first < HOPELESS * best:
                first = min(first, seconds_of(engine, stream[1]))
        except BudgetError:
            continue
        seconds[name], engines[name] = first, engine
        if first > FAR * best:
            engines.pop(name).close()
    for name in sorted(engines, key=lambda name: seconds[name])[FINALISTS:]:
        if name != CHOSEN:
            engines.pop(name).close()
    taken: dict[str, list[float]] = {name: [] for name in engines}
    for turn, task in enumerate(stream[WARM:]):
        # The first to join a task brings its rows into the processor's cache for the others.
        names = [*engines]
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            taken[name].append(seconds_of(engines[name], task))
    final = {name: min(times) for name, times in taken.items()}
    best_way = min(final, key=lambda name: final[name])
    plan = engines[CHOSEN].plan
    assert plan is not None
    line = {
        "rows": rows,
        "memory": megabytes << 20,
        "tuples": tuples,
        "exponent": exponent,
        "io": io,
        "seed": SEED,
        "seconds": {name: round(taken, 5) for name, taken in (seconds | final).items()},
        "finalists": list(final),
        "pages": {name: engine.metrics().pages_read for name, engine in engines.items()},
        "best": best_way,
        "ratio": final[best_way] / final[CHOSEN],
        "chosen": f"{plan.algorithm}, {plan.look_ups} look-ups, partition {plan.partition_pages}, "
        f"{plan.front_rows:,} rows in front",
    }
    for engine in engines.values():
        engine.close()
    return line


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
    """Try all cells that have no result yet; print the worst."""
    args = arguments()
    path = RESULTS / f"micro-batches-{args.io}.jsonl"
    tried = ways()
    where = machine(ss.__version__)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for rows in [] if args.table else args.rows:
            done = {tuple(line[name] for name in FIELDS) for line in known(path)}
            cells_left = [cell for cell in cells(args, rows) if in_bytes(cell) not in done]
            if not cells_left:
                continue
            home = Path(args.masters or folder) / f"m{rows}"
            if not home.exists():
                ss.MasterTable.from_arrow(products(rows, seed=SEED), home, key="product_id")
            master = ss.MasterTable.open(home)
            meet_pages(master, rows, args.io)
            for cell in cells_left:
                line = measured(master, cell, tried, args.io, args.tasks)
                write_results(path, [line], where, append=True)
                print(shown(line), flush=True)
    lines = sorted(known(path), key=lambda line: line["ratio"])
    print(f"{len(lines)} cells; the least ratio is {lines[0]['ratio']:.2f}; the worst cells:")
    for line in lines[:10]:
        print(shown(line))


def known(path: Path) -> list[dict[str, Any]]:
    """The results so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def in_bytes(cell: Cell) -> tuple[float, ...]:
    """A cell as results name it."""
    rows, megabytes, tuples, exponent = cell
    return rows, megabytes << 20, tuples, exponent


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, nargs="+", default=[500_000])
    parser.add_argument("--memory", type=int, nargs="+", default=[2, 8, 32], help="MB of a task")
    parser.add_argument("--tuples", type=int, nargs="+", default=[3_000, 50_000])
    parser.add_argument("--exponent", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--tasks", type=int, default=4, help="that count")
    parser.add_argument("--io", default="unmapped", choices=["unmapped", "buffered", "direct"])
    parser.add_argument("--folder", default=None, help="where to put R")
    parser.add_argument("--masters", default=None, help="a folder that has R, or will keep it")
    parser.add_argument("--table", action="store_true", help="print the results so far")
    return parser.parse_args()


if __name__ == "__main__":
    main()
