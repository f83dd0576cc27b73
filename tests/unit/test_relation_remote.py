"""Master tables where a rename is not atomic: S3, and a filesystem that fails half-way."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pytest

import semistream as ss
from semistream.errors import (
    CorruptPageError,
    MasterExistsError,
    MasterFormatError,
    MasterNotFoundError,
    OptionError,
)
from semistream.relation import Frame, MasterTable, key_table, master_table
from semistream.relation.storage import RemoteStorage, Storage, is_uri, storage_at
from semistream.testing import assert_same_rows, checked_run, oracle_join


def products(count: int, seed: int = 1) -> pa.Table:
    ids = np.random.default_rng(seed).permutation(count)
    return pa.table({"id": ids, "name": [f"product {i:>30}" for i in ids]})


def stored(master: MasterTable) -> pa.Table:
    with master.reader() as reader:
        count = master.page_count
        return pa.Table.from_batches(reader.read(0, count, Frame(reader.frame_bytes(count))))


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """An S3 server on loopback; its address."""
    moto = pytest.importorskip("moto.server")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"{host}:{port}"
    running.stop()


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """The URI of an empty folder in a bucket; format it with a name."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    options = f"endpoint_override={server}&scheme=http&region=us-east-1"
    filesystem, _ = pafs.FileSystem.from_uri(f"s3://x?{options}&allow_bucket_creation=true")
    name = f"b{abs(hash(request.node.nodeid))}"
    filesystem.create_dir(name)
    return f"s3://{name}/deep/{{}}.master?{options}"


@pytest.mark.service
@pytest.mark.parametrize("layout", ["key", "given"])
def test_a_master_table_on_s3(bucket: str, layout: str) -> None:
    uri, data = bucket.format("r"), products(3000)
    options: dict[str, Any] = {"key": "id", "layout": layout, "page_bytes": 4096}
    built = MasterTable.from_arrow(data, uri, filter_bits=8, shards=2, **options)
    assert built.location == uri
    again = MasterTable.open(uri)
    assert (again.version, again.row_count, again.page_count) == (1, 3000, built.page_count)
    assert_same_rows(stored(again), data)
    with pytest.raises(MasterExistsError, match="replace=True"):
        MasterTable.from_arrow(data, uri, **options)
    assert MasterTable.from_arrow(data.slice(5), uri, replace=True, **options).version == 2
    assert MasterTable.open(uri).row_count == 2995
    assert_same_rows(stored(MasterTable.open(uri, version=1)), data)
    with pytest.raises(OptionError, match=r'io="direct" is not possible for s3://'):
        again.reader("direct")
    with pytest.raises(MasterNotFoundError):
        MasterTable.open(bucket.format("other"))


@pytest.mark.service
@pytest.mark.parametrize("algorithm", ["inlj", "meshjoin", "chybridjoin"])
def test_a_join_with_a_master_table_on_s3(bucket: str, algorithm: str, seed: int) -> None:
    rng, data = np.random.default_rng(seed), products(1500)
    master = MasterTable.from_arrow(data, bucket.format("r"), key="id", page_bytes=16384)
    sales = pa.record_batch({"id": rng.integers(-50, 1600, 1500), "quantity": range(1500)})
    engine = ss.engine(master, algorithm=algorithm, on="id", how="left", memory="2MB")
    found = checked_run(engine, [sales])
    assert_same_rows(found, oracle_join(sales, data, on="id", how="left").rows)


@pytest.mark.service
def test_damage_on_s3_is_named(bucket: str) -> None:
    uri = bucket.format("r")
    master = MasterTable.from_arrow(products(500), uri, key="id", page_bytes=4096)
    storage, name = master.storage, master.manifest.page_files[0].path
    data = bytearray(storage.read(name))
    data[int(master.pages.offset[3]) + 500] ^= 1
    storage.write(name, bytes(data))
    with pytest.raises(CorruptPageError, match=r"Page 3 of s3://.*/r\.master/data/"):
        stored(MasterTable.open(uri))
    storage.write(name, bytes(data[:9000]))
    with pytest.raises(CorruptPageError, match="has 9000 bytes"):
        MasterTable.open(uri)
    storage.remove([name])
    with pytest.raises(MasterFormatError, match="is missing"):
        MasterTable.open(uri)


def test_passwords_stay_out_of_messages() -> None:
    uri = "s3://AKIA:geheim@bucket/r?region=eu-west-1&session_token=geheim&scheme=http"
    storage = RemoteStorage(pafs.LocalFileSystem(), "bucket/r", uri)
    assert "geheim" in storage.location
    for text in (str(storage.path), storage.shown("data/x")):
        assert "geheim" not in text
        assert "bucket/r" in text
    assert "region=eu-west-1" in str(storage.path)


class Handler(pafs.FSSpecHandler):
    """A local filesystem behind a handler that fails, or tears, the n-th write."""

    def __init__(self, fail_at: int | None = None, tear: bool = False) -> None:
        self.local = pafs.LocalFileSystem()
        self.fail_at, self.tear, self.writes = fail_at, tear, 0
        self.fs = None

    def get_type_name(self) -> str:
        return "failing"

    def get_file_info(self, paths: list[str]) -> Any:
        return self.local.get_file_info(paths)

    def get_file_info_selector(self, selector: pafs.FileSelector) -> Any:
        return self.local.get_file_info(selector)

    def create_dir(self, path: str, recursive: bool) -> None:
        self.local.create_dir(path, recursive=recursive)

    def delete_file(self, path: str) -> None:
        self.local.delete_file(path)

    def delete_dir(self, path: str) -> None:
        self.local.delete_dir(path)

    def open_input_stream(self, path: str) -> Any:
        return self.local.open_input_stream(path, compression=None)

    def open_input_file(self, path: str) -> Any:
        return self.local.open_input_file(path)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        self.writes += 1
        if self.fail_at == self.writes:
            if self.tear:
                with self.local.open_output_stream(path, compression=None) as file:
                    file.write(b'{"torn": ')
            raise OSError(5, "the network is gone")
        return self.local.open_output_stream(path, compression=None)


@pytest.fixture
def handler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Handler:
    """Behind every path that MasterTable is given in the test."""
    one = Handler()

    def through(location: Any) -> Storage:
        assert not is_uri(location)
        return RemoteStorage(pafs.PyFileSystem(one), str(location), str(location))

    monkeypatch.setattr(master_table, "storage_at", through)
    return one


def build(path: Path, count: int, **options: Any) -> MasterTable:
    return MasterTable.from_arrow(
        products(count), path, key="id", page_bytes=4096, filter_bits=8, layout="given", **options
    )


@pytest.mark.parametrize("tear", [False, True])
def test_a_build_that_fails_at_any_write_leaves_the_old_version(
    tmp_path: Path, handler: Handler, tear: bool
) -> None:
    root = tmp_path / "r"
    build(root, 200)
    handler.tear = tear
    step = 0
    while True:
        step += 1
        handler.writes, handler.fail_at = 0, step
        try:
            newer = build(root, 300, replace=True)
            break
        except OSError:
            handler.fail_at = None
            assert_same_rows(stored(MasterTable.open(root)), products(200))
    # Pages, locator, two indices, filter, claim and manifest; a seal that fails is no failure.
    assert step == 8
    handler.fail_at = None
    assert newer.version == (3 if tear else 2)
    assert_same_rows(stored(MasterTable.open(root)), products(300))
    assert not [p for p in (root / "versions").iterdir() if p.name.endswith(".claim")]


def test_a_manifest_that_was_whole_once_is_never_passed_over(
    tmp_path: Path, handler: Handler
) -> None:
    root = tmp_path / "r"
    build(root, 200)
    build(root, 300, replace=True)
    (root / "versions" / "00000002.json").write_text('{"format')
    with pytest.raises(MasterFormatError, match=r"00000002\.json is broken"):
        MasterTable.open(root)
    (seal,) = (root / "versions").glob("00000002.*.sealed")
    seal.unlink()
    assert MasterTable.open(root).version == 1


def test_of_two_writers_one_is_told(
    tmp_path: Path, handler: Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second writer comes between the first one's claim and its look at the others."""
    root = tmp_path / "r"
    build(root, 200)
    real = RemoteStorage._refuse_others
    told: list[str] = []

    def meanwhile(storage: RemoteStorage, stem: str, claim: str) -> None:
        if not told:
            told.append(stem)
            with pytest.raises(MasterExistsError, match="another build"):
                build(root, 400, replace=True)
        real(storage, stem, claim)

    monkeypatch.setattr(RemoteStorage, "_refuse_others", meanwhile)
    assert build(root, 300, replace=True).version == 2
    assert told
    assert_same_rows(stored(MasterTable.open(root)), products(300))
    names = {path.name for path in (root / "data").iterdir()}
    used = {file.name for v in (1, 2) for file in MasterTable.open(root, v).manifest.data_files}
    assert names == used


def test_another_writers_manifest_in_the_place_is_told(
    tmp_path: Path, handler: Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that slept through the whole commit of another, and whose claim is gone."""
    root = tmp_path / "r"
    build(root, 200)
    monkeypatch.setattr(RemoteStorage, "_refuse_others", lambda *_: None)
    real = RemoteStorage.read

    def replaced(storage: RemoteStorage, name: str) -> bytes:
        if name.endswith("00000002.json"):
            return real(storage, "versions/00000001.json")
        return real(storage, name)

    monkeypatch.setattr(RemoteStorage, "read", replaced)
    with pytest.raises(MasterExistsError, match="another build"):
        build(root, 300, replace=True)


def test_storages_are_told_apart(tmp_path: Path) -> None:
    assert isinstance(storage_at("s3://bucket/r?region=us-east-1"), RemoteStorage)
    assert not isinstance(storage_at(str(tmp_path)), RemoteStorage)


@pytest.mark.service
def test_writers_of_a_key_table_on_s3(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without the turns that processes of one machine take.
    monkeypatch.setattr(key_table, "_LONGEST_TURN", 0.0)
    uri = bucket.format("keys")
    ss.key_table(uri, key={"id": "string"}, surrogate="k")
    answers: dict[str, set[int]] = {}

    def ask(writer: int) -> None:
        random = np.random.default_rng(writer)
        for _ in range(4):
            keys = [f"key {i}" for i in random.integers(0, 40, 10)]
            numbers = key_table.assigned(uri, [pa.array(keys)], ["id"]).tolist()
            for key, number in zip(keys, numbers, strict=True):
                answers.setdefault(key, set()).add(number)

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(ask, range(3)))
    assert all(len(numbers) == 1 for numbers in answers.values())
    table = {row["id"]: row["k"] for row in stored(MasterTable.open(uri)).to_pylist()}
    assert table == {key: number for key, (number,) in answers.items()}
    assert len(set(table.values())) == len(table) > 30
