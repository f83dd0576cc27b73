"""A pipeline with several masters: routes, late rows in any of them, and replays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

import semistream as ss
from semistream.errors import CheckpointError, ColumnClashError, MasterChangedError, OptionError
from semistream.spark.pipeline.batch_log import BatchLog, BatchRecord, pinned_versions
from semistream.spark.pipeline.batch_run import BatchRun
from semistream.spark.pipeline.folders import Folder
from semistream.spark.pipeline.staging import Staging
from semistream.testing import ManualClock, assert_same_rows
from tests.spark.pipeline.conftest import Shop
from tests.spark.pipeline.test_pipeline_replay import CrashError, crash

pytestmark = pytest.mark.service

SCHEMA = "n long, product long, customer string, store int"
KINDS = [pa.int64(), pa.int64(), pa.string(), pa.int32()]
# Both masters have a column "id", and the first goods have two rows each.
GOODS = pa.table({"id": [i % 50 for i in range(70)], "name": [f"good {i}" for i in range(70)]})
PEOPLE = [None if i % 9 == 0 else f"person {i}" for i in range(40)]
CUSTOMERS = pa.table({"id": [f"c{i}" for i in range(40)], "name": PEOPLE})
STORES = pa.table({"store_id": pa.array(range(8), pa.int32()), "region": list("abcdefgh")})
COLUMNS = ("n", "product", "customer", "store", "good_name", "name", "region")

Masters = dict[str, pa.Table]
ALL: Masters = {"goods": GOODS, "customers": CUSTOMERS, "stores": STORES}


def build(shop: Shop, name: str, table: pa.Table) -> ss.MasterTable:
    key = table.column_names[0]
    path = shop.folder / f"{name}.master"
    return ss.MasterTable.from_arrow(table, path, key=key, page_bytes=4096, replace=True)


def lookups(shop: Shop) -> list[ss.Lookup]:
    """Those that are there already are opened."""
    opened = {name: ss.MasterTable.open(shop.folder / f"{name}.master") for name in ALL}
    return [
        ss.Lookup(opened["stores"], on={"store": "store_id"}, how="left"),
        ss.Lookup(opened["goods"], on={"product": "id"}, prefix="good_"),
        ss.Lookup(opened["customers"], on={"customer": "id"}),
    ]


def sales(shop: Shop, rows: int) -> pa.Table:
    """Sales with absent and null keys of every kind."""
    random = np.random.default_rng(shop.seed + shop.sold)

    def some(kind: pa.DataType, values: Any) -> pa.Array:
        return pa.array(values, kind, mask=random.random(rows) < 0.05)

    return pa.table(
        {
            "n": range(shop.sold, shop.sold + rows),
            "product": some(pa.int64(), random.integers(0, 55, rows)),
            "customer": some(pa.string(), [f"c{i}" for i in random.integers(0, 45, rows)]),
            "store": some(pa.int32(), random.integers(0, 10, rows)),
        }
    )


def sell(shop: Shop, *counts: int) -> pa.Table:
    """Let so many sales arrive, a file each; all as one."""
    return pa.concat_tables([shop.sell(sales(shop, count)) for count in counts])


def stream(shop: Shop) -> DataFrame:
    return shop.stream(SCHEMA)


def options(shop: Shop, **more: Any) -> dict[str, Any]:
    return {"on": None, "memory": "2MB", **more}


def run(shop: Shop, **more: Any) -> ss.Status:
    pipeline = shop.run(stream(shop), lookups(shop), **options(shop, **more))
    return pipeline.status()


def joined(sold: pa.Table, masters: Masters) -> tuple[list[tuple[Any, ...]], list[int]]:
    """The result row by row, and the numbers of tuples that lack a good or a customer."""
    found: list[tuple[Any, ...]] = []
    unmatched: list[int] = []
    by_key: dict[str, dict[Any, list[Any]]] = {}
    for name, table in masters.items():
        rows = by_key.setdefault(name, {})
        for key, value in zip(*(column.to_pylist() for column in table.columns), strict=True):
            rows.setdefault(key, []).append(value)
    for n, product, customer, store in zip(*(c.to_pylist() for c in sold.columns), strict=True):
        goods = by_key["goods"].get(product, [])
        people = by_key["customers"].get(customer, [])
        regions = by_key["stores"].get(store, [None])
        if not goods or not people:
            unmatched.append(n)
        found += [
            (n, product, customer, store, good, person, region)
            for good in goods
            for person in people
            for region in regions
        ]
    return found, unmatched


def make(shop: Shop, masters: Masters) -> None:
    for name, table in masters.items():
        build(shop, name, table)


def records(shop: Shop) -> list[BatchRecord]:
    return BatchLog(shop.folder / "checkpoint" / "semistream").records()


def test_unmatched_tuples_are_left_out_or_go_to_their_sink_once(shop: Shop) -> None:
    make(shop, ALL)
    sold = sell(shop, 300, 200)
    status = run(shop, unmatched=str(shop.folder / "lost"), metrics=shop.folder / "metrics.jsonl")
    found, unmatched = joined(sold, ALL)
    assert_same_rows(shop.rows("out", *COLUMNS), found)
    assert sorted(n for (n,) in shop.rows("lost", "n")) == unmatched
    assert status.versions == {"stores": 1, "goods": 1, "customers": 1}
    assert status.totals.unmatched == len(unmatched)
    assert status.totals.joined == len(sold) - len(unmatched)
    assert status.totals.outputs == len(found)
    line = shop.lines("metrics.jsonl")[-1]
    assert line["master_versions"] == {"stores": 1, "goods": 1, "customers": 1}
    assert line["algorithm"] == "star"
    assert 0 <= line["hit_ratio"] <= 1


def test_tuples_wait_until_a_row_arrives_in_another_master(shop: Shop) -> None:
    """First customers are missing, then goods; a store that is missing keeps nobody waiting."""
    few = ALL | {"customers": CUSTOMERS.slice(0, 20), "goods": GOODS.slice(0, 30)}
    few["stores"] = STORES.slice(0, 4)
    make(shop, few)
    clock = ManualClock(1_000_000.0)
    more = {"unmatched": ss.Retry(backoff="50m", deadline="1h"), "clock": clock}
    sold = sell(shop, 300)
    found, unmatched = joined(sold, few)
    assert run(shop, **more).waiting_retry == len(unmatched)
    assert_same_rows(shop.rows("out", *COLUMNS), found)
    # Only the newer version makes them due.
    second = few | {"customers": CUSTOMERS}
    build(shop, "customers", CUSTOMERS)
    status = run(shop, **more)
    found2, unmatched2 = joined(sold, second)
    assert len(found) < len(found2)
    assert status.waiting_retry == len(unmatched2)
    assert_same_rows(shop.rows("out", *COLUMNS), found2)
    assert status.versions == {"stores": 1, "goods": 1, "customers": 2}
    build(shop, "goods", GOODS)
    status = run(shop, **more)
    found3, unmatched3 = joined(sold.take(unmatched2), second | {"goods": GOODS})
    assert_same_rows(shop.rows("out", *COLUMNS), found2 + found3)
    assert status.waiting_retry == len(unmatched3)
    assert pinned_versions(shop.folder / "checkpoint") == {1, 2}
    # At the end each is emitted once, though some have two goods.
    clock.advance(4000)
    assert run(shop, **more).waiting_retry == 0
    late = [row for row in shop.rows("out", *COLUMNS) if row[0] in unmatched3]
    assert sorted(row[0] for row in late) == unmatched3
    for _, product, customer, _, good, _, _ in late:
        has_good = product is not None and product < 50
        assert (good is not None) == has_good, "what another master has is there"
        assert not has_good or customer not in CUSTOMERS["id"].to_pylist()


def test_null_keys_of_inner_look_ups_are_rejected(shop: Shop) -> None:
    make(shop, ALL)
    sold = sell(shop, 300)
    run(shop, rejected=str(shop.folder / "bad"))
    rows = zip(*(sold[name].to_pylist() for name in ("n", "product", "customer")), strict=True)
    wanted = [
        (n, "product is null" if product is None else "customer is null")
        for n, product, customer in rows
        if product is None or customer is None
    ]
    assert_same_rows(shop.rows("bad", "n", "reason"), wanted)
    assert_same_rows(shop.rows("out", *COLUMNS), joined(sold, ALL)[0])


def test_look_ups_that_only_add_leave_no_tuple_unmatched(shop: Shop) -> None:
    make(shop, ALL)
    sell(shop, 100)
    only = [one.changed(how="left") for one in lookups(shop)]
    status = shop.run(stream(shop), only, **options(shop)).status()
    assert status.totals.joined == 100
    assert len({row[0] for row in shop.rows("out", *COLUMNS)}) == 100


def test_a_row_counts_only_if_it_passes_its_conditions(shop: Shop) -> None:
    """A good whose time has not come is late like one that is not there."""
    goods = pa.table({"id": [1, 1, 2], "since": [0, 5, 3], "name": ["old", "new", "two"]})
    grades = pa.table({"id": ["a", "a"], "least": [2, 6], "grade": ["low", "high"]})
    build(shop, "goods", goods)
    build(shop, "grades", grades)
    names = ["n", "product", "customer", "store"]
    shop.sell(
        pa.table(
            [[0, 4, 5, 6, 7], [1, 1, 1, 2, 3], ["a", "a", "a", "b", "a"], [0, 1, 6, 9, 9]],
            schema=pa.schema(list(zip(names, KINDS, strict=True))),
        )
    )
    opened = {
        name: ss.MasterTable.open(shop.folder / f"{name}.master") for name in ("goods", "grades")
    }
    given = [
        ss.Lookup(
            opened["grades"],
            on={"customer": "id"},
            how="left",
            where="store >= least",
            columns=["grade"],
        ),
        ss.Lookup(opened["goods"], on={"product": "id"}, as_of=("n", "since"), columns=["name"]),
    ]
    retry = ss.Retry(backoff="50m", deadline="1h")
    more = options(shop, unmatched=retry, clock=ManualClock(1_000_000.0))
    status = shop.run(stream(shop), given, **more).status()
    wanted = [
        (0, None, "old"),
        (4, None, "old"),
        (5, "low", "new"),
        (5, "high", "new"),
        (6, None, "two"),
    ]
    assert_same_rows(shop.rows("out", "n", "grade", "name"), wanted)
    assert status.waiting_retry == 1
    build(shop, "goods", pa.table({"id": [3, 3], "since": [8, 7], "name": ["later", "three"]}))
    assert shop.run(stream(shop), given, **more).status().waiting_retry == 0
    late = [(7, grade, "three") for grade in ("low", "high")]
    assert_same_rows(shop.rows("out", "n", "grade", "name"), wanted + late)


POINTS = [
    (BatchLog, "begin", True),
    (Staging, "by_route", True),
    (Folder, "become", True),
    (BatchRun, "_queue", False),
]


@pytest.mark.parametrize(("owner", "name", "after"), POINTS)
def test_a_replay_takes_the_same_versions_of_all_masters(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, after: bool
) -> None:
    first: Masters = ALL | {"customers": CUSTOMERS.slice(0, 20)}
    newer = pa.table({"id": CUSTOMERS["id"], "name": [f"newer {i}" for i in range(40)]})
    make(shop, first)
    sold = sell(shop, 120)
    clock = ManualClock(1_000_000.0)
    more = {"unmatched": ss.Retry(deadline="1h"), "clock": clock}
    with monkeypatch.context() as patch:
        crash(patch, owner, name, 1, after)
        with pytest.raises(CrashError):
            run(shop, **more)
    build(shop, "customers", newer)
    before = records(shop)
    status = run(shop, **more)
    # The batch runs again as it was; those that it left unmatched find the new customers.
    old, waited = joined(sold, first)
    late, unmatched = joined(sold.take(waited), ALL | {"customers": newer})
    assert_same_rows(shop.rows("out", *COLUMNS), old + late)
    assert status.waiting_retry == len(unmatched)
    assert records(shop)[0] == before[0]
    assert [one.versions["customers"] for one in records(shop)] == [1, 2]
    assert [one.version for one in records(shop)] == [3, 4]


def test_records_have_versions_only_if_there_are_several_masters(tmp_path: Path) -> None:
    """So older releases read the checkpoint of a pipeline with one, and it theirs."""
    log = BatchLog(tmp_path)
    log.begin(BatchRecord(0, 0, 1.0, 4))
    several = BatchRecord(1, 1, 2.0, 5, versions={"goods": 2, "stores": 3})
    log.begin(several)
    one, other = (tmp_path / "batches" / f"0000000{n}.json" for n in (0, 1))
    assert "versions" not in json.loads(one.read_text())
    assert BatchLog(tmp_path).last_record == several
    for broken in ("3", "[1]", '{"goods": "two"}'):
        text = json.dumps(json.loads(other.read_text()) | {"versions": json.loads(broken)})
        other.write_text(text)
        with pytest.raises(CheckpointError, match="does not have the fields"):
            BatchLog(tmp_path)


def test_other_masters_cannot_finish_a_batch(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    make(shop, ALL)
    sell(shop, 30)
    with monkeypatch.context() as patch:
        crash(patch, BatchLog, "begin", 1, True)
        with pytest.raises(CrashError):
            run(shop)
    other = shop.pipeline(stream(shop), lookups(shop)[:2], **options(shop))
    with pytest.raises(CheckpointError, match="Batch 0 was begun with"):
        other.start().await_termination()
    one = shop.pipeline(stream(shop), shop.folder / "stores.master", on={"store": "store_id"})
    with pytest.raises(CheckpointError, match="the pipeline has one now"):
        one.start().await_termination()
    run(shop)


def test_tuples_beyond_the_target_are_deferred(shop: Shop) -> None:
    make(shop, ALL)
    sold = sell(shop, *[2500] * 4)
    status = run(shop, batch_target="1ms")
    assert status.totals.deferred > 0
    assert status.waiting_deferred == 0
    assert_same_rows(shop.rows("out", *COLUMNS), joined(sold, ALL)[0])


def test_a_column_that_goes_away_is_named_with_its_look_up(shop: Shop) -> None:
    make(shop, ALL)
    sell(shop, 30)
    pipeline = shop.pipeline(stream(shop), lookups(shop), **options(shop))
    build(shop, "goods", GOODS.rename_columns(["id", "title"]))
    with pytest.raises(MasterChangedError, match=r"Look-up goods: Version 2"):
        pipeline.start().await_termination()


def test_arguments_that_do_not_go_together(shop: Shop, tmp_path: Path) -> None:
    make(shop, ALL)
    sell(shop, 3)
    made = lookups(shop)
    cases: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        (made, {"on": "product"}, OptionError, "on= is for a pipeline with one master"),
        (made, {"how": "left", "io": "direct"}, OptionError, "how=, io= is for"),
        ([], {}, OptionError, "Give a list of look-ups"),
        ([shop.folder / "goods.master"], {}, OptionError, "must be an ss.Lookup"),
        (shop.folder / "goods.master", {}, OptionError, "on= is missing"),
        ([made[1].changed(prefix=""), made[2]], {}, ColumnClashError, "Look-up customers"),
        ([made[0].changed(where="name is null")], {}, OptionError, "Look-up stores: .*'name'"),
        ([made[0].changed(how="anti")], {}, OptionError, "how='anti' is not for"),
    ]
    for masters, more, error, words in cases:
        with pytest.raises(error, match=words):
            shop.pipeline(stream(shop), masters, **options(shop, **more))
