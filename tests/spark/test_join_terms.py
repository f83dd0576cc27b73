"""`join` on terms against Spark SQL: semi, anti, conditions, history, order."""

from __future__ import annotations

import datetime as dt
import re
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
    """A stream and a master with columns of many types, nulls, NaN and duplicates on either side."""
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
