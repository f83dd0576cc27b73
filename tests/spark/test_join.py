"""`join` against Spark's own join: every algorithm, every kind of key, inner and left."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import semistream as ss
from semistream.cost.auto import IN_MEMORY
from semistream.spark.join import join
from semistream.testing import assert_same_rows, oracle_join, rows_of

pytestmark = pytest.mark.service

DAY = dt.date(2024, 2, 27)
NOON = dt.datetime(2024, 2, 27, 12)


class Kind(NamedTuple):
    """A kind of key: the columns of it that number `n` has, on either side."""

    value: Callable[[int], tuple[Any, ...]]
    stream: tuple[pa.DataType, ...]
    master: tuple[pa.DataType, ...]


KINDS = {
    "integer": Kind(lambda n: (n,), (pa.int32(),), (pa.int64(),)),
    "string": Kind(lambda n: (f"clé {n}",), (pa.string(),), (pa.large_string(),)),
    "composite": Kind(
        lambda n: (n % 7, f"k{n}"), (pa.int64(), pa.string()), (pa.int32(), pa.string())
    ),
    "date": Kind(lambda n: (DAY + dt.timedelta(n),), (pa.date32(),), (pa.date32(),)),
    "timestamp": Kind(
        lambda n: (NOON.replace(tzinfo=dt.UTC) + dt.timedelta(minutes=n),),
        (pa.timestamp("us", "UTC"),),
        (pa.timestamp("us", "Europe/Paris"),),
    ),
    "timestamp without time zone": Kind(
        lambda n: (NOON + dt.timedelta(minutes=n),), (pa.timestamp("us"),), (pa.timestamp("ms"),)
    ),
    "decimal": Kind(lambda n: (Decimal(n) / 4,), (pa.decimal128(10, 2),), (pa.decimal128(14, 3),)),
}


def side(
    kind: Kind,
    types: tuple[pa.DataType, ...],
    names: list[str],
    numbers: NDArray[np.int64],
    nulls: int,
    payload: str,
) -> pa.Table:
    """A table of keys, every `nulls`-th with a null in it, and a payload column."""
    values = [kind.value(int(n)) for n in numbers]
    columns = {}
    for i, (name, type_) in enumerate(zip(names, types, strict=True)):
        # The null is in one component after the other.
        column = [
            None if row % nulls == 0 and row // nulls % len(names) == i else value[i]
            for row, value in enumerate(values)
        ]
        columns[name] = pa.array(column, type_)
    columns[payload] = pa.array([f"{payload}{row}" for row in range(len(values))])
    return pa.table(columns)


def frame_of(spark: SparkSession, table: pa.Table) -> DataFrame:
    """A frame of one partition with the table's rows, in the time zones and units of Spark."""
    types = {
        pa.timestamp("ms"): pa.timestamp("us"),
        pa.timestamp("us", "Europe/Paris"): pa.timestamp("us", "UTC"),
    }
    fields = [field.with_type(types.get(field.type, field.type)) for field in table.schema]
    frame = spark.createDataFrame(table.cast(pa.schema(fields))).coalesce(1)
    local = [f.name for f in fields if f.type == pa.timestamp("us")]
    return frame.withColumns({name: F.col(name).cast("timestamp_ntz") for name in local})


HOWS = ("inner", "left")


@pytest.mark.parametrize("name", KINDS)
def test_every_algorithm_agrees_with_spark(
    spark: SparkSession, build: Callable[..., ss.MasterTable], seed: int, name: str
) -> None:
    random, kind = np.random.default_rng(seed), KINDS[name]
    stream_key = [f"s{i}" for i in range(len(kind.stream))]
    master_key = [f"m{i}" for i in range(len(kind.master))]
    on = dict(zip(stream_key, master_key, strict=True))
    sales = side(kind, kind.stream, stream_key, random.integers(0, 90, 400), 23, "sale")
    goods = side(kind, kind.master, master_key, random.integers(20, 120, 150), 31, "good")
    stream, table = frame_of(spark, sales), frame_of(spark, goods)
    master = build(goods, master_key)
    equal = reduce(lambda a, b: a & b, (stream[s] == table[m] for s, m in on.items()))

    arguments: dict[str, Any] = {"on": on, "memory": "1MB"}
    # In turn: with the next kind of key each algorithm does the other join.
    first = [*KINDS].index(name)
    hows = {one: HOWS[(first + i) % 2] for i, one in enumerate(ss.ALGORITHMS)}
    runs = {
        algorithm: join(stream, master, how=how, algorithm=algorithm, **arguments)
        for algorithm, how in hows.items()
    }
    # One job for all of them: jobs cost more than joins of this size.
    labelled = [frame.select(F.lit(label).alias("run"), "*") for label, frame in runs.items()]
    found = reduce(lambda a, b: a.union(b), labelled).toArrow()

    for how in HOWS:
        expected = stream.join(table, equal, how).drop(*master_key)
        wanted = rows_of(expected.toArrow())
        assert len(wanted) > 0
        for algorithm in [one for one in ss.ALGORITHMS if hows[one] == how]:
            frame = runs[algorithm]
            assert [(f.name, f.dataType) for f in frame.schema] == [
                (f.name, f.dataType) for f in expected.schema
            ]
            rows = [row[1:] for row in rows_of(found) if row[0] == algorithm]
            try:
                assert_same_rows(rows, wanted)
            except AssertionError as error:
                error.add_note(f"{algorithm}, {how}")
                raise


GOODS = pa.table(
    {"id": [1, 2, 2, None, 5], "name": ["a", "b", "B", "null", "e"], "price": [1.0, 2, 2.5, 0, 5]}
)


@pytest.mark.parametrize("how", ["inner", "left"])
def test_chosen_columns_only(
    spark: SparkSession, build: Callable[..., ss.MasterTable], how: str
) -> None:
    sales = pa.table({"id": [2, 9, 1, None], "n": [0, 1, 2, 3]})
    columns = ["price"]
    out = join(
        spark.createDataFrame(sales), build(GOODS), on="id", how=how, memory="1MB", columns=columns
    )
    assert out.columns == ["id", "n", "price"]
    expected = oracle_join(sales, GOODS, on="id", how=how, columns=columns)
    assert_same_rows(rows_of(out.toArrow()), expected.rows)


def test_the_key_itself_may_be_chosen(
    spark: SparkSession, build: Callable[..., ss.MasterTable]
) -> None:
    sales = pa.table({"sale": [2, 9]})
    arguments: dict[str, Any] = {"on": {"sale": "id"}, "how": "left", "columns": ["id", "name"]}
    out = join(spark.createDataFrame(sales), build(GOODS), memory="1MB", **arguments)
    assert_same_rows(rows_of(out.toArrow()), oracle_join(sales, GOODS, **arguments).rows)


def test_master_columns_are_nullable_in_a_left_join_only(
    spark: SparkSession, build: Callable[..., ss.MasterTable]
) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), False), pa.field("name", pa.string(), False)])
    master = build(pa.table({"id": [1], "name": ["a"]}, schema))
    stream = spark.range(3)
    for how, nullable in (("inner", False), ("left", True)):
        out = join(stream, master, on="id", how=how, memory="1MB")
        assert [(f.name, f.nullable) for f in out.schema] == [("id", False), ("name", nullable)]
    assert_same_rows(rows_of(out.toArrow()), [(0, None), (1, "a"), (2, None)])


def test_auto_is_shown_by_name_in_the_plan(
    spark: SparkSession, build: Callable[..., ss.MasterTable], capsys: pytest.CaptureFixture[str]
) -> None:
    join(spark.range(3), build(GOODS), on="id", memory="64MB", front_percent=20).explain()
    assert "MapInArrow semistream_auto_64MB" in capsys.readouterr().out


def test_auto_keeps_a_master_that_fits_in_every_worker(
    spark: SparkSession, build: Callable[..., ss.MasterTable], capsys: pytest.CaptureFixture[str]
) -> None:
    out = join(spark.range(3), build(GOODS), on="id", how="left", memory="64MB")
    out.explain()
    assert f"MapInArrow semistream_{IN_MEMORY}_64MB" in capsys.readouterr().out
    sales = pa.table({"id": [0, 1, 2]})
    assert_same_rows(rows_of(out.toArrow()), oracle_join(sales, GOODS, on="id", how="left").rows)


def test_a_frame_without_rows(spark: SparkSession, build: Callable[..., ss.MasterTable]) -> None:
    out = join(spark.range(0), build(GOODS), on="id", how="left", memory="1MB")
    assert out.toArrow().num_rows == 0


def test_partitions_without_rows(spark: SparkSession, build: Callable[..., ss.MasterTable]) -> None:
    out = join(spark.range(2).repartition(8), build(GOODS), on="id", how="left", memory="1MB")
    assert_same_rows(rows_of(out.toArrow()), [(0, None, None), (1, "a", 1.0)])


def test_a_limit_may_end_a_task_early(
    spark: SparkSession, build: Callable[..., ss.MasterTable]
) -> None:
    goods = pa.table({"id": range(20_000), "name": [f"n{i}" for i in range(20_000)]})
    out = join(spark.range(0, 20_000, 1, 1), build(goods), on="id", memory="1MB")
    assert out.limit(3).count() == 3
    assert out.count() == 20_000


def test_two_joins_in_a_row(spark: SparkSession, build: Callable[..., ss.MasterTable]) -> None:
    other = build(pa.table({"id": [1, 2], "shelf": ["x", "y"]}))
    arguments: dict[str, Any] = {"on": "id", "how": "left", "memory": "1MB"}
    out = join(join(spark.range(4), build(GOODS), **arguments), other, **arguments)
    expected = [
        (0, None, None, None),
        (1, "a", 1.0, "x"),
        (2, "b", 2.0, "y"),
        (2, "B", 2.5, "y"),
        (3, None, None, None),
    ]
    assert_same_rows(rows_of(out.toArrow()), expected)


@pytest.mark.parametrize("large", ["true", "false"])
def test_large_strings_and_time_zones_of_the_session(
    spark: SparkSession, build: Callable[..., ss.MasterTable], large: str
) -> None:
    moments = pa.array([NOON, None], pa.timestamp("us", "UTC"))
    goods = pa.table({"id": ["a", "b"], "made": moments, "text": ["x", "y"]})
    sales = spark.createDataFrame(pa.table({"id": ["a", "c"], "sold": moments}))
    settings = {
        "spark.sql.execution.arrow.useLargeVarTypes": large,
        "spark.sql.session.timeZone": "America/Sao_Paulo",
    }
    before = {name: str(spark.conf.get(name)) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        out = join(sales, build(goods), on="id", how="left", memory="1MB")
        found = out.select(F.col("id"), *(F.unix_micros(c) for c in ("sold", "made")), "text")
        rows = [tuple(row) for row in found.collect()]
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
    noon = int(NOON.replace(tzinfo=dt.UTC).timestamp() * 1e6)
    assert_same_rows(rows, [("a", noon, noon, "x"), ("c", None, None, None)])
