"""A master table that Spark builds on an S3 server: executors write to it, all open it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from pyspark.sql import SparkSession

import semistream as ss
from semistream.relation import Frame
from semistream.testing import assert_same_rows, checked_run, oracle_join

pytestmark = [pytest.mark.service, pytest.mark.slow]


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A URI with all that a Python worker needs to open it, credentials included."""
    moto = pytest.importorskip("moto.server")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    uri = (
        f"s3://any:geheim@bucket/{{}}?endpoint_override={host}:{port}&scheme=http&region=us-east-1"
    )
    filesystem, _ = pafs.FileSystem.from_uri(uri.format("x") + "&allow_bucket_creation=true")
    filesystem.create_dir("bucket")
    yield uri.format("deep/products.master")
    server.stop()


def test_a_build_on_s3(spark: SparkSession, folder: str, tmp_path: Path) -> None:
    data = pa.table({"id": [f"key {i % 700}" for i in range(1000)], "n": range(1000)})
    master = ss.MasterTable.build(
        spark.createDataFrame(data), folder, key="id", order_by="n", page_bytes=4096, filter_bits=8
    )
    assert "geheim" not in f"{master!r} {master.describe()} {master.path}"
    again = ss.MasterTable.open(master.location)
    with again.reader() as reader:
        frame = Frame(reader.frame_bytes(again.page_count))
        found = pa.Table.from_batches(reader.read(0, again.page_count, frame))
        assert_same_rows(found.select(["id", "n"]), data)
    newer = again.upsert(pa.table({"id": ["key 3", "new"], "n": [-1, -2]})).delete(["key 5"])
    expected = [row for row in data.to_pylist() if row["id"] not in ("key 3", "key 5")]
    changed = pa.Table.from_pylist([*expected, {"id": "key 3", "n": -1}, {"id": "new", "n": -2}])
    stream = pa.record_batch({"id": [f"key {i}" for i in range(710)] + ["new"], "at": range(711)})
    join = ss.engine(newer, algorithm="chybridjoin", on="id", how="left", memory="2MB")
    assert_same_rows(
        checked_run(join, [stream]), oracle_join(stream, changed, on="id", how="left").rows
    )
    assert newer.vacuum(keep_versions=1).versions == (1, 2)
    assert ss.MasterTable.open(folder).version == 3


def test_a_join_keeps_copies_of_pages(spark: SparkSession, folder: str, tmp_path: Path) -> None:
    data = pa.table({"id": range(5_000), "name": [f"{i:>200}" for i in range(5_000)]})
    uri = folder.replace("products", "copied")
    master = ss.MasterTable.from_arrow(data, uri, key="id", page_bytes=8192, compression="zstd")
    ids = pa.table({"id": [i * 7 % 5_100 for i in range(3_000)]})
    stream, cache = spark.createDataFrame(ids).coalesce(1), tmp_path / "cache"
    wanted = oracle_join(ids.to_batches(), data, on="id", how="left").rows
    for turn in ("first", "again"):
        metrics = tmp_path / turn
        options: dict[str, Any] = {"how": "left", "cache": cache, "metrics": metrics}
        out = ss.join(stream, master, on="id", memory="1MB", cache_bytes="16MB", **options)
        assert_same_rows(out.toArrow(), wanted)
        records = [json.loads(path.read_text()) for path in metrics.iterdir()]
        found = sum(record["in_place_rows"] for record in records)
        if turn == "first":
            # Four pages of some 38 rows are read before, to see how many rows a key has.
            assert found < 160
        else:
            assert found == sum(i < 5_000 for i in ids["id"].to_pylist())
    copies = list(cache.rglob("*.copy"))
    assert 0 < sum(path.stat().st_blocks * 512 for path in copies) <= 16 << 20
