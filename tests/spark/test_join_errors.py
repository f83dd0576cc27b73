"""What is wrong is said when `join` is called, before anything starts; at run time, by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

import semistream as ss
from semistream import errors
from semistream.spark.join import join

pytestmark = pytest.mark.service

GOODS = pa.table({"id": pa.array(range(500)), "name": [f"name {i}" for i in range(500)]})

CASES: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no such key": ({"on": "nope"}, errors.KeyColumnError, "stream has no column"),
    "not in the stream": ({"on": {"nope": "id"}}, errors.KeyColumnError, r"no column \['nope'\]"),
    "algorithm": ({"algorithm": "fastjoin"}, errors.UnknownAlgorithmError, "inlj, meshjoin"),
    "how": ({"how": "outer"}, errors.OptionError, '"inner", "left", "semi", "anti"'),
    "io": ({"io": "magic"}, errors.OptionError, "buffered"),
    "memory": ({"memory": "1KB"}, errors.BudgetError, "the least is [0-9,]+ bytes"),
    "memory as text": ({"memory": "much"}, errors.SemistreamError, "much"),
    "columns": ({"columns": ["weight"]}, errors.OptionError, "must name master columns"),
    "column twice": ({"columns": ["name", "name"]}, errors.OptionError, "each once"),
    "option": ({"algorithm": "inlj", "chunk_tuples": 3}, errors.OptionError, "no option"),
    "value": ({"partition_pages": 0}, errors.OptionError, "at least 1"),
    "admission": ({"admission": "anyone"}, errors.OptionError, "tinylfu"),
    "filter": ({"use_filter": True}, errors.OptionError, "no membership filter"),
    "freshness": ({"freshness": "stale"}, errors.OptionError, "pinned, latest"),
    "clock": ({"clock": 3}, errors.OptionError, "clock"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_arguments(
    spark: SparkSession, build: Callable[..., ss.MasterTable], case: str
) -> None:
    arguments, error, message = CASES[case]
    given: dict[str, Any] = {"on": "id", "memory": "1MB"} | arguments
    with pytest.raises(error, match=message):
        join(spark.range(3), build(GOODS), **given)


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        ("cast(id as string) id", errors.KeyTypeError, "these never match"),
        ("cast(id as double) id", errors.KeyTypeError, "these never match"),
        ("id, 'x' name", errors.ColumnClashError, r"\['name'\] are on both sides\. "),
        ("id, 'x' NAME", errors.ColumnClashError, "upper and lower case"),
        ("id, id", errors.KeyColumnError, "a column name twice"),
        ("id, id as `a.b`", errors.OptionError, r"with a dot .*: a\.b\. Rename"),
    ],
)
def test_bad_streams(
    spark: SparkSession,
    build: Callable[..., ss.MasterTable],
    columns: str,
    error: type[Exception],
    message: str,
) -> None:
    stream = spark.sql(f"select {columns} from range(3)")
    with pytest.raises(error, match=message):
        join(stream, build(GOODS), on="id", memory="1MB")


def test_names_may_differ_in_case_where_spark_tells_them_apart(
    spark: SparkSession, build: Callable[..., ss.MasterTable]
) -> None:
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        stream = spark.sql("select id, 'x' NAME from range(2)")
        out = join(stream, build(GOODS), on="id", memory="1MB")
        assert sorted(map(tuple, out.collect())) == [(0, "x", "name 0"), (1, "x", "name 1")]
    finally:
        spark.conf.set("spark.sql.caseSensitive", "false")


def test_a_key_that_spark_compares_otherwise(
    spark: SparkSession, build: Callable[..., ss.MasterTable]
) -> None:
    stream = spark.sql("select 'A' collate UTF8_LCASE as id")
    master = build(pa.table({"id": ["a"], "name": ["x"]}))
    with pytest.raises(errors.KeyTypeError, match=r"collation UTF8_LCASE.*UTF8_BINARY"):
        join(stream, master, on="id", memory="1MB")


@pytest.mark.parametrize("frame", [pd.DataFrame({"id": [1]}), pa.table({"id": [1]}), None])
def test_what_is_no_spark_frame(build: Callable[..., ss.MasterTable], frame: object) -> None:
    with pytest.raises(errors.OptionError, match="it must be a Spark DataFrame"):
        join(frame, build(GOODS), on="id", memory="1MB")  # type: ignore[arg-type]


def test_what_is_no_master_table(spark: SparkSession) -> None:
    with pytest.raises(errors.OptionError, match="must be a MasterTable"):
        join(spark.range(3), spark.range(3), on="id", memory="1MB")  # type: ignore[arg-type]


def test_a_corrupt_page_stops_the_query_and_is_named(
    spark: SparkSession, build: Callable[..., ss.MasterTable]
) -> None:
    master = build(GOODS)
    pages = next(Path(master.path).glob("data/*.pages.arrow"))
    content = bytearray(pages.read_bytes())
    at = int(master.pages.offset[1]) + int(master.pages.length[1]) // 2
    content[at] ^= 0xFF
    pages.write_bytes(content)
    with pytest.raises(PythonException, match="CorruptPageError: Page 1 of ") as caught:
        join(spark.range(500), master, on="id", memory="1MB").collect()
    assert pages.name in str(caught.value)


@pytest.mark.parametrize("freshness", ["pinned", "latest"])
def test_versions(
    spark: SparkSession, build: Callable[..., ss.MasterTable], freshness: str
) -> None:
    old = build(GOODS)
    out = join(spark.range(1), old, on="id", memory="1MB", freshness=freshness)
    assert [row.name for row in out.collect()] == ["name 0"]
    changed = pa.table({"id": [0], "name": ["changed"]})
    ss.MasterTable.from_arrow(changed, old.path, key="id", replace=True)
    expected = {"pinned": "name 0", "latest": "changed"}
    assert [row.name for row in out.collect()] == [expected[freshness]]
    # A new call pins what its master has open, not what is newest.
    pinned = join(spark.range(1), old, on="id", memory="1MB")
    assert [row.name for row in pinned.collect()] == ["name 0"]


def test_a_newer_version_may_have_more_columns_and_nulls(
    spark: SparkSession, build: Callable[..., ss.MasterTable]
) -> None:
    schema = pa.schema([("id", pa.int64()), pa.field("name", pa.string(), nullable=False)])
    old = build(pa.table({"id": [0, 1], "name": ["a", "b"]}, schema))
    out = join(spark.range(2), old, on="id", memory="1MB", freshness="latest")
    assert out.schema["name"].nullable
    newer = pa.table({"id": [0, 1], "added": [1.5, 2.5], "name": ["c", None]})
    ss.MasterTable.from_arrow(newer, old.path, key="id", replace=True)
    assert sorted(map(tuple, out.collect())) == [(0, "c"), (1, None)]


@pytest.mark.parametrize(
    "columns", [{"name": [1, 2]}, {"title": ["a", "b"]}], ids=["another type", "no such column"]
)
def test_a_newer_version_that_does_not_fit_stops_the_query(
    spark: SparkSession, build: Callable[..., ss.MasterTable], columns: dict[str, list[Any]]
) -> None:
    old = build(GOODS)
    out = join(spark.range(2), old, on="id", memory="1MB", freshness="latest")
    newer = pa.table({"id": [0, 1], **columns})
    ss.MasterTable.from_arrow(newer, old.path, key="id", replace=True)
    with pytest.raises(PythonException, match=r"MasterChangedError: Version 2 of (.|\n)*pinned"):
        out.collect()


def test_a_single_shard_is_refused(
    spark: SparkSession, build: Callable[..., ss.MasterTable]
) -> None:
    with pytest.raises(errors.OptionError, match=r"shard=1, .* is one shard of .*Give the whole"):
        join(spark.range(3), build(GOODS, shards=3).shard(1), on="id", memory="1MB")


@pytest.mark.parametrize("shuffle", ["yes", 2])
def test_what_shuffle_cannot_be(
    spark: SparkSession, build: Callable[..., ss.MasterTable], shuffle: object
) -> None:
    with pytest.raises(errors.OptionError, match="must be True, False or None"):
        join(spark.range(3), build(GOODS, shards=3), on="id", memory="1MB", shuffle=shuffle)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shuffle", "message"),
    [
        (False, r"all 3 shards.*the least is ([0-9,]+) bytes.*use shuffle=True"),
        (True, r"one of 3 shards: the least is ([0-9,]+) bytes. Give more memory\."),
        (None, r"one of 3 shards: the least is ([0-9,]+) bytes"),
    ],
)
def test_too_little_memory_for_shards(
    spark: SparkSession, build: Callable[..., ss.MasterTable], shuffle: bool | None, message: str
) -> None:
    master = build(GOODS, shards=3)
    with pytest.raises(errors.BudgetError, match=message) as caught:
        join(spark.range(3), master, on="id", memory=60_000, shuffle=shuffle)
    told = re.search(message, str(caught.value))
    assert told is not None
    least = int(told[1].replace(",", ""))
    with pytest.raises(errors.BudgetError, match="the least"):
        join(spark.range(3), master, on="id", memory=least - 1, shuffle=shuffle)
    out = join(spark.range(600), master, on="id", memory=least, shuffle=shuffle)
    assert out.count() == 500


def test_a_newer_version_in_other_shards_stops_the_query(
    spark: SparkSession, build: Callable[..., ss.MasterTable]
) -> None:
    old = build(GOODS, shards=3)
    out = join(spark.range(2), old, on="id", memory="1MB", freshness="latest", shuffle=True)
    ss.MasterTable.from_arrow(GOODS, old.path, key="id", replace=True, shards=2)
    with pytest.raises(PythonException, match=r"MasterChangedError: Version 2 of .* 2 shards"):
        out.collect()
