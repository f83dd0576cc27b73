"""The counters of a join in the progress of its query."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import semistream as ss
from semistream.errors import OptionError
from semistream.testing import assert_same_rows, oracle_join, rows_of

pytestmark = pytest.mark.service

GOODS = pa.table({"id": range(500), "name": [f"name of number {i}" for i in range(500)]})
SALES = pa.table({"id": [i % 600 for i in range(3000)], "n": range(3000)})


@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_streams_progress_has_the_joins_counters(
    spark: SparkSession, build: Callable[..., ss.MasterTable], tmp_path: Path, how: str
) -> None:
    master = build(GOODS, key="id", page_bytes=4096)
    (tmp_path / "sales").mkdir()
    pq.write_table(SALES, tmp_path / "sales" / "0.parquet")
    stream = spark.readStream.schema("id long, n long").parquet(str(tmp_path / "sales"))
    joined = ss.join(stream, master, on="id", how=how, memory="1MB", observe="goods")
    assert joined.columns == ["id", "n", "name"]
    writer = joined.writeStream.format("memory").queryName(f"observed_{how}")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    rows = rows_of(spark.table(f"observed_{how}").toArrow())
    assert_same_rows(rows, oracle_join(SALES, GOODS, on="id", how=how).rows)
    seen = [p.observedMetrics["goods"].asDict() for p in query.recentProgress if p.numInputRows]
    assert sum(one["arrived"] for one in seen) == 3000
    assert sum(one["joined"] for one in seen) == 2500
    assert sum(one["unmatched"] for one in seen) == 500
    assert sum(one["outputs"] for one in seen) == len(rows)
    for one in seen:
        found = one["front_hits"] + one["in_place_probes"] + one["from_disk"]
        assert found == one["joined"] + one["unmatched"]
        assert 0 < one["peak_memory"] <= one["budget"] == 1 << 20


def test_a_join_that_finds_nothing_has_counters_too(
    spark: SparkSession, build: Callable[..., ss.MasterTable]
) -> None:
    master = build(GOODS, key="id", page_bytes=4096)
    absent = spark.range(1000, 1100, numPartitions=2)
    joined = ss.join(absent, master, on="id", memory="1MB", observe="nothing")
    # Both tasks end with a row that must not come out.
    assert joined.collect() == []


def test_a_name_is_needed(spark: SparkSession, build: Callable[..., ss.MasterTable]) -> None:
    with pytest.raises(OptionError, match="must be a name"):
        ss.join(spark.range(3), build(GOODS, key="id"), on="id", memory="1MB", observe="")
