"""Files whose checksums are right and whose content is absurd: an error that says so, always."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
import xxhash

import semistream as ss
from semistream.errors import CorruptPageError, MasterFormatError
from semistream.parts import steps
from semistream.relation import Frame
from tests.chaos.forging import forge_index, forge_manifest, forge_page, manifest_path

ROWS = 3000
KEYS = range(0, 2 * ROWS, 2)


def rows_of_master() -> pa.Table:
    return pa.table(
        {
            "id": pa.array(KEYS, pa.int64()),
            "name": [f"name {i}" for i in range(ROWS)],
            "size": pa.array([i if i % 3 else None for i in range(ROWS)], pa.int32()),
        }
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("masters")
    for layout in ("key", "given"):
        ss.MasterTable.from_arrow(
            rows_of_master(), path / layout, key="id", page_bytes=4096, layout=layout
        )
    return path


@pytest.fixture
def path(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built / "key", tmp_path / "r"))


@pytest.fixture
def given(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built / "given", tmp_path / "g"))


def joined(path: Path, algorithm: str, io: str = "unmapped", **options: Any) -> int:
    master = ss.MasterTable.open(path)
    stream = pa.record_batch({"id": pa.array(range(2 * ROWS), pa.int64())})
    engine = ss.engine(master, on="id", memory="2MB", algorithm=algorithm, io=io, **options)
    return sum(batch.num_rows for batch in engine.run([stream]))


def scanned_ahead(path: Path) -> int:
    with mock.patch.object(steps, "_LARGE_SCANNED", 0):
        return joined(path, "rmeshjoin", io="direct")


READERS: dict[str, Callable[[Path], Any]] = {
    "scan": lambda path: joined(path, "meshjoin"),
    "scan, read ahead": scanned_ahead,
    "by index": lambda path: joined(path, "inlj"),
    "one look-up": lambda path: joined(path, "hybridjoin", look_ups=0),
    "look-ups": lambda path: joined(path, "hybridjoin", look_ups=8),
    "in place": lambda path: joined(path, "hybridjoin", io="buffered"),
    "compact": lambda path: ss.MasterTable.open(path).compact(),
    "upsert": lambda path: ss.MasterTable.open(path).upsert(rows_of_master()),
}


def put(place: int, number: int, form: str = "<q") -> Callable[[bytearray], None]:
    def edit(page: bytearray) -> None:
        struct.pack_into(form, page, place, number)

    return edit


def places_of(path: Path, number: int) -> list[int]:
    """Where in the metadata of the first page a number of eight bytes stands."""
    index = ss.MasterTable.open(path).pages
    (file,) = (path / "data").glob("*.pages.arrow")
    data = file.read_bytes()[index.offset[0] : index.offset[0] + index.length[0]]
    end = 8 + struct.unpack_from("<i", data, 4)[0]
    return [at for at in range(8, end - 7, 4) if struct.unpack_from("<q", data, at)[0] == number]


def test_an_index_that_changes_after_the_pages_were_checked(path: Path) -> None:
    """What this process knows of pages is known of just this index."""
    assert joined(path, "hybridjoin", io="buffered") == ROWS

    def narrowed(index: dict[str, Any]) -> None:
        index["last"][3] -= 2

    forge_index(path, narrowed)
    with pytest.raises((CorruptPageError, MasterFormatError)):
        joined(path, "hybridjoin", io="buffered")


@pytest.mark.parametrize("way", READERS)
@pytest.mark.parametrize("number", [-1, 1 << 20, 2**62, -(2**63)])
def test_no_number_of_a_page_leads_outside(path: Path, way: str, number: int) -> None:
    rows = int(ss.MasterTable.open(path).pages.rows[0])
    for place in places_of(path, rows):
        forged = Path(shutil.copytree(path, path.parent / f"at {place}"))
        forge_page(forged, 0, put(place, number))
        with pytest.raises(CorruptPageError, match="Page 0 of"):
            READERS[way](forged)


@pytest.mark.parametrize("way", READERS)
def test_a_page_that_is_the_end_of_a_stream_is_refused(path: Path, way: str) -> None:
    forge_page(path, 0, put(4, 0, "<i"))
    with pytest.raises(CorruptPageError, match="Page 0 of"):
        READERS[way](path)


@pytest.mark.parametrize("way", READERS)
def test_no_offset_of_a_value_leads_outside(path: Path, way: str) -> None:
    index = ss.MasterTable.open(path).pages

    def far(page: bytearray) -> None:
        # The ends of the texts ascend from 0; the fourth says where the third text ends.
        ends = [len(f"name {i}") for i in range(3)]
        begin = bytes(page).index(struct.pack("<4i", 0, *np.cumsum(ends)))
        struct.pack_into("<i", page, begin + 12, 1 << 24)

    assert len(index) > 10
    forge_page(path, 0, far)
    with pytest.raises(CorruptPageError, match="Page 0 of"):
        READERS[way](path)


@pytest.mark.parametrize("way", READERS)
@pytest.mark.parametrize("column", ["first", "last"])
def test_an_index_of_other_codes_is_noticed(path: Path, way: str, column: str) -> None:
    def shift(columns: dict[str, Any]) -> None:
        columns[column][3] += 2 if column == "first" else -2

    forge_index(path, shift)
    with pytest.raises(CorruptPageError, match="Page 3 of"):
        READERS[way](path)


@pytest.mark.parametrize("algorithm", ["meshjoin", "hybridjoin", "inlj"])
def test_a_locator_that_names_no_page_is_noticed(given: Path, algorithm: str) -> None:
    pages = ss.MasterTable.open(given).page_count

    def far(page: bytearray) -> None:
        begin = bytes(page).index(np.array(KEYS[:3], np.int64).tobytes())
        count = int(len(page[begin:]) // 16)
        page[begin + 8 * count :] = bytes(len(page) - begin - 8 * count)
        struct.pack_into("<i", page, len(page) - 16, pages + 7)

    forge_page(given, 0, far, role="locator_index")
    if algorithm == "meshjoin":
        # It needs no locator; an update does.
        with pytest.raises(CorruptPageError):
            ss.MasterTable.open(given).delete([0, 2, 4])
    else:
        with pytest.raises(CorruptPageError):
            joined(given, algorithm)


BAD_INDEX: dict[str, Callable[[dict[str, Any]], None]] = {
    "file": lambda c: c["file"].__setitem__(2, 5),
    "negative file": lambda c: c["file"].__setitem__(2, -1),
    "offset": lambda c: c["offset"].__setitem__(2, 2**62),
    "negative offset": lambda c: c["offset"].__setitem__(2, -8),
    "length": lambda c: c["length"].__setitem__(2, 2**62),
    "no length": lambda c: c["length"].__setitem__(2, 0),
    "order": lambda c: c["first"].__setitem__(2, 10**9),
    "type": lambda c: c.__setitem__("first", c["first"].astype(np.float64)),
    "fewer": lambda c: c.update({name: column[:-1] for name, column in c.items()}),
    "no column": lambda c: c.pop("last"),
}


@pytest.mark.parametrize("what", BAD_INDEX)
def test_an_index_that_does_not_fit_is_refused_on_opening(path: Path, what: str) -> None:
    forge_index(path, BAD_INDEX[what])
    with pytest.raises(MasterFormatError, match=r"[Ii]ndex"):
        ss.MasterTable.open(path)


BAD_MANIFEST: dict[str, Callable[[dict[str, Any]], Any]] = {
    "other key": lambda c: c.update(key=["nothing"]),
    "no key": lambda c: c.update(key=[]),
    "key of numbers": lambda c: c.update(key=[1]),
    "key that cannot be one": lambda c: c.update(key="id"),
    "no schema": lambda c: c.update(schema="AAAA"),
    "schema of a number": lambda c: c.update(schema=3),
    "code column": lambda c: c.update(code_column="name"),
    "code column of a list": lambda c: c.update(code_column=[]),
    "widest row": lambda c: c.update(widest_row="9"),
    "page bytes": lambda c: c.update(page_bytes=-1),
    "page files": lambda c: c.update(page_files=7),
    "no page files": lambda c: c.update(page_files=[]),
    "a file without bytes": lambda c: c["page_files"][0].pop("bytes"),
    "layout": lambda c: c.update(layout="sideways"),
    "layout given": lambda c: c.update(layout="given"),
    "no index": lambda c: c.update(files={}),
    "shards": lambda c: c.update(shard_starts=[0, 5, 2]),
    "no shards": lambda c: c.update(shard_starts=[]),
    "rows": lambda c: c.update(row_count=True),
    "version": lambda c: c.update(version=7),
    "missing": lambda c: c.pop("operation"),
    "outside": lambda c: c["page_files"][0].update(name="../../secret/data/x.pages.arrow"),
    "absolute": lambda c: c["page_files"][0].update(name="/etc/passwd"),
    "index outside": lambda c: c["files"]["index"].update(name="../versions/00000001.json"),
    "dots": lambda c: c["page_files"][0].update(name=".."),
    "backslash": lambda c: c["page_files"][0].update(name="..\\x"),
}


@pytest.mark.parametrize("what", BAD_MANIFEST)
def test_a_manifest_that_cannot_be_is_refused_on_opening(path: Path, what: str) -> None:
    forge_manifest(path, BAD_MANIFEST[what])
    with pytest.raises(MasterFormatError, match=r"json is broken|does not fit"):
        ss.MasterTable.open(path)
    with pytest.raises(MasterFormatError):
        ss.MasterTable.open(path, version=1)


def test_a_manifest_with_a_new_field_is_of_a_newer_release(path: Path) -> None:
    forge_manifest(path, lambda content: content.update(encryption="aes"))
    with pytest.raises(MasterFormatError, match=r"newer semistream: it has encryption.*Upgrade"):
        ss.MasterTable.open(path)


def test_a_manifest_by_another_name_is_refused(path: Path) -> None:
    manifest_path(path).rename(path / "versions" / "00000002.json")
    with pytest.raises(MasterFormatError, match="that of version 1, by another name"):
        ss.MasterTable.open(path)


def test_a_link_out_of_the_folder_is_refused(path: Path) -> None:
    (file,) = (path / "data").glob("*.pages.arrow")
    elsewhere = path.parent / "elsewhere.arrow"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    with pytest.raises(MasterFormatError, match="leads out of"):
        ss.MasterTable.open(path)


def test_links_inside_the_folder_and_a_linked_folder_are_fine(path: Path) -> None:
    (file,) = (path / "data").glob("*.pages.arrow")
    other = file.with_name("other.arrow")
    file.rename(other)
    file.symlink_to(other.name)
    moved = path.parent / "big disk"
    (path / "data").rename(moved)
    (path / "data").symlink_to(moved)
    os.symlink(path, path.parent / "link")
    assert joined(path.parent / "link", "meshjoin") == ROWS


def sparse_union(count: int) -> pa.Array:
    kinds = pa.array([i % 2 for i in range(count)], pa.int8())
    return pa.UnionArray.from_sparse(
        kinds, [pa.array(range(count)), pa.array([str(i) for i in range(count)])]
    )


def test_pages_of_unions_are_full_and_read_back(tmp_path: Path) -> None:
    table = pa.table({"id": range(2000), "u": sparse_union(2000)})
    master = ss.MasterTable.from_arrow(table, tmp_path / "r", key="id", page_bytes=4096)
    assert master.page_count < 40
    assert master.pages.max_length <= 4096
    found = []
    with master.reader() as reader:
        frame = Frame(reader.frame_bytes(1))
        for page in range(master.page_count):
            found += reader.read(page, 1, frame)[0].column("u").to_pylist()
    assert found == table["u"].to_pylist()


def test_checksums_are_those_of_the_bytes_in_the_file(tmp_path: Path) -> None:
    flags = [i % 3 == 0 for i in range(500)]
    table = pa.table({"id": range(500), "u": sparse_union(500), "flag": flags})

    def build(number: int) -> None:
        path = tmp_path / str(number)
        master = ss.MasterTable.from_arrow(table, path, key="id", page_bytes=4096)
        (file,) = (path / "data").glob("*.pages.arrow")
        data, index = file.read_bytes(), master.pages
        for begin, length, checksum in zip(
            index.offset.tolist(), index.length.tolist(), index.checksum.tolist(), strict=True
        ):
            assert xxhash.xxh3_64_intdigest(data[begin : begin + length]) == checksum

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(build, range(40)))
