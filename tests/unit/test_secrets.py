"""No secret of a URI or of options reaches a message, a traceback or a text form."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

import semistream as ss
from semistream.errors import OptionError, SemistreamError
from semistream.relation.storage import (
    RemoteStorage,
    harmless,
    scrubbed,
    storage_at,
    without_secrets,
)
from semistream.spark.building.tasks import CodeReader
from semistream.spark.pipeline.folders import Folder
from semistream.spark.pipeline.metrics_log import MetricsLog
from semistream.spark.pipeline.settings import target_seconds
from semistream.spark.pipeline.sinks import sink_of

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


WRONGLY_WRITTEN = [
    f" s3://KEY:{S}@bucket/x",
    f"\ts3://KEY:{S}@bucket/x",
    f"s3:/KEY:{S}@bucket/x",
    f"s3:KEY:{S}@bucket/x",
    f"s://KEY:{S}@bucket/x",
    f"9s3://KEY:{S}@bucket/x",
    f"s_3://KEY:{S}@bucket/x",
    f"s3;//KEY:{S}@bucket/x",
    f"s3\\://KEY:{S}@bucket/x",
    f"//KEY:{S}@bucket/x",
    f"KEY:{S}@bucket/x",
    f"<s3://KEY:{S}@bucket/x>",
    f"'s3://KEY:{S}@bucket/x'",
    f"jdbc:postgresql://host/db?user=u&password={S}",
    f"jdbc:sqlserver://host;user=u;password={S}",
    f"jdbc:oracle:thin:u/{S}@host:1521:db",
    f"file:/tmp/x?password={S}",
    f"AccountName=a;AccountKey={S}",
    f"data/x?secret_key={S}",
    f"data/x?fs.s3a.secret.key={S}",
]
"""What is no URI to us, and would be taken for a local path."""
ODD_URIS = [
    f"https://u:{S}@host/x",
    f"s3:///KEY:{S}@bucket/x",
    f"s3:////KEY:{S}@bucket/x",
    f"s3://KEY%3A{S}%40bucket/x",
    f"s3://bucket/x&password={S}",
    f"s3://bucket/x;secret={S}",
]


@pytest.mark.parametrize("uri", [*WRONGLY_WRITTEN, *ODD_URIS])
def test_a_uri_that_is_written_wrongly_has_no_secret(uri: str) -> None:
    assert S not in without_secrets(uri)
    assert S not in without_secrets(f"{uri}\0")


PLACES: dict[str, Callable[[str], Any]] = {
    "open": ss.MasterTable.open,
    "build": lambda uri: ss.MasterTable.from_arrow(pa.table({"id": [1]}), uri, key="id"),
    "folder": Folder.at,
    "pinned versions": ss.pinned_versions,
    "listener": ss.MetricsListener,
    "listener's tasks": lambda uri: ss.MetricsListener("x.jsonl", uri),
    "metrics": lambda uri: MetricsLog("shop", uri),
    "prometheus": lambda uri: MetricsLog("shop", None, uri),
    "shedding": lambda uri: ss.Shedding("keep", uri),
    "deferred": lambda uri: target_seconds(None, uri),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("uri", WRONGLY_WRITTEN)
def test_a_uri_that_is_written_wrongly_is_refused(uri: str, place: str) -> None:
    with pytest.raises(OptionError) as refused:
        PLACES[place](uri)
    assert S not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize("uri", [*SHAPES, *WRONGLY_WRITTEN, *ODD_URIS])
def test_text_forms_of_public_objects_have_no_secret(uri: str) -> None:
    made = [
        ss.Retry(then="dead_letter", dead_letters=uri),
        ss.Retry(then="dead_letter", dead_letters=ss.ParquetSink(uri)),
        ss.ParquetSink(uri),
        ss.TableSink(path=uri),
        ss.TableSink(table=uri),
        sink_of(partial(print, uri), "sink"),
    ]
    assert S not in f"{made!r}"
    with pytest.raises(OptionError) as refused:
        ss.Retry(then="drop", dead_letters=uri)
    assert S not in str(refused.value)
    with pytest.raises(OptionError) as refused:
        sink_of({"path": uri}, "sink")
    assert S not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        f"Path does not exist: s3a://KEY:{S}@bucket/x.",
        f'Cannot open "s3a://KEY:{S}@bucket/x"',
        f"options Map(password -> {S}, user -> u)",
        f"{{'password': '{S}', 'user': 'u'}}",
        f"fs.s3a.secret.key={S}",
        f"No suitable driver: jdbc:postgresql://host/db?user=u&password={S}",
        f"https://account.blob.core.windows.net/c?sv=2&sig={S} failed",
    ],
)
def test_messages_of_other_libraries_are_scrubbed(text: str) -> None:
    assert S not in scrubbed(text)
    error = RuntimeError("outer")
    error.__cause__ = ValueError(text)
    assert harmless(error) is None
    assert harmless(ValueError(scrubbed(text))) is not None


def test_messages_without_secrets_stay() -> None:
    text = "Syntax error at or near token: x, in /data/key=3/part.parquet of hdfs://host:8020/a@b"
    assert scrubbed(text) == text


@pytest.mark.parametrize("uri", [f"s3a://KEY:{S}@bucket/x", f"s3://bucket/x?secret_key={S}"])
def test_spark_gets_no_uri_with_a_secret(uri: str) -> None:
    with pytest.raises(OptionError, match=r"spark\.hadoop\.fs\.s3a") as refused:
        Folder.at(uri)
    assert S not in str(refused.value)


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
        ("./user:word@x", "./user:word@x"),
        ("data/key=3/x.master", "data/key=3/x.master"),
        ("12:30/x.master", "12:30/x.master"),
        ("file:///a:b@c/d", "file:///a:b@c/d"),
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
