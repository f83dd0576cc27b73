"""The learned file: written whole, read back, and nothing but a hint."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import xxhash

from semistream.parts.learned import Learned
from semistream.spark.learned_file import LearnedFile

KEYS = Learned(np.array([70, -3, 1 << 60]), np.array([9.0, 4.0, 0.5], np.float32))


def told(learned: Learned) -> list[tuple[int, float]]:
    return list(zip(learned.codes.tolist(), learned.frequency.tolist(), strict=True))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "learned"


def written(folder: Path) -> Path:
    LearnedFile(str(folder), "a join").write(KEYS)
    (path,) = folder.iterdir()
    return path


def test_what_was_written_is_read(folder: Path) -> None:
    written(folder)
    assert told(LearnedFile(str(folder), "a join").read(10)) == told(KEYS)
    assert told(LearnedFile(str(folder), "a join").read(2)) == told(KEYS)[:2]
    assert told(LearnedFile(str(folder), "another join").read(10)) == []


def test_every_damage_is_noticed(folder: Path) -> None:
    path = written(folder)
    whole = path.read_bytes()
    file = LearnedFile(str(folder), "a join")
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert told(file.read(10)) == [], size
    begin = whole.index(b"\n") + 1
    for place in range(begin, len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 4
        path.write_bytes(changed)
        assert told(file.read(10)) == [], place
    for other in (b"", b"\n", b"[]\n", b"{}\n", b"null\n", os.urandom(300)):
        path.write_bytes(other)
        assert told(file.read(10)) == []


@pytest.mark.parametrize("changed", [{"format": 2}, {"keys": -1}, {"keys": 1 << 40}])
def test_another_header_is_not_read(folder: Path, changed: dict[str, int]) -> None:
    path = written(folder)
    line, _, content = path.read_bytes().partition(b"\n")
    path.write_bytes(json.dumps(json.loads(line) | changed).encode() + b"\n" + content)
    assert told(LearnedFile(str(folder), "a join").read(10)) == []


def test_odd_numbers_with_a_right_checksum_are_read(folder: Path) -> None:
    """Frequencies that are no numbers count as none."""
    path = written(folder)
    content = np.array([5, 5]).tobytes() + np.array([np.nan, 2.0], np.float32).tobytes()
    header = {"format": 1, "keys": 2, "checksum": xxhash.xxh3_64_hexdigest(content)}
    path.write_bytes(json.dumps(header).encode() + b"\n" + content)
    assert told(LearnedFile(str(folder), "a join").read(10)) == [(5, 0.0), (5, 2.0)]


def test_a_file_is_due_when_it_is_missing_or_old(folder: Path) -> None:
    file = LearnedFile(str(folder), "a join")
    due = [file.is_due]
    path = written(folder)
    due.append(file.is_due)
    os.utime(path, (0, 0))
    due.append(file.is_due)
    assert due == [True, False, True]


def test_it_stays_small(folder: Path) -> None:
    many = Learned(np.arange(1 << 18), np.ones(1 << 18, np.float32))
    LearnedFile(str(folder), "a join").write(many)
    (path,) = folder.iterdir()
    assert path.stat().st_size <= 800_000
    assert told(LearnedFile(str(folder), "a join").read(3)) == told(many.chosen(slice(3)))


def test_no_folder_to_write_to_is_no_error(tmp_path: Path) -> None:
    nowhere = tmp_path / "not there" / "learned"
    LearnedFile(str(nowhere), "a join").write(KEYS)
    assert not nowhere.parent.exists()
    (tmp_path / "a file").write_text("")
    LearnedFile(str(tmp_path / "a file"), "a join").write(KEYS)
    LearnedFile(str(tmp_path), "a join").write(Learned.nothing())
    assert [path.name for path in tmp_path.iterdir()] == ["a file"]
