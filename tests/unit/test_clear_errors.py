"""Arguments and circumstances that used to end in an error of Python, Arrow or Numba."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import semistream as ss
from semistream.errors import (
    ArrivalOrderError,
    MasterNotFoundError,
    OptionError,
    StreamSchemaError,
)

BATCH = pa.record_batch({"id": pa.array(range(10), pa.int64())})


@pytest.fixture
def master(tmp_path: Path) -> ss.MasterTable:
    table = pa.table({"id": pa.array(range(1000), pa.int64()), "v": ["x" * 30] * 1000})
    return ss.MasterTable.from_arrow(table, tmp_path / "r", key="id", page_bytes=4096)


def engine(master: ss.MasterTable, **options: Any) -> ss.Engine:
    return ss.engine(master, on="id", memory="1MB", algorithm="hybridjoin", **options)


Refused = tuple[type[Exception], str, Callable[[ss.MasterTable], object]]
WRONG: dict[str, Refused] = {
    "a time long ago": (
        ArrivalOrderError,
        "finite number of at most 1e\\+12",
        lambda m: list(engine(m).run_timed([(-1e18, BATCH)])),
    ),
    "a time too large for a float": (
        ArrivalOrderError,
        "finite number",
        lambda m: list(engine(m).run_timed([(10**400, BATCH)])),
    ),
    "shape None": (StreamSchemaError, "NoneType", lambda m: engine(m).shape(None)),
    "clock that asks": (OptionError, "clock=", lambda m: engine(m, clock=lambda x: x)),
    "memory beyond all": (OptionError, "any machine", lambda m: ss.plan(m, memory=10**30)),
    "endless memory": (OptionError, "any machine", lambda m: ss.plan(m, memory="9" * 400 + "MB")),
    "delete None": (OptionError, "keys to delete are None", lambda m: m.delete(None)),
    "planned None": (StreamSchemaError, "NoneType", lambda m: engine(m).planned(None)),
    "planned 3": (StreamSchemaError, "int", lambda m: engine(m).planned(3)),
    "clock 3": (OptionError, "clock=3", lambda m: engine(m, clock=3)),
    "clock of texts": (OptionError, "gives 'a'", lambda m: engine(m, clock=lambda: "a")),
    "clock in nanoseconds": (OptionError, "seconds", lambda m: engine(m, clock=lambda: 1.7e18)),
    "version a": (OptionError, "version='a'", lambda m: ss.MasterTable.open(m.path, "a")),  # type: ignore[arg-type]
    "pinned 3": (OptionError, "pinned=3", lambda m: m.vacuum(pinned=3)),  # type: ignore[arg-type]
    "pinned a": (OptionError, r"pinned=\['a'\]", lambda m: m.vacuum(pinned=["a"])),  # type: ignore[list-item]
    "grace": (OptionError, "grace_seconds='x'", lambda m: m.vacuum(grace_seconds="x")),  # type: ignore[arg-type]
    "a file": (
        MasterNotFoundError,
        "/etc/passwd is a file",
        lambda m: ss.MasterTable.open("/etc/passwd"),
    ),
    "in a file": (
        MasterNotFoundError,
        "no master table",
        lambda m: ss.MasterTable.open("/etc/passwd/x"),
    ),
    "a long name": (
        MasterNotFoundError,
        "no master table",
        lambda m: ss.MasterTable.open("a" * 5000),
    ),
    "a null character": (OptionError, "null", lambda m: ss.MasterTable.open("a\0b")),
    "built in a file": (
        OptionError,
        "cannot be a folder",
        lambda m: ss.MasterTable.from_arrow(pa.table({"id": [1]}), "/etc/passwd/x", key="id"),
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_meant_is_said_clearly(master: ss.MasterTable, what: str) -> None:
    kind, words, ask = WRONG[what]
    with pytest.raises(kind, match=words):
        ask(master)


def test_a_version_that_was_vacuumed_names_the_newest(master: ss.MasterTable) -> None:
    newest = master.delete([1]).delete([2])
    newest.vacuum(keep_versions=1)
    with pytest.raises(MasterNotFoundError, match="of which 3 is the newest"):
        ss.MasterTable.open(master.path, version=1)


def test_vacuum_tells_what_it_could_not_remove(
    master: ss.MasterTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = master.delete([1])
    refused: list[Path] = []
    real = Path.unlink

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if path.name.endswith(".pages.arrow") or path.name.endswith(".json"):
            refused.append(path)
            raise OSError(30, "Read-only file system", str(path))
        real(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    # All rows are in new pages, so the old page file is not needed either.
    told = newest.compact().vacuum(keep_versions=1)
    assert refused
    assert sorted(Path(name).name for name in told.left) == sorted(path.name for path in refused)
    assert told.versions == ()
    there = {
        path.name
        for folder in ("data", "versions")
        for path in (Path(master.path) / folder).iterdir()
    }
    assert all(Path(name).name not in there for name in told.files)
    assert all(Path(name).name in there for name in told.left)
    monkeypatch.undo()
    assert ss.MasterTable.open(master.path).vacuum(keep_versions=1).versions == (1, 2)


FEW_FILES = """
import resource, sys
import pyarrow as pa
import semistream as ss

master = ss.MasterTable.open(sys.argv[1])
files = len(set(master.pages.file.tolist()))
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
assert files > 64
stream = pa.record_batch({"id": pa.array(range(3000), pa.int64())})
for options in ({"look_ups": 8, "io": "unmapped"}, {"io": "buffered"}, {"look_ups": 0}):
    found = ss.engine(
        master, algorithm="hybridjoin", on="id", memory="1MB", **options
    ).run([stream])
    assert sum(batch.num_rows for batch in found) == 3000
packed = master.upsert(pa.table({"id": [7], "v": ["y"]})).compact()
assert set(packed.pages.file.tolist()) == {0}
assert packed.row_count == 3000
"""


def test_a_master_of_more_files_than_may_be_open(tmp_path: Path) -> None:
    rows = pa.table({"id": pa.array(range(3000), pa.int64()), "v": ["x" * 90] * 3000})
    master = ss.MasterTable.from_arrow(rows, tmp_path / "r", key="id", page_bytes=4096)
    for start in range(0, 3000, 30):
        master = master.upsert(rows.slice(start, 1))
    subprocess.run([sys.executable, "-c", FEW_FILES, str(tmp_path / "r")], check=True)
