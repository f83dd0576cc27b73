"""Many small batches with updates, compaction and vacuum: nothing may grow.

    python -m tests.chaos.soak --minutes 60 [--results FILE] [--samples FILE]

A pipeline runs in this process, on Spark here. Between batches the master changes, and now and then
it is compacted and vacuumed. File handles, threads and resident memory of the driver, of Java and
of the Python workers, and the bytes on the disk, are sampled. After a first part, in which all warm
up, the slope of each over the rest of the run must be below what is allowed.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import semistream as ss
from tests.chaos.attack import CRASHED, FAULTS, LOST, TWICE, WRONG
from tests.chaos.results import Group
from tests.recovery.conftest import Process

KEYS: Final = 20_000
ROWS: Final = 2_000
WARM: Final = 0.4
"""The share of a run that is not judged: workers start, caches and logs fill."""
ALLOWED: Final = {
    "handles": 8.0,
    "threads": 8.0,
    "driver_mb": 16.0,
    "workers_mb": 24.0,
    "java_mb": 64.0,
    "heap_mb": 6.0,
    "disk_mb": 8.0,
}
"""How much may be added over the judged part of a run, whatever its length. The log keeps a
thousand batches, and Spark a hundred, so the first of a run add to the disk."""
SETTINGS: Final = {
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.sql.streaming.numRecentProgressUpdates": "5",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.hive.filesourcePartitionFileCacheSize": "0",
}
"""Spark remembers the last thousand jobs, a hundred batches, and 250 MB of listings of files. Here
it forgets them soon, so that the heap and the disk are as full as they get after a minute, and what
still grows is a leak."""
JAVA: Final = "-Xms768m -XX:+AlwaysPreTouch -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""All of the heap is resident from the start: what it really needs shows after it is cleaned up."""


class Sample(NamedTuple):
    """What is in use at one moment."""

    minutes: float
    batches: int
    handles: float
    """Of the driver and the Python workers."""
    threads: float
    driver_mb: float
    workers_mb: float
    java_mb: float
    heap_mb: float
    """Of Java's heap, what is alive."""
    disk_mb: float
    """Checkpoint and master, without what sinks and source hold."""


def growth(samples: Sequence[Sample], name: str) -> float:
    """How much the line through the later samples rises from the first to the last of them."""
    later = [one for one in samples if one.minutes >= WARM * samples[-1].minutes]
    minutes = np.array([one.minutes for one in later])
    values = np.array([float(getattr(one, name)) for one in later])
    if len(later) < 3 or minutes[-1] == minutes[0]:
        return 0.0
    slope = float(np.polyfit(minutes, values, 1)[0])
    return slope * float(minutes[-1] - minutes[0])


def too_much(samples: Sequence[Sample]) -> dict[str, float]:
    """What grows by more than is allowed, and by how much."""
    found = {name: growth(samples, name) for name in ALLOWED}
    return {name: round(more, 1) for name, more in found.items() if more > ALLOWED[name]}


class Soak:
    """A pipeline that runs on and on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.samples: list[Sample] = []
        self._random = np.random.default_rng(7)
        self._began = time.monotonic()
        self._written = 0
        (folder / "sales").mkdir()
        goods = pa.table({"id": range(KEYS), "name": [f"{key} of 1" for key in range(KEYS)]})
        self._master = ss.MasterTable.from_arrow(goods, folder / "goods.master", key="id")

    def run(self, minutes: float) -> str:
        """Let it run so long; what is wrong at the end, or nothing."""
        more = {**SETTINGS, "spark.driver.extraJavaOptions": JAVA}
        spark = ss.local_session(2, "768m", **more)
        reader = spark.readStream.schema("id long, n long").option("maxFilesPerTrigger", 1)
        # Files that are joined are removed, so that the source does not grow.
        reader = reader.option("cleanSource", "delete")
        self._arrive()
        pipeline = ss.Pipeline(
            reader.parquet(str(self.folder / "sales")),
            self.folder / "goods.master",
            on="id",
            sink=str(self.folder / "out"),
            unmatched=ss.Retry(backoff="2s", deadline="10s"),
            checkpoint=self.folder / "checkpoint",
            memory="2MB",
        ).start()
        end = time.monotonic() + 60 * minutes
        done = -1
        while time.monotonic() < end:
            status = pipeline.status()
            if status.state != "running":
                return f"it is {status.state}: {status.error}"
            if status.batch is not None and status.batch > done:
                done = status.batch
                self._arrive()
                self._change(done)
                if done % 5 == 0:
                    self._sample(done, _live_heap(spark))
            time.sleep(0.05)
        while pipeline.status().totals.source < self._written * ROWS:
            if pipeline.await_termination(0.2):
                break
        pipeline.stop()
        fault = self._fault(pipeline.status())
        spark.stop()
        return fault

    def _arrive(self) -> None:
        """The next sales; a few of them are of goods that are not known yet."""
        first = self._written * ROWS
        sales = pa.table(
            {
                "id": self._random.integers(0, KEYS + 50, ROWS),
                "n": np.arange(first, first + ROWS),
            }
        )
        hidden = self.folder / "sales" / f".{self._written}.parquet"
        pq.write_table(sales, hidden)
        hidden.rename(self.folder / "sales" / f"{self._written:08}.parquet")
        self._written += 1

    def _change(self, batch: int) -> None:
        """The master changes with each batch."""
        version = self._master.version + 1
        keys = self._random.choice(KEYS, 20, replace=False)
        names = [f"{key} of {version}" for key in keys]
        self._master = self._master.upsert(pa.table({"id": keys, "name": names}))
        if batch % 20 == 19:
            self._master = self._master.compact()
        if batch % 10 == 9:
            pinned = ss.pinned_versions(self.folder / "checkpoint")
            self._master.vacuum(keep_versions=2, pinned=pinned, grace_seconds=5)

    def _sample(self, batches: int, heap: float) -> None:
        root = Process.of(os.getpid())
        assert root is not None
        workers = [root, *root.below("pyspark.daemon")]
        java = root.below("org.apache.spark.deploy.SparkSubmit")
        sizes = [
            path.stat().st_size
            for name in ("checkpoint", "goods.master")
            for path in (self.folder / name).rglob("*")
            if path.is_file()
        ]
        self.samples.append(
            Sample(
                minutes=(time.monotonic() - self._began) / 60,
                batches=batches,
                handles=sum(len(_listed(f"/proc/{one.pid}/fd")) for one in workers),
                threads=sum(len(_listed(f"/proc/{one.pid}/task")) for one in workers),
                driver_mb=_resident(root),
                workers_mb=sum(map(_resident, workers[1:])),
                java_mb=sum(map(_resident, java)),
                heap_mb=heap,
                disk_mb=sum(sizes) / 1e6,
            )
        )

    def _fault(self, status: ss.Status) -> str:
        """Each sale is in the sink once, or waits, or has expired and is in the sink too."""
        found = [n for path in (self.folder / "out").glob("batch=*") for n in _numbers(path)]
        if len({*found}) < len(found):
            return f"{TWICE}: {len(found) - len({*found})} tuples"
        if {*found} - {*range(self._written * ROWS)}:
            return f"{WRONG}: tuples that never were"
        if len(found) + status.waiting_retry != self._written * ROWS:
            there = f"{len(found):,} and {status.waiting_retry:,} that wait"
            return f"{LOST}: {there}, of {self._written * ROWS:,}"
        return ""


def _live_heap(spark: SparkSession) -> float:
    """What Java's heap holds after it was cleaned up, in MB."""
    # Python holds objects of Java, some of them in cycles.
    gc.collect()
    java = spark.sparkContext._jvm
    assert java is not None
    java.java.lang.System.gc()
    beans: Any = java.java.lang.management.ManagementFactory
    return float(beans.getMemoryMXBean().getHeapMemoryUsage().getUsed()) / 1e6


def _listed(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _resident(process: Process) -> float:
    try:
        told = Path(f"/proc/{process.pid}/statm").read_text().split()
    except OSError:
        return 0.0
    return int(told[1]) * os.sysconf("SC_PAGESIZE") / 1e6


def _numbers(path: Path) -> list[int]:
    numbers: list[int] = pq.read_table(path, columns=["n"], partitioning=None)["n"].to_pylist()
    return numbers


def main() -> int:
    """Run, print what grew, and 1 if something grew too much."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--results", type=Path, help="a file to add a JSON line to")
    parser.add_argument("--samples", type=Path, help="a file for the samples, as JSON lines")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    began = time.monotonic()
    try:
        soak = Soak(folder)
        fault = soak.run(asked.minutes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    samples = soak.samples
    grown = too_much(samples) if len(samples) > 3 else {"samples": len(samples)}
    print(f"{samples[-1].batches if samples else 0} batches, {len(samples)} samples")
    for name, most in ALLOWED.items():
        values = [float(getattr(one, name)) for one in samples] or [0.0]
        more = growth(samples, name) if samples else 0.0
        ends = f"{values[0]:8.1f} at first, {values[-1]:8.1f} at last"
        print(f"{name:<12} {ends}, {more:+7.1f} of {most} by its slope")
    print(fault or (f"grows: {grown}" if grown else "all is flat"))
    kind = fault.partition(":")[0] if fault.partition(":")[0] in FAULTS else CRASHED
    faults = dict.fromkeys(FAULTS, 0) | ({kind: 1} if fault else {WRONG: 1} if grown else {})
    if asked.samples:
        asked.samples.write_text("".join(json.dumps(one._asdict()) + "\n" for one in samples))
    if asked.results:
        seconds = round(time.monotonic() - began, 1)
        batches = samples[-1].batches if samples else 0
        notes = [note for note in (fault, str(grown) if grown else "") if note]
        with open(asked.results, "a") as file:
            file.write(Group("soak", 7, 0, 1, batches, seconds, faults, notes).line())
    return 1 if fault or grown else 0


if __name__ == "__main__":
    sys.exit(main())
