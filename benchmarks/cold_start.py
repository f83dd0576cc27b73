"""What a fresh process waits for before its first result: imports, kernels, and the join itself.

    python benchmarks/cold_start.py [--rows 500000] [--tuples 1000] [--repeat 5]

Each join runs in processes of its own, on a master table with an integer or a string key, with
what algorithm="auto" means on Spark: C-HYBRIDJOIN, or INLJ. NumPy and Arrow are imported before,
since Spark's workers have them. Three runs differ in what is on disk:

| run | kernels |
| --- | --- |
| warm | all compiled before: the case of every worker but the first |
| cold | none: everything is compiled |
| again | the same process joins once more: what the join itself takes |

Medians of the warm processes, by the clock and by the processor's time. `--kernels` also prints
how long each kernel takes to compile, without those that it calls. Writes one JSON line per join.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

RESULTS = Path(__file__).parent / "results" / "cold_start.jsonl"
OPTIONS: dict[str, dict[str, Any]] = {"chybridjoin": {"front_percent": 50}, "inlj": {}}
MEMORY = 6 << 20


def anonymous() -> float:
    """This process's anonymous memory in MiB."""
    status = Path("/proc/self/status").read_text()
    return next(int(x.split()[1]) for x in status.splitlines() if "RssAnon" in x) / 1024


def compile_times(told: Iterable[tuple[float, Any]]) -> dict[str, float]:
    """Seconds by kernel, each without the kernels that it called, from what Numba recorded."""
    seconds: dict[str, float] = defaultdict(float)
    began: list[float] = []
    inner = [0.0]
    for at, event in told:
        if event.is_start:
            began.append(at)
            inner.append(0.0)
            continue
        took = at - began.pop()
        function = event.data["dispatcher"].py_func
        seconds[f"{function.__module__}.{function.__name__}"] += took - inner.pop()
        inner[-1] += took
    return seconds


def first_join(master: str, stream: str, algorithm: str, io: str) -> dict[str, Any]:
    """Time this process's imports and its first join, given a master table and an Arrow file."""
    with pa.ipc.open_file(stream) as file:
        batch = file.get_batch(0)
    clock, processor, before = time.perf_counter(), time.process_time(), anonymous()
    from semistream.algorithms import fixed_engine
    from semistream.relation import MasterTable

    imported = time.perf_counter()
    from numba.core.event import install_recorder

    engine = fixed_engine(
        MasterTable.open(master),
        algorithm=algorithm,
        on="product_id",
        how="left",
        memory=MEMORY,
        io=io,
        **OPTIONS[algorithm],
    )
    ends = []
    with install_recorder("numba:compile") as compiled:
        for _ in range(2):
            rows = sum(joined.num_rows for joined in engine.run(iter([batch])))
            assert rows == batch.num_rows
            ends.append((time.perf_counter(), time.process_time()))
    return {
        "imports": imported - clock,
        "first_join": ends[0][0] - imported,
        "again": ends[1][0] - ends[0][0],
        "processor": ends[0][1] - processor,
        "memory_mib": anonymous() - before,
        "modules": len(sys.modules),
        "compile": compile_times(compiled.buffer),
    }


def in_a_process(*arguments: str, cache: str) -> dict[str, Any]:
    """`first_join` in a process of its own, with this folder for compiled kernels."""
    command = [sys.executable, __file__, "--one", *arguments]
    environment = os.environ | {"NUMBA_CACHE_DIR": cache}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def lay_out(folder: Path, rows: int, tuples: int, seed: int) -> None:
    """A master table and a few tuples for each kind of key."""
    from semistream import MasterTable
    from semistream.workload import products

    table = products(rows, seed=seed)
    words = pa.array([f"sku-{number:09d}" for number in range(rows)])
    chosen = pa.array(np.random.default_rng(seed).integers(0, rows, tuples))
    for kind, keys in (("integer", table["product_id"]), ("string", pa.chunked_array([words]))):
        place = table.schema.get_field_index("product_id")
        keyed = table.set_column(place, "product_id", keys)
        MasterTable.from_arrow(keyed, folder / f"{kind}.master", key="product_id")
        stream = pa.table({"product_id": keys.take(chosen), "quantity": np.arange(tuples)})
        with pa.ipc.new_file(str(folder / f"{kind}.arrow"), stream.schema) as file:
            file.write(stream.combine_chunks())


def measured(folder: Path, join: tuple[str, str, str], repeat: int, show: bool) -> dict[str, Any]:
    """One kind of join, cold and then warm."""
    kind, algorithm, io = join
    paths = str(folder / f"{kind}.master"), str(folder / f"{kind}.arrow")
    with tempfile.TemporaryDirectory() as cache:
        cold = in_a_process(*paths, algorithm, io, cache=cache)
        runs = [in_a_process(*paths, algorithm, io, cache=cache) for _ in range(repeat)]
    names = ("imports", "first_join", "again", "processor", "memory_mib")
    warm = {name: round(statistics.median(run[name] for run in runs), 3) for name in names}
    until = statistics.median(run["imports"] + run["first_join"] - run["again"] for run in runs)
    print(
        f"{kind:8} {algorithm:12} {io:9} imports {warm['imports']:.2f} s, first join "
        f"{warm['first_join']:.2f} s, again {warm['again']:.2f} s; processor "
        f"{warm['processor']:.2f} s; {warm['memory_mib']:.0f} MiB; cold "
        f"{cold['first_join']:.1f} s, processor {cold['processor']:.1f} s, for "
        f"{len(cold['compile'])} kernels"
    )
    if show:
        for name, seconds in sorted(cold["compile"].items(), key=lambda pair: -pair[1]):
            print(f"    {seconds:6.2f} s  {name}")
    return {
        "key": kind,
        "algorithm": algorithm,
        "io": io,
        "warm": warm | {"start": round(until, 3)},
        "cold": {name: round(cold[name], 3) for name in names},
        "compile": {name: round(seconds, 3) for name, seconds in cold["compile"].items()},
    }


def main() -> None:
    """Measure all joins; or one, as a child process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--tuples", type=int, default=1_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kernels", action="store_true", help="show each kernel's compile time")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(first_join(*args.one)))
        return
    joins = [
        (kind, algorithm, io)
        for kind in ("integer", "string")
        for algorithm in OPTIONS
        for io in ("buffered", "unmapped")
    ]
    with tempfile.TemporaryDirectory() as folder:
        lay_out(Path(folder), args.rows, args.tuples, args.seed)
        lines = [measured(Path(folder), join, args.repeat, args.kernels) for join in joins]
    from results import machine, write_results
    from semistream import __version__

    write_results(RESULTS, lines, machine(__version__))


if __name__ == "__main__":
    main()
