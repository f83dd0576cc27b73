"""A batch that failed at any point runs again, with the same rows, and each is written once."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

import semistream as ss
from semistream.errors import CheckpointError, ConservationError
from semistream.spark.pipeline.batch_frame import BatchShape
from semistream.spark.pipeline.batch_log import BatchLog, BatchRecord, pinned_versions
from semistream.spark.pipeline.batch_run import BatchRun
from semistream.spark.pipeline.routes import Retry
from semistream.spark.pipeline.sinks import ParquetSink
from semistream.spark.pipeline.staging import Staging
from semistream.testing import ManualClock, assert_same_rows, oracle_join
from tests.spark.pipeline.conftest import Shop

pytestmark = pytest.mark.service

OUTPUT = ("id", "n", "name", "batch")


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
    (Staging, "directly", True),
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
    (ParquetSink, "write", 3, False),
    (ParquetSink, "write", 3, True),
    (ParquetSink, "write", 4, True),
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
        crash(patch, ParquetSink, "write", 2, False)
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


@pytest.mark.parametrize("rejects", [False, True])
def test_a_lost_tuple_stops_the_query(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, rejects: bool
) -> None:
    """What the join gives is cut short: then nothing reaches any sink."""
    shop.master()
    shop.sell(80)
    whole = BatchShape.joined

    def short(
        shape: BatchShape, frame: DataFrame, master: ss.MasterTable, **folders: str | None
    ) -> DataFrame:
        return whole(shape, frame, master, **folders).where("n != 3")

    monkeypatch.setattr(BatchShape, "joined", short)
    bad = str(shop.folder / "bad") if rejects else None
    with pytest.raises(ConservationError, match="Batch 0 does not add up"):
        shop.pipeline(rejected=bad).start().await_termination()
    assert shop.rows("out", *OUTPUT) == []
    assert shop.rows("bad", "n") == []


@pytest.mark.parametrize("rejects", [False, True])
def test_a_tuple_lost_for_another_doubled_stops_it_too(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, rejects: bool
) -> None:
    """The number of rows is right, the rows are not."""
    shop.master()
    shop.sell(pa.table({"id": [1, 2, 3, 4], "n": [1, 2, 3, 4]}))
    whole = BatchShape.joined

    def swapped(
        shape: BatchShape, frame: DataFrame, master: ss.MasterTable, **folders: str | None
    ) -> DataFrame:
        joined = whole(shape, frame, master, **folders)
        return joined.where("n != 3").union(joined.where("n = 2"))

    monkeypatch.setattr(BatchShape, "joined", swapped)
    bad = str(shop.folder / "bad") if rejects else None
    with pytest.raises(ConservationError):
        shop.pipeline(rejected=bad).start().await_termination()


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
