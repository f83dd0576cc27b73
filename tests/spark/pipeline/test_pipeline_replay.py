"""A batch that failed at any point runs again, with the same rows, and each is written once."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle

import semistream as ss
from semistream.errors import CheckpointError, ConservationError, SinkError
from semistream.spark.pipeline.batch_log import BatchLog, BatchRecord, pinned_versions
from semistream.spark.pipeline.batch_run import BatchRun
from semistream.spark.pipeline.folders import Folder
from semistream.spark.pipeline.routes import Retry
from semistream.spark.pipeline.stage_task import StageTask, place
from semistream.spark.pipeline.staging import Staging
from semistream.testing import ManualClock, assert_same_rows, oracle_join
from tests.spark.pipeline.conftest import Shop

pytestmark = pytest.mark.service

OUTPUT = ("id", "n", "name", "batch")

# Spark's workers cannot import the tests: what is sent to them is sent whole.
register: Callable[[ModuleType], None] = cloudpickle.register_pickle_by_value
register(sys.modules[__name__])


class CrashError(Exception):
    """A crash that a test has arranged."""


def crash(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, nth: int, after: bool) -> None:
    """Let the nth call of a method fail, before it does its work or after."""
    original, calls = getattr(owner, name), iter(range(1, 1000))

    def wrapped(*arguments: Any, **options: Any) -> Any:
        is_it = next(calls) == nth
        if is_it and not after:
            raise CrashError(name)
        answer = original(*arguments, **options)
        if is_it:
            raise CrashError(name)
        return answer

    monkeypatch.setattr(owner, name, wrapped)


def expected(shop: Shop, tables: list[pa.Table]) -> list[tuple[Any, ...]]:
    """The rows of the warehouse, each joined with the version that its batch has recorded."""
    rows: list[tuple[Any, ...]] = []
    for record in BatchLog(shop.folder / "checkpoint" / "semistream").records():
        goods = versions(shop)[record.version]
        assert record.stream_batch is not None
        joined = oracle_join(tables[record.stream_batch], goods, on="id", how="left").rows
        rows += [(*row, record.number) for row in joined]
    return rows


def versions(shop: Shop) -> dict[int, pa.Table]:
    """The goods in each version: every name changes."""
    goods = shop.goods
    names = {n: [f"{name} in version {n}" for name in goods["name"].to_pylist()] for n in (1, 2)}
    return {n: goods.set_column(1, "name", pa.array(names[n])) for n in names}


POINTS = [
    (BatchLog, "begin", False),
    (BatchLog, "begin", True),
    (Staging, "by_route", True),
    (Folder, "become", False),
    (Folder, "become", True),
    (BatchLog, "finish", False),
    (BatchLog, "finish", True),
    (BatchRun, "clean", True),
]


@pytest.mark.parametrize(("owner", "name", "after"), POINTS)
def test_a_crash_changes_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, after: bool
) -> None:
    shop.master(versions(shop)[1])
    tables = [shop.sales(60) for _ in range(3)]
    shop.sell(*tables)
    with monkeypatch.context() as patch:
        crash(patch, owner, name, 2, after)
        pipeline = shop.pipeline().start()
        with pytest.raises(CrashError):
            pipeline.await_termination()
    assert pipeline.status().state == "failed"
    assert name in (pipeline.status().error or "")
    # A run that does not keep to its record would now show the new names.
    shop.master(versions(shop)[2])
    shop.run()
    assert_same_rows(shop.rows("out", *OUTPUT), expected(shop, tables))
    found = [record.version for record in records(shop)]
    begun = (name, after) == ("begin", False)
    assert found == ([1, 2, 2] if begun else [1, 1, 2])


def records(shop: Shop) -> list[BatchRecord]:
    return BatchLog(shop.folder / "checkpoint" / "semistream").records()


STEPS = [
    (Staging, "by_route", 2, True),
    (Folder, "become", 3, False),
    (Folder, "become", 3, True),
    (Folder, "become", 4, True),
    (BatchRun, "_queue", 2, False),
    (BatchRun, "_queue", 2, True),
    (BatchLog, "finish", 2, False),
    (BatchLog, "finish", 2, True),
    (BatchRun, "clean", 2, True),
]


@pytest.mark.parametrize(("owner", "name", "nth", "after"), STEPS)
def test_a_crash_between_routes_changes_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, nth: int, after: bool
) -> None:
    """Four outputs a batch: sink, rejected, retry queue, and what is taken out of that."""
    early, clock = shop.goods.slice(0, 300), ManualClock(1_000_000.0)
    shop.master(early)
    sold = shop.sell(80, 80, 80)
    options: dict[str, Any] = {
        "unmatched": Retry(backoff=1, deadline="1h"),
        "rejected": str(shop.folder / "bad"),
    }
    with monkeypatch.context() as patch:
        crash(patch, owner, name, nth, after)
        with pytest.raises(CrashError):
            shop.pipeline(clock=clock, **options).start().await_termination()
    clock.advance(2)
    shop.master()
    status = shop.run(clock=clock, **options).status()
    keyed = sold.filter(sold["id"].is_valid())
    wanted = oracle_join(keyed, shop.goods, on="id")
    assert_same_rows(shop.rows("out", "id", "n", "name"), wanted.rows)
    nulls = sold.filter(sold["id"].is_null())
    assert_same_rows(shop.rows("bad", "n"), [(n,) for n in nulls["n"].to_pylist()])
    assert status.waiting_retry == wanted.unmatched
    totals = status.totals
    assert totals.source == len(sold)
    assert totals.arrived == totals.joined + totals.unmatched + totals.rejected
    home = shop.folder / "checkpoint" / "semistream"
    assert [path.name for path in (home / "staging").glob("[0-9]*")] == []


def test_a_source_that_gives_other_rows_again_does_no_harm(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the tuples are rejected by chance; a second throw must not decide anew."""
    shop.master()
    sold = shop.sell(200)
    source = shop.stream().selectExpr("*", "rand() AS luck")
    options: dict[str, Any] = {
        "rejected": str(shop.folder / "bad"),
        "checks": {"no luck": "luck < 0.5"},
    }
    with monkeypatch.context() as patch:
        crash(patch, Folder, "become", 2, False)
        with pytest.raises(CrashError):
            shop.pipeline(source, **options).start().await_termination()
    shop.run(source, **options)
    kept, bad = (sorted(n for (n,) in shop.rows(name, "n")) for name in ("out", "bad"))
    assert min(len(kept), len(bad)) > 50
    assert sorted(kept + bad) == list(range(len(sold)))


def test_an_unfinished_batch_of_waiting_tuples_is_finished_first(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(1_000_000.0)
    shop.master(shop.goods.slice(0, 300))
    sold = shop.sell(80)
    shop.run(unmatched=Retry(), clock=clock)
    shop.master()
    with monkeypatch.context() as patch:
        crash(patch, BatchRun, "_deliver", 1, False)
        with pytest.raises(CrashError):
            shop.pipeline(unmatched=Retry(), clock=clock).start().await_termination()
    assert records(shop)[-1].stream_batch is None
    shop.sell(20)
    shop.run(unmatched=Retry(), clock=clock)
    assert [record.stream_batch for record in records(shop)] == [0, None, 1]
    rows = [row for row in shop.rows("out", "id", "n", "name") if row[1] < len(sold)]
    assert_same_rows(rows, oracle_join(sold, shop.goods, on="id").rows)


class FaultyJoin:
    """A join whose result has been tampered with, in the worker."""

    def __init__(self, join: Any, fault: Callable[[pa.Table], pa.Table]) -> None:
        self.join, self.fault = join, fault

    def __call__(self, batches: Any, report: Any = None) -> Iterator[pa.RecordBatch]:
        rows = pa.Table.from_batches(list(self.join(batches, report)))
        yield from self.fault(rows).to_batches()


def tamper(monkeypatch: pytest.MonkeyPatch, fault: Callable[[pa.Table], pa.Table]) -> None:
    """Let the join of every batch be faulty."""
    whole = Staging._task

    def faulty(*arguments: Any) -> StageTask:
        task = whole(*arguments)
        return replace(task, join=FaultyJoin(task.join, fault))

    monkeypatch.setattr(Staging, "_task", faulty)


def number(rows: pa.Table) -> list[int]:
    """The stream's column `n`, its second, under the name that it has during the join."""
    found: list[int] = rows[place(1)].to_pylist()
    return found


def one_lost(rows: pa.Table) -> pa.Table:
    return rows.filter(pa.array([n != 3 for n in number(rows)]))


def one_lost_for_another_doubled(rows: pa.Table) -> pa.Table:
    second = rows.filter(pa.array([n == 2 for n in number(rows)]))
    return pa.concat_tables([one_lost(rows), second])


@pytest.mark.parametrize("rejects", [False, True])
def test_a_lost_tuple_stops_the_query(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, rejects: bool
) -> None:
    """What the join gives is cut short: then nothing reaches any sink."""
    shop.master()
    shop.sell(80)
    tamper(monkeypatch, one_lost)
    bad = str(shop.folder / "bad") if rejects else None
    with pytest.raises(ConservationError, match="Batch 0 does not add up"):
        shop.pipeline(rejected=bad).start().await_termination()
    assert shop.rows("out", *OUTPUT) == []
    assert shop.rows("bad", "n") == []


@pytest.mark.parametrize("ids", [[1, 2, 3, 4], [1, 9_999, 9_998, 4], [1, 9_999, 3, 4]])
def test_a_tuple_lost_for_another_doubled_stops_it_too(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, ids: list[int]
) -> None:
    """The number of rows is right, the rows are not, whether they are matched or unmatched."""
    shop.master()
    shop.sell(pa.table({"id": ids, "n": [1, 2, 3, 4]}))
    tamper(monkeypatch, one_lost_for_another_doubled)
    with pytest.raises(ConservationError):
        shop.pipeline().start().await_termination()


def test_a_file_that_lost_rows_stops_it(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks say how many rows they have written; the files must have as many."""
    shop.master()
    shop.sell(80)
    taken = Folder.take_file

    def cut(folder: Folder, file: Folder) -> None:
        pq.write_table(pq.read_table(file.path).slice(1), file.path)
        taken(folder, file)

    monkeypatch.setattr(Folder, "take_file", cut)
    with pytest.raises(ConservationError, match=r"79\} are in the files"):
        shop.pipeline().start().await_termination()
    assert shop.rows("out", *OUTPUT) == []


def test_files_that_no_task_names_are_left_behind(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a task that ran twice leaves them."""
    shop.master()
    sold = shop.sell(80)
    made = Folder.create

    def with_a_stray(folder: Folder) -> None:
        made(folder)
        if folder.name.startswith("_tasks."):
            pq.write_table(pa.table({"id": [1], "n": [-1]}), f"{folder.path}/part-stray.parquet")

    monkeypatch.setattr(Folder, "create", with_a_stray)
    shop.run()
    assert sorted(n for (n,) in shop.rows("out", "n")) == list(range(len(sold)))
    assert list((shop.folder / "checkpoint" / "semistream" / "staging").iterdir()) == []


def test_rows_that_a_sink_has_lost_are_missed(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink has taken its files, and they are removed before the batch is done."""
    shop.master()
    shop.sell(20, 20)
    with monkeypatch.context() as patch:
        crash(patch, Folder, "become", 2, True)
        with pytest.raises(CrashError):
            shop.pipeline().start().await_termination()
    shutil.rmtree(shop.folder / "out" / "batch=1")
    with pytest.raises(SinkError, match="batch=1 was written before, and is gone"):
        shop.pipeline().start().await_termination()


def test_versions_that_a_replay_needs_are_pinned(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        master = shop.master(versions(shop)[number])
    checkpoint = shop.folder / "checkpoint"
    assert pinned_versions(checkpoint) == set()
    tables = [shop.sales(30) for _ in range(2)]
    shop.sell(*tables)
    with monkeypatch.context() as patch:
        crash(patch, BatchRun, "write", 2, False)
        with pytest.raises(CrashError):
            shop.pipeline().start().await_termination()
    for number in (1, 2, 1, 2):
        master = shop.master(versions(shop)[number])
    assert pinned_versions(checkpoint) == {2}
    removed = master.vacuum(keep_versions=1, pinned=pinned_versions(checkpoint))
    assert 2 not in removed.versions
    assert 3 in removed.versions
    shop.run()
    wanted = [
        row
        for table in tables
        for row in oracle_join(table, versions(shop)[2], on="id", how="left").rows
    ]
    assert_same_rows(shop.rows("out", "id", "n", "name"), wanted)
    assert ss.MasterTable.latest_version(shop.folder / "goods.master") == 6


def test_a_log_without_sparks_offsets_is_refused(shop: Shop) -> None:
    shop.master()
    shop.sell(30)
    shop.run()
    offsets = shop.folder / "checkpoint" / "offsets"
    offsets.rename(shop.folder / "lost")
    with pytest.raises(CheckpointError, match="not Spark's offsets"):
        shop.pipeline().start()


def test_two_pipelines_cannot_share_a_log(shop: Shop) -> None:
    home = shop.folder / "log"
    one, other = BatchLog(home), BatchLog(home)
    record = BatchRecord(number=0, stream_batch=0, at=1.0, version=1)
    one.begin(record)
    with pytest.raises(CheckpointError, match="two pipelines"):
        other.begin(record)
    assert json.loads((home / "batches" / "00000000.json").read_text())["version"] == 1
