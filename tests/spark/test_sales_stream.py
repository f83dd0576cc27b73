"""The made-up stream: at the rate asked for, and the same rows when it is restarted."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from semistream.errors import OptionError
from semistream.spark.sales import BLOCK_ROWS, SourceOptions
from semistream.spark.source import register_source
from semistream.testing import Row, assert_same_rows, rows_of
from tests.spark.test_source import SMALL, made

pytest.importorskip("pyspark.sql.streaming.datasource", reason="needs Spark 4.2")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from semistream.spark import sales_stream
from semistream.spark.sales_stream import SalesStreamReader


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(sales_stream, "time", clock)
    return clock


def latest(reader: SalesStreamReader, start: int) -> int:
    return reader.latestOffset({"tuple": start}, ReadAllAvailable())["tuple"]


def test_a_rate_is_kept_and_goes_on_after_a_restart(clock: Clock) -> None:
    reader = SalesStreamReader(SourceOptions.parse({"rate": "100", "rows": "1000"}))
    assert reader.initialOffset() == {"tuple": 0}
    assert latest(reader, 0) == 0
    clock.now += 2.5
    assert latest(reader, 0) == 250
    restarted = SalesStreamReader(SourceOptions.parse({"rate": "100", "rows": "1000"}))
    assert latest(restarted, 250) == 250
    clock.now += 1
    assert latest(restarted, 250) == 350
    clock.now += 100
    assert latest(restarted, 350) == 1000


def test_an_endless_stream_has_no_end_to_run_up_to() -> None:
    reader = SalesStreamReader(SourceOptions.parse({"rowsPerBatch": "5"}))
    with pytest.raises(OptionError, match="rows"):
        reader.prepareForTriggerAvailableNow()


@pytest.fixture(scope="module")
def loaded(spark: SparkSession) -> SparkSession:
    register_source(spark)
    return spark


def streamed(
    spark: SparkSession, options: dict[str, str], name: str, folder: Path, **trigger: bool
) -> tuple[list[Row], list[int]]:
    frame = spark.readStream.format("semistream").options(**options).load()
    assert frame.isStreaming
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "check"))
    query = writer.trigger(**trigger).start(str(folder / name))
    query.awaitTermination()
    sizes = [progress.numInputRows for progress in query.recentProgress]
    return rows_of(spark.read.parquet(str(folder / name)).toArrow()), [n for n in sizes if n]


@pytest.mark.service
@pytest.mark.slow
def test_batch_and_stream_give_the_same_rows_also_when_the_query_is_restarted(
    loaded: SparkSession, tmp_path: Path
) -> None:
    rows = BLOCK_ROWS + 900
    wanted = made(SMALL | {"rowsPerBatch": "1"}, [0, rows])
    sized = SMALL | {"rowsPerBatch": "7000"}
    whole = sized | {"rows": str(rows)}
    batch = rows_of(loaded.read.format("semistream").options(**whole).load().toArrow())
    assert_same_rows(batch, wanted)
    for some, batches in ((sized | {"rows": "2000"}, [2000]), (whole, [7000, 7000, rows - 16_000])):
        found, sizes = streamed(loaded, some, "sales", tmp_path, availableNow=True)
        assert sizes == batches
    assert_same_rows(found, wanted)


@pytest.mark.service
def test_available_now_wants_an_end(loaded: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(StreamingQueryException, match="no end to run up to"):
        streamed(loaded, SMALL, "sales", tmp_path, availableNow=True)
