"""`split_new`: against Spark SQL's null-safe comparison."""

from __future__ import annotations

from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)

import semistream as ss
from semistream.errors import OptionError
from semistream.testing import assert_same_rows, rows_of
from tests.spark.conftest import Build

pytestmark = pytest.mark.service

KEYS = 80


def products(seed: int, rows: int, distinct: bool) -> pa.Table:
    """Products of few different names and prices, some null, some prices not numbers."""
    random = np.random.default_rng(seed)
    ids = random.permutation(KEYS)[:rows] if distinct else random.integers(0, KEYS, rows)
    unknown = np.zeros(rows, bool) if distinct else random.random(rows) < 0.05
    prices = random.choice([1.0, 2.0, np.nan, 0.0, -0.0], rows)
    return pa.table(
        {
            "id": pa.array(ids, mask=unknown),
            "name": pa.array(["a", "b", None]).take(random.integers(0, 3, rows)),
            "price": pa.array(prices, mask=random.random(rows) < 0.2),
            "seen": pa.array(random.integers(0, 1000, rows)),
        }
    )


SQL = """
select g.*, case when s.id is null then 'new'
            when g.name <=> s.name and g.price <=> s.price then 'unchanged'
            else 'changed' end as change
from given g left join stored s on g.id = s.id
"""


def test_a_batch_and_a_stream(spark: SparkSession, build: Build, tmp_path: Path, seed: int) -> None:
    stored, given = products(seed, 50, True), products(seed + 1, 1000, False)
    master = build(stored)
    frame = spark.createDataFrame(given).repartition(2)
    out = ss.split_new(frame, master, on="id", compare=["name", "price"], memory="2MB")
    assert out.columns == ["id", "name", "price", "seen", "change"]
    frame.createOrReplaceTempView("given")
    spark.createDataFrame(stored).createOrReplaceTempView("stored")
    wanted = rows_of(spark.sql(SQL).toArrow())
    assert {row[-1] for row in wanted} == {"new", "changed", "unchanged"}
    assert_same_rows(rows_of(out.toArrow()), wanted)
    pq.write_table(given, tmp_path / "given.parquet")
    stream = spark.readStream.schema(frame.schema).parquet(f"{tmp_path}/given.parquet*")
    split = ss.split_new(stream, master, on="id", compare=["name", "price"], memory="2MB")
    query = split.writeStream.format("memory").queryName("split")
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    assert_same_rows(rows_of(spark.table("split").toArrow()), wanted)


def test_what_is_compared(spark: SparkSession, build: Build) -> None:
    master = build(pa.table({"id": [1, 2], "name": ["a", "b"], "tags": [["x"], None], "n": [1, 2]}))
    frame = spark.createDataFrame(
        [(1, "a", ["x"], 1), (2, "b", None, 7), (3, None, None, None)],
        "id int, name string, tags array<string>, n int",
    )

    def changes(**options: Any) -> list[str]:
        out = ss.split_new(frame, master, on="id", **options).orderBy("id")
        return [row.change for row in out.collect()]

    assert changes() == ["unchanged", "changed", "new"]
    assert changes(compare=["name", "tags"]) == ["unchanged", "unchanged", "new"]
    assert changes(compare="n") == ["unchanged", "changed", "new"]
    assert changes(compare={"n": "id"}) == ["unchanged", "changed", "new"]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"compare": []}, "nothing to compare"),
        ({"compare": ["other"]}, "the stream must have 'other'"),
        ({"compare": {"name": "other"}}, "the master 'other'"),
        ({"compare": {"by": "name"}}, "'by' is map<int,int>.*cannot be compared exactly"),
        ({"rename": "change"}, "'change' already"),
        ({"rename": "__semistream_1"}, "kept for semistream"),
    ],
)
def test_errors(spark: SparkSession, build: Build, options: dict[str, Any], match: str) -> None:
    master = build(pa.table({"id": [1], "name": ["a"]}))
    frame = spark.createDataFrame([(1, "a")], "id long, name string")
    frame = frame.withColumn("by", F.create_map(F.lit(1), F.lit(2)))
    if "rename" in options:
        frame = frame.withColumn(options.pop("rename"), F.lit(1))
    with pytest.raises(OptionError, match=match):
        ss.split_new(frame, master, on="id", **options)


def test_a_path_in_place_of_a_master(spark: SparkSession) -> None:
    frame: Any = spark.createDataFrame([(1, "a")], "id long, name string")
    path: Any = "products.master"
    frames: Any = [frame]
    for transform in (ss.split_new, ss.deduplicate):
        with pytest.raises(OptionError, match=r"master is a str.*MasterTable\.open"):
            transform(frame, path, on="id")
        with pytest.raises(OptionError, match="df is a list"):
            transform(frames, path, on="id")


MASTER = {
    "long": pa.array([2**53 + 1]),
    "double": pa.array([float("nan")]),
    "text": pa.array(["1"]),
    "day": pa.array([18000], pa.date32()),
    "moment": pa.array([0], pa.timestamp("us", "UTC")),
    "local": pa.array([0], pa.timestamp("us")),
    "cents": pa.array([Decimal("1.10")], pa.decimal128(38, 2)),
    "pair": pa.array([{"a": float("nan"), "b": None}], pa.struct({"a": "float64", "b": "int64"})),
    "many": pa.array([[1, None]], pa.list_(pa.int64())),
}


REFUSED = [
    ("cast(9007199254740992 as double)", "long"),
    ("'2'", "long"),
    ("'NaN'", "double"),
    ("1", "text"),
    ("timestamp'2019-04-14 00:00:00'", "day"),
    ("timestamp_ntz'1970-01-01 00:00:00'", "moment"),
    ("timestamp'1970-01-01 00:00:00'", "local"),
    ("cast(1.1 as decimal(38,10))", "cents"),
    ("named_struct('a', 'x', 'b', 1)", "pair"),
    ("named_struct('b', 1.0d, 'a', 1)", "pair"),
    ("array('1')", "many"),
    ("'a' collate UNICODE_CI", "text"),
]
COMPARED = [
    ("float('nan')", "double", True),
    ("1", "double", False),
    ("cast(1 as int)", "long", False),
    ("cast(9007199254740993 as decimal(20,1))", "long", True),
    ("cast(9007199254740993.1 as decimal(20,1))", "long", False),
    ("cast(1.1 as decimal(5,1))", "cents", True),
    ("null", "cents", False),
    ("named_struct('a', float('nan'), 'b', null)", "pair", True),
    ("named_struct('a', float('nan'), 'b', 0)", "pair", False),
    ("array(1Y, null)", "many", True),
    ("array(1Y)", "many", False),
    ("timestamp'1970-01-01 00:00:00 UTC'", "moment", True),
    ("timestamp_ntz'1970-01-01 00:00:00'", "local", True),
]


def test_unlike_types_are_refused_or_compared_exactly(spark: SparkSession, build: Build) -> None:
    master = build(pa.table({"id": [1], **MASTER}))

    def split(value: str, name: str) -> DataFrame:
        frame = spark.sql(f"select 1L as id, {value} as x")
        return ss.split_new(frame, master, on="id", compare={"x": name})

    for value, name in REFUSED:
        with pytest.raises(OptionError, match=f"'x' is .*'{name}' is .*cannot be compared exactly"):
            split(value, name)
    # In one job.
    cases = [split(v, n).select("change", F.lit(i)) for i, (v, n, _) in enumerate(COMPARED)]
    found = {number: change for change, number in reduce(DataFrame.union, cases).collect()}
    assert [found[i] == "unchanged" for i in range(len(COMPARED))] == [c[2] for c in COMPARED]
