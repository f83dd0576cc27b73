"""Every algorithm against the in-memory way, side by side on the same data.

    python benchmarks/engine.py [--rows 2000000] [--tuples 2000000] [--share 0.10] …

R has `rows` rows of about 120 bytes, scattered over the key domain; S has tuples of about 20
bytes with Zipf-distributed keys, in batches of 20,000; the budget is a share of R's bytes on
disk; pages are read with direct I/O, or as `--io` says ("buffered": rows of pages in memory are
found in place). The in-memory way holds all of R, sorted by key, and
looks up with NumPy's binary search and Arrow's take. "one by one" is HYBRIDJOIN as its paper has
it, a partition at a time; by default this engine looks several up together. One untimed pass warms
kernels and files; then the ways take turns, and medians are compared as ratios.

Writes one JSON line per way to benchmarks/results/engine-<rows>-<share>.jsonl; the name ends with
the way of reading if that is not direct.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

import semistream as ss
from results import machine, write_results
from semistream.workload import ZipfKeys, products, sales

RESULTS = Path(__file__).parent / "results"
ONE_BY_ONE = "one by one"


class InMemory:
    """All of R in memory: what the joins are measured against."""

    def __init__(self, table: pa.Table, key: str) -> None:
        """Sort by key; this is not timed."""
        order = np.argsort(table[key].to_numpy(), kind="stable")
        batch = table.take(pa.array(order)).combine_chunks().to_batches()[0]
        self._keys = batch.column(key).to_numpy()
        self._payload = batch.drop_columns([key])

    def run(self, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Inner join on a unique key."""
        for batch in batches:
            codes = batch.column("product_id").to_numpy()
            rows = np.minimum(np.searchsorted(self._keys, codes), len(self._keys) - 1)
            hit = self._keys[rows] == codes
            if not hit.all():
                batch, rows = batch.filter(pa.array(hit)), rows[hit]
            master = self._payload.take(pa.array(rows))
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, *master.columns], names=batch.schema.names + master.schema.names
            )


def timed(run: Callable[[], Iterator[pa.RecordBatch]]) -> tuple[float, int]:
    """Seconds and output rows of one pass."""
    started = time.perf_counter()
    rows = sum(batch.num_rows for batch in run())
    return time.perf_counter() - started, rows


def main() -> None:
    """Build R, run the ways in turns, print and write the ratios."""
    args = arguments()
    table = products(args.rows, seed=args.seed)
    keys = ZipfKeys(args.rows, args.exponent, seed=args.seed)
    stream = list(sales(args.tuples, keys, args.rows, batch_rows=args.batch_rows))
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        master = ss.MasterTable.from_arrow(
            table, Path(folder) / "products.master", key="product_id", page_bytes=args.page_bytes
        )
        size = int(master.pages.length.sum())
        budget = int(size * args.share)
        ways: dict[str, Callable[[], Iterator[pa.RecordBatch]]] = {}
        memory = InMemory(table, "product_id")
        del table
        ways["in memory"] = lambda: memory.run(stream)
        sizes = {"on": "product_id", "memory": budget, "io": args.io}
        engines = {name: ss.engine(master, algorithm=name, **sizes) for name in args.algorithms}
        if "hybridjoin" in engines:
            engines[ONE_BY_ONE] = ss.engine(master, algorithm="hybridjoin", look_ups=0, **sizes)
        for name, engine in engines.items():
            ways[name] = partial(engine.run, stream)
        report(ways, engines, args, size, budget)


def report(
    ways: dict[str, Callable[[], Iterator[pa.RecordBatch]]],
    engines: dict[str, ss.Engine],
    args: argparse.Namespace,
    size: int,
    budget: int,
) -> None:
    """Time all ways in turns and say how they compare."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    expected = None
    for turn in range(args.repeat + 1):
        for name, run in ways.items():
            taken, rows = timed(run)
            expected = expected or rows
            assert rows == expected, f"{name} gave {rows} rows, not {expected}"
            if turn:
                seconds[name].append(taken)
    rates = {name: args.tuples / statistics.median(taken) for name, taken in seconds.items()}
    print(f"R {args.rows:,} rows, {size:,} bytes; budget {budget:,} bytes; io {args.io}")
    print(
        f"{'way':<14}{'tuples/s':>12}{'of in memory':>14}{'spread':>9}{'pages/1000':>12}{'peak':>8}"
    )
    lines = []
    for name, rate in rates.items():
        spread = max(seconds[name]) / min(seconds[name]) - 1
        line = {"way": name, "rate": rate, "of_in_memory": rate / rates["in memory"]}
        line |= {"seconds": seconds[name], "parameters": vars(args) | {"master_bytes": size}}
        extra = ""
        if name in engines:
            metrics = engines[name].metrics()
            pages = metrics.pages_read / metrics.arrived * 1000
            extra = f"{pages:>12.1f}{metrics.peak_memory / budget:>8.1%}"
            line |= {"pages_per_1000": pages, "peak": metrics.peak_memory, "budget": budget}
        lines.append(line)
        print(f"{name:<14}{rate:>12,.0f}{line['of_in_memory']:>14.2f}{spread:>9.1%}{extra}")
    way = "" if args.io == "direct" else f"-{args.io}"
    name = f"engine-{args.rows}-{args.share:g}{way}.jsonl"
    write_results(RESULTS / name, lines, machine(ss.__version__))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--tuples", type=int, default=4_000_000)
    parser.add_argument("--share", type=float, default=0.10)
    parser.add_argument("--exponent", type=float, default=1.0)
    parser.add_argument("--batch-rows", type=int, default=20_000)
    parser.add_argument("--page-bytes", type=int, default=65536)
    parser.add_argument("--io", default="direct")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--folder", default=None, help="where to put R; its disk is measured")
    parser.add_argument(
        "--algorithms", nargs="+", default=["meshjoin", "rmeshjoin", "hybridjoin", "chybridjoin"]
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
