"""Faults of the file system, at seeded calls: full, read-only, failing, short, vanishing, slow.

The faults are under the `Storage` protocol, so build, update, compaction, vacuum and joins all meet
them. After a fault the caller must have an error that says what is wrong, a reader must still see a
whole version, and once the disk is well again the same work must succeed.
"""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

import semistream as ss
from semistream.errors import SemistreamError
from semistream.relation.storage import LocalStorage, PageSource
from tests.chaos.attack import Attack, Verdict

WRITES: Final = ("write", "open_sink", "settle", "publish")
IO: Final = ("buffered", "unmapped", "direct")
KEYS: Final = 400
READS: Final = ("read", "read_into", "open_pages", "page")
KINDS: Final = {
    "full": (WRITES, errno.ENOSPC),
    "read-only": (WRITES, errno.EROFS),
    "failing": (WRITES + READS, errno.EIO),
    "short": (("write", "open_sink", "read_into", "page"), None),
    "vanished": (READS, errno.ENOENT),
    "shrunk": (("read_into", "open_pages", "page"), None),
    "slow": (READS, None),
    "hanging": (READS, None),
    "killed": ((*WRITES, "remove"), None),
}
"""What goes wrong, and in which calls; "killed" ends the process there, as kill -9 does. A "shrunk"
file is cut to its half; a "slow" read, and a "hanging" one, is right in the end."""
SECONDS: Final = {"slow": 0.005, "hanging": 0.5}


class Faults:
    """Lets the call of a given number fail, and all after it if the fault stays."""

    def __init__(self, kind: str, at: int, stays: bool) -> None:
        self.kind, self.at, self.stays = kind, at, stays
        self.calls, self.struck = 0, 0
        self._cut: dict[Path, bytes] = {}

    def strikes(self, call: str) -> bool:
        """Whether this call is one that fails."""
        calls, _ = KINDS[self.kind]
        if call not in calls:
            return False
        self.calls += 1
        hit = self.calls == self.at or (self.stays and self.calls > self.at)
        self.struck += hit
        if hit and self.kind == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if hit and self.kind in SECONDS:
            time.sleep(SECONDS[self.kind] if self.kind == "slow" or self.struck == 1 else 0)
            return False
        return hit

    def shrink(self, path: Path) -> None:
        """Cut a file to its half, until `mend`."""
        if path.is_file():
            self._cut.setdefault(path, path.read_bytes())
            os.truncate(path, path.stat().st_size // 2)

    def mend(self) -> None:
        """Give files that were cut their content again."""
        for path, data in self._cut.items():
            path.write_bytes(data)
        self._cut.clear()

    def error(self, name: object) -> OSError:
        """The error of the operating system."""
        number = KINDS[self.kind][1] or errno.ENOSPC
        return OSError(number, os.strerror(number), str(name))


class _FaultySink:
    """A file whose writes may fail half-way."""

    def __init__(self, path: Path, faults: Faults) -> None:
        self._file, self._faults, self._path = open(path, "wb"), faults, path  # noqa: SIM115
        self.closed = False

    def write(self, data: Any) -> int:
        if self._faults.strikes("open_sink"):
            self._file.write(memoryview(data)[: len(data) // 2])
            raise self._faults.error(self._path)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self.closed = True
        self._file.close()


class _FaultySource:
    """Pages whose reads may fail, or give less than there is."""

    descriptor = -1

    def __init__(self, source: PageSource, path: Path, faults: Faults) -> None:
        self._source, self._path, self._faults = source, path, faults

    def read_into(self, memory: memoryview, position: int) -> int:
        if not self._faults.strikes("page"):
            return self._source.read_into(memory, position)
        if self._faults.kind == "short":
            return self._source.read_into(memory[: len(memory) // 2], position)
        if self._faults.kind == "shrunk":
            self._faults.shrink(self._path)
            return self._source.read_into(memory, position)
        raise self._faults.error(self._path)

    def close(self) -> None:
        self._source.close()


@contextmanager
def injected(faults: Faults) -> Iterator[None]:
    """While open, local storage has these faults."""
    names = [name for name in (*WRITES, *READS, "remove") if name != "page"]
    kept = {name: getattr(LocalStorage, name) for name in names}

    def failing(name: str) -> Callable[..., Any]:
        def call(self: LocalStorage, *arguments: Any, **named: Any) -> Any:
            if not faults.strikes(name):
                return kept[name](self, *arguments, **named)
            if faults.kind == "shrunk":
                faults.shrink(self.path / arguments[0])
                return kept[name](self, *arguments, **named)
            if faults.kind == "short" and name == "read_into":
                view = arguments[1]
                return kept[name](self, arguments[0], view[: len(view) // 2])
            if name == "write":
                # As a full disk does: some bytes are there, and then no more.
                half = bytes(arguments[1])[: len(arguments[1]) // 2]
                (self.path / arguments[0]).write_bytes(half)
            raise faults.error(self.shown(arguments[0]) if name != "settle" else self.path)

        return call

    def open_sink(self: LocalStorage, name: str) -> pa.NativeFile:
        return pa.PythonFile(_FaultySink(self.path / name, faults), "w")

    def open_pages(self: LocalStorage, name: str, direct: bool) -> PageSource:
        if faults.strikes("open_pages"):
            if faults.kind != "shrunk":
                raise faults.error(self.shown(name))
            faults.shrink(self.path / name)
        return _FaultySource(kept["open_pages"](self, name, direct), self.path / name, faults)

    replaced = {name: failing(name) for name in kept}
    replaced |= {"open_sink": open_sink, "open_pages": open_pages}
    for name, method in replaced.items():
        setattr(LocalStorage, name, method)
    try:
        yield
    finally:
        for name, method in kept.items():
            setattr(LocalStorage, name, method)
        faults.mend()


Rows = dict[int, str]


class Operation(NamedTuple):
    """One step at a master table, which a process of its own can do too."""

    name: str
    path: Path | str
    rows: Rows = {}  # noqa: RUF012 (never changed)
    """Rows to put in, or whose keys to delete."""
    algorithm: str = ""
    want: Mapping[int, Rows] = {}
    """What each version holds, for a join."""
    layout: str = "key"

    def perform(self) -> None:
        """Do it."""
        if self.name == "build":
            built(self.rows, self.path, self.layout)
            return
        master = ss.MasterTable.open(self.path)
        if self.name == "upsert":
            master.upsert(table(self.rows))
        elif self.name == "delete":
            master.delete(pa.table({"id": sorted(self.rows)}))
        elif self.name == "compact":
            master.compact()
        elif self.name == "vacuum":
            master.vacuum(keep_versions=1, grace_seconds=0)
        else:
            joined(self.path, self.want, self.algorithm)

    def run(self, faults: Faults) -> None:
        """Do it on a local disk with these faults."""
        with injected(faults):
            self.perform()


class Shop:
    """A master table, with what each version must hold by a plain dict."""

    def __init__(self, path: Path | str, random: np.random.Generator, layout: str = "key") -> None:
        self.path, self.random, self.layout = path, random, layout
        self.versions: dict[int, Rows] = {}
        self._made = 0

    def fresh(self, count: int) -> Rows:
        """Rows of random keys, unlike all before."""
        self._made += 1
        keys = self.random.choice(KEYS, count, replace=False).tolist()
        return {key: f"{key} of {self._made}" for key in keys}

    def operation(self, name: str = "") -> tuple[Operation, Rows | None]:
        """A step, at random unless named, and the rows of the version that it makes, if any."""
        if not self.versions:
            rows = self.fresh(KEYS // 2)
            return Operation("build", self.path, rows, layout=self.layout), rows
        now = self.versions[max(self.versions)]
        steps = ["upsert", "delete", "compact", "vacuum", "join", "join"]
        name = name or str(self.random.choice(steps))
        rows = self.fresh(30) if name in ("upsert", "delete") else {}
        after = {
            "upsert": now | rows,
            "delete": {key: value for key, value in now.items() if key not in rows},
            "compact": now,
        }
        algorithm = str(self.random.choice(list(ss.ALGORITHMS)))
        return Operation(name, self.path, rows, algorithm, dict(self.versions)), after.get(name)


class WrongRowsError(AssertionError):
    """Rows that are not those of the version."""


PROCESSES: Final = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.chaos.crashes", "tests.chaos.storage_faults"])


def table(rows: Rows) -> pa.Table:
    """The rows as Arrow has them."""
    kinds = pa.schema([("id", pa.int64()), ("name", pa.string())])
    return pa.table({"id": list(rows), "name": list(rows.values())}, schema=kinds)


def built(rows: Rows, path: Path | str, layout: str = "key") -> None:
    """Build a master table of the rows."""
    given = table(rows)
    ss.MasterTable.from_arrow(given, path, key="id", page_bytes=4096, filter_bits=8, layout=layout)


def joined(
    path: Path | str, want: Mapping[int, Rows], algorithm: str, io: str = "unmapped"
) -> None:
    """Join all keys with the newest version, and compare."""
    master = ss.MasterTable.open(path)
    rows = want[master.version]
    batch = pa.record_batch({"id": np.arange(KEYS)})
    with ss.engine(
        master, on="id", memory="256KB", how="left", algorithm=algorithm, io=io
    ) as engine:
        found = pa.Table.from_batches(list(engine.run([batch])))
    names = dict(zip(found["id"].to_pylist(), found["name"].to_pylist(), strict=True))
    if found.num_rows != KEYS or names != {key: rows.get(key) for key in range(KEYS)}:
        raise WrongRowsError(f"version {master.version} by {algorithm}")


def _case(kinds: Sequence[str]) -> Callable[[random.Random, Path], Verdict]:
    """A history of some operations, each of which meets a fault of one of these kinds."""

    def case(rng: random.Random, folder: Path) -> Verdict:
        shop = Shop(folder / "goods.master", np.random.default_rng(rng.getrandbits(64)))
        struck = 0
        for _ in range(6):
            faults = Faults(
                rng.choice(kinds), rng.randint(1, rng.choice([4, 12, 24])), rng.random() < 0.5
            )
            verdict = _struck(shop, faults)
            struck += faults.struck > 0
            if verdict != "ok":
                return judged(verdict)
        return Verdict(struck=struck)

    return case


def judged(told: str) -> Verdict:
    """A verdict from what was told: "lost: where and how"."""
    kind, _, note = told.partition(": ")
    return Verdict(kind, note)


def _struck(shop: Shop, faults: Faults) -> str:
    """One operation that meets a fault; what is there afterwards must be whole."""
    where = f"{faults.kind} at call {faults.at}"
    verdict = tried(shop, lambda operation: _run(operation, faults), where)
    if verdict == "ok" and shop.random.integers(4) == 0:
        ss.MasterTable.open(shop.path).vacuum(keep_versions=1, grace_seconds=0)
        joined(shop.path, shop.versions, "meshjoin")
        return left_over(shop.path, max(shop.versions), where)
    return verdict


def tried(shop: Shop, run: Callable[[Operation], str], where: str, name: str = "") -> str:
    """Let an operation run, and look whether all that must be there is there."""
    operation, after = shop.operation(name)
    where = f"{operation.name} {where}"
    before = max(shop.versions, default=0)
    if after is not None:
        # The version may be made although the caller is told of an error.
        shop.versions[before + 1] = after
    said = run(operation)
    if said not in ("done", "refused", "killed"):
        return f"{said} ({where})"
    try:
        made = ss.MasterTable.latest_version(shop.path)
    except SemistreamError as error:
        made = 0
        if before:
            return f"lost: {error} ({where})"
    shop.versions = {number: rows for number, rows in shop.versions.items() if number <= made}
    if said == "done" and after is not None and made != before + 1:
        return f"lost: it was done, but {made} is the newest version ({where})"
    return _mended(shop, where)


def _run(operation: Operation, faults: Faults) -> str:
    """How the operation ended."""
    if faults.kind == "killed" and operation.name != "join":
        # A join writes nothing: there is no call where it could be killed.
        child = PROCESSES.Process(target=operation.run, args=(faults,))
        child.start()
        child.join()
        faults.struck = int(child.exitcode == -signal.SIGKILL)
        return {0: "done", -signal.SIGKILL: "killed"}.get(child.exitcode or 0, "crashed: a child")
    return ended(lambda: operation.run(faults), lambda: faults.struck > 0)


def ended(run: Callable[[], None], struck: Callable[[], bool]) -> str:
    """How an operation ends in this process."""
    try:
        run()
    except (SemistreamError, OSError) as error:
        return "refused" if struck() else f"unclear: {error!r} without a fault"
    except WrongRowsError as error:
        return f"wrong: {error}"
    except Exception as error:
        return f"unclear: {error!r}"
    return "done"


def _mended(shop: Shop, where: str) -> str:
    """With a disk that is well, readers see whole versions, and work goes on."""
    try:
        if not shop.versions:
            rows = shop.fresh(KEYS // 2)
            built(rows, shop.path)
            shop.versions[1] = rows
        io = str(shop.random.choice(IO)) if isinstance(shop.path, Path) else "buffered"
        joined(shop.path, shop.versions, "hybridjoin", io)
    except WrongRowsError as error:
        return f"wrong: {error} (after {where})"
    except Exception as error:
        return f"lost: {error!r} (after {where})"
    return "ok"


def left_over(path: Path | str, version: int, where: str) -> str:
    """After a vacuum nothing is on disk that the newest version does not name."""
    name = f"{version:08d}.json"
    manifest = json.loads((Path(path) / "versions" / name).read_text())
    files = [*manifest["page_files"], *manifest["locator_files"], *manifest["files"].values()]
    stray = {one.name for one in (Path(path) / "data").iterdir()} - {f["name"] for f in files}
    stray |= {one.name for one in (Path(path) / "versions").iterdir()} - {name}
    return f"lost: stray files {sorted(stray)} ({where})" if stray else "ok"


ATTACKS: Final = (
    Attack("faults of the file system", _case([kind for kind in KINDS if kind != "killed"])),
    Attack("kills of build and update", _case(["killed"]), per_child=10),
)
