"""A pipeline from source to warehouse: each tuple on its route, counted, against the oracle."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.sql import DataFrame

import semistream as ss
from semistream.spark.pipeline.sinks import ParquetSink
from semistream.spark.records import selected
from semistream.testing import assert_same_rows, oracle_join
from tests.spark.conftest import Build
from tests.spark.pipeline.conftest import Shop

pytestmark = pytest.mark.service

OUTPUT = ("id", "n", "name")


@pytest.mark.parametrize("how", ["left", "inner"])
def test_joined_rows_reach_the_sink(shop: Shop, how: str) -> None:
    shop.master()
    sold = shop.sell(200, 200, 200)
    status = shop.run(how=how).status()
    expected = oracle_join(sold, shop.goods, on="id", how=how)
    assert_same_rows(shop.rows("out", *OUTPUT), expected.rows)
    assert (status.state, status.error) == ("finished", None)
    assert (status.batch, status.version) == (2, 1)
    totals = status.totals
    assert (totals.joined, totals.unmatched) == (expected.joined, expected.unmatched)
    assert totals.arrived == totals.source == len(sold)
    assert status.counts.arrived == 200


def test_routes_end_apart_and_nothing_is_lost(shop: Shop) -> None:
    shop.master()
    rows = shop.sell(200, 200).to_pylist()
    sinks = {name: str(shop.folder / name) for name in ("rejected", "unmatched")}
    checks = {"n divides by seven": "n % 7 != 0"}
    totals = shop.run(checks=checks, **sinks).status().totals
    good = pa.Table.from_pylist([r for r in rows if r["id"] is not None and r["n"] % 7])
    joined = oracle_join(good, shop.goods, on="id").rows
    assert_same_rows(shop.rows("out", *OUTPUT), joined)
    none = [(r["id"], r["n"]) for r in good.to_pylist() if r["id"] >= shop.keys]
    assert_same_rows(shop.rows("unmatched", "id", "n"), none)
    bad = [(r["id"], r["n"], "id is null") for r in rows if r["id"] is None]
    failed = [r for r in rows if r["id"] is not None and r["n"] % 7 == 0]
    bad += [(r["id"], r["n"], "n divides by seven") for r in failed]
    assert_same_rows(shop.rows("rejected", "id", "n", "reason"), bad)
    assert (totals.joined, totals.unmatched, totals.rejected) == (len(joined), len(none), len(bad))
    assert min(len(joined), len(none), len(bad)) > 0


def test_a_record_that_could_not_be_parsed_is_rejected(shop: Shop) -> None:
    shop.master()
    (shop.folder / "json").mkdir()
    text = '{"id": 1, "n": 1}\n{"id": 2, "n": \n{"id": 3, "n": 3}\n'
    (shop.folder / "json" / "a.json").write_text(text)
    reader = shop.spark.readStream.schema("id long, n long, _corrupt_record string")
    shop.run(reader.json(str(shop.folder / "json")), rejected=str(shop.folder / "bad"))
    assert sorted(shop.rows("out", "id")) == [(1,), (3,)]
    files = ds.dataset(shop.folder / "out", partitioning="hive")
    assert files.schema.names == ["id", "n", "name", "batch"], "null in all of them"
    found = shop.rows("bad", "_corrupt_record", "reason")
    assert found == [('{"id": 2, "n": ', "corrupt record")]


def test_whatever_a_record_is_rejected_for_it_is_kept_whole(shop: Shop) -> None:
    shop.master()
    reasons = {
        '{"id": 1, "n": 1, "more": 7}': None,
        '{"id": 2, "n": ': "corrupt record",
        '{"ID": 3, "n": 3}': "id is null",
        '{"id": 4, "n": 4, "more": 8}': "n is four",
        '{"id": 9999, "n": 5}': None,
    }
    values = pa.array([text.encode() for text in reasons], pa.binary())
    shop.sell(pa.table({"value": values}), pa.table({"value": values}))
    stream = ss.parsed(shop.stream("value binary"), "id long, n long", whole=True)
    shop.run(
        stream,
        # The second batch has the tuple that waits, too.
        unmatched=ss.Retry(backoff="1s", deadline="1h"),
        clock=iter(range(0, 10**6, 100)).__next__,
        steps=[lambda frame: selected(frame, ["id", "n"])],
        rejected=str(shop.folder / "bad"),
        checks={"n is four": "n != 4"},
    )
    assert shop.rows("out", "id", "n") == [(1, 1)] * 2
    kept = [(text, reason) for text, reason in reasons.items() if reason] * 2
    assert_same_rows(shop.rows("bad", "_corrupt_record", "reason"), kept)
    files = ds.dataset(shop.folder / "bad", partitioning="hive")
    assert files.schema.names == ["id", "n", "_corrupt_record", "reason", "batch"]


@pytest.mark.parametrize("rejects", [False, True])
def test_a_tuple_with_several_rows_counts_once(shop: Shop, rejects: bool) -> None:
    doubled = pa.concat_tables([shop.goods, shop.goods.slice(0, 100)])
    shop.master(doubled)
    sold = shop.sell(200)
    totals = shop.run(rejected=str(shop.folder / "bad") if rejects else None).status().totals
    kept = sold.filter(sold["id"].is_valid()) if rejects else sold
    expected = oracle_join(kept, doubled, on="id", how="left")
    assert len(expected.rows) > len(kept)
    assert_same_rows(shop.rows("out", *OUTPUT), expected.rows)
    assert (totals.joined, totals.unmatched) == (expected.joined, expected.unmatched)
    assert totals.arrived == len(sold)


def test_other_names_and_several_keys(shop: Shop, build: Build) -> None:
    master = pa.table({"a": [1, 1, 2], "b": ["x", "y", "x"], "Name": ["1x", "1y", "2x"]})
    shop.sell(pa.table({"b": [1, 1, 2, None], "a": ["x", "z", "x", "x"], "the name": [1, 2, 3, 4]}))
    source = shop.stream("b long, a string, `the name` long")
    bad = str(shop.folder / "bad")
    shop.run(source, build(master, key=["a", "b"]), on={"b": "a", "a": "b"}, rejected=bad)
    expected = [(1, "x", 1, "1x"), (1, "z", 2, None), (2, "x", 3, "2x")]
    assert_same_rows(shop.rows("out", "b", "a", "the name", "Name"), expected)
    assert shop.rows("bad", "the name", "reason") == [(4, "b is null")]


def test_a_function_can_be_the_sink(shop: Shop) -> None:
    shop.master()
    sold = shop.sell(200, 200)
    taken: dict[int, pa.Table] = {}

    def take(frame: DataFrame, batch: int) -> None:
        # Used twice: the join must not run twice for that.
        taken[batch] = frame.toArrow()
        assert frame.count() == len(taken[batch])

    shop.run(sink=take)
    assert sorted(taken) == [0, 1]
    expected = oracle_join(sold, shop.goods, on="id", how="left").rows
    assert_same_rows(pa.concat_tables(taken.values()), expected)


def test_the_batch_column_can_have_another_name(shop: Shop) -> None:
    shop.master()
    shop.sell(50, 50)
    shop.run(sink=ParquetSink(shop.folder / "out", batch_column="load"))
    assert {row[0] for row in shop.rows("out", "load")} == {0, 1}


def test_each_batch_takes_the_newest_version(shop: Shop) -> None:
    """As many rows as R has are appended while the pipeline runs, between its batches."""
    half = shop.goods.slice(0, shop.keys // 2)
    master = shop.master(half)
    versions: dict[int, tuple[int, pa.Table]] = {}
    tables = [shop.sales(100) for _ in range(4)]
    shop.sell(*tables)

    def take(frame: DataFrame, batch: int) -> None:
        nonlocal master
        versions[batch] = (master.version, frame.toArrow())
        added = 25 * (batch + 1)
        master = master.upsert(shop.goods.slice(shop.keys // 2 + added * 2 - 50, 50))

    shop.run(sink=take)
    assert [version for version, _ in versions.values()] == [1, 2, 3, 4]
    for batch, (version, rows) in versions.items():
        there = ss.MasterTable.open(shop.folder / "goods.master", version)
        assert there.row_count == shop.keys // 2 + 50 * batch
        known = shop.goods.slice(0, there.row_count)
        assert_same_rows(rows, oracle_join(tables[batch], known, on="id", how="left").rows)
    assert master.row_count == shop.keys


TYPES = {
    "tiny": ("tinyint", "CAST(n AS TINYINT)"),
    "decimal": ("decimal(9,2)", "CAST(n / 7 AS DECIMAL(9,2))"),
    "wide": ("decimal(38,4)", "CAST(n / 7 AS DECIMAL(38,4))"),
    "day": ("date", "DATE '1500-03-01' + INT(n)"),
    "moment": ("timestamp", "TIMESTAMP '1499-12-31 23:59:59.123456Z'"),
    "local": ("timestamp_ntz", "TIMESTAMP_NTZ '2024-02-29 12:00:00.5'"),
    "span": ("interval day to second", "make_dt_interval(n, 1, 2, 3.5)"),
    "bytes": ("binary", "CAST(CAST(id AS STRING) AS BINARY)"),
    "items": (
        "array<struct<a:int,b:string>>",
        "array(named_struct('a', 1, 'b', CAST(NULL AS STRING)), NULL)",
    ),
    "table": (
        "map<string,struct<a:bigint,b:array<double>>>",
        "map('x', named_struct('a', n, 'b', array(n / 3, NULL)), 'y', NULL)",
    ),
}


def test_what_is_written_has_sparks_types(shop: Shop) -> None:
    """Workers write the files; Spark reads from them what it would read from its own."""
    shop.master()
    sold = shop.sell(50)
    exprs = [f"{sql} AS {name}" for name, (_, sql) in TYPES.items()]
    routes = {name: str(shop.folder / name) for name in ("rejected", "unmatched")}
    shop.run(shop.stream().selectExpr("*", *exprs), **routes)
    batch = shop.spark.read.parquet(str(shop.folder / "sales")).selectExpr("*", *exprs)
    found = [
        shop.spark.read.parquet(path).drop("batch")
        for path in (str(shop.folder / "out"), routes["rejected"], routes["unmatched"])
    ]
    for frame in found:
        types = dict(frame.dtypes)
        assert {name: types[name] for name in TYPES} == {n: kind for n, (kind, _) in TYPES.items()}
    rows = [row for frame in found for row in frame.select(*batch.columns).collect()]
    assert len(rows) == len(sold)
    assert sorted(map(repr, rows)) == sorted(map(repr, batch.collect()))


def test_a_batch_is_one_spark_job(shop: Shop) -> None:
    """With every route: sink, rejected, retry queue, and a target that no batch misses."""
    shop.master()
    shop.sell(60, 60, 60)
    bad = str(shop.folder / "bad")
    pipeline = shop.run(rejected=bad, unmatched=ss.Retry(deadline="9h"), batch_target="1h")
    totals = pipeline.status().totals
    assert min(totals.joined, totals.unmatched, totals.rejected) > 0
    assert pipeline._query is not None
    # Spark gives the jobs of a query its name.
    tracker = shop.spark.sparkContext.statusTracker()
    assert len(tracker.getJobIdsForGroup(str(pipeline._query.runId))) == 3


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_master_in_shards(shop: Shop, shuffle: bool) -> None:
    goods = pa.concat_tables([shop.goods, shop.goods.slice(0, 100)])
    path = shop.folder / "goods.master"
    ss.MasterTable.from_arrow(goods, path, key="id", page_bytes=4096, shards=2)
    sold = shop.sell(100, 100)
    totals = shop.run(shuffle=shuffle, rejected=str(shop.folder / "bad")).status().totals
    keyed = sold.filter(sold["id"].is_valid())
    expected = oracle_join(keyed, goods, on="id", how="left")
    assert_same_rows(shop.rows("out", *OUTPUT), expected.rows)
    assert (totals.joined, totals.unmatched) == (expected.joined, expected.unmatched)
    assert totals.rejected == len(sold) - len(keyed)
