"""Pages in several files, shards, and where a master table's files may be."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.errors import CorruptPageError, MasterNotFoundError, OptionError
from semistream.relation import Frame, MasterTable, PageIndex, PageReader, reader
from semistream.relation.page_file import PageWriter, write_pages
from semistream.relation.shards import shard_of
from semistream.relation.storage import LocalStorage, PageFiles, storage_at
from semistream.testing import assert_same_rows, checked_run, oracle_join, rows_of

IO = ["buffered", "direct"]


def products(count: int, repeat: int = 1) -> pa.Table:
    ids = np.arange(count, dtype=np.int64) // repeat
    return pa.table({"id": ids, "name": [f"product {i:>30}" for i in range(count)]})


class Scattered:
    """Pages of one table in several files, some of them with pages that are not of the table."""

    def __init__(self, root: Path, pieces: list[tuple[int, int]], seed: int) -> None:
        """`pieces` are (file, rows) in the table's order."""
        rng = np.random.default_rng(seed)
        storage = LocalStorage(root)
        self.table = products(sum(rows for _, rows in pieces))
        count = max(file for file, _ in pieces) + 1
        writers = [
            PageWriter(storage, f"{i}.arrow", self.table.schema, 4096, i) for i in range(count)
        ]
        places: list[tuple[int, int]] = []
        start = 0
        for file, rows in pieces:
            if rng.random() < 0.5:
                self._fill(writers[file], products(30))
            before = writers[file].page_count
            self._fill(writers[file], self.table.slice(start, rows))
            places += [(file, page) for page in range(before, writers[file].page_count)]
            start += rows
        for writer in writers:
            writer.__exit__(None, None, None)
        indices = [writer.written().index for writer in writers]
        self.index = PageIndex.joined(indices[f].part(p, p + 1) for f, p in places)
        self.files = PageFiles(storage, tuple(f"{i}.arrow" for i in range(count)))

    def _fill(self, writer: PageWriter, rows: pa.Table) -> None:
        for batch in rows.combine_chunks().to_batches():
            writer.add(batch, batch["id"].to_numpy())
        writer.end_page()


PIECES = [(0, 200), (1, 90), (0, 130), (2, 5), (1, 300), (1, 40), (0, 1)]


def open_reader(files: PageFiles, index: PageIndex, schema: pa.Schema, io: str) -> PageReader:
    try:
        return PageReader(files, index, schema, io)
    except OptionError as refusal:
        pytest.skip(str(refusal))


@pytest.mark.parametrize("io", IO)
@pytest.mark.parametrize("most_open", [1, 2, 128])
def test_any_run_of_pages_is_read_across_files(
    tmp_path: Path, io: str, most_open: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_MOST_OPEN", most_open)
    scattered = Scattered(tmp_path, PIECES, seed)
    index, table = scattered.index, scattered.table
    begins = np.concatenate([[0], np.cumsum(index.rows)])
    with open_reader(scattered.files, index, table.schema, io) as one:
        for count in (1, 2, 3, len(index)):
            frame = Frame(one.frame_bytes(count))
            assert frame.nbytes <= index.frame_bytes(count)
            for first in range(len(index) - count + 1):
                found = pa.Table.from_batches(one.read(first, count, frame))
                rows = int(begins[first + count] - begins[first])
                assert found.equals(table.slice(int(begins[first]), rows))


@pytest.mark.parametrize("grain", [1, 4096])
@pytest.mark.parametrize("count", [1, 2, 4, 1000])
def test_frame_bytes_counts_a_read_per_stretch(
    tmp_path: Path, grain: int, count: int, seed: int
) -> None:
    index = Scattered(tmp_path, PIECES, seed).index
    need = 0
    for first in range(max(len(index) - count, 0) + 1):
        pages = range(first, min(first + count, len(index)))
        total = 0
        for _, group in itertools.groupby(pages, key=lambda p: stretch_of(index, p)):
            run = list(group)
            begin = int(index.offset[run[0]]) // grain * grain
            end = int(index.offset[run[-1]] + index.length[run[-1]])
            total += -(-end // grain) * grain - begin
        need = max(need, total)
    assert index.frame_bytes(count, grain) == -(-need // 4096) * 4096


def stretch_of(index: PageIndex, page: int) -> int:
    """The first page of the stretch that a page belongs to, walked page by page."""
    while page and index.file[page - 1] == index.file[page]:
        if index.offset[page - 1] + index.length[page - 1] != index.offset[page]:
            break
        page -= 1
    return page


@pytest.mark.parametrize("io", IO)
def test_a_page_of_another_file_is_no_neighbour(tmp_path: Path, io: str) -> None:
    """Page 1 of the second file begins where page 0 of the first one ends."""
    storage, table = LocalStorage(tmp_path), products(150)
    parts = []
    for number in range(2):
        rows = table.set_column(0, "id", pa.array(np.arange(150) + 1000 * number))
        codes = rows["id"].to_numpy()
        index = write_pages(storage, f"{number}.arrow", rows, codes, 4096).index
        parts.append(index.renumbered(np.array([number], np.int32)))
    assert parts[0].offset[0] + parts[0].length[0] == parts[1].offset[1]
    index = PageIndex.joined([parts[0].part(0, 1), parts[1].part(1, 2)])
    files = PageFiles(storage, ("0.arrow", "1.arrow"))
    with open_reader(files, index, table.schema, io) as one:
        first, second = one.read(0, 2, Frame(one.frame_bytes(2)))
        assert first["id"][0].as_py() == 0
        assert second["id"][0].as_py() == 1000 + first.num_rows


def test_a_broken_page_names_its_own_file(tmp_path: Path, seed: int) -> None:
    scattered = Scattered(tmp_path, PIECES, seed)
    index = scattered.index
    page = int(np.flatnonzero(index.file == 1)[2])
    path = tmp_path / "1.arrow"
    data = bytearray(path.read_bytes())
    data[int(index.offset[page]) + 700] ^= 1
    path.write_bytes(data)
    with open_reader(scattered.files, index, scattered.table.schema, "buffered") as one:
        frame = Frame(one.frame_bytes(len(index)))
        with pytest.raises(CorruptPageError, match=rf"Page {page} of .*/1\.arrow"):
            one.read(0, len(index), frame)


def test_an_open_reader_survives_the_removal_of_its_files(tmp_path: Path, seed: int) -> None:
    scattered = Scattered(tmp_path, PIECES, seed)
    with open_reader(scattered.files, scattered.index, scattered.table.schema, "buffered") as one:
        for path in tmp_path.iterdir():
            path.unlink()
        count = len(scattered.index)
        found = pa.Table.from_batches(one.read(0, count, Frame(one.frame_bytes(count))))
        assert found.equals(scattered.table)


def test_the_last_two_pages_can_be_even(tmp_path: Path) -> None:
    storage, table = LocalStorage(tmp_path), products(90)
    (batch,) = table.combine_chunks().to_batches()
    lengths = {}
    for even in (False, True):
        with PageWriter(storage, f"{even}", table.schema, 4096) as writer:
            writer.add(batch, batch["id"].to_numpy())
            writer.end_page(even)
        lengths[even] = writer.written().index.rows.tolist()
    assert len(lengths[False]) == len(lengths[True]) == 2
    assert abs(lengths[True][0] - lengths[True][1]) <= 1 < lengths[False][0] - lengths[False][1]


def test_a_writer_packs_what_comes_in_pieces_as_what_comes_at_once(
    tmp_path: Path, seed: int
) -> None:
    table = products(3000)
    storage, codes = LocalStorage(tmp_path), table["id"].to_numpy()
    whole = write_pages(storage, "whole", table, codes, 4096).index
    rng, start = np.random.default_rng(seed), 0
    with PageWriter(storage, "pieces", table.schema, 4096) as writer:
        while start < 3000:
            piece = table.slice(start, int(rng.integers(1, 200))).combine_chunks()
            writer.add(piece.to_batches()[0], piece["id"].to_numpy())
            start += piece.num_rows
    pieces = writer.written().index
    assert pieces.rows.tolist() == whole.rows.tolist()
    assert (tmp_path / "pieces").read_bytes() == (tmp_path / "whole").read_bytes()


SHARDED: list[dict[str, Any]] = [
    {"layout": layout, "shards": shards} for layout in ("key", "given") for shards in (2, 5)
]


def keyed(table: pa.Table, text: bool) -> pa.Table:
    return table.set_column(0, "id", table["id"].cast(pa.string())) if text else table


@pytest.mark.parametrize("options", SHARDED, ids=str)
@pytest.mark.parametrize("text", [False, True])
def test_shards_have_all_rows_once_each_in_its_order(
    tmp_path: Path, options: dict[str, Any], text: bool, seed: int
) -> None:
    order = np.random.default_rng(seed).permutation(3000)
    data = keyed(products(3000, repeat=3).take(pa.array(order)), text)
    master = MasterTable.from_arrow(data, tmp_path / "r", key="id", page_bytes=4096, **options)
    assert master.shard_count == options["shards"]
    parts = [master.shard(i) for i in range(master.shard_count)]
    assert sum(part.row_count for part in parts) == master.row_count == 3000
    assert sum(part.page_count for part in parts) == master.page_count
    found: list[Any] = []
    for number, part in enumerate(parts):
        assert (part.shard_count, part.version) == (1, 1)
        rows = stored(part)
        codes, _ = master.codec.codes([rows["id"].combine_chunks()])
        assert (shard_of(codes, master.shard_count) == number).all()
        if options["layout"] == "key":
            assert (np.diff(codes) >= 0).all()
        found += rows_of(rows.select(data.column_names))
    assert_same_rows(found, data)


def stored(master: MasterTable) -> pa.Table:
    with master.reader() as one:
        count = max(master.page_count, 1)
        if not master.page_count:
            return master.stored_schema.empty_table()
        return pa.Table.from_batches(one.read(0, count, Frame(one.frame_bytes(count))))


@pytest.mark.parametrize("options", SHARDED, ids=str)
@pytest.mark.parametrize("algorithm", ["hybridjoin", "meshjoin", "inlj"])
def test_a_shard_is_a_master_for_the_engine(
    tmp_path: Path, options: dict[str, Any], algorithm: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    data = products(2000, repeat=2).take(pa.array(rng.permutation(2000)))
    master = MasterTable.from_arrow(
        data, tmp_path / "r", key="id", page_bytes=4096, filter_bits=8, **options
    )
    sales = pa.record_batch({"id": rng.integers(-50, 1100, 2500), "quantity": range(2500)})
    owner = shard_of(sales["id"].to_numpy(), master.shard_count)
    found: list[pa.RecordBatch] = []
    for number in range(master.shard_count):
        mine = sales.filter(pa.array(owner == number))
        engine = ss.engine(
            master.shard(number), algorithm=algorithm, on="id", how="left", memory="2MB"
        )
        found += checked_run(engine, [mine])
    assert_same_rows(found, oracle_join(sales, data, on="id", how="left").rows)


def test_shards_may_be_empty_and_are_checked(tmp_path: Path) -> None:
    master = MasterTable.from_arrow(products(1), tmp_path / "r", key="id", shards=4)
    sizes = [master.shard(i).row_count for i in range(4)]
    assert sorted(sizes) == [0, 0, 0, 1]
    for wrong in (-1, 4):
        with pytest.raises(OptionError, match="There is no shard"):
            master.shard(wrong)
    with pytest.raises(OptionError, match="There is no shard"):
        master.shard(0).shard(0)
    for shards in (0, 1 << 17, 2.0, True):
        with pytest.raises(OptionError, match="shards="):
            MasterTable.from_arrow(products(1), tmp_path / "x", key="id", shards=shards)  # type: ignore[arg-type]


def test_the_shard_of_a_code_never_changes() -> None:
    """Rows are on disk by it."""
    codes = np.array([0, 1, -1, 2**63 - 1, -(2**63), 123456789], np.int64)
    assert shard_of(codes, 1000).tolist() == [mixed(int(code)) % 1000 for code in codes]
    counts = np.bincount(shard_of(np.arange(80_000), 8))
    assert (abs(counts - 10_000) < 500).all()


def mixed(code: int) -> int:
    """The mix once more, in Python's own integers."""
    word = (code + 0x9FB21C651E98DF25) % 2**64
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
    return word ^ (word >> 31)


def test_a_master_is_pickled_as_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    master = MasterTable.from_arrow(products(3000), "r", key="id", shards=2)
    whole, part = pickle.dumps(master), pickle.dumps(master.shard(1))
    assert len(whole) < 500
    monkeypatch.chdir("/")
    assert pickle.loads(whole).row_count == 3000
    assert stored(pickle.loads(part)).equals(stored(MasterTable.open(tmp_path / "r").shard(1)))


def test_a_file_uri_is_a_local_path(tmp_path: Path) -> None:
    uri = (tmp_path / "a b").as_uri()
    master = MasterTable.from_arrow(products(100), uri, key="id")
    assert master.path == tmp_path / "a b"
    assert MasterTable.open(master.location).row_count == 100
    with master.reader("buffered") as one:
        assert one.read(0, 1, Frame(one.frame_bytes(1)))[0].num_rows == 100


def test_a_uri_that_pyarrow_does_not_know() -> None:
    with pytest.raises(OptionError, match="foo://bucket/r cannot be opened"):
        MasterTable.open("foo://user:secret@bucket/r?token=abc")
    with pytest.raises(MasterNotFoundError):
        MasterTable.open("file:///nowhere/at/all")
    assert isinstance(storage_at("relative/path"), LocalStorage)
