"""`join` by a condition against Spark SQL: the same rows, nulls included, batch and stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import semistream as ss
from semistream.errors import KeyColumnError, KeyTypeError, OptionError
from semistream.testing import assert_same_rows, rows_of
from tests.spark.conftest import Build

pytestmark = pytest.mark.service

HOWS = ("inner", "left", "semi", "anti")
CONDITIONS = {
    "v BETWEEN low AND high": ss.between("v", "low", "high"),
    "low <= v AND v < high": ss.between("v", "low", "high", closed="low"),
    "v < low": ss.below("v", "low"),
    "v >= high": ss.at_least("v", "high"),
    "at > since": ss.above("at", "since"),
    "note <= text": ss.at_most("note", "text"),
    "1 - levenshtein(note, text) / greatest(length(note), length(text)) >= 0.7": ss.similar(
        "note", "text", at_least=0.7
    ),
}


@pytest.fixture(scope="module")
def stream(spark: SparkSession) -> DataFrame:
    rows = spark.range(400).selectExpr(
        "id AS i",
        "IF(id % 9 = 0, NULL, CAST(id * 7919 % 1000 AS INT)) AS v",
        "IF(id % 11 = 0, NULL, concat('word', id * 31 % 97)) AS note",
        "IF(id % 13 = 0, NULL, timestamp_seconds(id * 997 % 1000)) AS at",
    )
    return rows.repartition(3)


@pytest.fixture
def master(build: Build) -> ss.MasterTable:
    low = np.arange(150) * 6151 % 1000
    null = np.arange(150) % 10 == 0
    table = pa.table(
        {
            "j": np.arange(150),
            "low": low,
            "high": pa.array(low + np.arange(150) % 17 - 1, mask=null),
            "text": pa.array([f"word{j}" for j in range(150)], mask=null),
            "since": pa.array(np.arange(150) * 6_664_000, pa.timestamp("us", "UTC"), mask=null),
        }
    )
    return build(table, "j", shards=2)


def frame_of(spark: SparkSession, master: ss.MasterTable) -> DataFrame:
    with master.reader() as reader:
        from semistream.relation import Frame

        pages = reader.read(0, master.page_count, Frame(reader.frame_bytes(master.page_count)))
        return spark.createDataFrame(pa.Table.from_batches(pages).select(master.schema.names))


@pytest.mark.parametrize("sql", CONDITIONS)
def test_spark_sql_gives_the_same(
    spark: SparkSession, stream: DataFrame, master: ss.MasterTable, sql: str
) -> None:
    stream.createOrReplaceTempView("s")
    frame_of(spark, master).createOrReplaceTempView("r")
    for how in HOWS:
        kind = {"inner": "INNER", "left": "LEFT"}.get(how, f"LEFT {how}")
        expected = spark.sql(f"SELECT * FROM s {kind} JOIN r ON {sql}")
        found = ss.join(stream, master, on=CONDITIONS[sql], memory="2MB", how=how)
        assert found.columns == expected.columns
        assert_same_rows(rows_of(found.toArrow()), rows_of(expected.toArrow()))


def test_a_streaming_frame(
    spark: SparkSession, stream: DataFrame, master: ss.MasterTable, tmp_path: Path
) -> None:
    stream.select("i", "v").write.parquet(str(tmp_path / "in"))
    source = spark.readStream.schema("i long, v int").option("maxFilesPerTrigger", 1)
    on = ss.between("v", "low", "high")
    out = ss.join(
        source.parquet(str(tmp_path / "in")),
        master,
        on=on,
        memory="2MB",
        columns=["j"],
        metrics=tmp_path / "metrics",
    )
    query = (
        out.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    query.awaitTermination()
    batch = ss.join(stream.select("i", "v"), master, on=on, memory="2MB", columns=["j"])
    written = spark.read.parquet(str(tmp_path / "out"))
    assert_same_rows(rows_of(written.toArrow()), rows_of(batch.toArrow()))
    records = [json.loads(path.read_text()) for path in (tmp_path / "metrics").iterdir()]
    assert sum(record["arrived"] for record in records) == 400


@pytest.mark.parametrize(
    ("terms", "error", "says"),
    [
        ({"on": ss.between("w", "low", "high")}, KeyColumnError, "no column 'w'"),
        ({"on": ss.between("v", "low", "w")}, KeyColumnError, "The master has no column"),
        ({"on": ss.between("note", "low", "high")}, KeyTypeError, "cannot be compared exactly"),
        ({"on": ss.below("v", "low"), "algorithm": "hybridjoin"}, OptionError, "MESHJOIN's scan"),
        ({"on": ss.below("v", "low"), "how": "outer"}, OptionError, "how='outer' is not known"),
        ({"on": ss.below("v", "low"), "memory": 100}, Exception, "the least is"),
    ],
)
def test_refused_before_anything_starts(
    stream: DataFrame, master: ss.MasterTable, terms: dict[str, Any], error: Any, says: str
) -> None:
    with pytest.raises(error, match=says):
        ss.join(stream, master, **({"memory": "2MB"} | terms))


@pytest.mark.parametrize("on", ["v", ss.between("v", "low", "high")])
def test_a_sample_is_the_same_however_the_stream_is_divided(
    spark: SparkSession, stream: DataFrame, build: Build, tmp_path: Path, on: Any
) -> None:
    table = pa.table({"v": np.arange(1000), "low": np.arange(1000), "high": np.arange(1000) + 2})
    table = table if isinstance(on, str) else table.rename_columns(["j", "low", "high"])
    master = build(table, table.column_names[0])
    rows = stream.select("i", "v")
    found = [
        ss.join(
            frame,
            master,
            on=on,
            memory="2MB",
            how="left",
            sample=ss.Sample(0.3, seed=3),
            metrics=tmp_path / str(number),
        )
        for number, frame in enumerate((rows.coalesce(1), rows.repartition(5, "v")))
    ]
    first, second = (rows_of(one.toArrow()) for one in found)
    assert_same_rows(first, second)
    for number in range(2):
        files = (tmp_path / str(number)).iterdir()
        records = [json.loads(path.read_text()) for path in files]
        arrived, left_out = (sum(r[name] for r in records) for name in ("arrived", "left_out"))
        assert arrived == 400
        assert left_out == arrived - sum(r["joined"] + r["unmatched"] for r in records)
    estimates = [
        ss.estimate(rows, ss.Sample(0.3, seed=3), column="low", by=["i", "v"], group_by="v")
        for rows in (found[0], pa.Table.from_batches(found[0].toArrow().to_batches()))
    ]
    assert isinstance(estimates[0], dict)
    assert estimates[0] == estimates[1]
