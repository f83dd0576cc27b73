"""A file of the batch log that is damaged is not believed."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from semistream.errors import CheckpointError
from semistream.relation.storage import RemoteStorage, storage_at
from semistream.spark.pipeline import batch_log
from semistream.spark.pipeline.batch_log import BatchLog, BatchRecord, Counts, Outcome


@pytest.fixture
def log(tmp_path: Path) -> BatchLog:
    made = BatchLog(tmp_path)
    made.begin(BatchRecord(0, 1, 2.0, 3, ("entry",)))
    counts = Counts(source=3, joined=3, outputs=3)
    made.finish(Outcome(0, 1, 2.0, 3, counts, counts, 0.5, None, 0, 0, {"rate": 1 / 3}))
    return made


@pytest.mark.parametrize("name", ["00000000.json", "00000000.done.json"])
def test_another_number_in_a_file_is_found(log: BatchLog, name: str, tmp_path: Path) -> None:
    path = tmp_path / "batches" / name
    whole = path.read_text()
    for at, letter in enumerate(whole):
        # What the writer called itself means nothing to a reader.
        if letter.isdigit() and at > whole.index('"number"'):
            path.write_text(f"{whole[:at]}1{whole[at:]}")
            with pytest.raises(CheckpointError, match=name):
                BatchLog(tmp_path)
    path.write_text(whole)
    assert BatchLog(tmp_path).last_outcome == log.last_outcome


def test_files_of_earlier_releases_have_no_checksum(log: BatchLog, tmp_path: Path) -> None:
    for path in (tmp_path / "batches").iterdir():
        content = json.loads(path.read_text())
        content["writer"], dot, _ = content["writer"].partition(".")
        assert dot
        path.write_text(json.dumps(content))
    again = BatchLog(tmp_path)
    assert (again.last_record, again.last_outcome) == (log.last_record, log.last_outcome)


def test_pins_of_a_checkpoint_in_an_object_store(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def at(location: str) -> object:
        asked.append(location)
        return storage_at("/nowhere")

    monkeypatch.setattr(batch_log, "storage_at", at)
    assert batch_log.pinned_versions("s3://bucket/checkpoint?region=x") == set()
    assert asked == ["s3://bucket/checkpoint/semistream?region=x"]


@pytest.mark.parametrize("is_local", [True, False])
def test_a_batch_that_is_withdrawn_is_decided_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_local: bool
) -> None:
    place = tmp_path / "log"
    if not is_local:
        # A store without links, which keeps a seal beside what was published.
        (place / "batches").mkdir(parents=True)
        store = RemoteStorage(pafs.LocalFileSystem(), str(place), str(place))
        monkeypatch.setattr(batch_log, "storage_at", lambda _: store)
    first = BatchRecord(0, 7, 2.0, 3, ("entry",))
    log = BatchLog(place)
    log.begin(first)
    kept = Path(log.withdraw(first))
    again = BatchLog(place)
    assert (again.unfinished, again.next_number, again.of_stream_batch(7)) == (None, 0, None)
    second = BatchRecord(0, 7, 4.0, 5)
    again.begin(second)
    assert BatchLog(place).unfinished == second
    assert json.loads(kept.read_text())["version"] == 3
