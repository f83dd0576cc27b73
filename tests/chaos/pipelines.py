"""Kills of running pipelines, on one machine, on executors of their own and on a real cluster.

The pipeline has two sinks, rejects, defers and retries, and the master changes while it runs. Its
driver dies several times, at a crash point or at a seeded step; Python workers, executors and
standalone workers are killed in between. After the last run the books must balance: each tuple is
where it belongs, once, with the row of the version that its batch has on record, and nothing is on
the disk that should not be there.
"""

from __future__ import annotations

import atexit
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

import semistream as ss
from semistream.errors import SemistreamError
from tests.chaos.attack import FINE, LOST, TWICE, UNCLEAR, WRONG, Attack, Verdict
from tests.chaos.cluster import Cluster
from tests.chaos.small_disk import SmallDisk, small_disk
from tests.recovery.conftest import Process, Shop

POINTS: Final = (
    # A build that was killed runs again; one that is done does not.
    "job.swept",
    "task.pages",
    "log.begun",
    "task.files",
    "stage.told",
    "stage.moved",
    "folder.noted",
    "folder.moved",
    "become.noted",
    "become.moved",
    "deliver.sink",
    "deliver.all",
    "queue.put",
    "log.finished",
    "clean.queues",
    "clean.staging",
    "lease.taken",
    "publish.linked",
)
"""Where drivers and tasks are killed."""
IN_TASKS: Final = ("task.pages", "task.files")
"""Those that workers reach; the driver goes on."""
SIZES: Final = [2000 if i % 3 == 1 else 250 for i in range(7)]
"""Of the files of sales. A batch may join a thousand tuples or a few more; the rest is deferred."""
LONGEST: Final = 900.0
"""Seconds after which a run is taken to hang."""
ROOT: Final = Path(__file__).parents[2]
FULL: Final = re.compile("^told StorageError .*(No space left on device|folder could not be made)")
"""What a pipeline tells when its disk is full."""


@dataclass
class Killed:
    """A pipeline that is killed and started again, and who was killed."""

    shop: Shop
    rng: random.Random
    url: str
    rejected: Path
    scratch: Path
    """For logs, and for what Spark puts aside."""
    cluster: Cluster | None = None
    disk: SmallDisk | None = None
    is_full: bool = False
    has_hung: bool = False
    kills: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)
    """What it has said of errors."""

    def run(self, point: str = "", steps: dict[int, str] | None = None, driver: str = "") -> bool:
        """Run the pipeline to its end or death; whether it has come to its end.

        It dies at the crash point; at step number `i` a process of the kind `steps[i]` is killed.
        If the point is one of tasks, the driver may die at another.
        """
        mark = self.scratch / f"mark-{len(self.kills)}-{self.rng.getrandbits(40)}"
        local = str(self.scratch / "tmp")
        environment = self.shop._environment() | {"PYTHONPATH": _python_path()}
        environment |= {"SPARK_LOCAL_DIRS": local, "SPARK_WORKER_DIR": local}
        if point:
            environment |= {"SEMISTREAM_CRASH_AT": point, "SEMISTREAM_CRASH_MARK": str(mark)}
        command = [sys.executable, "-m", "tests.chaos.pipeline_script"]
        command += [str(self.shop.folder), str(self.rejected), self.url, driver]
        with (
            open(self.scratch / "log", "ab") as log,
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, env=environment, cwd=ROOT
            ) as started,
        ):
            root = Process.of(started.pid)
            assert root is not None
            family = [root]
            alarm = threading.Timer(LONGEST, self._give_up, (root,))
            alarm.start()
            try:
                is_done = self._follow(started, root, family, steps or {})
            finally:
                alarm.cancel()
                for process in (*family, *root.below()):
                    process.kill()
        if mark.exists():
            self.kills[point.partition(":")[0]] += 1
        if driver and started.returncode == -signal.SIGKILL:
            self.kills[driver] += 1
        if not is_done and started.returncode == 1 and not self.told:
            self.told.append("an error that is none of ours, see the log")
        return is_done

    def _follow(
        self,
        started: subprocess.Popen[bytes],
        root: Process,
        family: list[Process],
        steps: dict[int, str],
    ) -> bool:
        number, is_done = 0, False
        self.told = []
        assert started.stdout is not None
        for line in started.stdout:
            is_done = is_done or line.startswith(b"done")
            if line.startswith(b"told"):
                self.told.append(line.decode().strip())
            if line.startswith(b"step"):
                number += 1
                if number % 7 == 0 and not self.is_full:
                    self.shop.update()
                if number in steps:
                    family += root.below()
                    self._kill(steps[number], root)
        started.wait()
        return is_done

    def _give_up(self, root: Process) -> None:
        self.has_hung = True
        for process in (*root.below(), root):
            process.kill()

    def make_room(self) -> None:
        """The disk is not full any more."""
        if self.disk is not None:
            self.disk.empty()
            self.is_full = False

    def log(self) -> str:
        """What Spark and Python have said."""
        return (self.scratch / "log").read_text(errors="replace")

    def _kill(self, kind: str, root: Process) -> None:
        if kind == "full disk" and self.disk is not None:
            self.disk.fill(self.rng.randrange(self.rng.choice([1 << 13, 200_000])))
            self.is_full = True
            self.kills[kind] += 1
            return
        places = [root, *(self.cluster.workers if self.cluster else ())]

        def below(needle: str) -> list[Process]:
            return [process for place in places for process in place.below(needle)]

        victims: list[Process] = []
        if kind == "worker":
            daemons = below("pyspark.daemon")
            above = {daemon.pid for daemon in daemons}
            victims = [daemon for daemon in daemons if daemon.parent in above]
        elif kind == "executor":
            victims = below("CoarseGrainedExecutorBackend")
        elif kind == "standalone worker" and self.cluster is not None:
            victims = self.cluster.workers
        elif kind in ("java", "driver"):
            victims = root.below("org.apache.spark.deploy.SparkSubmit")
        if not victims:
            return
        victim = self.rng.choice(victims)
        victim.kill()
        self.kills[kind] += 1
        if kind == "driver":
            root.kill()
        if kind == "standalone worker" and self.cluster is not None:
            self.cluster.replace(victim)


def _python_path() -> str:
    return os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)])


def opened(folder: Path, seed: int) -> Shop:
    """A shop that is open for business, with rows for a build on Spark."""
    shop = Shop(folder, np.random.default_rng(seed), list(SIZES))
    shop.open()
    pq.write_table(_parts(), folder / "parts.parquet")
    return shop


def _parts() -> pa.Table:
    return pa.table({"id": range(300), "part": [f"part {i}" for i in range(300)]})


def judged(killed: Killed) -> tuple[str, str]:
    """The verdict on all that is there at the end."""
    for kind, note in _faults(killed.shop, killed.rejected):
        return kind, note
    return FINE, ""


def _faults(shop: Shop, rejected: Path) -> Iterator[tuple[str, str]]:
    home = shop.folder / "checkpoint" / "semistream"
    logged = sorted((home / "batches").glob("[0-9]*.json"))
    records = {
        int(path.name[:8]): json.loads(path.read_text())
        for path in logged
        if ".done." not in path.name
    }
    done = {int(path.name[:8]) for path in logged if ".done." in path.name}
    if {*records} != {*range(len(records))} or done != {*records}:
        yield WRONG, f"batch log: {sorted(records)} begun, {sorted(done)} done"
    bad = {n for n, key in shop.sold.items() if key is None or n % 11 == 0}
    turned = _rows(rejected, "n", "id", "reason")
    yield from _set_fault("rejected", [n for n, *_ in turned], bad)
    out = _rows(shop.folder / "out", "n", "id", "name", "batch")
    waiting = []
    for path in (home / "retry").glob("[0-9]*"):
        version = int(path.name.split("-")[5])
        for n, key in _rows(path, "n", "id"):
            waiting.append(n)
            if key in shop.versions[version]:
                yield WRONG, f"tuple {n} waits for {key}, which is in version {version}"
    yield from _set_fault("tuples", [*(n for n, *_ in out), *waiting], {*shop.sold} - bad)
    for n, key, name, batch in out:
        wanted = shop.versions[records[batch]["version"]].get(key)
        if key != shop.sold[n] or name != wanted:
            yield WRONG, f"tuple {n}: {key} {name} of batch {batch}, not {wanted}"
    yield from _strays(shop, home, rejected)
    totals = json.loads((home / "batches" / f"{max(done):08d}.done.json").read_text())["totals"]
    used = {record["version"] for record in records.values()}
    if min(totals["deferred"], totals["retried"], totals["rejected"], len(used) - 1) == 0:
        yield UNCLEAR, f"not all that a pipeline can do was done: {totals}, versions {used}"
    parts = ss.MasterTable.open(shop.folder / "parts.master")
    with ss.engine(parts, on="id", memory="1MB") as engine:
        found = pa.Table.from_batches(engine.run([pa.record_batch({"id": np.arange(300)})]))
    if found.sort_by("id").to_pylist() != _parts().to_pylist():
        yield WRONG, "the build on Spark"


def _set_fault(what: str, found: list[int], wanted: set[int]) -> Iterator[tuple[str, str]]:
    if {*found} - wanted:
        yield WRONG, f"{what}: {sorted({*found} - wanted)[:5]} should not be there"
    if wanted - {*found}:
        yield LOST, f"{what}: {len(wanted - {*found})}, as {sorted(wanted - {*found})[:5]}"
    if len({*found}) < len(found):
        yield TWICE, f"{what}: {[n for n, times in Counter(found).items() if times > 1][:5]}"


def _strays(shop: Shop, home: Path, rejected: Path) -> Iterator[tuple[str, str]]:
    """Files that should not be there."""
    found = [*(home / "staging").rglob("*"), *(home / "deferred").rglob("*")]
    found += [path for path in (home / "batches").iterdir() if path.name.startswith(".")]
    found += [path for path in (home / "lease").iterdir() if path.name.startswith(".")]
    found += [path for path in (shop.folder / "out").rglob("*") if _is_odd(path)]
    found += [path for path in rejected.rglob("*") if _is_odd(path) and path.suffix != ".crc"]
    for name in ("goods.master", "parts.master"):
        ss.MasterTable.open(shop.folder / name).vacuum(keep_versions=1, grace_seconds=-1)
        (manifest,) = (shop.folder / name / "versions").iterdir()
        told = json.loads(manifest.read_text())
        files = [*told["page_files"], *told["locator_files"], *told["files"].values()]
        named = {file["name"] for file in files}
        found += [p for p in (shop.folder / name / "data").iterdir() if p.name not in named]
    if found:
        yield (
            WRONG,
            f"stray files: {[str(path.relative_to(path.parents[2])) for path in found][:5]}",
        )


def _is_odd(path: Path) -> bool:
    kept = ("part-", "batch=", "_committed.json", "_semistream.json", "_SUCCESS")
    return not path.name.startswith(kept)


def _rows(path: Path, *columns: str) -> list[tuple[Any, ...]]:
    if not path.exists():
        return []
    table = ds.dataset(path, format="parquet", partitioning="hive").to_table(columns=list(columns))
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


_clusters: Final[list[Cluster]] = []
"""The cluster of this process, once there is one: it serves all cases."""


def _cluster() -> Cluster:
    if not _clusters:
        folder = Path(tempfile.mkdtemp(prefix="chaos-cluster-"))
        made = Cluster(folder)
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        atexit.register(made.close)
        _clusters.append(made)
    return _clusters[0]


def _case(where: str) -> Callable[[random.Random, Path], Verdict]:
    def case(rng: random.Random, folder: Path) -> Verdict:
        cluster = _cluster() if where == "standalone" else None
        url = {"local": "local[2,12]", "executors": "local-cluster[2,1,1024]"}.get(where)
        rejected = Path(tempfile.mkdtemp(prefix="chaos-", dir=_elsewhere())) / "rejected"
        try:
            (folder / "shop").mkdir()
            shop = opened(folder / "shop", rng.getrandbits(32))
            there = url or (cluster.url if cluster else "")
            killed = Killed(shop, rng, there, rejected, folder, cluster)
            return _tortured(killed, rng, where)
        except SemistreamError:
            # After a kill there is no reason for any error.
            return Verdict(LOST, traceback.format_exc(limit=-4))
        finally:
            shutil.rmtree(rejected.parent, ignore_errors=True)

    return case


def _elsewhere() -> str | None:
    """Another filesystem, if there is one: there Spark must write what elsewhere is handed over."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _tortured(killed: Killed, rng: random.Random, where: str) -> Verdict:
    kinds = {"local": ["worker"], "executors": ["worker", "executor"]}
    victims = kinds.get(where, ["worker", "executor", "standalone worker"])
    note = ""
    # Executors and their workers take long to start.
    rounds, kills = (3, 8) if where == "local" else (2, 5)
    for _ in range(rounds):
        steps = {rng.randint(2, 40): rng.choice(victims) for _ in range(kills)}
        point = ""
        if rng.random() < 0.6:
            point = f"{rng.choice(POINTS)}:{rng.choice([1, 2, 3])}"
        else:
            steps[rng.randint(10, 25)] = rng.choice(["driver", "java"])
        killed.run(point, steps)
        note += f"{point} {steps}; "
        if killed.told and "SparkLostError" not in killed.told[0]:
            return _verdict(killed, UNCLEAR, f"{killed.told[0]} ({note})")
    steps = {rng.randint(2, 40): rng.choice(victims) for _ in range(kills)}
    if not killed.run("", steps) and not killed.run():
        return _verdict(killed, UNCLEAR, f"it does not end: {killed.told} ({note})")
    kind, fault = judged(killed)
    return _verdict(killed, kind, f"{fault} ({note})")


def _full_disk(rng: random.Random, folder: Path) -> Verdict:
    """A disk is full at a seeded step; later there is room.

    It has all of checkpoint, sinks and master, or one sink alone: to that Spark itself writes.
    """
    with small_disk(folder / "disk", 64 << 20) as disk:
        place = disk.folder if rng.random() < 0.5 else folder / "shop"
        place.mkdir(exist_ok=True)
        shop = opened(place, rng.getrandbits(32))
        rejected = disk.folder / "rejected"
        killed = Killed(shop, rng, "local[2,4]", rejected, folder, disk=disk)
        try:
            for _ in range(3):
                is_done = killed.run("", {rng.randint(2, 40): "full disk"})
                killed.make_room()
                if not is_done and not (killed.told and FULL.search(killed.told[0])):
                    return _verdict(killed, UNCLEAR, f"a full disk was told as {killed.told}")
            if not killed.run():
                return _verdict(killed, UNCLEAR, f"with room it does not go on: {killed.told}")
            return _verdict(killed, *judged(killed))
        except SemistreamError:
            return Verdict(LOST, traceback.format_exc(limit=-4))


def _verdict(killed: Killed, kind: str, note: str) -> Verdict:
    if killed.has_hung and kind == FINE:
        kind, note = UNCLEAR, f"a run did not end within {LONGEST} seconds ({note})"
    if kind != FINE:
        last = killed.log().splitlines()[-25:]
        note += f"\n{dict(killed.kills)}\n" + "\n".join(last)
    return Verdict(kind, note, killed.kills.total())


_WHERE: Final = ("local", "executors", "standalone")
ATTACKS: Final = (
    *(Attack(f"kills of pipelines, {place}", _case(place), 4, quick=False) for place in _WHERE),
    Attack("pipelines on a full disk", _full_disk, per_child=4, quick=False),
)
