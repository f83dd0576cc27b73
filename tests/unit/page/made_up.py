"""Made-up checkpoints: what a pipeline would leave on disk, without Spark."""

from __future__ import annotations

import json
import math
import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

import semistream as ss
from semistream.spark.pipeline.about import About, write_about
from semistream.spark.pipeline.batch_log import BatchLog, BatchRecord, Counts, Outcome
from semistream.spark.pipeline.folders import Folder
from semistream.spark.pipeline.metrics_log import append_line, metrics_line

MB = 1 << 20
PARTS = {
    "index": 180_000,
    "disk buffer": 4_341_845,
    "stream buffer": 3_145_728,
    "output": 4_759_552,
    "front stage": 19_984_142,
    "in place": 1_267_371,
    "stream table": 16_063_279,
    "arrival queue": 3_367_128,
}
EXPECTED = {
    "rate": 225_003.0,
    "io_per_tuple": 0.075,
    "hit_share": 0.58,
    "wait_seconds": 0.111,
    "exponent": 1.0,
    "basis": ["for tasks of 50,000 tuples", "skew: exponent 1.02 ± 0.03 from 10,000 tuples"],
}


def engine(i: int, hits: float, done: int) -> dict[str, Any]:
    """What the tasks of a batch might have measured."""
    return {
        "algorithm": "chybridjoin",
        "hit_ratio": hits,
        "front_hits": int(hits * done),
        "in_place_probes": 0,
        "pages_read": int(done * 0.2 * (1 - hits)),
        "bytes_read": int(done * 13_000 * (1 - hits)),
        "service_rate": 120_000 + 30_000 * math.sin(i / 40),
        "p99_seconds": 0.21,
        "peak_memory": 52 * MB + i % 7 * 20_000,
        "budget": 64 * MB,
        "tasks": 4,
        "task_seconds": done / 120_000,
        "plan": {
            "algorithm": "chybridjoin",
            "memory": 64 * MB,
            "sizes": ["partition 8 pages", "128 look-ups at a time"],
            "expected": EXPECTED,
        },
        "parts": PARTS,
    }


def outcomes(count: int, first: int = 0, at: float | None = None) -> list[Outcome]:
    """Batches of some 50,000 tuples, two seconds apart, the last of which has just ended."""
    rand = random.Random(first)
    begun = (time.time() if at is None else at) - 2.0 * count
    found: list[Outcome] = []
    totals, deferred, retry = Counts(), 0, 0
    for i in range(first, first + count):
        load = 50_000 * (1 + 0.3 * math.sin(i / 60)) * rand.uniform(0.9, 1.1)
        source = int(load)
        unmatched, rejected = int(source * 0.01), int(source * 0.002)
        put_off = int(max(load - 60_000, 0))
        joined = source - unmatched - rejected - put_off
        counts = Counts(source=source, joined=joined, unmatched=unmatched, rejected=rejected)
        counts = replace(counts, deferred=put_off, outputs=joined + unmatched)
        totals = totals.plus(counts)
        deferred = max(deferred + put_off - 1500, 0)
        retry = int(1800 + 600 * math.sin(i / 25))
        hits = min(0.35 + 0.3 * (1 - math.exp(-i / 50)) + rand.uniform(-0.02, 0.02), 1.0)
        seconds = source / 45_000 * rand.uniform(0.9, 1.15) + (2.5 if i % 997 == 400 else 0)
        found.append(
            Outcome(
                number=i,
                stream_batch=i,
                at=begun + 2.0 * (i - first),
                version=1 + (i - first) // max(count // 4, 1),
                counts=counts,
                totals=totals,
                seconds=seconds,
                capacity=None,
                waiting_retry=retry,
                waiting_deferred=deferred,
                engine=engine(i, hits, joined + unmatched),
            )
        )
    return found


def master(path: Path, versions: int = 5, rows: int = 2_000) -> ss.MasterTable:
    """A master with a history."""
    goods = pa.table({"id": range(rows), "name": [f"name of number {i}" for i in range(rows)]})
    made = ss.MasterTable.from_arrow(goods, path, key="id", page_bytes=4096)
    for i in range(1, versions):
        made = made.upsert(goods.slice(10 * i, 7))
    return made


def checkpoint(folder: Path, batches: list[Outcome], *, metrics: bool = True, **about: Any) -> Path:
    """A checkpoint with a log of the last thousand batches, and a file with a line for each."""
    folder.mkdir(exist_ok=True)
    place = folder / "checkpoint"
    home = place / "semistream"
    log = BatchLog(home)
    lines = folder / "metrics.jsonl"
    if metrics:
        lines.write_text(
            "".join(
                json.dumps({"pipeline": "sales", **metrics_line(one)}) + "\n" for one in batches
            )
        )
    for one in batches[-1000:]:
        finish(log, one)
    settings: dict[str, Any] = {
        "masters": {"": str(folder / "goods.master")},
        "memory": 64 * MB,
        "metrics": str(lines) if metrics else None,
        "started": "2026-01-01T08:00:00+00:00",
        "state": "stopped",
    }
    write_about(Folder.at(home), About("sales", **{**settings, **about}))
    return place


def finish(log: BatchLog, outcome: Outcome) -> None:
    """One more batch is done."""
    log.begin(BatchRecord(outcome.number, outcome.stream_batch, outcome.at, outcome.version))
    log.finish(outcome)


def add_line(path: Path, outcome: Outcome) -> None:
    """One more batch in a file of metrics."""
    append_line(path, {"pipeline": "sales", **metrics_line(outcome)})


if __name__ == "__main__":
    # python -m tests.page.made_up FOLDER BATCHES: something to look at.
    place = Path(sys.argv[1])
    place.mkdir(parents=True)
    master(place / "goods.master")
    print(checkpoint(place, outcomes(int(sys.argv[2]))))
