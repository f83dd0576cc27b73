"""`join_star` against a chain of `join`s and Spark's own joins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import semistream as ss
from semistream.errors import BudgetError, ColumnClashError, KeyColumnError, OptionError
from semistream.spark.join import join
from semistream.spark.star import join_star, star_task
from semistream.testing import assert_same_rows
from tests.spark.conftest import Build
from tests.spark.other_session import OtherSession

pytestmark = pytest.mark.service

RNG = np.random.default_rng(5)
PRODUCTS = pa.table(
    {
        "product_id": np.arange(600) * 3,
        "product": [f"product {i}" for i in range(600)],
        "price": RNG.random(600),
    }
)
CUSTOMERS = pa.table(
    {
        "customer": [f"c{i % 400}" for i in range(500)],  # The first hundred have two rows.
        "city": [None if i % 9 == 0 else f"city {i}" for i in range(500)],
        "credit": pa.array(np.arange(500), pa.uint32()),
    }
)
STORES = pa.table({"store_id": pa.array(range(40), pa.int16()), "region": ["n", "s"] * 20})


def sales(spark: SparkSession, count: int = 3000) -> DataFrame:
    """Sales with null and absent keys."""
    rng = np.random.default_rng(7)
    rows = [
        (
            i,
            None if i % 50 == 7 else int(rng.integers(0, 2000)),
            None if i % 40 == 3 else f"c{int(rng.integers(0, 450))}",
            int(rng.integers(0, 44)),
        )
        for i in range(count)
    ]
    return spark.createDataFrame(rows, "sale long, product_id long, buyer string, store int")


def lookups(build: Build, **more: Any) -> list[ss.Lookup]:
    return [
        ss.Lookup(build(PRODUCTS, "product_id", **more), on="product_id", name="products"),
        ss.Lookup(
            build(CUSTOMERS, "customer"),
            on={"buyer": "customer"},
            how="left",
            columns=["credit", "city"],
            name="customers",
        ),
        ss.Lookup(build(STORES, "store_id"), on={"store": "store_id"}, how="left", name="stores"),
    ]


def chained(frame: DataFrame, masters: list[ss.Lookup]) -> DataFrame:
    for one in masters:
        frame = join(frame, one.master, on=one.on, how=one.how, columns=one.columns, memory="4MB")
    return frame


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in frame.collect()]


@pytest.mark.parametrize("shards", [1, 3])
def test_a_star_gives_what_a_chain_gives(spark: SparkSession, build: Build, shards: int) -> None:
    masters = lookups(build, shards=shards)
    frame = sales(spark)
    out = join_star(frame, masters, memory="12MB")
    expected = chained(frame, masters) if shards == 1 else chained(frame, lookups(build))
    assert out.columns == expected.columns
    assert out.schema == expected.schema
    assert_same_rows(rows(out), rows(expected))


def test_a_star_gives_what_spark_gives(spark: SparkSession, build: Build) -> None:
    frame = sales(spark)
    products, customers, stores = (
        spark.createDataFrame(table)
        for table in (PRODUCTS, CUSTOMERS.set_column(2, "credit", [range(500)]), STORES)
    )
    expected = frame.join(products, "product_id")
    expected = expected.join(customers, expected.buyer == customers.customer, "left")
    expected = expected.join(stores, expected.store == stores.store_id, "left")
    out = join_star(frame, lookups(build), memory="12MB")
    names = out.columns
    assert_same_rows(rows(out), rows(expected.select(*names)))


@pytest.mark.parametrize("shards", [1, 3])
def test_conditions_are_those_of_spark_sql(spark: SparkSession, build: Build, shards: int) -> None:
    bounds = pa.table({"product_id": np.arange(900) // 2 * 3, "least": np.arange(900) % 7 * 400})
    ages = pa.table({"store_id": np.arange(200) // 5, "since": np.arange(200) % 5 * 500 + 300})
    given = [
        ss.Lookup(
            build(ages, "store_id"),
            on={"store": "store_id"},
            how="left",
            where="since between sale - 700 and sale",
            name="ages",
        ),
        ss.Lookup(
            build(bounds, "product_id", shards=shards),
            on="product_id",
            where="sale >= least",
            name="bounds",
            prefix="at_",
        ),
    ]
    frame = sales(spark)
    frame.createOrReplaceTempView("star_sales")
    spark.createDataFrame(bounds).createOrReplaceTempView("star_bounds")
    spark.createDataFrame(ages).createOrReplaceTempView("star_ages")
    expected = spark.sql(
        "SELECT s.*, a.since, b.least AS at_least FROM star_sales s JOIN star_bounds b ON "
        "s.product_id = b.product_id AND s.sale >= b.least LEFT JOIN star_ages a ON "
        "s.store = a.store_id AND a.since BETWEEN s.sale - 700 AND s.sale"
    )
    out = join_star(frame, given, memory="16MB")
    assert out.columns == expected.columns
    assert_same_rows(rows(out), rows(expected))


def test_a_stream_and_its_metrics(spark: SparkSession, build: Build, tmp_path: Path) -> None:
    sales(spark, 800).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(sales(spark, 1).schema).parquet(str(tmp_path / "in"))
    masters = lookups(build)
    out = join_star(
        stream,
        masters,
        memory="12MB",
        metrics=tmp_path / "metrics",
        learned=tmp_path / "learned",
    )
    writer = out.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "c"))
    writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()
    written = spark.read.parquet(str(tmp_path / "out"))
    assert_same_rows(rows(written), rows(chained(sales(spark, 800), masters)))
    records = [json.loads(p.read_text()) for p in (tmp_path / "metrics").glob("*.json")]
    assert sum(record["arrived"] for record in records) == 800
    for record in records:
        assert record["arrived"] == record["joined"] + record["unmatched"]
        assert set(record["lookups"]) <= {"products", "customers", "stores"}
        first = record["lookups"]["products"]
        assert first["joined"] == record["lookups"]["customers"]["arrived"]


def test_latest_follows_new_versions_and_pinned_does_not(spark: SparkSession, build: Build) -> None:
    masters = lookups(build)
    frame = sales(spark, 200)
    pinned = join_star(frame, masters, memory="12MB")
    latest = join_star(frame, masters, memory="12MB", freshness="latest")
    before = rows(pinned)
    assert_same_rows(rows(latest), before)
    stores = pa.table({"store_id": pa.array([5, 43], pa.int16()), "region": ["new", "new"]})
    masters[2].master.upsert(stores)
    assert_same_rows(rows(pinned), before)
    after = rows(latest)
    assert {row[3] for row in after if row[-1] == "new"} == {5, 43}
    assert_same_rows([row[:-1] for row in after], [row[:-1] for row in before])


def test_a_task_keeps_its_engines_and_hands_on_what_they_know(
    spark: SparkSession, build: Build
) -> None:
    """Outside Spark, as a worker runs it: the second task finds the engines of the first."""
    task, _ = star_task(sales(spark, 1), lookups(build), memory="12MB")
    batch = pa.RecordBatch.from_pylist(
        [row.asDict() for row in sales(spark, 300).collect()],
        pa.schema(
            [
                ("sale", pa.int64()),
                ("product_id", pa.int64()),
                ("buyer", pa.string()),
                ("store", pa.int32()),
            ]
        ),
    )
    records: list[Any] = []
    first = list(task(iter([batch]), records.append))
    second = list(task(iter([batch.slice(0, 0), batch]), records.append))
    assert_same_rows(first, second)
    assert [record["warm"] for record in records] == [False, True]
    assert records[0]["peak_memory"] <= records[0]["budget"] == 12 << 20
    assert not list(task(iter([])))


def test_errors_name_the_look_up(spark: SparkSession, build: Build) -> None:
    frame, masters = sales(spark, 1), lookups(build)
    twice = [*masters, ss.Lookup(masters[2].master, on={"store": "store_id"}, name="again")]
    with pytest.raises(ColumnClashError, match="Look-up again: the column 'region' is one of look"):
        join_star(frame, twice, memory="12MB")
    with pytest.raises(ColumnClashError, match="upper and lower case"):
        join_star(frame.withColumnRenamed("sale", "REGION"), masters, memory="12MB")
    with pytest.raises(KeyColumnError, match="Look-up customers: The stream has no column"):
        join_star(frame.drop("buyer"), masters, memory="12MB")
    with pytest.raises(BudgetError, match=r"3 look-ups: the least is [\d,]+ bytes \(products"):
        join_star(frame, masters, memory=1000)
    with pytest.raises(OptionError, match="freshness"):
        join_star(frame, masters, memory="12MB", freshness="new")
    with pytest.raises(OptionError, match="must be a Spark DataFrame"):
        join_star(PRODUCTS, masters, memory="12MB")


CONNECT = """
path, other = arguments
frame = spark.createDataFrame([(2, 1), (9, 2), (None, 1)], "id long, k long")
lookups = [
    ss.Lookup(ss.MasterTable.open(path), on="id", how="left"),
    ss.Lookup(ss.MasterTable.open(other), on={"k": "key"}),
]
out = ss.join_star(frame, lookups, memory="4MB")
answer = {"columns": out.columns, "rows": [list(row) for row in out.collect()]}
"""


@pytest.mark.slow
def test_connect(connect: OtherSession, tmp_path: Path) -> None:
    goods = pa.table({"id": [1, 2, 2], "name": ["a", "b", "B"]})
    kinds = pa.table({"key": [1], "kind": ["one"]})
    one = ss.MasterTable.from_arrow(goods, tmp_path / "goods.master", key="id")
    two = ss.MasterTable.from_arrow(kinds, tmp_path / "kinds.master", key="key")
    found = connect.run(CONNECT, one.path, two.path)
    assert found["columns"] == ["id", "k", "name", "kind"]
    expected = [(2, 1, "b", "one"), (2, 1, "B", "one"), (None, 1, None, "one")]
    assert_same_rows([tuple(row) for row in found["rows"]], expected)
