"""No secret of a URI or of options reaches a message, a traceback or a text form."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

import semistream as ss
from semistream.errors import SemistreamError
from semistream.relation.storage import RemoteStorage, storage_at, without_secrets
from semistream.spark.building.tasks import CodeReader
from semistream.spark.pipeline.folders import Folder

S = "GEHEIM"
SHAPES = [
    f"s3://KEY:{S}@bucket/x",
    f"S3://KEY:{S}@bucket/x",
    f"s3a://KEY:{S}@bucket/x",
    f"nosuch://KEY:{S}@bucket/x",
    f"s3://KEY:SL/{S}@bucket/x",
    f"s3://KEY:{S}/SH@bucket/x",
    f"s3://KEY:{S}@{S}@bucket/x",
    f"s3://KEY:9/{S}@bucket/x",
    f"s3://KEY:{S}%2F@bucket/x",
    f"s3://KEY:Q?{S}@bucket/x",
    f"s3://KEY:{S}?W@bucket/x",
    f"s3://KEY:H#{S}@bucket/x",
    f"s3://KEY:{S}#H@bucket/x",
    f"s3://KEY:{S}@my bucket/x",
    f"s3://KEY:{S} {S}@bucket/x",
    f"s3://KEY:{S}\n@bucket/x",
    f"s3://KEY:{S}@/x",
    f"s3://KEY:{S}@",
    f"s3://KEY:{S}",
    f"s3://KEY:{S}/bucket",
    f"s3://:{S}@bucket/x",
    f"s3:/KEY:{S}@bucket/x",
    f"s3://KEY:{S}@[bucket/x",
    f"s3://bucket/x?secret_key={S}",
    f"s3://bucket/x?SECRET_KEY={S}&region=eu",
    f"s3://bucket/x?region=eu;secret={S}",
    f"s3://bucket/x?{S}",
    f"s3://bucket/x#{S}",
    f"s3://KEY:{S}@bucket/x?endpoint_override=http://u:{S}@h:9",
    f"s3://bucket/x?endpoint_override=http%3A%2F%2Fu%3A{S}%40h",
    f"gs://KEY:{S}@bucket/x",
    f"gs://bucket/x?access_token={S}",
    f"abfss://KEY:{S}@account/x",
    f"abfss://container@account/x?account_key={S}",
    f"abfss://container@account/x?sig={S}",
    f"hdfs://user:{S}@namenode:8020/x",
    f"file://user:{S}@/tmp/x",
    f"file://user:{S}@host/tmp/x",
    f"jdbc:/x:{S}@host",
]


@pytest.mark.parametrize("uri", SHAPES)
def test_a_shown_uri_has_no_secret(uri: str) -> None:
    assert S not in without_secrets(uri)
    storage = RemoteStorage(pafs.LocalFileSystem(), "bucket/x", uri)
    assert S not in f"{storage.path} {storage.shown('data/y')}"


WAYS: dict[str, Callable[[str], Any]] = {
    "storage": storage_at,
    "folder": Folder.at,
    "parquet sink": lambda uri: ss.ParquetSink(uri).folder(3),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("uri", [uri for uri in SHAPES if "://" in uri])
def test_what_cannot_be_opened_tells_no_secret(uri: str, way: str) -> None:
    told = ""
    try:
        WAYS[way](uri)
    except SemistreamError as error:
        told = "".join(traceback.format_exception(error))
    assert S not in told


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("s3://bucket/a@b/c?region=eu&scheme=http", "s3://bucket/a@b/c?region=eu&scheme=http"),
        ("abfss://container@account/x", "abfss://container@account/x"),
        ("hdfs://namenode:8020/user@x/r", "hdfs://namenode:8020/user@x/r"),
        ("s3://minio:9000/r", "s3://minio:9000/r"),
        ("file:///tmp/a b", "file:///tmp/a b"),
        ("/tmp/user:word@x", "/tmp/user:word@x"),
    ],
)
def test_what_is_no_secret_stays(uri: str, shown: str) -> None:
    assert without_secrets(uri) == shown


def test_text_forms_have_no_secret() -> None:
    uri = f"s3://KEY:{S}@bucket/x"
    sinks = [
        ss.ParquetSink(uri),
        ss.TableSink(path=uri, options={"password": S}),
        ss.TableSink("t", options={"password": S}),
        CodeReader(uri, b"", ("id",)),
    ]
    assert all(S not in repr(sink) for sink in sinks)
    assert "password" in repr(sinks[1])
    with pytest.raises(ss.SemistreamError) as refused:
        ss.ParquetSink(uri).check(["batch"])
    assert S not in str(refused.value)
    with pytest.raises(ss.SemistreamError) as refused:
        ss.TableSink("t", path=uri)
    assert S not in str(refused.value)


def test_a_local_folder_is_shown_as_it_is(tmp_path: Path) -> None:
    assert Folder.at(tmp_path / "a").shown == f"file://{tmp_path}/a"
