"""Building, opening, versions and damage of master tables."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from semistream import keys
from semistream.errors import (
    CorruptPageError,
    KeyColumnError,
    KeyTypeError,
    MasterExistsError,
    MasterFormatError,
    MasterNotFoundError,
    OptionError,
    UnsupportedTypeError,
)
from semistream.relation import Frame, MasterTable
from semistream.relation import build as build_module
from semistream.relation.versions import draft as draft_module


def stored(master: MasterTable, io: str = "buffered") -> pa.Table:
    """All rows in file order, through the reader, hidden column included."""
    with master.reader(io) as reader:
        frame = Frame(reader.frame_bytes(4))
        batches = []
        for first in range(0, master.page_count, 4):
            run = reader.read(first, min(4, master.page_count - first), frame)
            batches += [batch.take(pa.array(range(batch.num_rows))) for batch in run]
        return pa.Table.from_batches(batches, reader.schema)


def visible(master: MasterTable) -> pa.Table:
    return stored(master).select(master.schema.names)


def products(count: int, seed: int = 1) -> pa.Table:
    rng = np.random.default_rng(seed)
    ids = rng.permutation(count)
    return pa.table({"id": ids, "name": [f"product {i}" for i in ids], "price": rng.random(count)})


def files_below(root: Path) -> list[str]:
    return sorted(str(p.relative_to(root)) for p in root.rglob("*"))


KEYS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int32(), [5, -1, 3, 3, 2**31 - 1]),
    (pa.uint64(), [5, 2**64 - 1, 3, 3, 0]),
    (pa.bool_(), [True, False, True]),
    (pa.date32(), [20_000, 1, 5]),
    (pa.timestamp("us", "UTC"), [5, -5, 10**15]),
    (pa.string(), ["b", "a", "", "b"]),
    (pa.large_binary(), [b"b", b"a", b"b"]),
    (pa.binary(3), [b"bbb", b"aaa", b"bbb"]),
    (pa.decimal128(9, 2), [Decimal("1.50"), Decimal("-2.00"), Decimal("1.50")]),
]


@pytest.mark.parametrize(("type_", "values"), KEYS, ids=lambda v: str(v)[:20])
@pytest.mark.parametrize("layout", ["key", "given"])
def test_rows_of_every_key_type_are_found_by_their_code(
    tmp_path: Path, type_: pa.DataType, values: list[Any], layout: str
) -> None:
    data = pa.table({"k": pa.array(values, type_), "n": range(len(values))})
    master = MasterTable.from_arrow(data, tmp_path / "r", key="k", layout=layout)
    table = visible(master)
    assert sorted(table["n"].to_pylist()) == list(range(len(values)))
    codes, valid = master.codec.codes([table["k"].combine_chunks()])
    assert valid is None
    if master.code_column is not None:
        assert np.array_equal(stored(master)[master.code_column].to_numpy(), codes)
    assert master.codec.exact is (master.code_column is None)
    locator = master.locator()
    for code in codes.tolist():
        if locator is None:
            assert master.pages.span(code) == (0, 0)
        else:
            assert locator.find(code, Frame(locator.frame_bytes())) == (0, 0)
    if locator is not None:
        locator.close()


def test_unsorted_input_is_stored_in_code_order_and_stably(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    data = pa.table({"id": rng.integers(0, 50, 3000), "n": range(3000)})
    table = visible(MasterTable.from_arrow(data, tmp_path / "r", key="id", page_bytes=4096))
    assert table.equals(data.sort_by([("id", "ascending"), ("n", "ascending")]))


@pytest.mark.parametrize("io", ["buffered", "direct"])
def test_both_io_modes_give_the_same_rows(tmp_path: Path, io: str) -> None:
    data = products(5000)
    master = MasterTable.from_arrow(data, tmp_path / "r", key="id", page_bytes=8192)
    try:
        table = stored(master, io)
    except OptionError as refusal:
        pytest.skip(str(refusal))
    assert table.equals(data.sort_by("id"))


def test_the_given_layout_gathers_a_key_at_its_first_row(tmp_path: Path) -> None:
    ids = [7, 3, 7, 9, 3, 7, 1]
    data = pa.table({"id": ids, "n": range(7)})
    master = MasterTable.from_arrow(data, tmp_path / "r", key="id", layout="given")
    assert visible(master)["n"].to_pylist() == [0, 2, 5, 1, 4, 3, 6]


def test_the_locator_of_a_built_table_knows_keys_that_span_pages(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    data = pa.table({"id": rng.integers(0, 40, 4000), "text": ["w" * 50] * 4000})
    master = MasterTable.from_arrow(data, tmp_path / "r", key="id", layout="given", page_bytes=4096)
    ids = visible(master)["id"].to_numpy()
    page_of = np.repeat(np.arange(master.page_count), master.pages.rows)
    locator = master.locator()
    assert locator is not None
    with locator:
        low, high = locator.find_many(np.arange(-1, 41))
    assert (low[[0, -1]] > high[[0, -1]]).all()
    for code in range(40):
        mine = page_of[ids == code]
        assert (low[code + 1], high[code + 1]) == (mine.min(), mine.max())
    assert (high[1:-1] > low[1:-1]).any()


def test_index_and_look_up_memory_are_told(tmp_path: Path) -> None:
    given = MasterTable.from_arrow(products(9000), tmp_path / "g", key="id", layout="given")
    with given.locator() or pytest.fail("no locator") as locator:
        assert given.index_bytes == given.pages.nbytes + locator.nbytes
        assert given.locator_frame_bytes >= locator.frame_bytes()
    ordered = MasterTable.from_arrow(products(9000), tmp_path / "k", key="id")
    assert ordered.index_bytes == ordered.pages.nbytes
    assert (ordered.locator(), ordered.locator_frame_bytes) == (None, 0)


def test_a_composite_key_and_its_hidden_code(tmp_path: Path) -> None:
    data = pa.table({"a": [1, 1, 2], "v": [1.0, 2.0, 3.0], "b": ["x", "y", "x"]})
    master = MasterTable.from_arrow(data, tmp_path / "r", key=["b", "a"])
    assert master.key == ("b", "a")
    assert master.schema == data.schema
    assert master.code_column == "__code"
    assert master.stored_schema.names == ["a", "v", "b", "__code"]
    assert visible(master).sort_by("v").equals(data)


@pytest.mark.parametrize("layout", ["key", "given"])
def test_colliding_codes_stay_adjacent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    monkeypatch.setattr(keys, "_HASH_MASK", 0x7)
    names = [f"key {i % 300}" for i in range(900)]
    data = pa.table({"name": names, "n": range(900)})
    master = MasterTable.from_arrow(
        data, tmp_path / "r", key="name", layout=layout, page_bytes=4096
    )
    codes = stored(master)["__code"].to_numpy()
    assert set(codes) == set(range(8))
    assert np.count_nonzero(np.diff(codes)) == 7
    assert visible(master).sort_by("n").equals(data)
    page_of = np.repeat(np.arange(master.page_count), master.pages.rows)
    locator = master.locator()
    for code in range(8):
        mine = page_of[codes == code]
        if locator is None:
            found = master.pages.span(code)
        else:
            found = locator.find(code, Frame(locator.frame_bytes()))
        assert found == (mine.min(), mine.max())
    if locator is not None:
        locator.close()


def test_rows_without_a_key_are_left_out_and_counted(tmp_path: Path) -> None:
    data = pa.table({"a": [1, None, 3, 4], "b": ["x", "y", None, "z"]})
    master = MasterTable.from_arrow(data, tmp_path / "r", key=["a", "b"])
    assert (master.row_count, master.rows_without_key) == (2, 2)
    assert sorted(visible(master)["a"].to_pylist()) == [1, 4]
    nothing = pa.table({"a": pa.nulls(3, pa.int64())})
    assert MasterTable.from_arrow(nothing, tmp_path / "n", key="a").row_count == 0


@pytest.mark.parametrize("layout", ["key", "given"])
@pytest.mark.parametrize("count", [0, 1])
def test_a_table_of_no_rows_or_one(tmp_path: Path, layout: str, count: int) -> None:
    data = pa.table({"id": ["a"][:count], "v": [1.5][:count]}, pa.schema({"id": "str", "v": "f8"}))
    master = MasterTable.from_arrow(data, tmp_path / "r", key="id", layout=layout)
    assert (master.row_count, master.page_count) == (count, count)
    assert visible(master).equals(data)
    assert "rows" in master.describe()


def batches() -> Iterator[pa.RecordBatch]:
    yield from products(1000).to_batches(max_chunksize=128)


def test_every_kind_of_arrow_data_is_taken(tmp_path: Path) -> None:
    table = products(1000)
    kinds: list[Any] = [
        table,
        table.combine_chunks().to_batches()[0],
        pa.RecordBatchReader.from_batches(table.schema, batches()),
        batches(),
        list(batches()),
    ]
    for i, data in enumerate(kinds):
        master = MasterTable.from_arrow(data, str(tmp_path / str(i)), key="id", page_bytes=4096)
        assert visible(master).equals(table.sort_by("id"))


def test_nested_payload_round_trips(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    count = 700
    data = pa.table(
        {
            "id": rng.permutation(count),
            "list": [[int(x) for x in range(i % 7)] if i % 11 else None for i in range(count)],
            "struct": [{"a": i, "b": None if i % 3 else "s" * (i % 20)} for i in range(count)],
            "map": pa.array([[("k", i)] * (i % 4) for i in range(count)], pa.map_("str", "i8")),
            "fixed": pa.array([[i, -i] for i in range(count)], pa.list_(pa.int16(), 2)),
            "null": pa.nulls(count),
            "flag": [bool(i % 2) for i in range(count)],
            "cost": pa.array([Decimal(i) / 4 for i in range(count)], pa.decimal256(50, 2)),
        }
    )
    master = MasterTable.from_arrow(data, tmp_path / "r", key="id", page_bytes=4096)
    assert master.page_count > 10
    assert master.pages.max_length <= 4096
    order = np.argsort(data["id"].to_numpy())
    assert visible(master).equals(data.take(pa.array(order)))


def test_dictionaries_and_views_are_stored_as_plain_values(tmp_path: Path) -> None:
    words = ["b", "a", None, "b"]
    coded = pa.dictionary(pa.int8(), pa.string())
    views = [["p"], ["q", "r"], None, ["s", "t"]]
    data = pa.table(
        {
            "id": pa.array(["w", "x", "y", "z"]).dictionary_encode(),
            "coded": pa.array(words).dictionary_encode(),
            "view": pa.array(words, pa.string_view()),
            "bytes": pa.array([b"1", b"2", None, b"3"], pa.binary_view()),
            "inner": pa.array([[w] for w in words], pa.list_(coded)),
            "struct": pa.array([{"a": w} for w in words], pa.struct({"a": pa.string_view()})),
            "views": pa.array(views, pa.list_view(pa.string())),
            "runs": pa.RunEndEncodedArray.from_arrays([1, 4], ["m", "n"]),
        }
    )
    master = MasterTable.from_arrow(data, tmp_path / "r", key="id")
    plain = pa.string()
    assert [field.type for field in master.schema] == [
        plain,
        plain,
        plain,
        pa.binary(),
        pa.list_(plain),
        pa.struct({"a": plain}),
        pa.list_(plain),
        plain,
    ]
    rows = visible(master).sort_by("id").to_pydict()
    assert rows["coded"] == rows["view"] == words
    assert rows["inner"] == [[w] for w in words]
    assert rows["struct"] == [{"a": w} for w in words]
    assert rows["views"] == views
    assert rows["runs"] == ["m", "n", "n", "n"]


def test_widest_row_bounds_every_row(tmp_path: Path) -> None:
    texts = ["x" * n for n in (1, 500, 20)]
    data = pa.table({"id": [1, 2, 3], "text": texts, "flag": [True, None, False]})
    master = MasterTable.from_arrow(data, tmp_path / "r", key="id")
    # id 8 + 1, text 500 + 4 + 1, flag 1 + 1
    assert master.widest_row == 9 + 505 + 2
    nested = data.append_column("list", pa.array([[1], [2] * 100, [3]]))
    wider = MasterTable.from_arrow(nested, tmp_path / "n", key="id")
    for i in range(3):
        row = pa.concat_tables([nested.slice(i, 1)]).combine_chunks()
        assert row.nbytes <= wider.widest_row
    assert wider.widest_row >= 516 + 102 * 8


def test_versions_stand_beside_each_other(tmp_path: Path) -> None:
    root = tmp_path / "r"
    first = MasterTable.from_arrow(products(100), root, key="id")
    with first.reader() as reader:
        with pytest.raises(MasterExistsError, match="replace=True"):
            MasterTable.from_arrow(products(10), root, key="id")
        second = MasterTable.from_arrow(products(200), root, key="id", replace=True)
        assert (first.version, second.version) == (1, 2)
        assert reader.read(0, 1, Frame(reader.frame_bytes(1)))[0].num_rows == 100
    assert MasterTable.open(root).row_count == 200
    assert MasterTable.open(str(root), version=1).row_count == 100
    with pytest.raises(MasterNotFoundError, match="no version 9"):
        MasterTable.open(root, version=9)


def test_two_builds_at_once_cannot_overwrite_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "r"
    MasterTable.from_arrow(products(10), root, key="id")
    before = files_below(root)
    monkeypatch.setattr(build_module, "newest_version", lambda _: 0)
    with pytest.raises(MasterExistsError, match="another build"):
        MasterTable.from_arrow(products(20), root, key="id")
    assert files_below(root) == before


def test_a_failed_build_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(draft_module, "commit_manifest", fail)
    with pytest.raises(OSError, match="No space left"):
        MasterTable.from_arrow(products(10), tmp_path / "deep" / "r", key="id", layout="given")
    assert files_below(tmp_path) == []


def test_leftovers_of_a_killed_build_are_not_seen(tmp_path: Path) -> None:
    root = tmp_path / "r"
    (root / "data").mkdir(parents=True)
    (root / "versions").mkdir()
    (root / "data" / "00000001-dead.pages.arrow").write_bytes(b"half")
    (root / "versions" / ".tmp-dead").write_bytes(b"{")
    with pytest.raises(MasterNotFoundError):
        MasterTable.open(root)
    assert MasterTable.from_arrow(products(10), root, key="id").version == 1


def manifest(root: Path) -> Path:
    return root / "versions" / "00000001.json"


def data_file(root: Path, kind: str) -> Path:
    (path,) = (root / "data").glob(f"*.{kind}.arrow")
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    MasterTable.from_arrow(
        products(3000), tmp_path / "r", key="id", layout="given", page_bytes=4096
    )
    return tmp_path / "r"


def test_a_truncated_or_edited_manifest_is_named(root: Path) -> None:
    text = manifest(root).read_text()
    changed = text.replace('"row_count": 3000', '"row_count": 3001')
    assert changed != text
    for damaged in (text[: len(text) // 2], "", "[]", changed, "{}"):
        manifest(root).write_text(damaged)
        with pytest.raises(MasterFormatError, match=r"Manifest .*00000001\.json is broken"):
            MasterTable.open(root)


def test_a_newer_format_asks_for_an_upgrade(root: Path) -> None:
    content = json.loads(manifest(root).read_text())
    content["format_version"] = 3
    manifest(root).write_text(json.dumps(content))
    with pytest.raises(MasterFormatError, match=r"format 3.*Upgrade semistream"):
        MasterTable.open(root)


@pytest.mark.parametrize("kind", ["index", "locator-index"])
def test_a_broken_index_is_named(root: Path, kind: str) -> None:
    path = data_file(root, kind)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(MasterFormatError, match=rf"Index .*\.{kind}\.arrow has checksum"):
        MasterTable.open(root)
    path.unlink()
    with pytest.raises(MasterFormatError, match="cannot be read"):
        MasterTable.open(root)


@pytest.mark.parametrize("kind", ["pages", "locator"])
def test_a_truncated_page_file_is_found_when_opened(root: Path, kind: str) -> None:
    path = data_file(root, kind)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(CorruptPageError, match=rf"{path.name} has .*page \d+ on"):
        MasterTable.open(root)
    path.unlink()
    with pytest.raises(MasterFormatError, match="is missing"):
        MasterTable.open(root)


def test_a_flipped_byte_in_a_page_is_found_when_read(root: Path) -> None:
    master = MasterTable.open(root)
    path = data_file(root, "pages")
    data = bytearray(path.read_bytes())
    data[int(master.pages.offset[5]) + 900] ^= 0x10
    path.write_bytes(data)
    with pytest.raises(CorruptPageError, match=f"Page 5 of .*{path.name}"):
        stored(MasterTable.open(root))


def test_no_master_at_the_path(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(MasterNotFoundError, match="from_arrow"):
            MasterTable.open(path)


BAD_OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"key": "absent"}, KeyColumnError, "no key column absent; its columns are id"),
    ({"key": []}, KeyColumnError, "one or more"),
    ({"key": ["id", "id"]}, KeyColumnError, "different"),
    ({"key": "price"}, KeyTypeError, "'price' has type double"),
    ({"layout": "sorted"}, OptionError, "layout='sorted'.*key, given"),
    ({"page_bytes": 4095}, OptionError, "4096 to 1073741824"),
    ({"page_bytes": 2**30 + 1}, OptionError, "page_bytes"),
    ({"page_bytes": 65536.0}, OptionError, "must be an int"),
    ({"page_bytes": True}, OptionError, "must be an int"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD_OPTIONS, ids=lambda v: str(v)[:30])
def test_bad_options_are_told_before_anything_is_written(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        MasterTable.from_arrow(products(10), tmp_path / "r", **{"key": "id", **options})
    assert files_below(tmp_path) == []


def test_bad_data_is_told_before_anything_is_written(tmp_path: Path) -> None:
    twice = pa.table([pa.array([1]), pa.array([2])], names=["id", "id"])
    hidden = pa.table({"id": [1], "__code": [1]})
    mixed = [pa.record_batch({"id": [1]}), pa.record_batch({"id": ["a"]})]
    cases: list[tuple[Any, str]] = [
        (twice, "occur twice: id"),
        (hidden, "__code is kept"),
        ([], "is empty"),
        ([{"id": 1}], "holds a dict"),
        (5, "holds a int"),
        (mixed, "differ in schema"),
    ]
    for data, message in cases:
        with pytest.raises(OptionError, match=message):
            MasterTable.from_arrow(data, tmp_path / "r", key="id")
    assert files_below(tmp_path) == []
    (tmp_path / "file").write_text("x")
    with pytest.raises(OptionError, match="is a file"):
        MasterTable.from_arrow(products(1), tmp_path / "file", key="id")


def dense_union() -> pa.Array:
    kinds, offsets = pa.array([0, 1], pa.int8()), pa.array([0, 0], pa.int32())
    return pa.UnionArray.from_dense(kinds, offsets, [pa.array([1]), pa.array(["a"])])


UNSTORABLE = [
    dense_union(),
    pa.StructArray.from_arrays([dense_union()], ["inner"]),
]


@pytest.mark.parametrize("odd", UNSTORABLE, ids=lambda a: str(a.type)[:12])
def test_a_column_that_cannot_be_stored_is_named(tmp_path: Path, odd: pa.Array) -> None:
    data = pa.table({"id": [1, 2], "odd": odd})
    with pytest.raises(UnsupportedTypeError, match="Column 'odd'"):
        MasterTable.from_arrow(data, tmp_path / "r", key="id")
    assert files_below(tmp_path) == []


def test_describe_and_repr(tmp_path: Path) -> None:
    master = MasterTable.from_arrow(products(1000), tmp_path / "r", key="id", page_bytes=4096)
    text = master.describe()
    for part in ("1,000", "id (exact)", "layout", "version", f"{master.pages.nbytes:,} bytes"):
        assert part in text
    assert repr(master).startswith("MasterTable(")
    assert "rows=1000" in repr(master)
    assert master.path == tmp_path / "r"


@pytest.mark.parametrize("layout", ["key", "given"])
@pytest.mark.parametrize("each", [1, 3, 40])
def test_rows_per_key_are_known_from_a_few_pages(tmp_path: Path, layout: str, each: int) -> None:
    keys = [f"key {i // each}" for i in range(30_000)]
    table = pa.table({"key": keys, "n": range(30_000)})
    master = MasterTable.from_arrow(
        table, tmp_path / "m", key="key", layout=layout, page_bytes=4096
    )
    assert master.page_count > 100
    assert master.rows_per_key == pytest.approx(each, rel=0.15)
    assert each > 1 or master.rows_per_key == 1.0


def test_rows_per_key_of_odd_masters(tmp_path: Path) -> None:
    def rows_per_key(keys: list[int], texts: list[str]) -> float:
        table = pa.table({"key": pa.array(keys, pa.int64()), "text": pa.array(texts, pa.string())})
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        return MasterTable.from_arrow(table, folder, key="key", page_bytes=4096).rows_per_key

    assert rows_per_key([], []) == 1.0
    assert rows_per_key([5], ["a"]) == 1.0
    assert rows_per_key([5, 6, 7], ["wide" * 1500] * 3) == 1.0, "a row in each page"
    assert rows_per_key([5] * 100, ["a"] * 100) > 50


def test_each_shard_has_its_own_rows_per_key(tmp_path: Path) -> None:
    table = pa.table({"key": [i // 3 for i in range(12_000)], "n": range(12_000)})
    master = MasterTable.from_arrow(table, tmp_path / "m", key="key", shards=2, page_bytes=4096)
    assert [master.rows_per_key, master.shard(1).rows_per_key] == pytest.approx([3, 3], rel=0.1)
    assert "rows_per_key" not in master.shard(0).__dict__
