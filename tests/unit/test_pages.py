"""Page files, their index, the reader and the locator."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from semistream.errors import CorruptPageError, InternalError, MasterFormatError, OptionError
from semistream.relation import page_file
from semistream.relation.locator import LOCATOR_PAGE_BYTES, Locator, locator_rows, write_locator
from semistream.relation.page_file import PageIndex, write_pages
from semistream.relation.reader import Frame, PageReader
from semistream.relation.storage import LocalStorage, PageFiles, files

Read = Callable[..., PageReader]


def rows(count: int, repeat: int = 1) -> pa.Table:
    ids = np.arange(count, dtype=np.int64) // repeat
    return pa.table({"id": ids, "text": [f"row {i:>40}" for i in range(count)]})


def write(path: Path, table: pa.Table, page_bytes: int = 4096) -> PageIndex:
    return write_to(path, table, table["id"].to_numpy(), page_bytes)


def write_to(path: Path, table: pa.Table, codes: Any, *rest: Any) -> PageIndex:
    return write_pages(LocalStorage(path.parent), path.name, table, codes, *rest).index


def local(*paths: Path) -> PageFiles:
    return PageFiles(LocalStorage(paths[0].parent), tuple(path.name for path in paths))


def locate(path: Path, codes: Any, pages: PageIndex) -> PageIndex:
    rows = locator_rows(codes, pages)
    return write_locator(LocalStorage(path.parent), path.name, rows)[0].index


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "r.pages.arrow"


@pytest.fixture(params=["buffered", "direct"])
def reader(request: pytest.FixtureRequest) -> Any:
    """Opens readers in one io mode, and closes them."""
    opened: list[PageReader] = []

    def open_(path: Path, index: PageIndex, schema: pa.Schema) -> PageReader:
        try:
            opened.append(PageReader(local(path), index, schema, request.param))
        except OptionError as refusal:
            pytest.skip(str(refusal))
        return opened[-1]

    yield open_
    for one in opened:
        one.close()


def read_all(reader: PageReader, count: int = 1) -> pa.Table:
    frame = Frame(reader.frame_bytes(count))
    batches = []
    for first in range(0, len(reader.index), count):
        run = reader.read(first, min(count, len(reader.index) - first), frame)
        # Views of the frame: the next read overwrites them.
        batches += [batch.take(pa.array(range(batch.num_rows))) for batch in run]
    return pa.Table.from_batches(batches, reader.schema)


@pytest.mark.parametrize("count", [0, 1, 2, 5000])
@pytest.mark.parametrize("run", [1, 3, 1000])
def test_pages_read_back_as_written(path: Path, reader: Read, count: int, run: int) -> None:
    table = rows(count)
    index = write(path, table)
    assert read_all(reader(path, index, table.schema), run).equals(table)
    assert index.row_count == count


def test_the_file_is_an_ordinary_arrow_file(path: Path) -> None:
    table = rows(1000)
    index = write(path, table)
    with pa.memory_map(str(path)) as source:
        file = pa.ipc.open_file(source)
        assert file.num_record_batches == len(index)
        assert file.read_all().equals(table)


@pytest.mark.parametrize("page_bytes", [4096, 16384, 65536])
def test_pages_are_nearly_full_and_never_too_long(path: Path, page_bytes: int) -> None:
    index = write(path, rows(20_000), page_bytes)
    assert index.max_length <= page_bytes
    assert (index.length[:-1] >= 0.85 * page_bytes).all()


def test_the_index_tells_the_bytes_of_each_page(path: Path) -> None:
    table = rows(1000)
    index = write(path, table)
    data, start = path.read_bytes(), 0
    assert (index.offset[1:] == index.offset[:-1] + index.length[:-1]).all()
    for page in range(len(index)):
        offset, length = int(index.offset[page]), int(index.length[page])
        message = data[offset : offset + length]
        assert xxhash.xxh3_64_intdigest(message) == index.checksum[page]
        batch = pa.ipc.read_record_batch(pa.py_buffer(message), table.schema)
        assert batch.num_rows == index.rows[page]
        assert (index.first[page], index.last[page]) == (start, start + batch.num_rows - 1)
        start += batch.num_rows


def test_a_row_longer_than_a_page_has_a_page_of_its_own(path: Path, reader: Read) -> None:
    texts = ["short"] * 10 + ["x" * 50_000] + ["short"] * 10
    table = pa.table({"id": np.arange(21), "text": texts})
    index = write(path, table)
    assert index.rows.tolist() == [10, 1, 10]
    assert index.length[1] > 4096
    assert read_all(reader(path, index, table.schema), 2).equals(table)


def test_nested_rows_of_uneven_size_stay_within_the_page(path: Path, reader: Read) -> None:
    rng = np.random.default_rng(5)
    lists = [rng.integers(0, 9, n).tolist() for n in rng.integers(0, 60, 800)]
    fixed = pa.array(
        [["y" * int(n)] * 2 for n in rng.integers(0, 90, 800)], pa.list_(pa.string(), 2)
    )
    table = pa.table({"id": np.arange(800), "list": lists, "fixed": fixed})
    index = write(path, table)
    assert index.max_length <= 4096
    assert read_all(reader(path, index, table.schema)).equals(table)


def test_rows_are_gathered_in_order_across_chunks_and_blocks(
    path: Path, reader: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_file, "_BLOCK_BYTES", 20_000)
    monkeypatch.setattr("semistream.relation.gather._CHUNK_BYTES", 9_000)
    shuffled = np.random.default_rng(6).permutation(3000)
    chunks = [rows(3000).slice(at, 100) for at in range(0, 3000, 100)]
    table = pa.concat_tables(chunks).take(pa.array(shuffled))
    table = pa.concat_tables([table.slice(at, 77) for at in range(0, 3000, 77)])
    codes = table["id"].to_numpy()
    index = write_to(path, table, codes, 4096, np.argsort(codes))
    assert read_all(reader(path, index, table.schema), 5).equals(rows(3000))
    assert (index.length[:-1] >= 0.85 * 4096).all()
    plain = path.with_name("plain")
    again = write_to(plain, table, codes, 4096)
    assert read_all(reader(plain, again, table.schema), 5).equals(table)
    assert (again.length[:-1] >= 0.85 * 4096).all()


def test_span_covers_every_page_of_a_code(path: Path) -> None:
    table = rows(4000, repeat=150)
    index = write(path, table)
    pages_of: dict[int, set[int]] = {}
    begin = 0
    for page, count in enumerate(index.rows.tolist()):
        for code in table["id"].slice(begin, count).to_pylist():
            pages_of.setdefault(code, set()).add(page)
        begin += count
    assert max(map(len, pages_of.values())) > 2
    for code, pages in pages_of.items():
        assert index.span(code) == (min(pages), max(pages))
    for absent in (-1, 10**9, -(2**63), 2**63 - 1):
        low, high = index.span(absent)
        assert low > high


def test_span_of_a_gap_between_pages_or_inside_one() -> None:
    index = _index_of([10, 20, 30], [15, 20, 40])
    assert index.span(12) == (0, 0)
    low, high = index.span(17)
    assert low > high
    assert index.span(20) == (1, 1)
    assert index.nbytes == 3 * (5 * 8 + 2 * 4)


@pytest.mark.parametrize("per", [1, 2, 3])
def test_a_run_of_pages_settles_the_codes_that_do_not_cross_its_edges(per: int) -> None:
    """p0 = {10..15}, p1 = {15..20}, p2 = {20}, p3 = {20..40}, p4 = {41}: 15 and 20 cross pages."""
    index = _index_of([10, 15, 20, 20, 41], [15, 20, 20, 40, 41])
    firsts = np.arange(0, 5, per)
    stops = np.minimum(firsts + per, 5)
    low, high = index.settled_by_runs(firsts, stops)
    for first, stop, lowest, highest in zip(
        firsts.tolist(), stops.tolist(), low, high, strict=True
    ):
        assert index.settled(first, stop) == (lowest, highest)
        for code in [-(2**63), 9, 10, 12, 15, 16, 20, 21, 30, 40, 41, 50, 2**63 - 1]:
            begin, end = index.span(code)
            inside = first <= begin <= end < stop
            # Where no page can have it: it lies behind the first code of the run and before the
            # next run's, or beyond all pages.
            after = first == 0 or code >= index.first[first]
            absent = begin > end and after and (stop == 5 or code < index.first[stop])
            assert (lowest <= code <= highest) == (inside or absent), (first, stop, code)


def test_a_part_of_the_lowest_or_highest_code_settles_nothing() -> None:
    least, most = -(2**63), 2**63 - 1
    index = _index_of([least, least, most, most], [least, most, most, most])
    low, high = index.settled_by_runs(np.arange(4), np.arange(1, 5))
    settles = (low <= high).tolist()
    assert settles == [False, True, False, False]
    assert (low[1], high[1]) == (least + 1, most - 1)


def _index_of(first: list[int], last: list[int]) -> PageIndex:
    count = len(first)
    rest = {name: [1] * count for name in ("offset", "length", "rows", "checksum")}
    return PageIndex.of({"first": first, "last": last} | rest)


def test_an_index_is_saved_and_loaded(tmp_path: Path, path: Path) -> None:
    index = write(path, rows(1000))
    saved = tmp_path / "i.index.arrow"
    saved.write_bytes(index.to_bytes())
    storage = LocalStorage(tmp_path)
    checksum = files.checksum_bytes(saved.read_bytes())
    loaded = PageIndex.load(storage, saved.name, checksum)
    for name in ("first", "last", "offset", "length", "rows", "checksum", "file"):
        assert np.array_equal(getattr(loaded, name), getattr(index, name))
        assert getattr(loaded, name).dtype == getattr(index, name).dtype
    saved.write_bytes(saved.read_bytes()[:-10])
    with pytest.raises(MasterFormatError, match=r"i\.index\.arrow has checksum"):
        PageIndex.load(storage, saved.name, checksum)
    saved.unlink()
    with pytest.raises(MasterFormatError, match="cannot be read"):
        PageIndex.load(storage, saved.name, checksum)


@pytest.mark.parametrize("count", [1, 2, 7, 10_000])
def test_frame_bytes_is_what_the_longest_run_needs(path: Path, reader: Read, count: int) -> None:
    table = rows(3000)
    index = write(path, table)
    one = reader(path, index, table.schema)
    ends = (index.offset + index.length).tolist()
    grain = 4096 if one.io == "direct" else 1
    need = 0
    for first in range(len(index)):
        last = min(first + count, len(index)) - 1
        begin = int(index.offset[first]) // grain * grain
        need = max(need, -(-ends[last] // grain) * grain - begin)
    assert one.frame_bytes(count) == -(-need // 4096) * 4096
    assert Frame(one.frame_bytes(count)).nbytes == one.frame_bytes(count)


def test_counters_count_reads_pages_and_bytes(path: Path, reader: Read) -> None:
    table = rows(3000)
    index = write(path, table)
    one = reader(path, index, table.schema)
    frame = Frame(one.frame_bytes(4))
    one.read(0, 1, frame)
    one.read(3, 4, frame)
    assert (one.reads, one.pages_read) == (2, 5)
    wanted = int(index.length[0] + index.length[3:7].sum())
    if one.io == "buffered":
        assert one.bytes_read == wanted
    else:
        assert one.bytes_read % 4096 == 0
        assert one.bytes_read >= wanted


def test_batches_are_views_of_the_frame(path: Path, reader: Read) -> None:
    table = rows(3000)
    one = reader(path, write(path, table), table.schema)
    frame = Frame(one.frame_bytes(2))
    for batch in one.read(1, 2, frame):
        for buffer in itertools.chain(*(column.buffers() for column in batch.columns)):
            if buffer is not None:
                begin = buffer.address - frame.buffer.address
                assert 0 <= begin <= begin + buffer.size <= frame.nbytes


def test_a_flipped_byte_names_file_and_page(path: Path, reader: Read) -> None:
    table = rows(1000)
    index = write(path, table)
    data = bytearray(path.read_bytes())
    data[int(index.offset[2]) + int(index.length[2]) // 2] ^= 1
    path.write_bytes(data)
    one = reader(path, index, table.schema)
    frame = Frame(one.frame_bytes(3))
    assert len(one.read(0, 2, frame)) == 2
    with pytest.raises(CorruptPageError, match=r"Page 2 of .*r\.pages\.arrow.*checksum"):
        one.read(1, 3, frame)


def test_a_short_file_names_the_first_page_that_is_not_whole(path: Path, reader: Read) -> None:
    table = rows(1000)
    index = write(path, table)
    for cut in (int(index.offset[3]) + 100, int(index.offset[3])):
        os.truncate(path, cut)
        one = reader(path, index, table.schema)
        frame = Frame(one.frame_bytes(5))
        assert len(one.read(0, 3, frame)) == 3
        with pytest.raises(CorruptPageError, match=r"Page 3 of .*the file ends"):
            one.read(1, 5, frame)


def test_a_page_that_cannot_be_decoded_is_corrupt(path: Path, reader: Read) -> None:
    index = write(path, rows(100))
    other = pa.schema([pa.field(f"c{i}", pa.string()) for i in range(9)])
    one = reader(path, index, other)
    with pytest.raises(CorruptPageError, match=r"Page 0 of .*decoded"):
        one.read(0, 1, Frame(one.frame_bytes(1)))


def test_short_reads_are_continued(
    path: Path, reader: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = rows(3000)
    one = reader(path, write(path, table), table.schema)
    real = os.preadv

    def slow(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        # Half of what was asked, on an odd boundary when buffered.
        step = max(len(buffers[0]) // 8192 * 4096, 4096) if one.io == "direct" else 777
        return real(descriptor, [buffers[0][:step]], offset)

    monkeypatch.setattr(os, "preadv", slow)
    assert read_all(one, 7).equals(table)


def test_a_failing_disk_is_a_corrupt_page(
    path: Path, reader: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = rows(3000)
    one = reader(path, write(path, table), table.schema)

    def fail(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(CorruptPageError, match=r"Page 4 of .*Input/output"):
        one.read(4, 2, Frame(one.frame_bytes(2)))


def test_wrong_use_is_an_internal_error(path: Path, reader: Read) -> None:
    table = rows(3000)
    index = write(path, table)
    one = reader(path, index, table.schema)
    frame = Frame(one.frame_bytes(1))
    for first, count in ((-1, 1), (0, 0), (len(index), 1), (len(index) - 1, 2)):
        with pytest.raises(InternalError):
            one.read(first, count, frame)
    with pytest.raises(InternalError, match="does not fit a frame"):
        one.read(0, 5, frame)
    with pytest.raises(InternalError):
        one.frame_bytes(0)
    one.close()
    one.close()


def test_a_refused_o_direct_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = rows(10)
    index = write(path, table)
    real = os.open

    def refuse(name: Any, flags: int, *rest: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return real(name, flags, *rest)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(OptionError, match='Use io="buffered"'):
        PageReader(local(path), index, table.schema, "direct")


def test_io_modes_and_missing_files_are_checked(path: Path) -> None:
    table = rows(10)
    index = write(path, table)
    with pytest.raises(OptionError, match="io='mmap'"):
        PageReader(local(path), index, table.schema, "mmap")
    path.unlink()
    with pytest.raises(MasterFormatError, match="is missing"):
        PageReader(local(path), index, table.schema, "buffered")


def test_frames_are_aligned_and_rounded_up() -> None:
    for size in (0, 1, 4096, 4097):
        frame = Frame(size)
        assert frame.nbytes == max(4096, -(-size // 4096) * 4096)
        assert frame.buffer.address % 4096 == 0
        assert len(frame.view) == frame.nbytes


@pytest.mark.parametrize("io", ["buffered", "direct"])
def test_the_locator_finds_the_pages_of_every_code(tmp_path: Path, path: Path, io: str) -> None:
    rng = np.random.default_rng(7)
    codes = np.repeat(rng.permutation(9000) * 3, rng.integers(1, 4, 9000))
    table = pa.table({"id": codes, "text": ["z" * 30] * len(codes)})
    pages = write(path, table)
    index = locate(tmp_path / "l.arrow", codes, pages)
    assert len(index) > 5
    assert index.max_length <= LOCATOR_PAGE_BYTES
    page_of = np.repeat(np.arange(len(pages)), pages.rows)
    try:
        locator = Locator(local(tmp_path / "l.arrow"), index, io, len(pages))
    except OptionError as refusal:
        pytest.skip(str(refusal))
    frame = Frame(locator.frame_bytes())
    with locator:
        asked = np.r_[rng.permutation(27_100)[:4000] - 50, np.array([-(2**63), 2**63 - 1])]
        low, high = locator.find_many(asked)
        assert locator.pages_read <= len(index)
        for i in range(0, len(asked), 7):
            mine = page_of[codes == asked[i]]
            expected = (int(mine.min()), int(mine.max())) if len(mine) else (1, 0)
            assert locator.find(int(asked[i]), frame) == expected == (low[i], high[i])
    assert locator.nbytes == index.nbytes


def test_the_locator_of_no_rows_finds_nothing(tmp_path: Path, path: Path) -> None:
    pages = write(path, rows(0))
    index = locate(tmp_path / "l.arrow", np.empty(0, np.int64), pages)
    with Locator(local(tmp_path / "l.arrow"), index, "buffered", 0) as locator:
        assert locator.find(5, Frame(locator.frame_bytes())) == (1, 0)
        low, high = locator.find_many(np.array([1, 2]))
        assert (low > high).all()
        assert locator.pages_read == 0
