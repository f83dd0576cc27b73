"""Master tables built by Spark, against those built from the same rows without it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import semistream as ss
from semistream.errors import (
    KeyColumnError,
    KeyTypeError,
    MasterExistsError,
    OptionError,
    UnsupportedTypeError,
)
from semistream.relation import Frame
from semistream.relation.build_progress import BuildProgress
from semistream.relation.shards import shard_of
from semistream.testing import assert_same_rows, checked_run, oracle_join, rows_of

pytestmark = pytest.mark.service


def products(count: int, kind: str, seed: int) -> pa.Table:
    """Some keys have several rows, and some rows have none."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, count, count)
    keys: dict[str, Any] = {"id": pa.array(ids, mask=np.arange(count) % 97 == 5)}
    if kind == "string":
        keys["id"] = keys["id"].cast(pa.string())
    if kind == "composite":
        keys["part"] = pa.array([f"part {i % 5}" for i in rng.permutation(count)])
    text = [f"{'x' * int(n)}" for n in rng.integers(0, 90, count)]
    return pa.table({**keys, "n": np.arange(count), "text": text, "weight": rng.random(count)})


KEYS: dict[str, list[str]] = {"integer": ["id"], "string": ["id"], "composite": ["id", "part"]}


def stored(master: ss.MasterTable) -> pa.Table:
    with master.reader() as reader:
        if not master.page_count:
            return master.stored_schema.empty_table()
        frame = Frame(reader.frame_bytes(master.page_count))
        batches = reader.read(0, master.page_count, frame)
        table = pa.Table.from_batches(batches, master.stored_schema)
        return pa.ipc.open_stream(_copy(table)).read_all()


def _copy(table: pa.Table) -> pa.Buffer:
    """The rows outside the reader's frame, which goes with it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def codes_of(master: ss.MasterTable) -> Any:
    table = stored(master).combine_chunks()
    columns = [table[name].combine_chunks() for name in master.key]
    return master.codec.codes(columns)[0]


def frame_of(spark: SparkSession, table: pa.Table, parts: int = 5) -> DataFrame:
    return spark.createDataFrame(table).repartition(parts)


@pytest.fixture
def partitions(spark: SparkSession) -> Iterator[Callable[[int], None]]:
    """Sets how many tasks write pages."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    assert before is not None
    yield lambda count: spark.conf.set("spark.sql.shuffle.partitions", str(count))
    spark.conf.set("spark.sql.shuffle.partitions", before)


@pytest.mark.parametrize(("kind", "shards"), [("integer", 1), ("string", 3), ("composite", 2)])
def test_the_same_rows_in_the_same_order_of_codes(
    spark: SparkSession,
    tmp_path: Path,
    kind: str,
    shards: int,
    partitions: Callable[[int], None],
    seed: int,
) -> None:
    partitions(4)
    data = products(4000, kind, seed)
    options: dict[str, Any] = {"key": KEYS[kind], "page_bytes": 4096, "filter_bits": 10}
    built = ss.MasterTable.build(
        frame_of(spark, data), tmp_path / "spark", shards=shards, **options
    )
    local = ss.MasterTable.from_arrow(data, tmp_path / "local", shards=shards, **options)
    assert (built.row_count, built.rows_without_key) == (local.row_count, local.rows_without_key)
    assert built.rows_without_key == 42
    assert codes_of(built).tolist() == codes_of(local).tolist()
    assert_same_rows(stored(built), stored(local))
    assert built.schema.names == local.schema.names
    assert built.shard_count == shards
    assert [built.shard(i).row_count for i in range(shards)] == [
        local.shard(i).row_count for i in range(shards)
    ]
    assert len(built.manifest.page_files) == 4
    assert built.widest_row == local.widest_row
    assert built.filter_bytes == local.filter_bytes
    mine, other = built.membership_filter(), local.membership_filter()
    assert mine is not None
    assert other is not None
    assert bytes(mine.data) == bytes(other.data)
    names = {path.name for path in (tmp_path / "spark" / "data").iterdir()}
    assert names == {file.name for file in built.manifest.data_files}


@pytest.mark.parametrize(("kind", "shards"), [("integer", 2), ("string", 1)])
def test_a_layout_by_a_column(
    spark: SparkSession,
    tmp_path: Path,
    kind: str,
    shards: int,
    partitions: Callable[[int], None],
    seed: int,
) -> None:
    partitions(3)
    data = products(3000, kind, seed)
    master = ss.MasterTable.build(
        frame_of(spark, data),
        tmp_path / "r",
        key=KEYS[kind],
        page_bytes=4096,
        order_by="weight",
        shards=shards,
        filter_bits=8,
    )
    assert master.layout == "given"
    valid = [row for row in rows_of(data) if row[0] is not None]
    highest: dict[Any, float] = {}
    width = len(KEYS[kind])
    for row in valid:
        highest[row[:width]] = max(highest.get(row[:width], 0.0), row[-1])
    assert_same_rows(stored(master).select(data.column_names), valid)
    for number in range(shards):
        part = master.shard(number) if shards > 1 else master
        found = rows_of(stored(part).select(data.column_names))
        weights = [highest[row[:width]] for row in found]
        assert weights == sorted(weights, reverse=True)
        check_locator(part)
    stream = data.select(KEYS[kind]).slice(0, 900).append_column("at", pa.array(range(900)))
    if shards == 1:
        for algorithm in ("hybridjoin", "xhybridjoin", "inlj"):
            join = ss.engine(master, algorithm=algorithm, on=KEYS[kind], how="left", memory="1MB")
            expected = oracle_join(stream, data, on=KEYS[kind], how="left")
            assert_same_rows(checked_run(join, stream.to_batches(200)), expected.rows)


def check_locator(master: ss.MasterTable) -> None:
    codes = codes_of(master)
    page_of = np.repeat(np.arange(master.page_count), master.pages.rows)
    asked = np.unique(codes)
    locator = master.locator()
    assert locator is not None
    with locator:
        low, high = locator.find_many(asked)
    for i, code in enumerate(asked.tolist()):
        where = page_of[codes == code]
        assert (int(low[i]), int(high[i])) == (int(where.min()), int(where.max()))


def test_a_layout_by_a_sample_of_the_stream(
    spark: SparkSession, tmp_path: Path, partitions: Callable[[int], None]
) -> None:
    partitions(3)
    ids = np.random.default_rng(4).permutation(500)
    data = pa.table({"id": ids, "text": ["x" * 50] * 500})
    asked = np.repeat([77, 3, 499, 1000], [9, 7, 5, 50])
    sample = spark.createDataFrame(pa.table({"id": asked.astype(np.int32), "q": asked}))
    options: dict[str, Any] = {"sample": sample, "page_bytes": 4096, "compression": "packed"}
    master = ss.MasterTable.build(frame_of(spark, data), tmp_path / "r", key="id", **options)
    found = stored(master)["id"].to_pylist()
    assert found[:3] == [77, 3, 499]
    assert sorted(found) == list(range(500))
    check_locator(master)


def test_joins_with_a_master_in_many_files(
    spark: SparkSession, tmp_path: Path, partitions: Callable[[int], None], seed: int
) -> None:
    partitions(7)
    data = products(5000, "integer", seed)
    master = ss.MasterTable.build(frame_of(spark, data), tmp_path / "r", key="id", page_bytes=4096)
    stream = data.select(["id"]).append_column("at", pa.array(range(5000)))
    expected = oracle_join(stream, data, on="id", how="left")
    for algorithm in ("meshjoin", "chybridjoin"):
        join = ss.engine(master, algorithm=algorithm, on="id", how="left", memory="2MB")
        assert_same_rows(checked_run(join, stream.to_batches(1000)), expected.rows)
    newer = master.upsert(data.slice(0, 200)).delete([1, 2, 3]).compact()
    assert len(newer.manifest.page_files) == 1
    part = ss.MasterTable.build(
        frame_of(spark, data),
        tmp_path / "s",
        key="id",
        page_bytes=4096,
        shards=2,
        compression="packed",
    )
    assert part.compression == "packed"
    owner = shard_of(stream["id"].fill_null(0).to_numpy(), 2)
    found: list[Any] = []
    for number in range(2):
        mine = stream.filter(pa.array(owner == number))
        join = ss.engine(
            part.shard(number), algorithm="chybridjoin", on="id", how="left", memory="2MB"
        )
        found += checked_run(join, mine.to_batches(1000))
    assert_same_rows(found, expected.rows)


def test_tasks_that_spark_joins_stay_in_order(
    spark: SparkSession, tmp_path: Path, partitions: Callable[[int], None]
) -> None:
    """Adaptive execution joins small ranges; the pages are in code order all the same."""
    partitions(30)
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    spark.conf.set("spark.sql.adaptive.advisoryPartitionSizeInBytes", "40kB")
    spark.conf.set("spark.sql.adaptive.coalescePartitions.minPartitionSize", "20kB")
    spark.conf.set("spark.sql.adaptive.coalescePartitions.parallelismFirst", "false")
    try:
        df = spark.range(0, 20_000, 1, 4).selectExpr("id * 7919 % 20011 AS a", "id AS c")
        master = ss.MasterTable.build(df, tmp_path / "r", key="a", page_bytes=4096)
        given = ss.MasterTable.build(df, tmp_path / "g", key="a", order_by="c", shards=2)
    finally:
        for name in ("enabled", "advisoryPartitionSizeInBytes"):
            spark.conf.unset(f"spark.sql.adaptive.{name}")
        for name in ("minPartitionSize", "parallelismFirst"):
            spark.conf.unset(f"spark.sql.adaptive.coalescePartitions.{name}")
        spark.conf.set("spark.sql.adaptive.enabled", "false")
    assert 1 < len(master.manifest.page_files) < 30
    assert codes_of(master).tolist() == sorted(i * 7919 % 20011 for i in range(20_000))
    for number in range(2):
        weights = stored(given.shard(number))["c"].to_numpy()
        assert (np.diff(weights) < 0).all()
    assert given.row_count == 20_000


def test_types_of_spark_are_stored_and_come_back(spark: SparkSession, tmp_path: Path) -> None:
    moment = dt.datetime(2026, 3, 4, 5, 6, 7, 89, dt.UTC)
    rows = [
        (
            Decimal("1.50"),
            dt.date(2026, 1, 2),
            moment,
            moment.replace(tzinfo=None),
            b"\x00\xff",
            [1, None],
            {"a": 1},
            (True, "s"),
            None,
            dt.timedelta(seconds=3),
        ),
    ]
    schema = (
        "k decimal(9,2), d date, t timestamp, n timestamp_ntz, b binary, l array<int>, "
        "m map<string,int>, s struct<x: boolean, y: string>, v double, i interval day to second"
    )
    df = spark.createDataFrame(rows, schema)
    master = ss.MasterTable.build(df, tmp_path / "r", key="k")
    assert master.schema.field("t").type == pa.timestamp("us", "UTC")
    (row,) = stored(master).select(master.schema.names).to_pylist()
    assert row["t"] == moment
    assert row["n"] == moment.replace(tzinfo=None)
    assert (row["k"], row["d"], row["b"], row["l"]) == (
        rows[0][0],
        rows[0][1],
        b"\x00\xff",
        [1, None],
    )
    assert (row["m"], row["s"], row["v"]) == ([("a", 1)], {"x": True, "y": "s"}, None)
    again = ss.MasterTable.build(df, tmp_path / "t", key="t")
    assert (again.codec.exact, again.row_count) == (True, 1)


def test_no_rows_and_rows_without_a_key(spark: SparkSession, tmp_path: Path) -> None:
    empty = spark.createDataFrame([], "id int, v string")
    layouts: list[dict[str, Any]] = [{}, {"order_by": "v"}]
    for layout in layouts:
        path = tmp_path / str(len(layout))
        master = ss.MasterTable.build(empty, path, key="id", filter_bits=8, **layout)
        assert (master.row_count, master.rows_without_key) == (0, 0)
    nulls = spark.createDataFrame([(None, "a"), (None, "b")], "id int, v string")
    master = ss.MasterTable.build(nulls, tmp_path / "n", key="id", shards=2)
    assert (master.row_count, master.rows_without_key, master.page_count) == (0, 2, 0)


def test_versions_follow_each_other(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(100).selectExpr("id", "id * 2 AS twice")
    assert ss.MasterTable.build(df, tmp_path / "r", key="id").version == 1
    with pytest.raises(MasterExistsError, match="replace=True"):
        ss.MasterTable.build(df, tmp_path / "r", key="id")
    newer = ss.MasterTable.build(df.limit(5), tmp_path / "r", key="id", replace=True)
    assert (newer.version, newer.row_count) == (2, 5)
    assert ss.MasterTable.open(tmp_path / "r", 1).row_count == 100
    assert ss.MasterTable.latest_version(tmp_path / "r") == 2
    upserted = newer.upsert(df)
    assert upserted.row_count == 100
    assert upserted.delete(df.limit(0).select("id")).row_count == 100


def test_progress_is_told(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[BuildProgress] = []
    df = spark.range(1000).selectExpr("id", "id AS v")
    ss.MasterTable.build(
        df, tmp_path / "r", key="id", order_by="v", filter_bits=8, progress=told.append
    )
    steps = [one.step for one in told]
    assert list(dict.fromkeys(steps)) == ["pages", "locator", "filter", "done"]
    assert told[0].files == 0
    assert told[-1].files == len(list((tmp_path / "r" / "data").iterdir()))
    assert told[-1].bytes == sum(p.stat().st_size for p in (tmp_path / "r" / "data").iterdir())
    capsys.readouterr()
    ss.MasterTable.build(df, tmp_path / "quiet", key="id")
    ss.MasterTable.build(df, tmp_path / "loud", key="id", progress=True)
    shown = capsys.readouterr().err
    assert "building done" in shown


def test_what_is_wrong_is_told_before_anything_starts(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.createDataFrame([(1, "a", 0.5)], "id int, name string, price double")
    stream = spark.readStream.format("rate").load()
    cases: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        (stream, {"key": "value"}, OptionError, "streaming DataFrame"),
        (df.toPandas(), {"key": "id"}, OptionError, "df is a DataFrame. Give a Spark"),
        (df, {"key": "nope"}, KeyColumnError, "no key column nope"),
        (df, {"key": "price"}, KeyTypeError, "'price' has type double"),
        (df, {"key": "id", "page_bytes": 1}, OptionError, "page_bytes"),
        (df, {"key": "id", "shards": 0}, OptionError, "shards"),
        (df, {"key": "id", "filter_bits": 99}, OptionError, "filter_bits"),
        (df, {"key": "id", "layout": "given"}, OptionError, "needs one of order_by"),
        (df, {"key": "id", "layout": "key", "order_by": "price"}, OptionError, "Leave layout="),
        (df, {"key": "id", "order_by": "cost"}, KeyColumnError, "order_by='cost'"),
        (df, {"key": "id", "order_by": "price", "sample": df}, OptionError, "Give one of them"),
        (df, {"key": "id", "sample": stream}, OptionError, "sample is a streaming"),
        (df, {"key": "id", "sample": df.select("price")}, KeyColumnError, "sample has no column"),
        (df, {"key": "id", "progress": 5}, OptionError, "progress=5"),
        (df.select("id", "name", "name"), {"key": "id"}, OptionError, "occur twice: name"),
        (df.withColumnRenamed("name", "a.b"), {"key": "id"}, OptionError, "with a dot"),
        (df.withColumnRenamed("name", "__shard"), {"key": "id"}, OptionError, "__shard is kept"),
        (
            df.selectExpr("id", "collate(name, 'UNICODE_CI') AS c"),
            {"key": "c"},
            KeyTypeError,
            "coll",
        ),
        (
            df.selectExpr("id", "make_interval(1) AS i"),
            {"key": "id"},
            UnsupportedTypeError,
            "Arrow",
        ),
    ]
    for frame, options, error, message in cases:
        with pytest.raises(error, match=message):
            ss.MasterTable.build(frame, tmp_path / "r", **options)
    assert not (tmp_path / "r").exists()


def test_a_failed_build_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(1000).selectExpr("id", "if(id = 700, raise_error('bad row'), id) AS v")
    with pytest.raises(Exception, match="bad row"):
        ss.MasterTable.build(df, tmp_path / "r", key="id")
    assert list(tmp_path.rglob("*")) == []
