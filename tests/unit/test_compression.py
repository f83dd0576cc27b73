"""Compressed pages: read as if they were not, by whoever reads them."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.cost.factors import CostFactors
from semistream.errors import CorruptPageError, MasterFormatError, OptionError
from semistream.relation.page_index import PageIndex
from semistream.relation.reader import Frame
from semistream.relation.storage.compressed_file import Blocks, CompressedFile, compressed
from semistream.testing import assert_same_rows, checked_run, oracle_join

ROWS = 3_000
CODECS = ["lz4", "zstd"]
"""Those that any tool knows; see test_packed_pages for the third."""


def products(rows: int = ROWS, key: str = "id") -> pa.Table:
    """Rows of which some pages cannot become smaller: one in four has random bytes."""
    noise = np.random.default_rng(5)
    blobs = [noise.bytes(90) if i // 300 % 4 == 0 else b"the same for all" for i in range(rows)]
    keys = np.arange(rows) * 2
    named = keys if key == "id" else [f"product {number}" for number in keys]
    return pa.table({key: named, "blob": pa.array(blobs), "price": keys * 3})


def sales(count: int) -> list[pa.RecordBatch]:
    keys = np.random.default_rng(6).integers(-10, 2 * ROWS + 10, count)
    batches: list[pa.RecordBatch] = pa.table({"id": keys, "n": np.arange(count)}).to_batches(
        max_chunksize=700
    )
    return batches


Build = Callable[..., ss.MasterTable]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    def build(table: pa.Table | None = None, **options: Any) -> ss.MasterTable:
        options = {"key": "id", "page_bytes": 4096, "compression": "zstd", **options}
        path = tmp_path / f"r{len(list(tmp_path.iterdir()))}"
        return ss.MasterTable.from_arrow(products() if table is None else table, path, **options)

    return build


def page_file(master: ss.MasterTable) -> Path:
    return Path(master.location, master.manifest.page_files[0].path)


def all_rows(master: ss.MasterTable) -> pa.Table:
    with master.reader() as reader:
        frame = Frame(reader.frame_bytes(7))
        batches = []
        for first in range(0, master.page_count, 7):
            some = reader.read(first, min(7, master.page_count - first), frame)
            batches += [batch.take(pa.array(range(batch.num_rows))) for batch in some]
    return pa.Table.from_batches(batches, master.stored_schema)


def joined(engine: ss.Engine, stream: list[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    rows = pa.Table.from_batches(list(engine.run(stream))).to_pylist()
    return sorted(tuple(row.values()) for row in rows)


@pytest.mark.parametrize("way", ["buffered", "unmapped", "direct"])
@pytest.mark.parametrize(
    ("layout", "codec"), [("key", "zstd"), ("given", "lz4"), ("key", "packed"), ("given", "packed")]
)
@pytest.mark.parametrize("algorithm", ss.ALGORITHMS)
def test_every_algorithm_joins_with_it(
    build: Build, algorithm: str, layout: str, way: str, codec: str
) -> None:
    table, stream = products(), sales(400)
    master = build(table, layout=layout, compression=codec)
    engine = ss.engine(master, on="id", how="left", algorithm=algorithm, memory="1MB", io=way)
    expected = oracle_join(stream, table, on="id", how="left").rows
    assert_same_rows(checked_run(engine, stream), expected)
    assert engine.metrics().bytes_read > 0


@pytest.mark.parametrize("codec", CODECS)
def test_the_codecs_own_tool_gives_the_arrow_file_back(build: Build, codec: str) -> None:
    table = products()
    # Pages that stayed as they are would be no frames of the codec.
    table = table.set_column(1, "blob", pa.array([b"the same for all"] * ROWS))
    path = page_file(build(table, compression=codec))
    assert path.suffix == {"lz4": ".lz4", "zstd": ".zst"}[codec]
    with pa.input_stream(str(path), compression=codec) as stream:
        content = stream.read()
    with pa.ipc.open_file(io.BytesIO(content)) as file:
        assert file.read_all().equals(table)
    assert path.stat().st_size < len(content) / 2


class Stored:
    """A file in memory that gives a few bytes at a time."""

    descriptor = -1

    def __init__(self, content: bytes) -> None:
        self.content = content

    def read_into(self, memory: memoryview, position: int) -> int:
        some = self.content[position : position + min(len(memory), 700)]
        memory[: len(some)] = some
        return len(some)

    def close(self) -> None: ...


@pytest.mark.parametrize("codec", CODECS)
def test_what_does_not_become_smaller_stays_as_it_is(codec: str) -> None:
    noise = np.random.default_rng(1).bytes(3_000)
    assert compressed(noise, codec) is noise
    pages = [bytes(2_000), noise, noise, b"ab" * 5_000]
    blocks = [compressed(page, codec) for page in pages]
    lengths, sizes = (np.array([len(one) for one in some]) for some in (pages, blocks))
    table = Blocks(np.cumsum(lengths) - lengths, lengths, np.cumsum(sizes) - sizes, sizes)
    file = CompressedFile(Stored(b"".join(blocks)), codec, table, direct=False)
    for first in range(4):
        memory = memoryview(bytearray(lengths[first:].sum()))
        assert file.read_into(memory, table.offset[first]) == len(memory)
        assert memory == b"".join(pages[first:])
    cut = CompressedFile(Stored(b"".join(blocks)[:-1]), codec, table, direct=False)
    assert cut.read_into(memoryview(bytearray(lengths.sum())), 0) == lengths[:3].sum()


@pytest.mark.parametrize("codec", ["zstd", "packed"])
def test_all_rows_are_there_after_updates(build: Build, codec: str) -> None:
    master = build(filter_bits=10, shards=2, compression=codec)
    more = pa.table({"id": [4, 5, 6], "blob": [b"a", b"b", b"c"], "price": [1, 2, 3]})
    changed = master.upsert(more).delete([0])
    packed = changed.compact()
    assert packed.compression == codec
    for one in (changed, packed):
        found = {row["id"]: row["price"] for row in all_rows(one).to_pylist()}
        expected = {2 * i: 6 * i for i in range(1, ROWS)} | {4: 1, 5: 2, 6: 3}
        assert found == expected
    assert changed.history()[-1].version == 4


@pytest.mark.parametrize("codec", ["lz4", "zstd", "packed"])
def test_a_master_may_lose_all_rows_and_get_others(build: Build, codec: str) -> None:
    master = build(products(3), compression=codec)
    empty = master.delete(pa.table({"id": [0, 2, 4]}))
    assert ss.MasterTable.open(master.path).row_count == 0
    again = empty.compact().upsert(products(3))
    assert sorted(all_rows(again)["id"].to_pylist()) == [0, 2, 4]
    built_empty = build(products(3).slice(0, 0), compression=codec).compact()
    assert all_rows(built_empty.upsert(products(2)))["id"].to_pylist() == [0, 2]


@pytest.mark.parametrize("codec", ["zstd", "packed"])
def test_hashed_keys(build: Build, codec: str) -> None:
    table = products(key="name")
    master = build(table, key="name", compression=codec)
    stream = pa.table({"name": ["product 4", "product 5", None]}).to_batches()
    engine = ss.engine(master, on="name", how="inner", memory="1MB")
    assert [row[-1] for row in joined(engine, stream)] == [12]


def test_bytes_read_are_those_of_the_file(build: Build) -> None:
    master = build()
    with master.reader("unmapped") as reader:
        frame = Frame(reader.frame_bytes(master.page_count))
        reader.read(0, master.page_count, frame)
        assert master.pages.size is not None
        assert reader.bytes_read == master.pages.size.sum() < master.pages.length.sum()


@pytest.mark.parametrize("codec", ["zstd", "packed"])
@pytest.mark.parametrize("way", ["unmapped", "direct"])
def test_damage_is_told(build: Build, way: str, codec: str) -> None:
    master = build(compression=codec)
    assert master.pages.place is not None
    path, content = page_file(master), bytearray(page_file(master).read_bytes())
    for page in (3, master.page_count - 1):
        damaged = content.copy()
        damaged[master.pages.place[page] + 20] ^= 0xFF
        path.write_bytes(damaged)
        said = rf"Page {page} .*at byte {master.pages.place[page]}\)"
        with master.reader(way) as reader, pytest.raises(CorruptPageError, match=said):
            reader.read(0, master.page_count, Frame(reader.frame_bytes(master.page_count)))
    path.write_bytes(content[:-1])
    with pytest.raises(CorruptPageError, match="broken from"):
        ss.MasterTable.open(master.path)


@pytest.mark.parametrize(
    ("column", "value"), [("place", -1), ("place", 1 << 40), ("size", 0), ("size", 1 << 40)]
)
def test_an_index_that_leads_outside_is_refused(
    build: Build, monkeypatch: pytest.MonkeyPatch, column: str, value: int
) -> None:
    master = build()
    wrong = getattr(master.pages, column).copy()
    wrong[5] = value
    index = replace(master.pages, **{column: wrong})
    monkeypatch.setattr(PageIndex, "load", lambda *_: index)
    with pytest.raises(MasterFormatError, match="page 5 is not inside its file"):
        ss.MasterTable.open(master.path)


def test_an_index_without_places_is_refused(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    master = build()
    index = build(compression=None).pages
    sizes = [file.bytes for file in master.manifest.page_files]
    index = replace(index, offset=np.zeros_like(index.offset), length=index.length * 0 + sizes[0])
    monkeypatch.setattr(PageIndex, "load", lambda *_: index)
    with pytest.raises(MasterFormatError, match="only one of them says"):
        ss.MasterTable.open(master.path)


def test_what_is_no_codec(build: Build) -> None:
    with pytest.raises(OptionError, match="compression='gzip' is not known"):
        build(compression="gzip")


def test_it_is_described(build: Build) -> None:
    master = build()
    assert ", by zstd to " in master.describe()
    pages = sum(file.bytes for file in master.manifest.page_files)
    told = re.search(r"row bytes +([\d.,]+) on disk", master.describe())
    assert told is not None
    # A file has some bytes beside its pages.
    assert float(told[1].replace(",", "")) * master.row_count <= pages
    assert "zstd" not in build(compression=None).describe()


def test_a_compressed_page_has_its_price(build: Build) -> None:
    factors, master = CostFactors(page_read=1e-6, zstd_byte=1e-9), build()
    page = float(master.pages.length.mean())
    assert factors.for_master(master).page_read == pytest.approx(1e-6 + 1e-9 * page)
    assert factors.for_master(build(compression=None)) == factors


def test_a_packed_page_costs_more_if_it_is_unpacked_as_a_whole(build: Build) -> None:
    master = build(compression="packed")
    factors = CostFactors(byte_read=1e-9, packed_byte=1e-9).for_master(master)
    page = float(master.pages.length.mean())
    stored = master.pages.stored_bytes(0, master.page_count) / master.page_count
    assert factors.batched_byte == 1e-9
    assert stored * (factors.byte_read - 1e-9) + factors.page_read == pytest.approx(1e-9 * page)
    assert 0 < factors.page_read < 1e-9 * page / 10
