"""Rows found on pages as they lie: any shape of R gives what the oracle gives, and no page is
believed that is not as it was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
import xxhash

import semistream as ss
from semistream.algorithms.sizing import Sizing
from semistream.errors import CorruptPageError
from semistream.kernels.checksum import SHORTEST, xxh3
from semistream.relation import reader
from semistream.testing import assert_same_rows, checked_run, oracle_join, rows_of

ROWS = 1_500


@pytest.mark.parametrize(
    "length",
    [*range(SHORTEST, 260), 1023, 1024, 1025, 1088, 1089, 2048, 2049, 65_537, 100_003],
)
def test_the_checksum_is_xxh3(length: int) -> None:
    data = np.random.default_rng(length).integers(0, 256, length, dtype=np.uint8)
    assert int(xxh3(data.ctypes.data, length)) == xxhash.xxh3_64_intdigest(data.tobytes())


def table_of(keys: Any, seed: int) -> pa.Table:
    """Master rows with columns of every kind that a page can hold."""
    random, count = np.random.default_rng(seed), len(keys)
    numbers = pa.array(random.integers(0, 2**40, count), mask=random.random(count) < 0.2)
    words = ["x" * int(n) for n in random.integers(0, 70, count)]
    return pa.table(
        {
            "id": pa.array(keys, pa.int64()),
            "number": numbers,
            "small": pa.array(random.integers(0, 99, count), pa.int16()),
            "flag": pa.array(random.random(count) < 0.5, mask=random.random(count) < 0.1),
            "word": pa.array(words, mask=random.random(count) < 0.1),
            "bytes": pa.array([b"ab" * (i % 5) for i in range(count)], pa.large_binary()),
            "blob": pa.array([bytes([i % 256] * 3) for i in range(count)], pa.binary(3)),
        }
    )


def stream_of(domain: int, seed: int) -> list[pa.RecordBatch]:
    """Skewed keys, some of them absent or null."""
    random = np.random.default_rng(seed)
    batches = []
    for start in range(0, 1_500, 500):
        keys = (random.zipf(1.3, 500) * 37) % (domain + 40) - 20
        column = pa.array(keys, pa.int64(), mask=random.random(500) < 0.02)
        batches.append(pa.record_batch({"id": column, "n": pa.array(range(start, start + 500))}))
    return batches


def check(
    master: ss.MasterTable, table: pa.Table, stream: list[pa.RecordBatch], **options: Any
) -> ss.Engine:
    """Both algorithms that look up, against the oracle; the engine of the last."""
    defaults: dict[str, Any] = {"memory": "300KB", "look_ups": 4}
    options = defaults | options
    for algorithm in ("hybridjoin", "chybridjoin"):
        engine = ss.engine(master, algorithm=algorithm, on="id", how="left", **options)
        found = checked_run(engine, stream)
        assert_same_rows(found, oracle_join(stream, table, on="id", how="left").rows)
        assert engine.plan is not None
        assert engine.plan.look_ups == options["look_ups"]
    return engine


@pytest.mark.parametrize("io", ["buffered", "direct"])
@pytest.mark.parametrize("pages", [1, 3])
def test_columns_of_every_kind(tmp_path: Path, io: str, pages: int, seed: int) -> None:
    table = table_of(np.arange(ROWS) * 2, seed)
    master = ss.MasterTable.from_arrow(table, tmp_path / "r", key="id", page_bytes=4096)
    engine = check(master, table, stream_of(2 * ROWS, seed), io=io, partition_pages=pages)
    metrics = engine.metrics()
    assert metrics.bytes_read >= metrics.pages_read * master.pages.length.min()


def test_keys_with_more_rows_than_have_room(tmp_path: Path, seed: int) -> None:
    """A key's rows cross pages and partitions, and do not fit where found rows are kept."""
    keys = np.repeat(np.arange(40), np.random.default_rng(seed).choice([1, 2, 30, 400], 40))
    table = table_of(keys, seed)
    master = ss.MasterTable.from_arrow(table, tmp_path / "r", key="id", page_bytes=4096)
    check(master, table, stream_of(40, seed)[:1], memory="1MB", partition_pages=2)


@pytest.mark.parametrize("rows", [1, 3, 20])
def test_little_room_for_found_rows(tmp_path: Path, rows: int, seed: int) -> None:
    table = table_of(np.sort(np.random.default_rng(seed).integers(0, ROWS, ROWS)), seed)
    master = ss.MasterTable.from_arrow(table, tmp_path / "r", key="id", page_bytes=4096)
    room = 4 * 17 + rows * (master.widest_row + 64)
    with mock.patch.object(Sizing, "_found_bytes", return_value=room):
        check(master, table, stream_of(ROWS, seed), partition_pages=2)


@pytest.mark.parametrize("most_open", [128, 1])
def test_pages_in_several_files(tmp_path: Path, most_open: int, seed: int) -> None:
    """After updates the pages of one partition lie in several files."""
    table = table_of(np.arange(ROWS), seed)
    master = ss.MasterTable.from_arrow(table, tmp_path / "r", key="id", page_bytes=4096)
    random = np.random.default_rng(seed)
    for turn in range(3):
        changed = np.sort(random.choice(ROWS, 20, replace=False))
        more = table_of(changed, seed + turn + 1)
        master = master.upsert(more)
        table = pa.concat_tables([table.filter(pa.array(~np.isin(table["id"], changed))), more])
    assert len(np.unique(master.pages.file)) > 1
    with mock.patch.object(reader, "_MOST_OPEN", most_open):
        check(master, table, stream_of(ROWS, seed), partition_pages=4)


@pytest.mark.parametrize("io", ["buffered", "direct"])
def test_a_broken_page_is_never_joined(tmp_path: Path, io: str, seed: int) -> None:
    table = table_of(np.arange(ROWS), seed)
    master = ss.MasterTable.from_arrow(table, tmp_path / "r", key="id", page_bytes=4096)
    page = int(np.searchsorted(master.pages.first, 700, side="right")) - 1
    (path,) = (tmp_path / "r" / "data").glob("*pages.arrow")
    data = bytearray(path.read_bytes())
    data[int(master.pages.offset[page] + master.pages.length[page]) - 9] ^= 1
    path.write_bytes(data)
    stream = [pa.record_batch({"id": pa.array([3, 700, 1_400], pa.int64())})]
    engine = ss.engine(master, algorithm="hybridjoin", on="id", memory="300KB", look_ups=4, io=io)
    with pytest.raises(CorruptPageError, match=f"Page {page} of .*its checksum"):
        rows_of(engine.run(stream))


def test_a_file_that_was_cut_says_where_it_ends(tmp_path: Path, seed: int) -> None:
    table = table_of(np.arange(ROWS), seed)
    master = ss.MasterTable.from_arrow(table, tmp_path / "r", key="id", page_bytes=4096)
    engine = ss.engine(master, algorithm="hybridjoin", on="id", memory="300KB", look_ups=4)
    (path,) = (tmp_path / "r" / "data").glob("*pages.arrow")
    with open(path, "r+b") as file:
        file.truncate(int(master.pages.offset[5]) + 100)
    stream = [pa.record_batch({"id": pa.array([ROWS - 1], pa.int64())})]
    with pytest.raises(CorruptPageError, match="the file ends at byte"):
        rows_of(engine.run(stream))


def test_keys_between_pages_are_known_to_be_absent(tmp_path: Path, seed: int) -> None:
    """A code that lies between two partitions, or beyond all of them, needs no page."""
    table = table_of(np.arange(ROWS) * 10, seed)
    master = ss.MasterTable.from_arrow(table, tmp_path / "r", key="id", page_bytes=4096)
    gaps = [int(last) + 5 for last in master.pages.last[:-1]] + [-7, ROWS * 10 + 7]
    stream = [pa.record_batch({"id": pa.array(gaps, pa.int64())})]
    engine = check(master, table, stream, partition_pages=1)
    assert engine.metrics().pages_read == 0
