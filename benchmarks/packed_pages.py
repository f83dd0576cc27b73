"""How large should a packed page be? Cold tasks with pages of 16, 32 and 64 KB before packing.

    python benchmarks/packed_pages.py [--rows 5000000 20000000] [--rounds 5]
    python benchmarks/packed_pages.py --table

Tasks as a worker of Spark runs them, with 5 % of R as memory; before each the operating system is
asked to forget the files. All sizes take turns. A task of 50,000 tuples needs nearly all pages of R
of 5 million rows, the others need some of them.

Writes one JSON line per size and kind of task to benchmarks/results/packed_pages.jsonl.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import semistream as ss
from results import machine, write_results
from semistream.cost.micro_batches import micro_batch_engine
from semistream.workload import ZipfKeys, products, sales
from semistream_bench.cold import forget

RESULTS = Path(__file__).parent / "results" / "packed_pages.jsonl"
SIZES = (16, 32, 64)
"""KB of a page before it is packed."""
TASKS = ((5_000, 1.0), (50_000, 1.0), (50_000, 0.0))
"""Tuples and exponent."""
SHARE, SEED, WARM = 0.05, 20, 2


def measured(rows: int, rounds: int, folder: Path) -> Iterator[dict[str, Any]]:
    """All sizes and kinds of task with one R."""
    table, masters = products(rows, SEED), {}
    for size in SIZES:
        masters[size] = ss.MasterTable.from_arrow(
            table,
            folder / f"{size}.master",
            key="product_id",
            page_bytes=size << 10,
            compression="packed",
        )
    del table
    memory = int(masters[SIZES[-1]].pages.length.sum() * SHARE)
    for tuples, exponent in TASKS:
        keys = ZipfKeys(rows, exponent, SEED)
        engines = {
            size: micro_batch_engine(master, on="product_id", how="left", memory=memory)
            for size, master in masters.items()
        }
        took: dict[int, list[float]] = {size: [] for size in SIZES}
        for number in range(WARM + rounds):
            task = list(sales(tuples, keys, rows, batch_rows=10_000))
            for size, engine in engines.items():
                forget([p for p in (folder / f"{size}.master").rglob("*") if p.is_file()])
                began = time.perf_counter()
                found = sum(batch.num_rows for batch in engine.run(iter(task)))
                if number >= WARM:
                    took[size].append(time.perf_counter() - began)
                assert found == tuples, f"{found} rows for {tuples} tuples"
        for size, engine in engines.items():
            plan, counted = engine.plan, engine.metrics()
            yield {
                "rows": rows,
                "memory": memory,
                "tuples": tuples,
                "exponent": exponent,
                "page_kb": size,
                "file_bytes": sum(
                    p.stat().st_size for p in (folder / f"{size}.master").rglob("*") if p.is_file()
                ),
                "seconds": took[size],
                "pages": counted.pages_read,
                "bytes": counted.bytes_read,
                "options": {} if plan is None else dict(plan.options),
                "seed": SEED,
            }
            engine.close()


def markdown(lines: list[dict[str, Any]]) -> str:
    """Milliseconds of a task by size of page."""
    heads = " | ".join(f"{size} KB" for size in SIZES)
    shown = [f"| R | tuples of a task | exponent | {heads} |", "| ---: | ---: | ---: |"]
    shown[1] += " ---: |" * len(SIZES)
    cells: dict[tuple[int, int, float], dict[int, float]] = {}
    for line in lines:
        cell = cells.setdefault((line["rows"], line["tuples"], line["exponent"]), {})
        cell[line["page_kb"]] = statistics.median(line["seconds"]) * 1e3
    for (rows, tuples, exponent), found in cells.items():
        times = " | ".join(f"{found[size]:.0f}" for size in SIZES)
        shown.append(f"| {rows / 1e6:g} M | {tuples:,} | {exponent:g} | {times} |")
    return "\n".join(shown)


def main() -> None:
    """Run and write, or print what was written."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, nargs="+", default=[5_000_000, 20_000_000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="on the disk that is measured")
    parser.add_argument("--table", action="store_true", help="print the table of the last run")
    args = parser.parse_args()
    if not args.table:
        lines = []
        for rows in args.rows:
            with tempfile.TemporaryDirectory(dir=args.folder) as folder:
                lines += list(measured(rows, args.rounds, Path(folder)))
        write_results(RESULTS, lines, machine(ss.__version__))
    print(markdown([json.loads(line) for line in RESULTS.read_text().splitlines()]))


if __name__ == "__main__":
    main()
