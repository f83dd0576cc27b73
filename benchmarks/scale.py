"""How rate and memory follow R: the same stream with masters from 0.1 to 100 million rows.

    python benchmarks/scale.py [--rows 100000 … 100000000] [--masters FOLDER] [--rounds 5]

Tasks of a micro-batch are joined as a worker of Spark does it, without Spark around it: the engine
stays from task to task. Memory is 1 % of R, and 4 MB at least. "resident": R is in the page cache.
"cold": before each task the operating system is asked to forget R's files; "cold, packed": the same
with packed pages, in memory that is 1 % of R as it would be without. Each R and exponent has
a process of its own, whose anonymous memory is read after each task; what a small join has
brought into memory, such as compiled code, is taken off.

A master that FOLDER has already is used as it is. Adds its lines to benchmarks/results/scale.jsonl;
what is there of the same rows, exponent and place is replaced.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

import pyarrow as pa

import semistream as ss
from results import machine, write_results
from semistream.cost.micro_batches import micro_batch_engine
from semistream.workload import ZipfKeys, products, sales
from semistream.workload.retail import product_batches
from semistream_bench.cold import forget

RESULTS = Path(__file__).parent / "results" / "scale.jsonl"
ROWS = (100_000, 500_000, 2_000_000, 5_000_000, 20_000_000, 100_000_000)
KEY, SEED, ARROW_ROWS, WARM = "product_id", 20, 10_000, 2
SHARE, LEAST = 0.01, 4 << 20
_MEETINGS = 5
"""Uniform tuples for each page before a resident R is measured."""


def build(rows: int, path: Path, compression: str | None) -> None:
    """Build R from a file that is mapped, so that it need not fit into memory."""
    given = path.with_suffix(".arrow")
    batches = product_batches(rows, SEED)
    first = next(batches)
    with pa.OSFile(str(given), "wb") as file, pa.ipc.new_file(file, first.schema) as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)
    with pa.memory_map(str(given)) as file:
        table = pa.ipc.open_file(file).read_all()
        ss.MasterTable.from_arrow(table, path, key=KEY, compression=compression)
    given.unlink()


def anonymous() -> int:
    """Bytes of memory of this process that are not those of a file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024


def join_a_little() -> None:
    """Bring into memory what any join does: compiled code, libraries."""
    with tempfile.TemporaryDirectory() as name:
        master = ss.MasterTable.from_arrow(products(10_000, SEED), f"{name}/r", key=KEY)
        stream = sales(10_000, ZipfKeys(10_000, 1.0, seed=SEED), 10_000, batch_rows=1_000)
        with micro_batch_engine(master, on=KEY, how="left", memory="1MB") as engine:
            deque(engine.run(stream), maxlen=0)


def measured(path: Path, exponent: float, tuples: int, rounds: int, where: str) -> dict[str, Any]:
    """One cell, in this process."""
    cold = where != "resident"
    master = ss.MasterTable.open(path)
    size = int(master.pages.length.sum())
    files = [file for file in path.rglob("*") if file.is_file()]
    keys = ZipfKeys(master.row_count, exponent, seed=SEED)
    # A process checks a page when it first meets it: most pages should be met before.
    warm = WARM if cold else max(WARM, -(-_MEETINGS * master.page_count // tuples))
    stream = sales((warm + rounds) * tuples, keys, master.row_count, batch_rows=ARROW_ROWS)
    if not cold:
        for file in files:
            with file.open("rb", buffering=0) as opened:
                while opened.read(1 << 24):
                    pass
    memory = max(int(size * SHARE), LEAST)
    join_a_little()
    before = held = anonymous()
    seconds, processor, read = [], [], []
    with micro_batch_engine(master, on=KEY, how="left", memory=memory) as engine:
        for number in range(warm + rounds):
            task = [next(stream) for _ in range(tuples // ARROW_ROWS)]
            if cold:
                forget(files)
            started, used = time.perf_counter(), time.process_time()
            found = sum(batch.num_rows for batch in engine.run(iter(task)))
            taken, used = time.perf_counter() - started, time.process_time() - used
            assert found == tuples, f"{found:,} rows came for {tuples:,} tuples"
            held = max(held, anonymous())
            if number >= warm:
                seconds.append(round(taken, 6))
                processor.append(round(used, 6))
                read.append(engine.metrics().pages_read)
        plan = engine.plan
    assert plan is not None
    return {
        "rows": master.row_count, "bytes": size, "pages": master.page_count, "memory": memory,
        "exponent": exponent, "where": where, "tuples": tuples,
        "stored": master.pages.stored_bytes(0, master.page_count),
        "seconds": seconds, "cpu_seconds": processor, "pages_read": read,
        "rate": round(tuples / statistics.median(seconds)), "held": held - before,
        "algorithm": plan.algorithm, "seed": SEED,
    }  # fmt: skip


def main() -> None:
    """Measure all cells, each in a process of its own, and write."""
    args = arguments()
    if args.cell:
        path, exponent, where = args.cell
        found = measured(Path(path), float(exponent), args.tuples, args.rounds, where)
        print(json.dumps(found))
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        for rows in args.rows:
            for where in args.where:
                packed = "packed" if where.endswith("packed") else None
                path = Path(args.masters or name) / f"m{rows}{packed or ''}"
                if not path.exists():
                    build(rows, path, packed)
                _measure(path, where, args)


def _measure(path: Path, where: str, args: argparse.Namespace) -> None:
    for exponent in args.exponent:
        command = [sys.executable, __file__, "--cell", str(path), str(exponent), where]
        command += ["--tuples", str(args.tuples), "--rounds", str(args.rounds)]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        line = json.loads(out.splitlines()[-1])
        print(
            f"R {line['rows']:>11,} z {exponent} {where:<12} {line['rate']:>9,} tuples/s, "
            f"{line['held'] / 1e6:.0f} MB held of {line['memory'] / 1e6:.0f} MB, "
            f"{statistics.median(line['pages_read']):,.0f} pages a task, {line['algorithm']}",
            flush=True,
        )
        known = RESULTS.read_text().splitlines() if RESULTS.exists() else []
        same = ("rows", "exponent", "where", "tuples")
        others = [text for text in known if any(json.loads(text)[n] != line[n] for n in same)]
        RESULTS.write_text("".join(f"{text}\n" for text in others))
        write_results(RESULTS, [line], machine(ss.__version__), append=True)


def arguments() -> argparse.Namespace:
    """What was asked for on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--exponent", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--where", nargs="+", default=["resident", "cold", "cold, packed"])
    parser.add_argument("--tuples", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--masters", help="a folder of masters, to use or to build")
    parser.add_argument("--folder", help="where to put R for the time")
    parser.add_argument("--cell", nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
