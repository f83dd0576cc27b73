"""A disk that is full, read-only or closed to this user is a clear error, and nothing is lost."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import semistream as ss
from semistream.errors import SemistreamError, StorageError
from semistream.relation.storage.local import LocalStorage

ROWS = pa.table({"id": range(50), "name": [f"n{i}" for i in range(50)]})
MORE = pa.table({"id": [7, 70], "name": ["a", "b"]})
ADVICE = {
    errno.ENOSPC: "Make room there",
    errno.EROFS: "a disk that can be written to",
    errno.EACCES: "rights",
    errno.EIO: "Look whether the disk",
}
WAYS: dict[str, Callable[[ss.MasterTable, Path], Any]] = {
    "build": lambda _, path: ss.MasterTable.from_arrow(ROWS, path / "other", key="id"),
    "replace": lambda _, path: ss.MasterTable.from_arrow(ROWS, path / "r", key="id", replace=True),
    "upsert": lambda master, _: master.upsert(MORE),
    "delete": lambda master, _: master.delete([7]),
    "compact": lambda master, _: master.compact(),
}


@pytest.fixture
def master(tmp_path: Path) -> ss.MasterTable:
    return ss.MasterTable.from_arrow(ROWS, tmp_path / "r", key="id", filter_bits=10)


@pytest.mark.parametrize("call", ["prepare", "open_sink", "write", "settle", "publish"])
@pytest.mark.parametrize("number", ADVICE)
@pytest.mark.parametrize("way", WAYS)
def test_a_change_that_the_disk_refuses(
    way: str,
    number: int,
    call: str,
    master: ss.MasterTable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), "a file")

    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, call, refuse)
        with pytest.raises(StorageError) as told:
            WAYS[way](master, tmp_path)
    assert str(tmp_path) in str(told.value)
    assert os.strerror(number) in str(told.value)
    assert ADVICE[number] in str(told.value)
    assert told.value.errno == number
    assert isinstance(told.value, SemistreamError)
    assert isinstance(told.value, OSError)
    assert ss.MasterTable.latest_version(tmp_path / "r") == 1
    WAYS[way](master, tmp_path)


@pytest.mark.parametrize("name", ["open", "latest_version", "history", "vacuum", "upsert"])
def test_a_folder_that_cannot_be_listed(
    name: str, master: ss.MasterTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "versions")

    monkeypatch.setattr(LocalStorage, "entries", refuse)
    calls: dict[str, Callable[[], Any]] = {
        "open": lambda: ss.MasterTable.open(tmp_path / "r"),
        "latest_version": lambda: ss.MasterTable.latest_version(tmp_path / "r"),
        "history": master.history,
        "vacuum": master.vacuum,
        "upsert": lambda: master.upsert(MORE),
    }
    with pytest.raises(StorageError, match=r"r cannot be read: .*Permission denied.*rights"):
        calls[name]()
