"""`join` on terms against Spark SQL: semi, anti, conditions, history, order."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import semistream as ss
from semistream.errors import HistoryError, OptionError
from semistream.matching.condition import PREFIX, Columns, condition_of
from semistream.testing import assert_same_rows, rows_of
from tests.spark.conftest import Build

pytestmark = pytest.mark.service

NOON = dt.datetime(2024, 2, 27, 12, tzinfo=dt.UTC)
DAY = dt.date(2024, 2, 27)
HOWS = ("inner", "left", "semi", "anti")


def some(rng: np.random.Generator, values: Sequence[Any], count: int) -> list[Any]:
    return [values[int(i)] for i in rng.integers(0, len(values), count)]


def sides(seed: int, tuples: int = 240, rows: int = 120) -> tuple[pa.Table, pa.Table]:
    """A stream and a master: many types, nulls, NaN, and duplicates on either side."""
    rng = np.random.default_rng(seed)
    floats = [None, float("nan"), -0.0, 0.0, 1.5, float("inf"), -2.25, 3.0]
    texts = [None, "", "a", "ab", "b%", "é", "Z", "a\nb"]
    decimals = [None, Decimal("0.00"), Decimal("1.50"), Decimal("-2.25"), Decimal("3.00")]
    whens = [None, NOON, NOON + dt.timedelta(microseconds=1), NOON + dt.timedelta(days=9)]
    days = [None, DAY, DAY + dt.timedelta(1)]

    def columns(prefix: str, count: int) -> dict[str, pa.Array]:
        wholes = [None, 0, 1, 2, 3, -5]
        return {
            f"{prefix}_int": pa.array(some(rng, wholes, count), pa.int32()),
            f"{prefix}_long": pa.array(some(rng, [*wholes, 2**53 + 1], count), pa.int64()),
            f"{prefix}_double": pa.array(some(rng, floats, count), pa.float64()),
            f"{prefix}_float": pa.array(some(rng, [*floats, 0.1], count), pa.float32()),
            f"{prefix}_text": pa.array(some(rng, texts, count)),
            f"{prefix}_decimal": pa.array(some(rng, decimals, count), pa.decimal128(9, 2)),
            f"{prefix}_when": pa.array(some(rng, whens, count), pa.timestamp("us", "UTC")),
            f"{prefix}_day": pa.array(some(rng, days, count), pa.date32()),
            f"{prefix}_flag": pa.array(some(rng, [None, True, False], count)),
        }

    keys = [None if n % 11 == 0 else int(n) for n in rng.integers(0, 60, tuples)]
    stream = {"id": pa.array(keys, pa.int64()), "sale": pa.array(np.arange(tuples))}
    master = {"id": pa.array(rng.integers(0, 40, rows)), "row": pa.array(np.arange(rows))}
    return pa.table(stream | columns("s", tuples)), pa.table(master | columns("m", rows))


def frame(spark: SparkSession, table: pa.Table, partitions: int = 2) -> DataFrame:
    return spark.createDataFrame(table).repartition(partitions)


def by_spark(stream: DataFrame, master: DataFrame, how: str, condition: str) -> list[Any]:
    """What Spark's own join gives."""
    renamed = master.withColumnRenamed("id", "m_id")
    on = f"(id = m_id) AND ({condition})"
    found = stream.join(renamed, F.expr(on), {"semi": "leftsemi", "anti": "leftanti"}.get(how, how))
    return rows_of(found.drop("m_id").toArrow())


def by_us(stream: DataFrame, master: ss.MasterTable, **terms: Any) -> list[Any]:
    return rows_of(ss.join(stream, master, on="id", memory="4MB", **terms).toArrow())


CONDITIONS = [
    "s_int >= m_int",
    "s_int = m_int or s_long < m_long",
    "s_double < m_double",
    "s_double = m_double",
    "s_double <= m_double and not s_flag",
    "s_double >= m_float",
    "s_float = 0.1",
    "s_float > m_double",
    "s_double <> 1.5",
    "isnan(s_double) or isnan(m_double)",
    "s_long = m_double",
    "s_int < m_decimal",
    "s_decimal = m_decimal",
    "s_decimal * 2 >= m_decimal + s_int",
    "s_int * 1.5 > m_long",
    "s_int + m_int - 1 > -s_int",
    "s_text < m_text",
    "s_text = m_text and s_text is not null",
    "s_text like 'a%' or m_text like '_'",
    "m_text not like '%\\\\%'",
    "length(s_text) > length(m_text)",
    "s_when <= m_when",
    "s_when > timestamp '2024-02-27 12:00:00Z'",
    "s_when > timestamp '2024-02-27 13:00:00+01:00'",
    "s_day = m_day",
    "s_day between date '2024-02-27' and m_day",
    "s_flag = m_flag",
    "s_flag",
    "s_flag <=> m_flag",
    "s_int is distinct from m_int",
    "s_flag is not true",
    "s_int in (1, 2, null)",
    "s_int not in (1, 2)",
    "not (s_int between 1 and 2) or m_flag is null",
    "coalesce(s_int, m_long, 7) = 7",
    "abs(s_int) = 5",
    "s_int = null",
    "S_INT > 1 and `m_int` > 0",
]


def test_conditions_mean_what_they_mean_to_spark(spark: SparkSession, seed: int) -> None:
    stream, rows = sides(seed, 600, 600)
    stream, rows = stream.drop(["id", "sale"]), rows.drop(["id", "row"])
    pairs = pa.table(
        [*stream.columns, *rows.columns], names=[*stream.schema.names, *rows.schema.names]
    )
    numbered = pairs.append_column("n", pa.array(np.arange(600)))
    tests = [f"({text}) AS c{i}" for i, text in enumerate(CONDITIONS)]
    judged = spark.createDataFrame(numbered).selectExpr("n", *tests).toArrow().sort_by("n")
    columns = Columns(stream.schema, rows.schema, {})
    names = [*(PREFIX + name for name in stream.schema.names), *rows.schema.names, "n"]
    (batch,) = numbered.rename_columns(names).combine_chunks().to_batches()
    for i, text in enumerate(CONDITIONS):
        found = condition_of(text).bind(columns).passing(batch).column("n").to_pylist()
        expected = [n for n, true in enumerate(judged.column(f"c{i}").to_pylist()) if true]
        assert found == expected, text


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("algorithm", ["auto", "cmeshjoin"])
def test_every_kind_of_join_is_sparks(
    spark: SparkSession, build: Build, how: str, algorithm: str, seed: int
) -> None:
    stream, rows = sides(seed)
    master, frames = build(rows), (frame(spark, stream), frame(spark, rows))
    found = by_us(frames[0], master, how=how, where="s_int >= m_int", algorithm=algorithm)
    assert_same_rows(found, by_spark(*frames, how, "s_int >= m_int"))
    found = by_us(frames[0], master, how=how, algorithm=algorithm)
    assert_same_rows(found, by_spark(*frames, how, "true"))


def history(count: int = 30) -> pa.Table:
    """Touching and open intervals, with gaps between some."""
    ids, begins, ends = [], [], []
    for key in range(count):
        for part in range(3):
            ids.append(key)
            begins.append(NOON + dt.timedelta(hours=4 * part))
            length = 4 - part % 2 * (key % 3)
            is_open = part == 2 and key % 2 == 0
            ends.append(None if is_open else begins[-1] + dt.timedelta(hours=length))
    kind = pa.timestamp("us", "UTC")
    times = {"begins": pa.array(begins, kind), "ends": pa.array(ends, kind)}
    return pa.table({"id": pa.array(ids, pa.int64()), **times, "row": np.arange(len(ids))})


def events(seed: int, count: int = 300) -> pa.Table:
    """At the very bounds, between them, and outside."""
    rng = np.random.default_rng(seed)
    steps = rng.integers(-2, 30, count)
    small = rng.integers(-1, 2, count)
    at = [
        None if i % 17 == 3 else NOON + dt.timedelta(hours=int(h) // 2 * 1.0, microseconds=int(u))
        for i, (h, u) in enumerate(zip(steps, small, strict=True))
    ]
    keys = [None if k == 33 else int(k) for k in rng.integers(0, 35, count)]
    return pa.table(
        {"id": pa.array(keys), "at": pa.array(at, pa.timestamp("us", "UTC")), "n": np.arange(count)}
    )


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("checked", [False, True])
def test_the_valid_row_is_sparks(
    spark: SparkSession, build: Build, how: str, checked: bool, seed: int
) -> None:
    rows, stream = history(), frame(spark, events(seed))
    master = build(rows, valid=("begins", "ends") if checked else None)
    found = by_us(stream, master, how=how, valid=("at", "begins", "ends"))
    condition = "begins <= at AND (ends IS NULL OR at < ends)"
    assert_same_rows(found, by_spark(stream, frame(spark, rows), how, condition))


@pytest.mark.parametrize("how", ["left", "anti"])
def test_the_row_as_of_a_time_is_sparks(
    spark: SparkSession, build: Build, how: str, seed: int
) -> None:
    rows, stream = history().drop(["ends"]), frame(spark, events(seed))
    found = by_us(stream, build(rows), how=how, as_of=("at", "begins"), tolerance="5h")
    stream.createOrReplaceTempView("s")
    frame(spark, rows).createOrReplaceTempView("m")
    latest = spark.sql(
        "SELECT s.n, max_by(m.row, m.begins) AS row, max(m.begins) AS begins FROM s JOIN m "
        "ON s.id = m.id AND m.begins <= s.at AND s.at <= m.begins + INTERVAL 5 HOURS GROUP BY s.n"
    )
    kind = "leftanti" if how == "anti" else "left"
    joined = stream.join(latest, "n", kind)
    names = ["id", "at", "n", *([] if how == "anti" else ["begins", "row"])]
    assert_same_rows(found, rows_of(joined.select(*names).toArrow()))


@pytest.mark.parametrize("shards", [1, 3])
def test_rows_come_in_stream_order_within_a_partition(
    spark: SparkSession, build: Build, shards: int, seed: int
) -> None:
    stream, rows = sides(seed, 500)
    master = build(rows.select(["id", "row", "m_text"]), shards=shards)
    df = spark.createDataFrame(stream.select(["id", "sale"])).coalesce(1)
    wanted = [row[1] for row in rows_of(df.toArrow())]
    joined = ss.join(df, master, on="id", how="left", memory="8MB", preserve_order=True)
    found = rows_of(joined.toArrow())
    assert list(dict.fromkeys(row[1] for row in found)) == wanted
    places = [wanted.index(row[1]) for row in found]
    assert places == sorted(places)
    plain = ss.join(df, master, on="id", how="left", memory="8MB")
    assert_same_rows(found, rows_of(plain.toArrow()))


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_master_in_shards_is_joined_on_terms(
    spark: SparkSession, build: Build, shuffle: bool, seed: int
) -> None:
    stream, rows = sides(seed)
    frames = frame(spark, stream), frame(spark, rows)
    master = build(rows, shards=3)
    for how in ("left", "anti"):
        terms: dict[str, Any] = {"how": how, "where": "s_int >= m_int", "shuffle": shuffle}
        found = rows_of(ss.join(frames[0], master, on="id", memory="16MB", **terms).toArrow())
        assert_same_rows(found, by_spark(*frames, how, "s_int >= m_int"))


def test_a_build_on_spark_refuses_rows_that_overlap(spark: SparkSession, tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 1, 2, 2], "begins": [0, 5, 0, 4], "ends": [5, None, 5, 9]})
    df = spark.createDataFrame(rows)
    with pytest.raises(HistoryError, match=r"for the key id=2, .* valid at begins=4"):
        ss.MasterTable.build(df, tmp_path / "m", key="id", valid=("begins", "ends"))
    master = ss.MasterTable.build(
        df.where("id = 1"), tmp_path / "m", key="id", valid=("begins", "ends")
    )
    assert master.valid == ("begins", "ends")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown column": ({"where": "nothing > 1"}, "'nothing'"),
    "a type error": ({"where": "s_text > 1"}, "string and int32"),
    "an aggregate": ({"where": "sum(s_int) > 1"}, r"SUM\(s_int\)"),
    "no predicate": ({"where": "s_int + 1"}, "not true or false"),
    "a time with a zone against one without": (
        {"valid": ("s_when", "plain", "plain")},
        "time zone",
    ),
    "order and a shuffle": ({"preserve_order": True, "shuffle": True}, "shuffle=True"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_before_anything_starts(
    spark: SparkSession, build: Build, name: str
) -> None:
    terms, said = REFUSED[name]
    stream, rows = sides(1)
    plain = pa.array([dt.datetime(2024, 1, 1)] * rows.num_rows, pa.timestamp("us"))
    master = build(rows.append_column("plain", plain), shards=2)
    with pytest.raises(OptionError, match=said):
        ss.join(spark.createDataFrame(stream), master, on="id", memory="16MB", **terms)


@pytest.mark.parametrize("how", ["semi", "anti"])
def test_a_pipeline_gives_each_tuple_once(
    spark: SparkSession, build: Build, tmp_path: Path, how: str
) -> None:
    (tmp_path / "in").mkdir()
    text = "\n".join(f'{{"id": {i % 5}, "n": {i}}}' for i in range(40))
    (tmp_path / "in" / "0.json").write_text(text)
    rows = pa.table({"id": [0, 0, 0, 1, 1, 2], "least": [0, 9, 9, 20, 30, 99]})
    pipeline = ss.Pipeline(
        spark.readStream.schema("id long, n long").json(str(tmp_path / "in")),
        build(rows),
        on="id",
        how=how,
        sink=str(tmp_path / "out"),
        unmatched=str(tmp_path / "unmatched"),
        checkpoint=tmp_path / "checkpoint",
        memory="4MB",
        where="n >= least",
        trigger="availableNow",
    ).start()
    pipeline.await_termination()
    found = spark.read.parquet(str(tmp_path / "out")).select("id", "n").toArrow()
    matched = {n for n in range(40) if n % 5 == 0 or (n % 5 == 1 and n >= 20)}
    wanted = matched if how == "semi" else {*range(40)} - matched
    assert_same_rows(found, [(n % 5, n) for n in wanted])
    others = spark.read.parquet(str(tmp_path / "unmatched")).select("id", "n").toArrow()
    assert_same_rows(others, [(n % 5, n) for n in {*range(40)} - wanted])
    # A tuple counts by where it went: to the sink or not.
    status = pipeline.status()
    for counts in (status.counts, status.totals):
        assert (counts.joined, counts.outputs) == (len(wanted), len(wanted))
        assert counts.unmatched == 40 - len(wanted) == status.ended_unmatched


def test_a_pipeline_joins_on_terms(spark: SparkSession, build: Build, tmp_path: Path) -> None:
    """Unmatched are tuples without a row that passes; names in conditions are the user's."""
    (tmp_path / "in").mkdir()
    text = "\n".join(f'{{"id": {i % 4}, "n": {i}, "at": {i}}}' for i in range(40))
    (tmp_path / "in" / "0.json").write_text(text)
    rows = pa.table({"id": [0, 0, 1], "begins": [0, 20, 10], "name": ["a", "b", "c"]})
    pipeline = ss.Pipeline(
        spark.readStream.schema("id long, n long, at long").json(str(tmp_path / "in")),
        build(rows),
        on="id",
        sink=str(tmp_path / "out"),
        unmatched=str(tmp_path / "unmatched"),
        checkpoint=tmp_path / "checkpoint",
        memory="4MB",
        as_of=("at", "begins"),
        where="n <> 8 and name <> 'c' or n > 30",
        trigger="availableNow",
    ).start()
    pipeline.await_termination()
    found = {
        row[1]: row[-1]
        for row in rows_of(
            spark.read.parquet(str(tmp_path / "out")).select("id", "n", "name").toArrow()
        )
    }
    expected = {n: "b" if n >= 20 else "a" for n in range(0, 40, 4) if n != 8} | {33: "c", 37: "c"}
    assert found == expected
    assert pipeline.status().counts.joined == len(expected)
    assert pipeline.status().counts.unmatched == 40 - len(expected)
