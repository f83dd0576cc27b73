"""A shop whose pipeline runs in another process, and is killed, and whose books must balance."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pyspark
import pytest

import semistream as ss
from semistream.spark.pipeline.batch_log import BatchLog
from semistream.spark.pipeline.queues import QueueEntry

KEYS = 500
# Every pipeline may join a thousand tuples a batch, or a few more: the long ones are too long.
SIZES = [2000 if i % 4 == 1 else 300 for i in range(12)]
SCRIPT = Path(__file__).with_name("shop_script.py")


class Process(NamedTuple):
    """A process, not to be taken for a later one of the same number."""

    pid: int
    parent: int
    began: int
    command: str

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """The process that has this number now."""
        try:
            numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        except OSError:
            return None
        return cls(pid, int(numbers[1]), int(numbers[19]), command.decode(errors="replace"))

    def below(self, needle: str = "") -> list[Process]:
        """The processes that it has started, and those have, with the needle in their command."""
        numbers = (int(path.name) for path in Path("/proc").glob("[0-9]*"))
        known = [process for process in map(Process.of, numbers) if process is not None]
        found: list[Process] = []
        new = {self.pid}
        while new:
            children = [process for process in known if process.parent in new]
            found += children
            new = {process.pid for process in children}
        return [process for process in found if needle in process.command]

    def kill(self) -> None:
        """Kill it, if it is still this one."""
        now = Process.of(self.pid)
        if now is not None and now.began == self.began:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


Kill = Callable[["Shop", Process], None]


@dataclass
class Shop:
    folder: Path
    random: np.random.Generator
    sizes: list[int] = field(default_factory=lambda: SIZES)
    """How many sales each file has."""
    names: dict[int, str] = field(default_factory=dict)
    versions: dict[int, dict[int, str]] = field(default_factory=dict)
    """What each version of the master holds, as the test knows it."""
    master: Any = None
    sold: dict[int, int | None] = field(default_factory=dict)
    killed: int = 0
    is_done: bool = False

    def open(self) -> None:
        """Write the sales, and the first version of the goods: some are not known yet."""
        (self.folder / "sales").mkdir()
        for i, rows in enumerate(self.sizes):
            ids = np.minimum(self.random.zipf(1.2, rows) * 13 % (KEYS + 40), KEYS + 39)
            column = pa.array(ids, mask=self.random.random(rows) < 0.02)
            numbers = range(len(self.sold), len(self.sold) + rows)
            pq.write_table(
                pa.table({"id": column, "n": numbers}), self.folder / "sales" / f"{i:04d}.parquet"
            )
            self.sold |= dict(zip(numbers, column.to_pylist(), strict=True))
        self.names = {key: f"{key} at first" for key in range(0, KEYS, 2)}
        path = self.folder / "goods.master"
        self.master = ss.MasterTable.from_arrow(self._goods(self.names), path, key="id")
        self.versions[1] = dict(self.names)

    def update(self) -> None:
        """A new version: some goods change their names, some are new."""
        version = self.master.version + 1
        keys = self.random.choice(KEYS, 25, replace=False).tolist()
        changed = {key: f"{key} in {version}" for key in keys}
        self.master = self.master.upsert(self._goods(changed))
        assert self.master.version == version
        self.names |= changed
        self.versions[version] = dict(self.names)

    def run(self, spark_master: str, kills: dict[int, Kill] | None = None) -> int:
        """The pipeline in a process, up to its end or its death; the steps it has told.

        At step number `i` what `kills[i]` does happens; every few steps the master changes.
        """
        command = [sys.executable, str(SCRIPT), str(self.folder), spark_master]
        with (
            open(self.folder / "log", "ab") as log,
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment(),
                cwd=self.folder,
            ) as started,
        ):
            root = Process.of(started.pid)
            assert root is not None
            family = [root]
            try:
                return self._follow(started, root, kills or {}, family)
            finally:
                for process in (*family, *root.below()):
                    process.kill()

    def kill_driver(self, root: Process) -> None:
        """The Java process that runs the query, and the Python process that decides."""
        (java,) = root.below("org.apache.spark.deploy.SparkSubmit")
        java.kill()
        root.kill()

    def kill_worker(self, root: Process) -> None:
        """A Python worker, one at random of those there are."""
        daemons = root.below("pyspark.daemon")
        above = {daemon.pid for daemon in daemons}
        workers = [daemon for daemon in daemons if daemon.parent in above]
        self._kill_one(workers)

    def kill_executor(self, root: Process) -> None:
        """An executor, one at random."""
        self._kill_one(root.below("CoarseGrainedExecutorBackend"))

    def _kill_one(self, processes: list[Process]) -> None:
        if processes:
            processes[int(self.random.integers(len(processes)))].kill()
            self.killed += 1

    def _environment(self) -> dict[str, str]:
        local = str(self.folder / "tmp")
        return {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_LOCAL_DIRS": local,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_WORKER_DIR": local,
        }

    def _follow(
        self,
        started: subprocess.Popen[bytes],
        root: Process,
        kills: dict[int, Kill],
        family: list[Process],
    ) -> int:
        steps, self.is_done = 0, False
        assert started.stdout is not None
        for line in started.stdout:
            self.is_done = self.is_done or line.startswith(b"done")
            if not line.startswith(b"step"):
                continue
            steps += 1
            if steps % 9 == 0:
                self.update()
            if steps in kills:
                family += root.below()
                kills[steps](self, root)
        return steps

    def check(self) -> None:
        """The warehouse against the oracle, row for row."""
        home = self.folder / "checkpoint" / "semistream"
        log = BatchLog(home)
        assert log.unfinished is None
        records = {record.number: record for record in log.records()}
        assert sorted(records) == list(range(len(records)))
        outcomes = list(log.outcomes(-1))
        for outcome in outcomes:
            counts = outcome.counts
            went = counts.joined + counts.unmatched + counts.deferred + counts.rejected
            assert counts.arrived == went, outcome
        rejected = self._rows(self.folder / "rejected", "n", "id", "reason")
        wrong = {n for n, key in self.sold.items() if key is None or n % 11 == 0}
        assert sorted(n for n, *_ in rejected) == sorted(wrong)
        for n, key, reason in rejected:
            assert key == self.sold[n]
            assert reason == ("id is null" if key is None else "n divides by eleven")
        out = self._rows(self.folder / "out", "n", "id", "name", "batch")
        for n, key, name, batch in out:
            assert key == self.sold[n]
            assert name == self.versions[records[batch].version][key], (n, key, name, batch)
        absent = self._waiting(home / "retry")
        # Nothing is lost, and nothing is there twice.
        assert sorted([*(n for n, *_ in out), *absent]) == sorted(set(self.sold) - wrong)
        assert absent
        # All that a pipeline can do has been done, more than once.
        assert sum(record.stream_batch is not None for record in records.values()) == len(
            self.sizes
        )
        assert len({record.version for record in records.values()}) > 5
        totals = outcomes[-1].totals
        assert min(totals.deferred, totals.retried, totals.rejected) > 0
        assert totals.returned == totals.deferred
        assert totals.source == sum(self.sizes)
        assert list((home / "deferred").glob("[0-9]*")) == []

    def _waiting(self, queue: Path) -> list[int]:
        """The tuples in the retry queue: not one of them was in the version it was sought in."""
        found = []
        for path in queue.glob("[0-9]*"):
            entry = QueueEntry.parse(path.name)
            assert entry is not None
            rows = self._rows(path, "n", "id")
            assert len(rows) == entry.rows
            assert all(key not in self.versions[entry.version] for _, key in rows)
            found += [n for n, _ in rows]
        return found

    def _rows(self, path: Path, *columns: str) -> list[tuple[Any, ...]]:
        table = ds.dataset(path, partitioning="hive").to_table(columns=list(columns))
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))

    def _goods(self, names: dict[int, str]) -> pa.Table:
        return pa.table({"id": list(names), "name": list(names.values())})


@pytest.fixture
def shop(tmp_path: Path, seed: int) -> Shop:
    """A shop that is open for business."""
    made = Shop(tmp_path, np.random.default_rng(seed))
    made.open()
    return made
