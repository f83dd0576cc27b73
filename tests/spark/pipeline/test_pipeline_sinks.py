"""Sinks are idempotent by batch; folders are whole or not there; the log survives half a write."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from semistream.errors import CheckpointError, OptionError, SinkError
from semistream.relation.storage import Location, RemoteStorage
from semistream.spark.pipeline import batch_log
from semistream.spark.pipeline.batch_log import BatchLog, BatchRecord, Counts, Outcome
from semistream.spark.pipeline.batch_run import BatchRun
from semistream.spark.pipeline.folders import Folder, Note
from semistream.spark.pipeline.queues import QueueEntry
from semistream.spark.pipeline.sinks import ParquetSink, TableSink
from semistream.spark.pipeline.staging import Arrival
from semistream.testing import assert_same_rows, oracle_join
from tests.spark.pipeline.conftest import Shop

OpenLog = Callable[[], BatchLog]

# Spark's workers cannot import the tests: what is sent to them is sent whole.
register: Callable[[ModuleType], None] = cloudpickle.register_pickle_by_value
register(sys.modules[__name__])


class Ledger(DataSource):
    """A table that knows transactions as Delta Lake does: one of a version it has is left out."""

    @classmethod
    def name(cls) -> str:
        return "ledger"

    def writer(self, schema: StructType, overwrite: bool) -> LedgerWriter:
        return LedgerWriter(dict(self.options))


class Written(WriterCommitMessage):
    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows


class LedgerWriter(DataSourceArrowWriter):
    def __init__(self, options: dict[str, str]) -> None:
        self.options = {name.lower(): value for name, value in options.items()}

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return Written([row for batch in iterator for row in batch.to_pylist()])

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        path = Path(self.options["path"])
        path.mkdir(exist_ok=True)
        app, version = self.options["txnappid"], self.options["txnversion"]
        rows = [row for message in cast("list[Written]", messages) for row in message.rows]
        file = path / f"{app.replace('/', '_')}-{version}.json"
        if not file.exists():
            file.write_text(json.dumps(rows))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        pass


@pytest.mark.service
def test_a_table_is_told_writer_and_batch(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.spark.dataSource.register(Ledger)
    shop.master()
    sold = shop.sell(40, 40)
    ledger = str(shop.folder / "ledger")
    # One table for two routes: what tells them apart is the writer's name.
    sinks: dict[str, Any] = {"sink": TableSink(path=ledger, format="ledger")}
    sinks["rejected"] = TableSink(path=ledger, format="ledger")
    written, fails = BatchRun.write, iter([True])

    def write(run: BatchRun, record: BatchRecord, arrival: Arrival) -> Note:
        note = written(run, record, arrival)
        if next(fails, False):
            raise RuntimeError("after all is written")
        return note

    monkeypatch.setattr(BatchRun, "write", write)
    with pytest.raises(RuntimeError, match="after all"):
        shop.pipeline(**sinks).start().await_termination()
    shop.run(**sinks)
    files = sorted((shop.folder / "ledger").iterdir())
    names = [path.name.partition("_")[2] for path in files]
    assert names == ["rejected-0.json", "rejected-1.json", "sink-0.json", "sink-1.json"]
    assert len({path.name.partition("_")[0] for path in files}) == 1
    rows = [tuple(row.values()) for path in files[2:] for row in json.loads(path.read_text())]
    keyed = sold.filter(sold["id"].is_valid())
    assert_same_rows(rows, oracle_join(keyed, shop.goods, on="id", how="left").rows)


@pytest.mark.service
def test_a_sink_on_another_filesystem_gets_its_rows_too(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files cannot be renamed into it, so Spark writes them."""
    shop.master()
    sold = shop.sell(40, 40)
    monkeypatch.setattr(Folder, "can_become", lambda folder, target: False)
    shop.run(rejected=str(shop.folder / "bad"))
    keyed = sold.filter(sold["id"].is_valid())
    expected = oracle_join(keyed, shop.goods, on="id", how="left").rows
    assert_same_rows(shop.rows("out", "id", "n", "name"), expected)
    assert len(shop.rows("bad", "n", "reason")) == len(sold) - len(keyed)


@pytest.mark.service
def test_a_folder_that_was_not_committed_is_written_anew(shop: Shop) -> None:
    sink = ParquetSink(shop.folder / "out")
    frame = shop.spark.range(5)
    half = shop.folder / "out" / "batch=3"
    half.mkdir(parents=True)
    pq.write_table(pa.table({"id": [99]}), half / "part-0.parquet")
    sink.write(frame, 3, "writer")
    assert sorted(shop.rows("out", "id")) == [(i,) for i in range(5)]
    sink.write(shop.spark.range(100), 3, "writer")
    assert sorted(shop.rows("out", "id")) == [(i,) for i in range(5)]
    # Spark and Arrow see the same rows, and nothing of the marker.
    assert shop.spark.read.parquet(str(shop.folder / "out")).count() == 5


def test_readers_never_see_half_a_folder(tmp_path: Path) -> None:
    folder = Folder.at(tmp_path / "out") / "batch=1"
    seen: list[list[str] | bool] = []

    def write(path: str) -> None:
        target = path.removeprefix("file://")
        pafs.LocalFileSystem().create_dir(target)
        pq.write_table(pa.table({"a": [1]}), f"{target}/part-0.parquet")
        seen.append(sorted(p.name for p in (tmp_path / "out").iterdir()))

    def note(written: Folder) -> Note:
        assert written.row_count() == 1
        seen.append((tmp_path / "out" / "batch=1").exists())
        return {"rows": 1}

    assert folder.fill(write, note) == {"rows": 1}
    assert seen == [["_writing.1"], False]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["batch=1"]
    assert folder.note() == {"rows": 1}


def test_without_renames_the_marker_comes_last(tmp_path: Path) -> None:
    """A filesystem that is not known to rename at once is written in place."""
    inner = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    folder = Folder(inner, "out/batch=1", f"file://{tmp_path}/out/batch=1")
    (tmp_path / "out" / "batch=1").mkdir(parents=True)
    (tmp_path / "out" / "batch=1" / "half.parquet").write_bytes(b"half")

    def write(path: str) -> None:
        assert path.endswith("/out/batch=1")
        assert not (tmp_path / "out" / "batch=1").exists()
        inner.create_dir("out/batch=1")
        pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "out" / "batch=1" / "part-0.parquet")

    assert folder.note() is None
    assert folder.fill(write, lambda written: {"rows": written.row_count()}) == {"rows": 2}
    names = sorted(path.name for path in (tmp_path / "out" / "batch=1").iterdir())
    assert names == ["_committed.json", "part-0.parquet"]
    other = Folder(inner, "queue/entry", f"file://{tmp_path}/queue/entry")
    # A copy that stopped half-way is made again.
    (tmp_path / "queue" / "entry").mkdir(parents=True)
    (tmp_path / "queue" / "entry" / "part-0.parquet").write_bytes(b"half")
    folder.move(other)
    assert other.row_count() == 2


def record(number: int, **changes: Any) -> BatchRecord:
    fields: dict[str, Any] = {"number": number, "stream_batch": number, "at": 1.5, "version": 3}
    return BatchRecord(**(fields | {"retried": ("a",), "returned": ("b", "c")} | changes))


def outcome(number: int) -> Outcome:
    counts = Counts(source=3, joined=2, unmatched=1)
    return Outcome(number, number, 1.5, 3, counts, counts, 0.5, None, 0, 0, {"pages_read": 7})


@pytest.fixture(params=["local", "remote"])
def log(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenLog:
    """A log on a local disk, and one that has only puts."""
    (tmp_path / "log" / "batches").mkdir(parents=True)
    if request.param == "remote":

        def storage(location: Location) -> RemoteStorage:
            return RemoteStorage(pafs.LocalFileSystem(), str(location), "mem://log")

        monkeypatch.setattr(batch_log, "storage_at", storage)
    return lambda: BatchLog(tmp_path / "log")


def test_a_log_is_read_as_it_was_written(log: OpenLog) -> None:
    first = log()
    assert (first.next_number, first.unfinished, first.last_outcome) == (0, None, None)
    name = first.identity()
    first.begin(record(0))
    assert log().unfinished == record(0)
    first.finish(outcome(0))
    first.begin(record(1, stream_batch=None))
    first.finish(outcome(1))
    first.begin(record(2, stream_batch=1))
    again = log()
    assert again.identity() == name
    assert again.last_outcome == outcome(1)
    assert again.unfinished == record(2, stream_batch=1)
    assert again.of_stream_batch(1) == record(2, stream_batch=1)
    assert again.of_stream_batch(0) == record(0)
    assert again.of_stream_batch(2) is None
    assert [again.is_done(record(number)) for number in (1, 2)] == [True, False]
    assert [one.number for one in again.outcomes(after=0)] == [1]


def test_a_new_batch_needs_no_listing(log: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    one = log()
    one.begin(record(0))
    one.finish(outcome(0))
    one.begin(record(1, stream_batch=None))
    one.finish(outcome(1))
    for known in (one, log()):
        with monkeypatch.context() as patched:
            patched.setattr(batch_log, "_logged", lambda _: pytest.fail("The log was listed."))
            assert known.of_stream_batch(1) is None
        assert known.of_stream_batch(0) == record(0)


def test_what_a_killed_writer_left_is_no_obstacle(log: OpenLog, tmp_path: Path) -> None:
    first = log()
    first.begin(record(0))
    folder = tmp_path / "log" / "batches"
    (folder / "00000001.abc.claim").write_bytes(b"")
    (folder / ".tmp-123").write_bytes(b"{")
    again = log()
    again.finish(outcome(0))
    again.begin(record(1))
    assert log().unfinished == record(1)


def test_a_put_that_was_cut_off_is_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log" / "batches").mkdir(parents=True)
    broken = tmp_path / "log" / "batches" / "00000000.json"
    broken.write_text('{"format": 1, "num')
    with pytest.raises(CheckpointError, match="missing or broken"):
        BatchLog(tmp_path / "log")
    remote = RemoteStorage(pafs.LocalFileSystem(), str(tmp_path / "log"), "mem://log")
    monkeypatch.setattr(batch_log, "storage_at", lambda location: remote)
    assert BatchLog(tmp_path / "log").next_number == 0


def test_a_log_of_another_format_is_refused(tmp_path: Path) -> None:
    BatchLog(tmp_path / "log").begin(record(0))
    path = tmp_path / "log" / "batches" / "00000000.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(CheckpointError, match="has format 2"):
        BatchLog(tmp_path / "log")


def test_old_batches_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_log, "_KEPT", 3)
    log = BatchLog(tmp_path / "log")
    for number in range(8):
        log.begin(record(number))
        log.finish(outcome(number))
    assert [one.number for one in log.records()] == [5, 6, 7]
    assert BatchLog(tmp_path / "log").next_number == 8


def test_entries_are_named_by_what_they_are() -> None:
    entry = QueueEntry(12, 0, 1, 1_763_200_000_000, 1_763_200_030_000, 4, 250)
    assert entry.name == "00000012-0-1-1763200000000-1763200030000-4-250"
    assert QueueEntry.parse(entry.name) == entry
    assert QueueEntry.parse("_writing.12") is None
    assert QueueEntry.parse("12-3") is None


@pytest.mark.service
def test_a_folder_of_another_pipeline_is_refused(shop: Shop) -> None:
    """Batches are known by their number: another checkpoint would take them for its own."""
    shop.master()
    shop.sell(30)
    shop.run()
    shop.sell(30)
    with pytest.raises(SinkError, match="another pipeline"):
        shop.run(checkpoint=shop.folder / "another")
    new = str(shop.folder / "new")
    with pytest.raises(SinkError, match="rejected= a folder of its own"):
        shop.run(checkpoint=shop.folder / "third", sink=new, rejected=shop.folder / "out")
    shop.run()
    assert len(shop.rows("out", "n")) == 60


@pytest.mark.service
def test_routes_and_checkpoint_have_folders_of_their_own(shop: Shop) -> None:
    shop.master()
    shop.sell(10)
    out = str(shop.folder / "out")
    given: list[dict[str, Any]] = [{"rejected": out}, {"unmatched": out}]
    for options in given:
        with pytest.raises(OptionError, match="folder of its own"):
            shop.pipeline(sink=out, **options)
    for checkpoint in (out, out + "/checkpoint"):
        with pytest.raises(OptionError, match="folder elsewhere"):
            shop.pipeline(sink=out, checkpoint=checkpoint)
    with pytest.raises(OptionError, match="checkpoint is a NoneType"):
        shop.pipeline(checkpoint=None)
    with pytest.raises(OptionError, match="mapping"):
        shop.pipeline(rejected=shop.folder / "rejected", checks=["n > 0"])


@pytest.mark.service
def test_deferred_tuples_are_not_left_in_another_folder(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the log says is waiting must be where the pipeline looks for it."""
    shop.master()
    shop.sell(40)
    options: dict[str, Any] = {"batch_target": "10s"}
    shop.run(deferred=shop.folder / "here", **options)
    kept = BatchLog.__init__

    def with_some_waiting(log: BatchLog, location: Location) -> None:
        kept(log, location)
        assert log.last_outcome is not None
        log.last_outcome = replace(log.last_outcome, waiting_deferred=7)

    monkeypatch.setattr(BatchLog, "__init__", with_some_waiting)
    with pytest.raises(OptionError, match=r"7 stream tuples(.|\n)*deferred= as it was"):
        shop.pipeline(deferred=shop.folder / "there", **options).start()


def test_folders_on_other_devices_are_told_apart() -> None:
    here, there = Folder.at("/proc/nothing"), Folder.at("/nothing/of/the/kind")
    assert here.can_become(Folder.at("/proc/other"))
    assert not here.can_become(there)
