"""Whole triggers of a streaming query over Parquet files, one file a micro-batch."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from semistream.workload import ZipfKeys, sales
from semistream_bench.ways import Way

__all__ = ["StreamFiles"]


class StreamFiles:
    """Zipf sales as files: for each round a folder, with a file for each micro-batch."""

    def __init__(
        self, folder: Path, keys: ZipfKeys, tuples: int, rounds: int, batches: int
    ) -> None:
        """Draw the sales and write them. There is a round 0, to warm up, before `rounds`."""
        self._folder = folder
        for number in range(rounds + 1):
            self._round(number).mkdir(parents=True)
            drawn = sales(tuples * batches, keys, keys.domain, batch_rows=tuples)
            for place, batch in enumerate(drawn):
                path = self._round(number) / f"{place:05d}.parquet"
                pq.write_table(pa.Table.from_batches([batch]), path)

    def first(self, spark: SparkSession) -> DataFrame:
        """The first micro-batch, as a frame that is no stream."""
        return spark.read.parquet(str(self._round(0) / "00000.parquet"))

    def trigger_seconds(
        self, spark: SparkSession, way: Way, number: int, warm: int, cores: int
    ) -> list[float]:
        """Run a way over the micro-batches of a round; seconds of each after the warm ones."""
        stream = (
            spark.readStream.schema(self.first(spark).schema)
            .option("maxFilesPerTrigger", 1)
            .parquet(str(self._round(number)))
            .repartition(cores)
        )
        with tempfile.TemporaryDirectory(dir=self._folder) as checkpoint:
            writer = (stream if way.by_batch else way.join(stream)).writeStream
            writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
            if way.by_batch:
                query = writer.foreachBatch(lambda batch, _: _discard(way.join(batch))).start()
            else:
                query = writer.format("noop").start()
            query.awaitTermination()
        took = [
            progress.durationMs["triggerExecution"] / 1e3
            for progress in query.recentProgress
            if progress.numInputRows
        ]
        return took[warm:]

    def _round(self, number: int) -> Path:
        return self._folder / f"round-{number}"


def _discard(rows: DataFrame) -> None:
    rows.write.format("noop").mode("append").save()
