"""The lease on a checkpoint: one holder, safe against a killed one, fenced."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from semistream.errors import CheckpointError
from semistream.relation.storage.remote import RemoteStorage
from semistream.spark.pipeline import lease as module
from semistream.spark.pipeline.lease import Lease, check_free


def never(_: float) -> None:
    raise AssertionError("must not wait")


def holder(folder: Path, turn: int) -> Path:
    return folder / "lease" / f"{turn:08d}.json"


def elsewhere(folder: Path, turn: int = 0) -> None:
    """Let the holder of a turn be on another machine."""
    path = holder(folder, turn)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"machine": "other"}))


def test_the_second_names_the_holder_and_touches_nothing(tmp_path: Path) -> None:
    first = Lease.take(tmp_path, "shop")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(CheckpointError, match=rf"in use by the pipeline shop.*{os.getpid()}"):
        Lease.take(tmp_path, "second", sleep=never)
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    first.check()
    first.release()


def test_whether_it_is_free_is_only_looked_at(tmp_path: Path) -> None:
    check_free(tmp_path / "nothing")
    first = Lease.take(tmp_path, "shop")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(CheckpointError, match="in use by the pipeline shop"):
        check_free(tmp_path)
    elsewhere(tmp_path)
    check_free(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    first.release()
    check_free(tmp_path)


def test_a_released_lease_is_free_at_once(tmp_path: Path) -> None:
    Lease.take(tmp_path, "first").release()
    second = Lease.take(tmp_path, "second", sleep=never)
    second.check()
    second.release()
    # Earlier turns leave nothing behind.
    assert {path.name[:8] for path in (tmp_path / "lease").iterdir()} == {"00000001"}


def test_a_killed_holder_of_this_machine_frees_it_at_once(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from semistream.spark.pipeline.lease import Lease\n"
        "Lease.take(sys.argv[1], 'victim')\n"
        "os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False).returncode
    Lease.take(tmp_path, "next", sleep=never).release()


def test_a_number_that_another_process_has_now_is_not_the_holder(tmp_path: Path) -> None:
    Lease.take(tmp_path, "first").release()
    (tmp_path / "lease" / "00000000.released").unlink()
    path = holder(tmp_path, 0)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"started": 1}))
    Lease.take(tmp_path, "second", sleep=never).release()


def test_a_holder_elsewhere_is_alive_as_long_as_it_beats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BEAT_SECONDS", 0.01)
    first = Lease.take(tmp_path, "first")
    elsewhere(tmp_path)
    with pytest.raises(CheckpointError, match="in use by the pipeline first"):
        Lease.take(tmp_path, "second", sleep=lambda _: time.sleep(0.2))
    first.release()


def test_a_holder_elsewhere_without_a_beat_loses_it_after_a_while(tmp_path: Path) -> None:
    first = Lease.take(tmp_path, "first")
    elsewhere(tmp_path)
    slept: list[float] = []
    second = Lease.take(tmp_path, "second", sleep=slept.append)
    assert sum(slept) >= 30
    with pytest.raises(CheckpointError, match="in use by the pipeline second"):
        first.check()
    first.release()
    second.check()
    second.release()


def test_a_holder_that_ends_while_another_waits_frees_it(tmp_path: Path) -> None:
    first = Lease.take(tmp_path, "first")
    elsewhere(tmp_path)
    ends: list[Callable[[], None]] = [first.release]
    second = Lease.take(tmp_path, "second", sleep=lambda _: ends.pop()() if ends else never(0))
    second.release()


def test_of_many_at_once_one_has_it(tmp_path: Path) -> None:
    Lease.take(tmp_path, "before").release()
    start = threading.Barrier(8)
    held: list[Lease] = []
    refused: list[CheckpointError] = []

    def take(number: int) -> None:
        start.wait()
        try:
            held.append(Lease.take(tmp_path, str(number)))
        except CheckpointError as error:
            refused.append(error)

    threads = [threading.Thread(target=take, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(held) == 1
    assert len(refused) == 7
    held[0].release()


def test_on_an_object_store_a_claim_of_a_dead_one_does_not_block_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lease").mkdir()
    (tmp_path / "lease" / "00000000.dead.claim").touch()
    storage = RemoteStorage(pafs.LocalFileSystem(), str(tmp_path), "s3://bucket")
    monkeypatch.setattr(module, "storage_at", lambda _: storage)
    slept: list[float] = []
    first = Lease.take("s3://bucket", "first", sleep=slept.append)
    assert sum(slept) >= 30
    first.check()
    first.release()


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"pid": "x"}'])
def test_a_broken_holder_is_waited_for_and_replaced(tmp_path: Path, content: str) -> None:
    Lease.take(tmp_path, "first").release()
    (tmp_path / "lease" / "00000000.released").unlink()
    holder(tmp_path, 0).write_text(content)
    slept: list[float] = []
    Lease.take(tmp_path, "second", sleep=slept.append).release()
    assert sum(slept) >= 30


def test_a_holder_without_a_start_is_not_taken_for_alive(tmp_path: Path) -> None:
    Lease.take(tmp_path, "first").release()
    (tmp_path / "lease" / "00000000.released").unlink()
    path = holder(tmp_path, 0)
    content = json.loads(path.read_text()) | {"pid": 2**22 + 1}
    del content["started"]
    path.write_text(json.dumps(content))
    Lease.take(tmp_path, "second", sleep=never).release()


def test_a_folder_that_cannot_be_written_to_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text("a file")
    with pytest.raises(CheckpointError, match="cannot be written to"):
        Lease.take(tmp_path / "checkpoint", "shop")


def test_turns_beyond_eight_digits_count_too(tmp_path: Path) -> None:
    Lease.take(tmp_path, "first").release()
    for path in (tmp_path / "lease").iterdir():
        path.rename(path.with_name(path.name.replace("00000000", "99999999")))
    second = Lease.take(tmp_path, "second", sleep=never)
    with pytest.raises(CheckpointError, match="in use by the pipeline second"):
        Lease.take(tmp_path, "third", sleep=never)
    second.release()


def test_whoever_comes_first_clears_what_others_left_half_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the hidden file of one that is just about to take the same turn: it is told so."""
    first: list[Lease] = []
    link = os.link

    def slow_link(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        first.append(Lease.take(tmp_path, "first", sleep=never))
        link(source, target)

    monkeypatch.setattr(os, "link", slow_link)
    with pytest.raises(CheckpointError, match="in use by the pipeline first"):
        Lease.take(tmp_path, "second", sleep=never)
    assert [path.name for path in (tmp_path / "lease").iterdir()] == ["00000000.json"]
    first[0].release()
