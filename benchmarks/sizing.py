"""How many shards, how much memory, and what to expect: the cost model for R up to 10 billion rows.

    python benchmarks/sizing.py            writes results/sizing.jsonl, and prints the table
    python benchmarks/sizing.py --table    prints the table of the written results

Nothing runs: `ss.plan` with `task_tuples`, which is what "auto" follows on Spark, is asked for one
shard of a relation that is not stored, with the shipped cost factors and pages that come from the
disk. A worker's resident memory is what benchmarks/worker_memory.py measured of an idle worker, and
what it allows above that. Both tables stand in docs/cluster.md, and a test compares.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import semistream as ss
import worker_memory
from results import machine, write_results
from semistream.cost.factors import shipped_factors
from semistream.relation import MasterTable
from semistream_papers.workloads.synthetic_master import SyntheticMaster
from worker_memory import FACTOR, FIXED

RESULTS: Final = Path(__file__).parent / "results" / "sizing.jsonl"
WORKERS: Final = worker_memory.RESULTS
ROW_BYTES: Final = 120
SKEW: Final = 1.0
SHARD_ROWS: Final = 40_000_000
"""A shard has no more rows: then its index takes a few MB."""
ROWS: Final = (10**6, 10**7, 10**8, 10**9, 10**10)
BATCHES: Final = ((16, 20_000), (64, 200_000), (256, 1_000_000))
"""MB of `memory`, and tuples of a micro-batch, for each task."""
MB: Final = 1 << 20


class Shard(SyntheticMaster):
    """A shard that is not stored, with the index that a stored one would have."""

    @property
    def index_bytes(self) -> int:
        """As of a stored one."""
        return int(self.pages.nbytes)


def shards(rows: int) -> int:
    """A power of two, so that none has more than `SHARD_ROWS`."""
    return 1 << (-(-rows // SHARD_ROWS) - 1).bit_length()


def sized(rows: int, memory: int, tuples: int, idle: float) -> dict[str, Any]:
    """What is expected of one task."""
    count = shards(rows)
    master: MasterTable = Shard(rows // count, ROW_BYTES)
    plan = ss.plan(
        master,
        memory=memory * MB,
        skew=SKEW,
        task_tuples=tuples,
        factors=shipped_factors("direct").factors,
        io="direct",
    )
    assert plan.expected is not None
    return {
        "rows": rows,
        "gigabytes": round(master.page_count * master.page_bytes * count / 1e9, 2),
        "shards": count,
        "memory_mb": memory,
        "worker_mb": round(idle + FIXED + FACTOR * memory),
        "algorithm": plan.algorithm,
        "pages_per_thousand": round(1000 * plan.expected.io_per_tuple, 1),
        "task_rate": round(plan.expected.rate, -2),
        "read_mb_per_second": round(
            plan.expected.rate * plan.expected.io_per_tuple * master.page_bytes / 1e6
        ),
        "row_bytes": ROW_BYTES,
        "skew": SKEW,
        "task_tuples": tuples,
    }


def table(lines: Iterable[Mapping[str, Any]]) -> str:
    """The results as a table in Markdown."""
    head = (
        "| rows of R | on disk | shards | `memory` of a task | its Python worker "
        "| its tuples in a batch | pages per 1,000 tuples | its tuples/s | its reads "
        "| tuples/s of a task per shard |"
    )
    rows = [
        f"| {one['rows']:,} | {one['gigabytes']:,.1f} GB | {one['shards']} | {one['memory_mb']} MB "
        f"| {one['worker_mb']:,} MB | {one['task_tuples']:,} | {one['pages_per_thousand']:,.0f} "
        f"| {one['task_rate']:,.0f} | {one['read_mb_per_second']:,} MB/s "
        f"| {one['task_rate'] * one['shards']:,.0f} |"
        for one in lines
    ]
    return "\n".join([head, "|" + " --- |" * (head.count("|") - 1), *rows])


def worker_table(lines: Iterable[Mapping[str, Any]]) -> str:
    """What was measured of workers, as a table in Markdown."""
    head = "| `memory` | idle worker | worker with a join | above idle | its address space |"
    rows = [
        f"| {one['memory_mb']} MB | {one['idle_mb']:.0f} MB | {one['ours_mb']:.0f} MB "
        f"| {one['above_idle_mb']:.0f} MB | {one['address_space_mb']:,.0f} MB |"
        for one in lines
    ]
    return "\n".join([head, "|" + " --- |" * 5, *rows])


def written(path: Path = RESULTS) -> list[dict[str, Any]]:
    """The results in a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def main() -> None:
    """Ask the model, or only print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="of the written results")
    if not parser.parse_args().table:
        idle = written(WORKERS)[0]["idle_mb"]
        lines = [sized(rows, *batch, idle) for rows in ROWS for batch in BATCHES]
        write_results(RESULTS, lines, machine(ss.__version__))
    print(f"{worker_table(written(WORKERS))}\n\n{table(written())}")


if __name__ == "__main__":
    main()
