"""`join` with masters in shards against Spark's own join: divided or not, batch and streaming."""

from __future__ import annotations

import json
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from semistream.spark.join import join
from semistream.spark.shards.division import KeyShards, divided
from semistream.testing import assert_same_rows, oracle_join, rows_of
from tests.spark.conftest import Build
from tests.spark.other_session import OtherSession

pytestmark = pytest.mark.service

KEYS = 1_000


def goods_of(string: bool = False) -> pa.Table:
    """A master with two rows for some keys, and one without a key."""
    ids = [*range(KEYS), *range(0, KEYS, 7)]
    values = [f"clé {i}" for i in ids] if string else ids
    return pa.table({"id": [*values, None], "name": [f"name {i}" for i in range(len(ids) + 1)]})


def sales_of(seed: int, rows: int, string: bool = False, hot: float = 0.5) -> pa.Table:
    """Sales of which a share `hot` has one key; some keys are absent, and some null."""
    random = np.random.default_rng(seed)
    ids = random.integers(0, KEYS + 100, rows)
    ids[random.random(rows) < hot] = 5
    values = [f"clé {i}" for i in ids] if string else ids
    column = pa.array(values, mask=random.random(rows) < 0.05)
    return pa.table({"id": column, "n": np.arange(rows)})


@pytest.mark.parametrize("string", [False, True], ids=["integer", "string"])
def test_shards_agree_with_spark(
    spark: SparkSession, build: Build, seed: int, string: bool
) -> None:
    goods, sales = goods_of(string), sales_of(seed, 3_000, string)
    stream, table = spark.createDataFrame(sales).repartition(3), spark.createDataFrame(goods)
    masters = {count: build(goods, shards=count) for count in (1, 3, 4)}
    arguments: dict[str, Any] = {"on": "id", "memory": "1MB"}
    runs = {
        f"{count} {shuffle} {how}": join(stream, master, how=how, shuffle=shuffle, **arguments)
        for count, master in masters.items()
        for shuffle in (True, False, None)
        for how in ("inner", "left")
    }
    # One job for all of them: jobs cost more than joins of this size.
    labelled = [frame.select(F.lit(label).alias("run"), "*") for label, frame in runs.items()]
    found = rows_of(reduce(lambda a, b: a.union(b), labelled).toArrow())
    for how in ("inner", "left"):
        expected = stream.join(table, "id", how)
        wanted = rows_of(expected.toArrow())
        assert len(wanted) > 1_000
        for label, frame in runs.items():
            if label.endswith(how):
                assert frame.schema.simpleString() == expected.schema.simpleString()
                assert_same_rows([row[1:] for row in found if row[0] == label], wanted)


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_stream_agrees_with_sparks_stream_static_join(
    spark: SparkSession, build: Build, tmp_path: Path, seed: int, shuffle: bool | None
) -> None:
    goods, folder = goods_of(), tmp_path / "sales"
    folder.mkdir()
    for i in range(3):
        pq.write_table(sales_of(seed + i, 800), folder / f"{i}.parquet")
    reader = spark.readStream.schema("id long, n long").option("maxFilesPerTrigger", 1)
    stream, metrics = reader.parquet(str(folder)), tmp_path / "metrics"
    out = join(
        stream, build(goods, shards=3), on="id", how="left", memory="1MB", shuffle=shuffle,
        metrics=metrics,
    )  # fmt: skip
    assert out.isStreaming
    static = stream.join(spark.createDataFrame(goods), "id", "left")
    found, wanted = (
        run(frame, f"{name}_{shuffle}", tmp_path)
        for name, frame in (("found", out), ("wanted", static))
    )
    assert len(wanted) >= 2_400
    assert_same_rows(found, wanted)
    records = [json.loads(path.read_text()) for path in metrics.iterdir()]
    tasks = {(record["batch"], record["partition"]) for record in records}
    assert len(tasks) == len(records) == (9 if shuffle else 3)
    assert sum(record["arrived"] for record in records) == 2_400
    assert all(0 < record["peak_memory"] <= record["budget"] == 1 << 20 for record in records)


def run(frame: DataFrame, name: str, folder: Path) -> list[tuple[Any, ...]]:
    """All micro-batches of the query to their end; its rows from the memory sink."""
    writer = frame.writeStream.format("memory").queryName(name).outputMode("append")
    checkpoint = str(folder / f"{name}.checkpoint")
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    assert query.exception() is None
    return rows_of(frame.sparkSession.table(name).toArrow())


def test_a_hot_key_does_not_make_one_task_do_all_the_work(
    spark: SparkSession, build: Build, seed: int
) -> None:
    count = 4
    master = build(goods_of(), shards=count)
    stream = spark.createDataFrame(sales_of(seed, 20_000, hot=0.6)).repartition(2)
    addressed = divided(stream, KeyShards(master.codec, ("id",), count))
    assert addressed.columns[:2] == ["id", "n"]
    by_task = addressed.groupBy(F.spark_partition_id().alias("task")).count().collect()
    counts = {row.task: row["count"] for row in by_task}
    assert sorted(counts) == list(range(count))
    assert sum(counts.values()) == 20_000
    assert max(counts.values()) < 20_000 * (1 / count + 0.05)
    placed = addressed.select(F.spark_partition_id() == F.col(addressed.columns[3])).distinct()
    assert [row[0] for row in placed.collect()] == [True]


@pytest.mark.parametrize(
    ("memory", "shuffle", "divides"),
    [
        ("1MB", None, False),
        ("1MB", True, True),
        ("1MB", False, False),
        (140_000, None, True),
        # The master is no larger than 4 times the memory, but four engines need more.
        (180_000, None, True),
    ],
)
def test_when_the_stream_is_divided(
    spark: SparkSession,
    build: Build,
    capsys: pytest.CaptureFixture[str],
    memory: int | str,
    shuffle: bool | None,
    divides: bool,
) -> None:
    master = build(pa.table({"id": range(14_000), "name": ["x" * 30] * 14_000}), shards=4)
    size = int(master.pages.length.sum())
    assert 4 * 140_000 < size <= 4 * 180_000
    out = join(spark.range(3), master, on="id", memory=memory, shuffle=shuffle, io="unmapped")
    out.explain()
    plan = capsys.readouterr().out
    assert ("MapInArrow semistream_divide" in plan) == divides
    assert ("REPARTITION_BY_NUM" in plan) == divides
    assert "MapInArrow semistream_auto" in plan


def test_one_shard_is_never_divided(
    spark: SparkSession, build: Build, capsys: pytest.CaptureFixture[str]
) -> None:
    join(spark.range(3), build(goods_of()), on="id", memory="1MB", shuffle=True).explain()
    assert "semistream_divide" not in capsys.readouterr().out


def test_tasks_put_together_after_the_join(spark: SparkSession, build: Build, seed: int) -> None:
    sales, goods = sales_of(seed, 2_000), goods_of()
    stream = spark.createDataFrame(sales)
    out = join(stream, build(goods, shards=4), on="id", how="left", memory="1MB", shuffle=True)
    wanted = oracle_join(sales, goods, on="id", how="left").rows
    assert_same_rows(rows_of(out.coalesce(1).toArrow()), wanted)
    assert out.limit(3).count() == 3


def test_adaptive_execution_leaves_the_tasks_alone(
    spark: SparkSession, build: Build, seed: int
) -> None:
    sales, goods = sales_of(seed, 2_000), goods_of()
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    try:
        stream = spark.createDataFrame(sales)
        out = join(stream, build(goods, shards=4), on="id", memory="1MB", shuffle=True)
        tasks = out.select(F.spark_partition_id()).distinct().count()
        found = rows_of(out.toArrow())
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", "false")
    assert tasks == 4
    assert_same_rows(found, oracle_join(sales, goods, on="id").rows)


def test_columns_may_have_the_names_of_the_destination(spark: SparkSession, build: Build) -> None:
    names = ["id", "__semistream_shard", "__SEMISTREAM_TASK", "__semistream__shard"]
    sales = pa.table([[1, 2], [3, 4], [5, 6], [7, 8]], names=names)
    out = join(
        spark.createDataFrame(sales), build(goods_of(), shards=3), on="id", memory="1MB",
        shuffle=True,
    )  # fmt: skip
    assert out.columns == [*names, "name"]
    assert_same_rows(rows_of(out.toArrow()), oracle_join(sales, goods_of(), on="id").rows)


def test_a_frame_without_rows(spark: SparkSession, build: Build) -> None:
    for shuffle in (True, False):
        out = join(
            spark.range(0), build(goods_of(), shards=3), on="id", memory="1MB", shuffle=shuffle
        )
        assert out.toArrow().num_rows == 0


CONNECT = """
from semistream.spark.join import join

master, sales = ss.MasterTable.open(arguments[0]), arguments[1]
stream = spark.readStream.schema("id long, n long").parquet(sales)
found = {"module": type(spark).__module__}
for shuffle in (True, False):
    asked = {"on": "id", "how": "left", "memory": "1MB", "shuffle": shuffle}
    out = join(spark.read.parquet(sales), master, **asked)
    found[f"batch {shuffle}"] = [list(row) for row in out.collect()]
    folder = f"{arguments[2]}/{shuffle}"
    writer = join(stream, master, **asked).writeStream.format("parquet")
    writer = writer.option("checkpointLocation", folder + "/check").trigger(availableNow=True)
    writer.start(folder + "/out").awaitTermination()
    written = spark.read.parquet(folder + "/out")
    found[f"stream {shuffle}"] = [list(row) for row in written.collect()]
answer = found
"""


@pytest.mark.slow
def test_shards_under_connect(
    connect: OtherSession, build: Build, tmp_path: Path, seed: int
) -> None:
    sales, goods = sales_of(seed, 1_000), goods_of()
    master = build(goods, shards=3)
    (tmp_path / "sales").mkdir()
    pq.write_table(sales, tmp_path / "sales" / "0.parquet")
    found = connect.run(CONNECT, master.path, tmp_path / "sales", tmp_path)
    assert found.pop("module") == "pyspark.sql.connect.session"
    assert len(found) == 4
    wanted = oracle_join(sales, goods, on="id", how="left").rows
    for rows in found.values():
        assert_same_rows([tuple(row) for row in rows], wanted)
