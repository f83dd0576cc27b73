"""The shed file: a queue on disk that is found again whole, whatever a crash leaves behind."""

from __future__ import annotations

import errno
import json
import os
import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash

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
    rest = file.take(10_000)
    assert [p.since for p in rest][-2:] == [2.0, 3.0]
    assert numbers([p.batch for p in first + rest]) == list(range(5020))
    assert len(file) == 0
    assert file.take(1) == []
    file.let_go(5000)
    file.check()
    assert file.taken == 20
    file.append(4.0, piece(5020, 5030))
    assert numbers([p.batch for p in file.take(99)]) == list(range(5020, 5030))
    file.let_go(30)
    file.check()
    assert file.bytes == 0
    assert list(tmp_path.glob("*.arrows")) == []
    file.close()


def test_a_shed_file_is_found_again_after_each_step(tmp_path: Path) -> None:
    """All that was not let go of is there, however much of it was taken."""
    file = ShedFile.recover(tmp_path / "shed", max_bytes=16 * 1500)
    model: list[int] = []
    at = taken = 0
    for step in range(90):
        if step % 3 == 0:
            back = numbers([p.batch for p in file.take(11)])
            assert back == model[taken : taken + 11]
            taken += len(back)
        elif step % 7 == 0:
            file.let_go(min(taken, 13))
            model, taken = model[min(taken, 13) :], taken - min(taken, 13)
        else:
            file.append(0.0, piece(at, at + 7))
            file.sync_if_due()
            model += range(at, at + 7)
            at += 7
        file.check()
        shutil.copytree(tmp_path / "shed", tmp_path / "copy")
        found = ShedFile.recover(tmp_path / "copy", now=9.0)
        found.check()
        pieces = found.take(len(found))
        assert numbers([p.batch for p in pieces]) == model
        assert {p.since for p in pieces} <= {9.0}
        found.close()
        shutil.rmtree(tmp_path / "copy")
    assert len(list((tmp_path / "shed").glob("*.arrows"))) > 1
    file.close()


def test_a_crash_between_cursor_and_removal_brings_nothing_twice(tmp_path: Path) -> None:
    file = ShedFile.recover(tmp_path)
    file.append(0.0, piece(0, 5))
    file.sync()
    (segment,) = tmp_path.glob("*.arrows")
    content = segment.read_bytes()
    file.take(5)
    file.let_go(5)
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
        torn = size not in (0, whole, file.bytes)
        with pytest.warns(UserWarning, match="half an append") if torn else nullcontext():
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


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("harm", ["cut", "removed", "changed"])
def test_a_harmed_segment_is_an_error(tmp_path: Path, which: int, harm: str) -> None:
    """However the next run finds out, no tuple is missing or wrong in silence."""
    for start in (0, 100):
        file = ShedFile.recover(tmp_path)
        file.append(0.0, piece(start, start + 100))
        file.close()
    path = sorted(tmp_path.glob("*.arrows"))[which]
    content = path.read_bytes()
    if harm == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif harm == "removed":
        path.unlink()
    else:
        middle = len(content) // 2
        changed = bytes([content[middle] ^ 255])
        path.write_bytes(content[:middle] + changed + content[middle + 1 :])
    with pytest.raises(ShedFileError, match=f"{path.name}(.|\n)*cursor.json"):
        ShedFile.recover(tmp_path).take(200)


def test_any_changed_byte_is_noticed(tmp_path: Path) -> None:
    """In values, in the time since which tuples wait, and in the messages around them."""
    file = ShedFile.recover(tmp_path)
    file.append(12.5, piece(0, 20))
    file.close()
    (path,) = tmp_path.glob("*.arrows")
    content = path.read_bytes()
    unnoticed = 0
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        try:
            found = ShedFile.recover(tmp_path)
            pieces = found.take(20)
        except ShedFileError:
            continue
        unnoticed += 1
        assert numbers([p.batch for p in pieces]) == list(range(20))
        assert [p.since for p in pieces] == [0.0]
        found.close()
    assert unnoticed < len(content) // 2, "padding, and what Arrow does not read"


def test_what_was_taken_and_not_let_go_of_comes_again(tmp_path: Path) -> None:
    file = ShedFile.recover(tmp_path)
    file.append(0.0, piece(0, 50))
    file.take(40)
    file.let_go(15)
    file.close()
    again = ShedFile.recover(tmp_path)
    assert numbers([p.batch for p in again.take(99)]) == list(range(15, 50))
    again.close()


@pytest.mark.parametrize(
    "content", ["", "{}", json.dumps({"segment": 1, "done": 999, "sealed": {}})]
)
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
    assert not file.has_room(piece(0, 33)), "they are still needed"
    file.let_go(at)
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


def killed(path: Path, pieces: int) -> list[int]:
    """A run that shed and was killed, without a sealed segment; where each batch begins."""
    file = ShedFile.recover(path / "shed")
    begins = []
    for number in range(pieces):
        begins.append(file.bytes)
        file.append(0.0, piece(100 * number, 100 * number + 100))
    file.sync()
    shutil.copytree(path / "shed", path / "killed")
    file.close()
    return begins


@pytest.mark.parametrize("which", [0, 3, 8])
@pytest.mark.parametrize("place", ["prefix", "metadata", "body"])
def test_a_flipped_bit_costs_its_own_batch_only(tmp_path: Path, which: int, place: str) -> None:
    begins = killed(tmp_path, 10)
    (segment,) = (tmp_path / "killed").glob("shed-*.arrows")
    content = bytearray(segment.read_bytes())
    begin = max(begins[which], content.index(b"\xff\xff\xff\xff", 8))
    content[
        {"prefix": begin + 1, "metadata": begin + 40, "body": begins[which + 1] - 9}[place]
    ] ^= 4
    segment.write_bytes(content)
    with pytest.warns(UserWarning, match=r"900 tuples .* whole.* kept as damaged-00000001\.arrows"):
        found = ShedFile.recover(tmp_path / "killed")
    found.check()
    expected = [n for n in range(1000) if n // 100 != which]
    assert numbers([p.batch for p in found.take(9999)]) == expected
    assert (tmp_path / "killed" / "damaged-00000001.arrows").read_bytes() == content
    found.close()
    again = ShedFile.recover(tmp_path / "killed")
    assert numbers([p.batch for p in again.take(9999)]) == expected
    again.let_go(900)
    again.close()
    assert [p.name for p in (tmp_path / "killed").iterdir()] == ["damaged-00000001.arrows"]


def test_behind_damage_tuples_come_twice_rather_than_never(tmp_path: Path) -> None:
    file = ShedFile.recover(tmp_path / "shed")
    for number in range(10):
        file.append(0.0, piece(100 * number, 100 * number + 100))
    file.take(550)
    file.let_go(550)
    file.sync()
    shutil.copytree(tmp_path / "shed", tmp_path / "killed")
    file.close()
    (segment,) = (tmp_path / "killed").glob("shed-*.arrows")
    content = bytearray(segment.read_bytes())
    content[len(content) // 4] ^= 1
    segment.write_bytes(content)
    with pytest.warns(UserWarning, match="damaged in the middle"):
        found = ShedFile.recover(tmp_path / "killed")
    back = numbers([p.batch for p in found.take(9999)])
    assert {*range(550, 1000)} <= {*back} <= {*range(100, 1000)}
    found.close()


def test_a_segment_without_its_beginning_is_kept(tmp_path: Path) -> None:
    killed(tmp_path, 3)
    (segment,) = (tmp_path / "killed").glob("shed-*.arrows")
    content = bytearray(segment.read_bytes())
    content[4:12] = b"\xff" * 8
    segment.write_bytes(content)
    with pytest.warns(UserWarning, match=r"beginning.* kept as damaged-00000001\.arrows"):
        found = ShedFile.recover(tmp_path / "killed")
    assert len(found) == 0
    found.close()
    assert (tmp_path / "killed" / "damaged-00000001.arrows").read_bytes() == content


def test_a_folder_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    killed(tmp_path, 2)
    cursor = tmp_path / "killed" / "cursor.json"
    content = json.loads(cursor.read_text())
    assert content["format"] == 1
    cursor.write_text(json.dumps(content | {"format": 2}))
    with pytest.raises(ShedFileError, match=r"format 2.*upgrade"):
        ShedFile.recover(tmp_path / "killed")


def test_the_checksum_is_of_the_bytes_in_the_file(tmp_path: Path) -> None:
    text = pa.array(["a", "b" * 50, None] * 40)
    rows = pa.record_batch({"n": pa.array(range(120)), "s": text}).slice(7, 100)
    file = ShedFile.recover(tmp_path)
    file.append(0.5, rows)
    file.sync()
    (path,) = tmp_path.glob("shed-*.arrows")
    source = pa.OSFile(str(path))
    assert pa.ipc.read_message(source).type == "schema"
    message = pa.ipc.read_message(source)
    body = path.read_bytes()[source.tell() - message.body.size : source.tell()]
    assert xxhash.xxh3_64_hexdigest(b"0.5" + body).encode() in path.read_bytes()
    assert [p.batch for p in file.take(100)] == [rows]
    file.close()


@pytest.mark.parametrize("step", ["close", "let_go", "recover"])
def test_a_full_disk_is_a_clear_error_and_the_next_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file = ShedFile.recover(tmp_path)
    file.append(0.0, piece(0, 10))
    if step == "recover":
        file.close()
    file.take(5)
    with monkeypatch.context() as patch:
        patch.setattr("semistream.parts.shed_file.os.replace", full)
        with pytest.raises((ShedSpaceError, ShedFileError), match="No space left on device"):
            {"close": file.close, "let_go": lambda: file.let_go(5)}.get(
                step, lambda: ShedFile.recover(tmp_path)
            )()
    if step == "let_go":
        file.close()
    again = ShedFile.recover(tmp_path)
    assert [n for one in again.take(10) for n in numbers([one.batch])][-5:] == list(range(5, 10))
    again.close()


def test_a_disk_without_room_for_a_cursor_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file = ShedFile.recover(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("semistream.parts.shed_file.os.replace", full)
        with pytest.raises(ShedSpaceError):
            file.append(0.0, piece(0, 10))
    file.close()
    ShedFile.recover(tmp_path).close()
    assert list(tmp_path.iterdir()) == []
