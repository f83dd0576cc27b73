"""Streaming frames: the join is Spark's stream-static join, and the front stage lives on."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import semistream as ss
from semistream.spark.join import join
from semistream.testing import Row, assert_same_rows, oracle_join, rows_of

pytestmark = pytest.mark.service

KEYS = 2_000
# Spark takes its idle workers in turn, and earlier tests leave some: a worker must see two batches.
BATCHES = 24
GOODS = pa.table({"id": range(KEYS), "name": [f"name of number {i}" for i in range(KEYS)]})


def sales_files(folder: Path, seed: int, files: int, rows: int) -> Path:
    """Files of sales whose keys are skewed, some of them absent or null; a batch each."""
    random = np.random.default_rng(seed)
    folder.mkdir()
    for i in range(files):
        ids = np.minimum(random.zipf(1.3, rows) * 7 % (KEYS + 50), KEYS + 49)
        column = pa.array(ids, mask=random.random(rows) < 0.02)
        made = pa.array(np.arange(rows) * 1_000_000).cast(pa.timestamp("us", "UTC"))
        pq.write_table(pa.table({"id": column, "n": range(rows), "at": made}), folder / f"{i}.pq")
    return folder


def stream_of(spark: SparkSession, folder: Path) -> DataFrame:
    reader = spark.readStream.schema("id long, n long, at timestamp")
    return reader.option("maxFilesPerTrigger", 1).parquet(str(folder))


def run(frame: DataFrame, name: str, folder: Path) -> list[Row]:
    """All micro-batches of the query to their end; its rows from the memory sink."""
    writer = frame.writeStream.format("memory").queryName(name).outputMode("append")
    checkpoint = str(folder / f"{name}.checkpoint")
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.processAllAvailable()
    query.awaitTermination()
    assert query.exception() is None
    return rows_of(frame.sparkSession.table(name).toArrow())


@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_stream_joins_as_sparks_stream_static_join_does(
    spark: SparkSession, build: Callable[..., ss.MasterTable], tmp_path: Path, seed: int, how: str
) -> None:
    folder = sales_files(tmp_path / "sales", seed, files=3, rows=500)
    stream = stream_of(spark, folder)
    out = join(stream, build(GOODS), on="id", how=how, memory="1MB")
    assert out.isStreaming
    static = spark.createDataFrame(GOODS)
    found = run(out, f"found_{how}", tmp_path)
    wanted = run(stream.join(static, "id", how), f"wanted_{how}", tmp_path)
    assert len(wanted) >= 1000
    assert_same_rows(found, wanted)


def test_a_watermark_passes_the_join(
    spark: SparkSession, build: Callable[..., ss.MasterTable], tmp_path: Path, seed: int
) -> None:
    folder = sales_files(tmp_path / "sales", seed, files=1, rows=50)
    stream = stream_of(spark, folder).withWatermark("at", "1 minute")
    out = join(stream, build(GOODS), on="id", how="left", memory="1MB")
    # Without a watermark Spark refuses to append an aggregate.
    found = run(out.groupBy("at").count(), "windows", tmp_path)
    assert all(count == 1 for _, count in found)


@pytest.fixture(scope="module")
def observed(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> list[list[dict[str, Any]]]:
    """The metrics of a stream of BATCHES batches, in order, by the Python worker that ran them."""
    folder = tmp_path_factory.mktemp("observed")
    sales = sales_files(folder / "sales", 7, files=BATCHES, rows=4_000)
    path, metrics = folder / "goods.master", folder / "metrics"
    master = ss.MasterTable.from_arrow(GOODS, path, key="id", page_bytes=4096)
    stream = stream_of(spark, sales).coalesce(1)
    # Auto would keep all of so small a master, and there would be nothing to learn.
    options: dict[str, Any] = {
        "algorithm": "chybridjoin",
        "front_percent": 50,
        "io": "unmapped",
        "metrics": metrics,
    }
    out = join(stream, master, on="id", how="left", memory="1MB", **options)
    found = run(out, "enriched", folder)
    tables = [pq.read_table(path) for path in sorted(sales.iterdir())]
    batches = [batch for table in tables for batch in table.to_batches()]
    assert_same_rows(found, oracle_join(batches, GOODS, on="id", how="left").rows)
    records = [json.loads(path.read_text()) for path in metrics.iterdir()]
    by_worker: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for record in sorted(records, key=lambda record: record["batch"]):
        by_worker[record["pid"]].append(record)
    return list(by_worker.values())


@pytest.mark.slow
def test_every_batch_leaves_its_metrics(observed: list[list[dict[str, Any]]]) -> None:
    records = sorted((r for ran in observed for r in ran), key=lambda r: r["batch"])
    assert [record["batch"] for record in records] == list(range(BATCHES))
    assert len({record["query"] for record in records}) == 1
    assert [record["arrived"] for record in records] == [4_000] * BATCHES
    assert all(r["arrived"] == r["joined"] + r["unmatched"] for r in records)


@pytest.mark.slow
def test_the_engine_survives_from_batch_to_batch(observed: list[list[dict[str, Any]]]) -> None:
    assert any(len(ran) > 1 for ran in observed)
    for ran in observed:
        assert [record["warm"] for record in ran] == [False] + [True] * (len(ran) - 1)


@pytest.mark.slow
def test_the_front_stage_survives_from_batch_to_batch(observed: list[list[dict[str, Any]]]) -> None:
    # Batches are alike: what a later one hits more than the first, the first has left behind.
    first = max(ran[0]["hit_ratio"] for ran in observed)
    again = [record["hit_ratio"] for ran in observed for record in ran[1:]]
    assert min(again) > first + 0.05
