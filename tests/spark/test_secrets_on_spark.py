"""Secrets of a master's URI stay out of Spark's plans, of metrics, checkpoints and errors.

The workers need the URI as it is, so it travels in the function that Spark ships to them.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from pyspark.sql import DataFrame, SparkSession

import semistream as ss
from semistream.spark.join import join_task, operator

pytestmark = [pytest.mark.service, pytest.mark.slow]
S = "GEHEIM"


@pytest.fixture(scope="module")
def place() -> Iterator[str]:
    """A URI on an S3 server, with a password, up to the name."""
    moto = pytest.importorskip("moto.server")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = f"endpoint_override={host}:{port}&scheme=http&region=us-east-1"
    uri = f"s3://any:{S}@bucket/%s?{options}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        filesystem, _ = pafs.FileSystem.from_uri(f"{uri % 'x'}&allow_bucket_creation=true")
        filesystem.create_dir("bucket")
        yield uri
    server.stop()


@pytest.fixture
def master(place: str, request: pytest.FixtureRequest) -> ss.MasterTable:
    """A master table there, whole unless a test asks for shards."""
    rows = pa.table({"id": range(500), "name": [f"n{i}" for i in range(500)]})
    shards = getattr(request, "param", 1)
    uri = place % uuid4().hex
    return ss.MasterTable.from_arrow(rows, uri, key="id", page_bytes=4096, shards=shards)


def plans(frame: DataFrame) -> str:
    """All that Spark tells of a query."""
    execution = frame._jdf.queryExecution()
    tree = [execution.logical(), execution.analyzed(), execution.optimizedPlan()]
    tree += [execution.sparkPlan(), execution.executedPlan()]
    texts = [f"{plan.toString()} {plan.verboseString(10_000)} {plan.toJSON()}" for plan in tree]
    return " ".join([str(execution.toString()), *texts])


def contents(folder: Path) -> bytes:
    """All names and bytes in a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return b" ".join(str(path).encode() + path.read_bytes() for path in files)


@pytest.mark.parametrize("master", [1, 2], indirect=True)
def test_a_join(spark: SparkSession, master: ss.MasterTable, tmp_path: Path) -> None:
    assert S in master.location
    stream = spark.range(700)
    shuffle = True if master.shard_count > 1 else None
    joined = ss.join(
        stream,
        master,
        on="id",
        memory="8MB",
        shuffle=shuffle,
        metrics=tmp_path / "metrics",
        learned=tmp_path / "learned",
    )
    assert S not in plans(joined)
    assert "semistream_" in plans(joined)
    task, _ = join_task(stream, master, on="id", memory="8MB")
    assert S not in f"{task!r} {task} {operator(task)!r} {master!r} {master.describe()}"
    assert joined.count() == 500
    assert S.encode() not in contents(tmp_path)


def test_an_error_of_a_worker(spark: SparkSession, master: ss.MasterTable) -> None:
    joined = ss.join(spark.range(700), master, on="id", memory="8MB", algorithm="hybridjoin")
    filesystem, path = pafs.FileSystem.from_uri(master.location)
    filesystem.delete_dir_contents(path)
    with pytest.raises(Exception, match="s3://bucket/") as told:
        joined.collect()
    assert S not in "".join(traceback.format_exception(told.value))


@pytest.mark.parametrize("master", [2], indirect=True)
def test_a_pipeline(spark: SparkSession, master: ss.MasterTable, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    spark.range(700).write.mode("overwrite").parquet(str(tmp_path / "in"))
    listener = ss.MetricsListener(tmp_path / "lines" / "listener.jsonl")
    spark.streams.addListener(listener)
    source = spark.readStream.schema("id long").parquet(str(tmp_path / "in"))
    pipeline = ss.Pipeline(
        source,
        master,
        on="id",
        sink=tmp_path / "out",
        checkpoint=tmp_path / "checkpoint",
        memory="8MB",
        metrics=tmp_path / "lines" / "metrics.jsonl",
        metrics_prometheus=tmp_path / "lines" / "metrics.prom",
        trigger="availableNow",
    )
    try:
        pipeline.start().await_termination()
    finally:
        spark.streams.removeListener(listener)
    assert pipeline.status().totals.joined == 500
    assert S not in f"{pipeline.status()} {pipeline.prometheus()} {pipeline!r}"
    assert S.encode() not in contents(tmp_path)
