"""The shed file: a queue on disk that is found again whole, whatever a crash leaves behind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from semistream.errors import ShedFileError, ShedSpaceError
from semistream.parts.shed_file import ShedFile


def numbers(batches: list[pa.RecordBatch]) -> list[int]:
    """The sales in some batches, in order."""
    return [number for batch in batches for number in batch.column("sale").to_pylist()]


def piece(start: int, stop: int) -> pa.RecordBatch:
    return pa.record_batch({"id": np.arange(start, stop), "sale": np.arange(start, stop)})


def test_a_shed_file_is_a_queue(tmp_path: Path) -> None:
    file = ShedFile.recover(tmp_path)
    file.append(1.0, piece(0, 5000))
    file.append(2.0, piece(5000, 5010))
    file.sync()
    first = file.take(10)
    assert [(p.since, p.batch.num_rows) for p in first] == [(1.0, 10)]
    file.append(3.0, piece(5010, 5020))
    file.sync()
    file.check()
    assert len(list(tmp_path.glob("*.arrows"))) == 2
    rest = file.take(10_000)
    assert [p.since for p in rest][-2:] == [2.0, 3.0]
    assert numbers([p.batch for p in first + rest]) == list(range(5020))
    assert len(file) == file.bytes == 0
    assert file.take(1) == []
    assert list(tmp_path.glob("*.arrows")) == []
    file.close()


def test_a_shed_file_is_found_again_after_each_step(tmp_path: Path) -> None:
    file = ShedFile.recover(tmp_path / "shed")
    model: list[int] = []
    at = 0
    for step in range(60):
        if step % 3:
            file.append(0.0, piece(at, at + 7))
            file.sync()
            model += range(at, at + 7)
            at += 7
        else:
            back = numbers([p.batch for p in file.take(11)])
            assert back == model[:11]
            model = model[11:]
        shutil.copytree(tmp_path / "shed", tmp_path / "copy")
        found = ShedFile.recover(tmp_path / "copy", now=9.0)
        found.check()
        pieces = found.take(len(found))
        assert numbers([p.batch for p in pieces]) == model
        assert {p.since for p in pieces} <= {9.0}
        found.close()
        shutil.rmtree(tmp_path / "copy")
    file.close()


def test_a_crash_between_cursor_and_removal_brings_nothing_twice(tmp_path: Path) -> None:
    file = ShedFile.recover(tmp_path)
    file.append(0.0, piece(0, 5))
    file.sync()
    (segment,) = tmp_path.glob("*.arrows")
    content = segment.read_bytes()
    file.take(5)
    file.append(0.0, piece(5, 8))
    file.sync()
    file.close()
    segment.write_bytes(content)
    again = ShedFile.recover(tmp_path)
    assert not segment.exists()
    assert numbers([p.batch for p in again.take(99)]) == [5, 6, 7]


def test_half_an_append_is_cut_off(tmp_path: Path) -> None:
    file = ShedFile.recover(tmp_path / "shed")
    file.append(0.0, piece(0, 100))
    file.sync()
    whole = file.bytes
    file.append(0.0, piece(100, 200))
    file.sync()
    for size in (0, 3, 200, whole, whole + 1, whole + 300, file.bytes - 1, file.bytes):
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path / "shed", copy)
        (segment,) = copy.glob("*.arrows")
        with open(segment, "r+b") as cut:
            cut.truncate(size)
        found = ShedFile.recover(copy)
        expected = 0 if size < whole else 100 if size < file.bytes else 200
        assert len(found) == expected, size
        found.append(0.0, piece(200, 210))
        found.sync()
        found.check()
        taken = numbers([p.batch for p in found.take(999)])
        assert taken == [*range(expected), *range(200, 210)]
        found.close()
        shutil.rmtree(copy)
    file.close()


def test_a_broken_segment_in_the_middle_is_an_error(tmp_path: Path) -> None:
    for start in (0, 100):
        file = ShedFile.recover(tmp_path)
        file.append(0.0, piece(start, start + 100))
        file.sync()
        file.close()
    first = sorted(tmp_path.glob("*.arrows"))[0]
    first.write_bytes(first.read_bytes()[:-700])
    with pytest.raises(ShedFileError, match=first.name):
        ShedFile.recover(tmp_path)


@pytest.mark.parametrize("content", ["", "{}", json.dumps({"segment": 1, "tuples": 999})])
def test_a_broken_cursor_is_an_error(tmp_path: Path, content: str) -> None:
    file = ShedFile.recover(tmp_path)
    file.append(0.0, piece(0, 100))
    file.close()
    (tmp_path / "cursor.json").write_text(content)
    with pytest.raises(ShedFileError, match=r"cursor\.json"):
        ShedFile.recover(tmp_path)


def test_two_runs_cannot_share_a_folder(tmp_path: Path) -> None:
    file = ShedFile.recover(tmp_path)
    with pytest.raises(ShedFileError, match="Another run"):
        ShedFile.recover(tmp_path)
    file.close()
    ShedFile.recover(tmp_path).close()


def test_the_bound_is_kept_to_the_byte(tmp_path: Path) -> None:
    file = ShedFile.recover(tmp_path, max_bytes=50_000)
    at = 0
    while file.has_room(piece(at, at + 33)):
        file.append(0.0, piece(at, at + 33))
        file.sync()
        file.check()
        at += 33
    with pytest.raises(ShedSpaceError, match="max_bytes"):
        file.append(0.0, piece(at, at + 33))
    assert 45_000 < file.bytes <= 50_000
    assert len(file) == at
    assert numbers([p.batch for p in file.take(at)]) == list(range(at))
    assert file.has_room(piece(0, 33))


def test_a_disk_that_refuses_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = ShedFile.recover(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("semistream.parts.shed_file._sync_folder", full)
    with pytest.raises(ShedSpaceError, match="No space left"):
        file.append(0.0, piece(0, 3))
    assert len(file) == 0
    file.close()
    monkeypatch.undo()
    assert len(ShedFile.recover(tmp_path)) == 0
