"""Columns of every type pass the join: the stream's as they are, the master's as Spark has them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import semistream as ss
from semistream.errors import UnsupportedTypeError
from semistream.spark.join import join
from semistream.spark.schema import carried_type
from semistream.testing import assert_same_rows, oracle_join, rows_of

pytestmark = pytest.mark.service

NOON = dt.datetime(2024, 2, 27, 12, 0, 0, 5000)
NESTED = pa.struct([("a", pa.uint8()), ("b", pa.large_list(pa.timestamp("ms")))])
VALUES = {
    "bool": (pa.bool_(), [True, False]),
    "int8": (pa.int8(), [-128, 127]),
    "uint8": (pa.uint8(), [0, 255]),
    "uint16": (pa.uint16(), [0, 65535]),
    "uint32": (pa.uint32(), [0, 2**32 - 1]),
    "uint64": (pa.uint64(), [0, 2**64 - 1]),
    "half": (pa.float16(), [0.5, 1.5]),
    "float": (pa.float32(), [0.5, -1.5]),
    "double": (pa.float64(), [0.1, 1e300]),
    "string": (pa.string(), ["", "ü"]),
    "large_string": (pa.large_string(), ["", "ü"]),
    "binary": (pa.binary(), [b"", b"\0\xff"]),
    "fixed": (pa.binary(2), [b"ab", b"\0\xff"]),
    "date32": (pa.date32(), [dt.date(1960, 1, 1), dt.date(2024, 2, 29)]),
    "date64": (pa.date64(), [dt.date(1960, 1, 1), dt.date(2024, 2, 29)]),
    "moment": (pa.timestamp("us", "UTC"), [NOON.replace(tzinfo=dt.UTC), None]),
    "local_s": (pa.timestamp("s"), [NOON.replace(microsecond=0), None]),
    "local_ms": (pa.timestamp("ms"), [NOON, None]),
    "duration_us": (pa.duration("us"), [dt.timedelta(1, 2, 3), None]),
    "duration_s": (pa.duration("s"), [dt.timedelta(1, 2), None]),
    "decimal128": (pa.decimal128(38, 4), [Decimal("1.2345"), Decimal("-9" * 1)]),
    "decimal64": (pa.decimal64(10, 2), [Decimal("1.25"), None]),
    "decimal256": (pa.decimal256(20, 2), [Decimal("1.25"), None]),
    "list": (pa.list_(pa.int32()), [[1, None], []]),
    "large_list": (pa.large_list(pa.string()), [["a"], None]),
    "fixed_list": (pa.list_(pa.int16(), 2), [[1, 2], [3, 4]]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("k", 1)], []]),
    "nested": (NESTED, [{"a": 255, "b": [NOON]}, {"a": None, "b": None}]),
}


def table(names: Iterable[str]) -> pa.Table:
    columns = {name: pa.array(VALUES[name][1], VALUES[name][0]) for name in names}
    return pa.table({"id": pa.array([1, 2]), **columns})


@pytest.mark.parametrize("algorithm", ["chybridjoin", "meshjoin"])
def test_master_columns(
    spark: SparkSession, build: Callable[..., ss.MasterTable], algorithm: str
) -> None:
    goods = table(VALUES)
    out = join(spark.range(4), build(goods), on="id", how="left", memory="4MB", algorithm=algorithm)
    sales = pa.table({"id": range(4)})
    assert_same_rows(rows_of(out.toArrow()), oracle_join(sales, goods, on="id", how="left").rows)


def test_time_of_day(spark: SparkSession, build: Callable[..., ss.MasterTable]) -> None:
    times = {"s": pa.time32("s"), "us": pa.time64("us")}
    goods = pa.table({"id": [1], **{n: pa.array([dt.time(1, 2, 3)], t) for n, t in times.items()}})
    out = join(spark.range(1, 2), build(goods), on="id", memory="1MB")
    assert [tuple(row) for row in out.collect()] == [(1, dt.time(1, 2, 3), dt.time(1, 2, 3))]


def test_stream_columns_keep_their_spark_types(
    spark: SparkSession, build: Callable[..., ss.MasterTable]
) -> None:
    stream = spark.sql(
        """select id, map('k', id) m, array(struct(id as a, 'x' as b)) s, parse_json('{"a": 1}') v,
                  interval '1' day d, cast(id as decimal(30, 3)) n, 'T' collate UTF8_LCASE c,
                  timestamp'2024-02-27 12:00:00' t, timestamp_ntz'2024-02-27 12:00:00' l,
                  X'00ff' b, cast(null as void) u
           from range(3)"""
    )
    out = join(
        stream, build(pa.table({"id": [1], "name": ["a"]})), on="id", how="left", memory="1MB"
    )
    assert out.schema.fields[:-1] == stream.schema.fields
    text = [column for column in stream.columns if column != "v"] + ["to_json(v) as v"]
    found = out.selectExpr(*text, "name").collect()
    wanted = stream.selectExpr(*text, "if(id = 1, 'a', null) as name").collect()
    assert sorted(map(str, found)) == sorted(map(str, wanted))


@pytest.mark.parametrize(
    "type_",
    [
        pa.timestamp("ns"),
        pa.duration("ns"),
        pa.decimal256(50, 2),
        pa.decimal128(5, -2),
        pa.month_day_nano_interval(),
        pa.list_(pa.timestamp("ns")),
        pa.struct([("a", pa.duration("ns"))]),
    ],
    ids=str,
)
def test_types_that_spark_cannot_hold(type_: pa.DataType) -> None:
    assert carried_type(type_) is None


def test_a_master_column_that_spark_cannot_hold_is_named(
    spark: SparkSession, build: Callable[..., ss.MasterTable]
) -> None:
    goods = pa.table({"id": [1], "made": pa.array([1], pa.timestamp("ns")), "name": ["a"]})
    master = build(goods)
    with pytest.raises(UnsupportedTypeError, match=r"'made' has type timestamp\[ns\].*columns="):
        join(spark.range(2), master, on="id", memory="1MB")
    out = join(spark.range(2), master, on="id", memory="1MB", columns=["name"])
    assert_same_rows(rows_of(out.toArrow()), [(1, "a")])


def test_a_stream_column_that_arrow_does_not_know(
    spark: SparkSession, build: Callable[..., ss.MasterTable]
) -> None:
    stream = spark.sql("select id, interval '1' year y from range(2)")
    with pytest.raises(UnsupportedTypeError, match="cannot hand over as Arrow"):
        join(stream, build(pa.table({"id": [1], "name": ["a"]})), on="id", memory="1MB")
