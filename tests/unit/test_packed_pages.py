"""Packed pages: every value comes back, row by row and page by page, or the damage is told."""

from __future__ import annotations

import decimal
import math
from contextlib import suppress
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import example, given, settings
from hypothesis import strategies as st

import semistream as ss
from semistream.errors import CorruptPageError, OptionError
from semistream.kernels.bits import measure_numbers, number_at, packed_bytes, put_numbers
from semistream.kernels.packed_pages import SPARE
from semistream.kernels.packed_rows import Tray, pick_rows
from semistream.kernels.rows import FIELD
from semistream.relation.reader import Frame
from semistream.relation.storage.packing import Packing
from semistream.relation.storage.symbol_tables import known_symbols
from semistream.testing import assert_same_rows, checked_run, oracle_join

INT64 = st.integers(-(2**63), 2**63 - 1)
NEAR = st.tuples(INT64, st.lists(st.integers(0, 1000), min_size=1)).map(
    lambda drawn: [max(min(drawn[0] + n, 2**63 - 1), -(2**63)) for n in drawn[1]]
)
RISING = st.lists(st.integers(0, 2**40), min_size=1).map(lambda steps: np.cumsum(steps).tolist())


@given(st.one_of(st.lists(INT64, min_size=1), NEAR, RISING))
@example([-(2**63), 2**63 - 1])
@example([0, 2**56 - 1])
@example([0, 2**56])
@example([2**49, 0])
@example([7])
def test_numbers_come_back(numbers: list[int]) -> None:
    values = np.array(numbers, np.int64)
    bits, base, trend = measure_numbers(values, len(values))
    if max(numbers) - min(numbers) >= 2**56:
        assert bits == -1
        return
    assert 0 <= bits <= 56
    memory = np.full(packed_bytes(len(values), bits) + SPARE, 0xA5, np.uint8)
    put_numbers(values, len(values), bits, base, trend, memory.ctypes.data)
    assert (memory[-SPARE:] == 0xA5).all(), "nothing is written behind them"
    found = [number_at(memory.ctypes.data, bits, i) for i in range(len(values))]
    assert found == numbers


def test_keys_in_steps_take_no_bits() -> None:
    values = np.arange(500, dtype=np.int64) * 10 + 7
    assert measure_numbers(values, 500)[0] <= 1
    assert measure_numbers(np.full(500, 12), 500)[0] == 0


def columns_of(count: int, seed: int) -> dict[str, pa.Array]:
    """Columns of all flat types, most with nulls and extremes."""
    random = np.random.default_rng(seed)
    nulls = random.random(count) < 0.2

    def some(values: Any, kind: pa.DataType) -> pa.Array:
        return pa.array([None if gone else v for v, gone in zip(values, nulls, strict=True)], kind)

    whole = random.integers(-(2**62), 2**62, count)
    small = random.integers(0, 100, count)
    words = ["", "é", "Fold", "Foldable", "Foldable Oak Lamp", "x" * 300, "\x00\xff", "雪"]
    odd = [0.1, -0.0, 0.0, math.nan, math.inf, 1e300, 5e-324, 12.34, -7.5]
    cents = decimal.Decimal("0.01")
    return {
        "wide": some(whole.tolist(), pa.int64()),
        "same": pa.array([5] * count, pa.int64()),
        "small": some(small.tolist(), pa.int32()),
        "short": some(small.tolist(), pa.int16()),
        "byte": some(small.tolist(), pa.uint8()),
        "unsigned": some((whole.astype(np.uint64) * 2).tolist(), pa.uint64()),
        "flag": some((small % 2 == 0).tolist(), pa.bool_()),
        "price": some((small / 100).tolist(), pa.float64()),
        "odd": some(random.choice(odd, count).tolist(), pa.float64()),
        "half": some((small / 4).tolist(), pa.float32()),
        "money": some([int(n) * cents for n in small], pa.decimal128(20, 2)),
        "much": some([decimal.Decimal(int(n)) ** 2 for n in whole], pa.decimal128(38, 0)),
        "day": some([date(2020, 1, 1 + int(n) % 28) for n in small], pa.date32()),
        "at": some([datetime(2020, 1, 1, int(n) % 24) for n in small], pa.timestamp("us", "UTC")),
        "name": some([words[n % len(words)] for n in small], pa.string()),
        "long": some([words[n % len(words)] for n in small], pa.large_string()),
        "noise": some([random.bytes(int(n) % 40) for n in small], pa.binary()),
        "id16": some([random.bytes(16) for _ in small], pa.binary(16)),
        "gone": pa.nulls(count, pa.string()),
    }


def table_of(count: int, seed: int = 1, rows_per_key: int = 1) -> pa.Table:
    keys = np.arange(count) // rows_per_key * 3
    return pa.table({"id": keys, **columns_of(count, seed)})


def packed_master(table: pa.Table, path: Path, **options: Any) -> ss.MasterTable:
    options = {"key": "id", "page_bytes": 8192, "compression": "packed", **options}
    return ss.MasterTable.from_arrow(table, path, **options)


def all_rows(master: ss.MasterTable) -> pa.Table:
    batches = []
    with master.reader() as reader:
        frame = Frame(reader.frame_bytes(1))
        for page in range(master.page_count):
            (batch,) = reader.read(page, 1, frame)
            batches.append(batch.take(pa.array(range(batch.num_rows))))
    return pa.Table.from_batches(batches, master.stored_schema)


@pytest.mark.parametrize("seed", range(3))
def test_all_types_come_back(tmp_path: Path, seed: int) -> None:
    table = table_of(700, seed)
    master = packed_master(table, tmp_path / "r")
    back = all_rows(master).select(table.column_names)
    # NaN is not equal to itself, so floats are compared by their bits.
    for name in table.column_names:
        told, found = (t[name].combine_chunks() for t in (table, back))
        if pa.types.is_float64(told.type):
            told, found = told.view(pa.int64()), found.view(pa.int64())
        assert found.equals(told), name
    with master.reader() as reader:
        assert reader.stored.is_packed, "kernels can read it"
    assert master.pages.size is not None
    assert (master.pages.size < master.pages.length)[:-1].all()


@pytest.mark.parametrize("rows_per_key", [1, 2, 90])
@pytest.mark.parametrize("way", ["unmapped", "direct"])
@pytest.mark.parametrize("algorithm", ["hybridjoin", "chybridjoin", "demandjoin"])
def test_rows_are_picked(tmp_path: Path, algorithm: str, way: str, rows_per_key: int) -> None:
    """Look-ups in sets unpack single rows: of all types, of keys that cross pages, of none."""
    table = table_of(3_000, rows_per_key=rows_per_key)
    table = table.drop_columns(["odd"])
    master = packed_master(table, tmp_path / "r", page_bytes=4096)
    keys = np.random.default_rng(4).integers(-9, 9_100 // rows_per_key, 1500 // rows_per_key)
    stream = pa.table({"id": keys, "n": np.arange(len(keys))}).to_batches(max_chunksize=400)
    engine = ss.engine(
        master, on="id", how="left", algorithm=algorithm, memory="3MB", io=way, look_ups=16
    )
    expected = oracle_join(stream, table, on="id", how="left").rows
    assert_same_rows(checked_run(engine, stream), expected)
    assert engine.plan is not None
    assert engine.plan.look_ups == 16


def test_bytes_of_look_ups_are_those_of_the_file(tmp_path: Path) -> None:
    table = table_of(3_000)
    master = packed_master(table, tmp_path / "r")
    stream = table.select(["id"]).to_batches()
    engine = ss.engine(master, on="id", algorithm="hybridjoin", memory="3MB", io="unmapped")
    list(engine.run(stream))
    assert master.pages.size is not None
    assert engine.metrics().bytes_read <= master.pages.size.sum() * 1.01


def test_files_of_several_updates_have_symbols_of_their_own(tmp_path: Path) -> None:
    table = table_of(2_000).select(["id", "name", "price"])
    master = packed_master(table, tmp_path / "r", page_bytes=4096)
    for turn in range(3):
        some = pa.table(
            {
                "id": np.arange(turn, 6_000, 300),
                "name": [f"written in turn {turn}"] * 20,
                "price": np.full(20, turn / 4),
            }
        )
        master = master.upsert(some)
        table = pa.concat_tables([table.filter(~np.isin(table["id"], some["id"])), some])
    stream = pa.table({"id": np.arange(0, 6_000)}).to_batches(max_chunksize=1_000)
    engine = ss.engine(master, on="id", algorithm="hybridjoin", memory="3MB", io="unmapped")
    expected = oracle_join(stream, table, on="id", how="inner").rows
    assert_same_rows(checked_run(engine, stream), expected)


def test_what_cannot_be_packed_is_refused(tmp_path: Path) -> None:
    table = pa.table({"id": [1, 2], "tags": [["a"], ["b"]]})
    with pytest.raises(OptionError, match=r'"tags" is list<.*Use "lz4" or "zstd"'):
        packed_master(table, tmp_path / "r")


def test_an_empty_master(tmp_path: Path) -> None:
    master = packed_master(table_of(10).slice(0, 0), tmp_path / "r")
    stream = pa.table({"id": [1, 2]}).to_batches()
    engine = ss.engine(master, on="id", how="left", memory="3MB")
    assert sum(batch.num_rows for batch in engine.run(stream)) == 2


def test_symbols_are_found_and_suit_other_texts() -> None:
    texts = [f"Foldable {thing} {n:06}" for n in range(400) for thing in ("Lamp", "Chair")]
    rows = pa.record_batch({"name": texts})
    symbols = known_symbols(rows, [0])
    assert symbols.lengths.max() == 8
    packing = Packing.learned(rows)
    other = pa.record_batch({"name": [text.swapcase() for text in texts]})
    for batch in (rows, other):
        page = batch.serialize().to_pybytes()
        block = packing.packed(page, batch.num_rows)
        if block is not page:
            assert bytes(packing.unpacked(memoryview(block), len(page))) == page
        assert len(block) < len(page) * (0.5 if batch is rows else 1.01)


def test_flags_that_are_too_few_for_the_rows_are_refused() -> None:
    """Else bits behind the block would be read."""
    rows = pa.record_batch({"id": range(400), "n": [None, *range(399)]})
    packing = Packing.learned(rows)
    page = rows.serialize().to_pybytes()
    block = bytearray(packing.packed(page, 400))
    # The flags of the second column: the third entry, whose length stands in its last four bytes.
    at = 32 + 2 * 16 + 12
    assert int.from_bytes(block[at : at + 4], "little") >= 50
    block[at : at + 4] = (8).to_bytes(4, "little")
    block[:8] = xxhash.xxh3_64_intdigest(memoryview(block)[8:]).to_bytes(8, "little")
    with pytest.raises(ValueError, match="not as it was packed"):
        packing.unpacked(memoryview(block), len(page))


def test_the_head_of_a_file_comes_back() -> None:
    packing = Packing.learned(table_of(100).to_batches()[0])
    assert Packing.head_bytes(packing.head) == len(packing.head)
    again = Packing.of_head(packing.head)
    assert again.head == packing.head
    with pytest.raises(ValueError, match="does not begin as"):
        Packing.head_bytes(b"ARROW1" + packing.head)


@pytest.mark.parametrize("algorithm", ["inlj", "hybridjoin"])
@pytest.mark.parametrize("at", [0, 9, 17, 31, 32 + 7, 32 + 8 * 20 + 3, 32 + 8 * 20 + 4 * 2048 + 1])
def test_a_broken_head_is_told(tmp_path: Path, at: int, algorithm: str) -> None:
    """The magic, the size, the checksum, the columns, a width, a symbol, its length."""
    table = table_of(1_500)
    master = packed_master(table, tmp_path / "r", page_bytes=4096)
    path = Path(master.location, master.manifest.page_files[0].path)
    content = bytearray(path.read_bytes())
    content[at] ^= 0x55
    path.write_bytes(content)
    sizes: dict[str, Any] = {"look_ups": 16} if algorithm == "hybridjoin" else {}
    engine = ss.engine(master, on="id", algorithm=algorithm, memory="3MB", io="unmapped", **sizes)
    with pytest.raises(CorruptPageError, match="is broken"):
        list(engine.run(table.select(["id"]).slice(0, 50).to_batches()))


@pytest.mark.parametrize(
    ("columns", "width"), [(2**63, -4), (1 << 40, -4), (3, -(2**62)), (3, 2**62), (3, -1)]
)
def test_a_made_up_head_is_refused(columns: int, width: int) -> None:
    """With a right checksum: it may have no more columns and no other widths than there can be."""
    rest = columns.to_bytes(8, "little") + width.to_bytes(8, "little", signed=True) * 3
    rest += bytes(9 * 256 * 3)
    digest = xxhash.xxh3_64_intdigest(rest)
    head = b"SEMIPACK" + (24 + len(rest)).to_bytes(8, "little") + digest.to_bytes(8, "little")
    with pytest.raises(ValueError, match=r"columns|width"):
        Packing.of_head(head + rest)


def test_a_long_text_does_not_spoil_the_symbols() -> None:
    texts = [f"The product number {n} in the blue box" for n in range(2_000)]
    plain = Packing.learned(pa.record_batch({"name": ["y", *texts]}))
    spoilt = Packing.learned(pa.record_batch({"name": ["y" * 300_000, *texts]}))
    page = pa.record_batch({"name": texts[:500]}).serialize().to_pybytes()
    assert len(spoilt.packed(page, 500)) < 1.1 * len(plain.packed(page, 500))


def test_damaged_rows_are_never_picked(tmp_path: Path) -> None:
    table = table_of(1_500)
    master = packed_master(table, tmp_path / "r", page_bytes=4096)
    assert master.pages.place is not None
    path = Path(master.location, master.manifest.page_files[0].path)
    content = bytearray(path.read_bytes())
    content[int(master.pages.place[4]) + 700] ^= 1
    path.write_bytes(content)
    engine = ss.engine(
        master, on="id", algorithm="hybridjoin", memory="3MB", io="unmapped", look_ups=16
    )
    with pytest.raises(CorruptPageError, match=r"Page 4 "):
        list(engine.run(table.select(["id"]).to_batches()))


@settings(max_examples=300)
@given(st.data())
def test_what_somebody_made_up_leads_nowhere_outside(data: st.DataObject) -> None:
    """Blocks with a right checksum and wrong content are refused, or give wrong values."""
    batch = MADE_UP
    block = bytearray(MADE_UP_BLOCK)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(8, min(len(block), 900) - 1))
        block[at] = data.draw(st.integers(0, 255))
    block[:8] = xxhash.xxh3_64_intdigest(memoryview(block)[8:]).to_bytes(8, "little")
    with suppress(ValueError):
        MADE_UP_PACKING.unpacked(memoryview(block), MADE_UP_LENGTH)
    source = np.frombuffer(bytes(block), np.uint8)
    tray = Frame(MADE_UP_LENGTH + 32 * 30)
    fields = np.zeros(batch.num_columns, FIELD)
    picked, used = pick_rows(
        source.ctypes.data,
        len(source),
        batch.num_rows,
        (0, 3 * (batch.num_rows - 1)),
        MADE_UP_PACKING.widths,
        0,
        np.array([3, 6, 30], np.int64),
        0,
        3,
        MADE_UP_PACKING.symbols,
        Tray(tray.address, MADE_UP_LENGTH + 32 * 30, np.zeros(batch.num_rows, np.uint8), ASKED),
        0,
        fields,
    )
    assert -1 <= picked <= 3
    assert used <= tray.nbytes


MADE_UP = table_of(40).combine_chunks().to_batches()[0]
MADE_UP_PACKING = Packing.learned(MADE_UP)
MADE_UP_PAGE = MADE_UP.serialize().to_pybytes()
MADE_UP_LENGTH = len(MADE_UP_PAGE)
ASKED = np.ones(MADE_UP.num_columns, np.bool_)
MADE_UP_BLOCK = MADE_UP_PACKING.packed(MADE_UP_PAGE, 40)
