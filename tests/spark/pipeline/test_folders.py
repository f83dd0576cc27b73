"""Small files beside the data: written whole, of a known format, and clear when they are broken."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from semistream.errors import CheckpointError, SinkError
from semistream.relation.storage import RemoteStorage
from semistream.spark.pipeline import batch_log
from semistream.spark.pipeline.batch_log import BatchLog, BatchRecord
from semistream.spark.pipeline.folders import Folder
from semistream.spark.pipeline.queues import TupleQueue
from tests.unit.test_relation_remote import Handler


def test_the_owner_is_written_whole_and_has_a_format(tmp_path: Path) -> None:
    folder = Folder.at(tmp_path / "out")
    folder.claim("me", "sink=")
    assert json.loads((tmp_path / "out" / "_semistream.json").read_text()) == {
        "format": 1,
        "owner": "me",
    }
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["_semistream.json"]
    folder.claim("me", "sink=")


@pytest.mark.parametrize("content", ["", '{"owner"', "[]", "\x00"])
def test_a_broken_owner_file_is_said_clearly(tmp_path: Path, content: str) -> None:
    (tmp_path / "_semistream.json").write_text(content)
    with pytest.raises(SinkError, match=r"_semistream.json is broken"):
        Folder.at(tmp_path).claim("me", "sink=")


def test_files_of_a_newer_format_are_refused(tmp_path: Path) -> None:
    (tmp_path / "_semistream.json").write_text('{"format": 2, "owner": "me"}')
    (tmp_path / "_committed.json").write_text('{"format": 2, "rows": 1}')
    with pytest.raises(SinkError, match="format 2"):
        Folder.at(tmp_path).claim("me", "sink=")
    with pytest.raises(SinkError, match="format 2"):
        Folder.at(tmp_path).note()


def test_files_without_a_number_are_of_the_first_format(tmp_path: Path) -> None:
    (tmp_path / "_semistream.json").write_text('{"owner": "me"}')
    (tmp_path / "_committed.json").write_text('{"rows": 1}')
    Folder.at(tmp_path).claim("me", "sink=")
    assert Folder.at(tmp_path).note() == {"rows": 1}


def test_a_torn_note_means_that_the_folder_is_unfinished(tmp_path: Path) -> None:
    (tmp_path / "_committed.json").write_text('{"rows"')
    assert Folder.at(tmp_path).note() is None


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RemoteStorage:
    """A checkpoint on a filesystem that is not local."""
    storage = RemoteStorage(pafs.PyFileSystem(Handler()), str(tmp_path / "c"), "mem://c")
    (tmp_path / "c" / "batches").mkdir(parents=True)
    monkeypatch.setattr(batch_log, "storage_at", lambda location: storage)
    return storage


def test_a_record_of_a_newer_format_is_never_removed(remote: RemoteStorage) -> None:
    log = BatchLog("mem://c")
    log.begin(BatchRecord(0, 0, 1.0, 1))
    name = "batches/00000000.json"
    content = json.loads(remote.read(name)) | {"format": 2}
    remote.write(name, json.dumps(content).encode())
    for _ in range(2):
        with pytest.raises(CheckpointError, match="has format 2"):
            BatchLog("mem://c")
    assert json.loads(remote.read(name))["format"] == 2


def test_a_record_that_was_whole_once_is_never_removed(remote: RemoteStorage) -> None:
    BatchLog("mem://c").begin(BatchRecord(0, 0, 1.0, 1))
    remote.write("batches/00000000.json", b'{"form')
    with pytest.raises(CheckpointError, match="missing or broken"):
        BatchLog("mem://c")
    assert remote.read("batches/00000000.json") == b'{"form'


def test_a_put_that_was_cut_off_is_removed(remote: RemoteStorage) -> None:
    BatchLog("mem://c").begin(BatchRecord(0, 0, 1.0, 1))
    remote.write("batches/00000001.json", b'{"form')
    log = BatchLog("mem://c")
    assert log.last_record == BatchRecord(0, 0, 1.0, 1)
    assert remote.sizes(["batches/00000001.json"]) == [None]


def test_a_record_with_other_fields_is_said_clearly(remote: RemoteStorage) -> None:
    BatchLog("mem://c").begin(BatchRecord(0, 0, 1.0, 1))
    content = json.loads(remote.read("batches/00000000.json")) | {"colour": "red"}
    remote.write("batches/00000000.json", json.dumps(content).encode())
    with pytest.raises(CheckpointError, match="a newer one wrote it"):
        BatchLog("mem://c")


def test_an_entry_of_a_queue_of_another_format_is_not_passed_over(tmp_path: Path) -> None:
    for name in ("00000012-0-1-1763200000000-1763200030000-4-250", "lost+found"):
        (tmp_path / name).mkdir()
    assert [entry.rows for entry in TupleQueue(Folder.at(tmp_path)).entries()] == [250]
    (tmp_path / "00000013-0-1-1763200000000-1763200030000-4-250-x").mkdir()
    with pytest.raises(CheckpointError, match=r"00000013-.* a newer one did"):
        TupleQueue(Folder.at(tmp_path)).entries()
