"""Masters that are far away: copies of pages on a local disk, and reads under way at a time."""

from __future__ import annotations

import errno
import logging
import os
import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pytest

import semistream as ss
from semistream.errors import CorruptPageError, OptionError, StorageError
from semistream.metrics import Metrics
from semistream.relation import MasterTable
from semistream.relation.storage import RemoteStorage, page_cache
from semistream.relation.storage.remote import RemoteSource
from semistream.relation.versions.manifest import read_manifest
from semistream.testing import Row, assert_same_rows, oracle_join

ROWS = 6_000
PAGE = 8_192
LIMIT = 16 << 18
"""The least that a cache may have: segments of 256 KB."""


class FarSource:
    """Counts the reads, and how many there are at a time."""

    def __init__(self, source: RemoteSource, storage: FarStorage) -> None:
        self._source, self._storage = source, storage
        self.descriptor = -1

    def read_into(self, memory: memoryview, position: int) -> int:
        far = self._storage
        with far.lock:
            far.reads += 1
            far.now += 1
            far.most = max(far.most, far.now)
        try:
            time.sleep(far.seconds)
            return self._source.read_into(memory, position)
        finally:
            with far.lock:
                far.now -= 1

    def close(self) -> None:
        self._source.close()


class FarStorage(RemoteStorage):
    """A local folder that is read as if it were in an object store."""

    def __init__(self, folder: Path, seconds: float = 0.0) -> None:
        super().__init__(pafs.LocalFileSystem(), str(folder), f"far://{folder}")
        self.seconds, self.lock = seconds, Lock()
        self.reads = self.now = self.most = 0

    def open_pages(self, name: str, direct: bool) -> Any:
        return FarSource(super().open_pages(name, direct), self)


def rows(count: int = ROWS, width: int = 300) -> pa.Table:
    ids = np.random.default_rng(4).permutation(count)
    return pa.table({"id": ids, "n": np.arange(count), "name": [f"{i:>{width}}" for i in ids]})


def stream(seed: int = 1, batches: int = 4, size: int = 1_500) -> list[pa.RecordBatch]:
    random = np.random.default_rng(seed)
    return [
        pa.record_batch({"id": random.integers(-5, ROWS + 5, size), "q": np.arange(size)})
        for _ in range(batches)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("far") / "r.master"
    MasterTable.from_arrow(rows(), path, key="id", page_bytes=PAGE)
    return path


@pytest.fixture
def far(folder: Path) -> FarStorage:
    return FarStorage(folder)


@pytest.fixture
def cached(far: FarStorage, tmp_path: Path) -> Callable[[], MasterTable]:
    """Opens the master, cached."""

    def opened() -> MasterTable:
        master = MasterTable(far, read_manifest(far))
        return master.cached(tmp_path / "cache", LIMIT)

    return opened


def joined(
    master: MasterTable, batches: list[pa.RecordBatch], algorithm: str = "hybridjoin"
) -> tuple[list[pa.RecordBatch], Metrics]:
    engine = ss.engine(master, on="id", how="left", memory="1MB", algorithm=algorithm)
    return list(engine.run(iter(batches))), engine.metrics()


def expected(batches: list[pa.RecordBatch]) -> list[Row]:
    return oracle_join(batches, rows(), on="id", how="left").rows


def used(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*.copy"))


@pytest.mark.parametrize("algorithm", ss.ALGORITHMS)
def test_what_was_read_once_is_found_in_place(
    cached: Callable[[], MasterTable], far: FarStorage, algorithm: str
) -> None:
    batches = stream()
    out, _ = joined(cached(), batches, "hybridjoin")
    assert_same_rows(out, expected(batches))
    far.reads = 0
    again, metrics = joined(cached(), batches, algorithm)
    assert_same_rows(again, expected(batches))
    assert far.reads == 0
    assert metrics.in_place_rows > 0


def test_pages_that_come_later_are_used(cached: Callable[[], MasterTable], far: FarStorage) -> None:
    """A second worker reads what the first one, which was there before, then finds in place."""
    first = ss.engine(cached(), on="id", how="left", memory="1MB", algorithm="hybridjoin")
    few = [pa.record_batch({"id": [1], "q": [0]})]
    list(first.run(iter(few)))
    batches = stream()
    joined(cached(), batches)
    far.reads = 0
    time.sleep(1.1)  # The cache is looked at once a second.
    assert_same_rows(list(first.run(iter(batches))), expected(batches))
    assert far.reads == 0


def test_it_stays_within_its_bytes(far: FarStorage, tmp_path: Path) -> None:
    wide = rows(count=12_000, width=1_000)  # Three times the cache.
    place = tmp_path / "wide.master"
    MasterTable.from_arrow(wide, place, key="id", page_bytes=PAGE)
    storage = FarStorage(place)
    home = tmp_path / "cache"
    master = MasterTable(storage, read_manifest(storage)).cached(home, LIMIT)
    for seed in range(3):
        batches = [pa.record_batch({"id": b["id"], "q": b["q"]}) for b in stream(seed)]
        out, _ = joined(master, batches)
        assert_same_rows(out, oracle_join(batches, wide, on="id", how="left").rows)
        assert 0 < used(home) <= LIMIT
    assert storage.reads > 0


@pytest.mark.parametrize("algorithm", ["hybridjoin", "meshjoin", "inlj"])
def test_a_damaged_copy_is_read_anew(
    cached: Callable[[], MasterTable], far: FarStorage, tmp_path: Path, algorithm: str
) -> None:
    batches = stream()
    joined(cached(), batches)
    for path in (tmp_path / "cache").rglob("*.copy"):
        content = bytearray(path.read_bytes())
        content[1_000::5_000] = b"x" * len(content[1_000::5_000])
        path.write_bytes(content)
    far.reads = 0
    out, _ = joined(cached(), batches, algorithm)
    assert_same_rows(out, expected(batches))
    assert far.reads > 0


def test_a_damaged_master_is_an_error_and_not_kept(
    folder: Path, tmp_path: Path, cached: Callable[[], MasterTable]
) -> None:
    pages = next((folder / "data").glob("*.pages.arrow"))
    whole = pages.read_bytes()
    broken = bytearray(whole)
    broken[len(whole) // 2] ^= 1
    try:
        pages.write_bytes(broken)
        with pytest.raises(CorruptPageError):
            joined(cached(), stream())
    finally:
        pages.write_bytes(whole)
    out, _ = joined(cached(), stream())
    assert_same_rows(out, expected(stream()))


def test_copies_vanish_under_a_running_join(
    cached: Callable[[], MasterTable], tmp_path: Path
) -> None:
    batches = stream(batches=8)
    joined(cached(), batches)

    def while_segments_go() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == 3:
                for path in (tmp_path / "cache").rglob("*.kept"):
                    path.unlink()
                    path.with_suffix(".copy").unlink()
                time.sleep(1.1)
            yield batch

    engine = ss.engine(cached(), on="id", how="left", memory="1MB", algorithm="hybridjoin")
    assert_same_rows(list(engine.run(while_segments_go())), expected(batches))
    assert used(tmp_path / "cache") > 0


def test_a_full_disk_is_no_error(
    cached: Callable[[], MasterTable],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("semistream.relation.storage.page_cache.os.pwrite", full)
    with caplog.at_level(logging.WARNING, logger="semistream"):
        out, _ = joined(cached(), stream())
    assert_same_rows(out, expected(stream()))
    told = [record for record in caplog.records if "cache" in record.getMessage()]
    assert len(told) == 1
    assert "No space left" in told[0].getMessage()


def test_copies_of_an_earlier_boot_are_removed(
    cached: Callable[[], MasterTable], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined(cached(), stream())
    boot = tmp_path / "boot"
    boot.write_text("another\n")
    monkeypatch.setattr(page_cache, "_BOOT", boot)
    page_cache._opened_cache.cache_clear()
    joined(cached(), stream())
    assert [path.name for path in (tmp_path / "cache" / "semistream-pages").iterdir()] == [
        "another"
    ]


def test_a_changed_master_shares_the_pages_that_stayed(tmp_path: Path) -> None:
    place = tmp_path / "r.master"
    master = MasterTable.from_arrow(rows(), place, key="id", page_bytes=PAGE)
    far = FarStorage(place)
    setting = tmp_path / "cache", LIMIT
    joined(MasterTable(far, read_manifest(far)).cached(*setting), stream())
    change = rows().slice(0, 1).set_column(1, "n", pa.array([-1]))
    master.upsert(change)
    far.reads = 0
    newer = MasterTable(far, read_manifest(far)).cached(*setting)
    out, _ = joined(newer, stream())
    table = pa.concat_tables([rows().slice(1), change])
    assert_same_rows(out, oracle_join(stream(), table, on="id", how="left").rows)
    assert 0 < far.reads < 10


def far_engine(master: MasterTable) -> ss.Engine:
    options: dict[str, Any] = {"look_ups": 32, "partition_pages": 1}
    return ss.engine(master, on="id", how="left", memory="3MB", algorithm="hybridjoin", **options)


def test_many_reads_are_under_way_at_a_time(folder: Path) -> None:
    far = FarStorage(folder, seconds=0.002)
    master = MasterTable(far, read_manifest(far))
    engine = far_engine(master)
    assert_same_rows(list(engine.run(iter(stream()))), expected(stream()))
    assert far.most >= 8


def test_a_failing_read_among_many_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far = FarStorage(folder)
    master = MasterTable(far, read_manifest(far))
    whole = FarSource.read_into

    def failing(source: FarSource, memory: memoryview, position: int) -> int:
        if far.reads == 20:
            far.reads += 1
            raise OSError(errno.EIO, "the network is down")
        return whole(source, memory, position)

    monkeypatch.setattr(FarSource, "read_into", failing)
    engine = far_engine(master)
    with pytest.raises(CorruptPageError, match="the network is down"):
        list(engine.run(iter(stream())))


def test_a_local_master_needs_no_cache(folder: Path, tmp_path: Path) -> None:
    master = MasterTable.open(folder).cached(tmp_path / "cache", "1GB")
    assert master.cache is None
    joined(master, stream())
    assert not (tmp_path / "cache").exists()


def test_a_cached_master_is_pickled_with_its_cache(
    cached: Callable[[], MasterTable], monkeypatch: pytest.MonkeyPatch, far: FarStorage
) -> None:
    from semistream.relation import master_table

    monkeypatch.setattr(master_table, "storage_at", lambda _: far)
    master = cached()
    again: MasterTable = pickle.loads(pickle.dumps(master))
    assert again.cache == master.cache
    assert again.shard(0).cache == master.cache


def test_what_cannot_be_a_cache(cached: Callable[[], MasterTable], tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"cache_bytes is 1,048,576; give at least 4,194,304"):
        cached().cached(tmp_path / "c", "1MB")
    with pytest.raises(OptionError, match="must be on a local disk"):
        cached().cached("s3://bucket/cache", "1GB")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be used as a cache"):
        joined(cached().cached(tmp_path / "file", "1GB"), stream())
    assert os.path.isfile(tmp_path / "file")
