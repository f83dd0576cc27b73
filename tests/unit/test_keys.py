"""Codes, alignment and true-key comparison of join keys."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from semistream import keys
from semistream.errors import KeyColumnError, KeyTypeError
from semistream.keys import KeyCodec

M64 = 2**64 - 1


def fmix64(h: int) -> int:
    h = ((h ^ (h >> 33)) * 0xFF51AFD7ED558CCD) & M64
    h = ((h ^ (h >> 33)) * 0xC4CEB9FE1A85EC53) & M64
    return h ^ (h >> 33)


def reference_hash(data: bytes) -> int:
    """The documented function, in plain Python."""
    h = len(data) * 0x9E3779B97F4A7C15 & M64
    for at in range(0, len(data), 8):
        word = int.from_bytes(data[at : at + 8].ljust(8, b"\0"), "little")
        h = ((h ^ word) * 0x9FB21C651E98DF25) & M64
        h ^= h >> 32
    return fmix64(h)


def signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def codec(*types: pa.DataType) -> KeyCodec:
    return KeyCodec([pa.field(f"k{i}", type_) for i, type_ in enumerate(types)])


def codes(*columns: pa.Array) -> list[int]:
    found: list[int] = codec(*(c.type for c in columns)).codes(columns)[0].tolist()
    return found


EXACT = [
    (pa.int8(), [-128, 0, 127]),
    (pa.int16(), [-(2**15), 2**15 - 1]),
    (pa.int32(), [-(2**31), 2**31 - 1]),
    (pa.int64(), [-(2**63), 0, 2**63 - 1]),
    (pa.uint8(), [0, 255]),
    (pa.uint16(), [0, 2**16 - 1]),
    (pa.uint32(), [0, 2**32 - 1]),
    (pa.date32(), [-5, 20_000]),
    (pa.date64(), [0, 86_400_000]),
    (pa.timestamp("us"), [-1, 10**15]),
    (pa.timestamp("ns", "Europe/Berlin"), [-1, 10**18]),
    (pa.time32("ms"), [0, 86_399_999]),
    (pa.time64("ns"), [0, 86_399_999_999_999]),
    (pa.duration("s"), [-7, 7]),
]


@pytest.mark.parametrize(("type_", "values"), EXACT, ids=lambda v: str(v))
def test_an_integer_like_key_is_its_own_code(type_: pa.DataType, values: list[int]) -> None:
    column = pa.array(values, pa.int64()).cast(f"int{type_.bit_width}", safe=False).view(type_)
    assert codec(type_).exact
    assert codes(column) == values


def test_uint64_is_reinterpreted_and_bool_is_0_or_1() -> None:
    assert codes(pa.array([2**64 - 1, 5], pa.uint64())) == [-1, 5]
    assert codes(pa.array([True, False, True])) == [1, 0, 1]
    assert codec(pa.uint64()).exact
    assert codec(pa.bool_()).exact


def test_int64_codes_are_a_read_only_view_of_the_column() -> None:
    column = pa.array(range(100))
    found, valid = codec(pa.int64()).codes([column.slice(10, 5)])
    assert valid is None
    assert found.ctypes.data == column.buffers()[1].address + 80
    assert not found.flags.writeable


TEXTS = ["", "a", "abcdefg", "abcdefgh", "abcdefghi", "a\0", "é" * 30, "x" * 1000]


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string()], ids=str)
def test_string_codes_are_the_documented_hash(type_: pa.DataType) -> None:
    expected = [signed(reference_hash(text.encode())) for text in TEXTS]
    assert codes(pa.array(TEXTS, type_)) == expected
    assert not codec(type_).exact


@pytest.mark.parametrize("type_", [pa.binary(), pa.large_binary(), pa.binary(9)], ids=str)
def test_binary_codes_are_the_documented_hash(type_: pa.DataType) -> None:
    values = [b"123456789", b"\0" * 9, bytes(range(200, 209))]
    assert codes(pa.array(values, type_)) == [signed(reference_hash(v)) for v in values]


def test_the_hash_on_disk_never_changes() -> None:
    assert codes(pa.array(["", "semistream"])) == [0, signed(reference_hash(b"semistream"))]
    assert codes(pa.array(["semistream"])) == [2363764161701643443]
    assert codes(pa.array([7]), pa.array(["semistream"])) == [-3724931231029923991]


def test_decimal_codes_hash_the_raw_value() -> None:
    values = [Decimal("-1.50"), Decimal("0.00"), Decimal("12345678.90")]
    for type_ in (pa.decimal128(10, 2), pa.decimal256(40, 2)):
        raw = [int(v * 100).to_bytes(type_.byte_width, "little", signed=True) for v in values]
        assert codes(pa.array(values, type_)) == [signed(reference_hash(r)) for r in raw]


def test_a_composite_key_combines_in_order() -> None:
    number, text = pa.array([7, -7]), pa.array(["a", "b"])
    expected = []
    for n, t in ((7, "a"), (-7, "b")):
        h = 0
        for part in (fmix64(n & M64), reference_hash(t.encode())):
            h = fmix64((((h + 0x9E3779B97F4A7C15) * 0x9FB21C651E98DF25) & M64) ^ part)
        expected.append(signed(h))
    assert codes(number, text) == expected
    assert codes(text, number) != expected
    assert not codec(pa.int64(), pa.int64()).exact


SLICED: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int64(), list(range(40))),
    (pa.int16(), list(range(40))),
    (pa.bool_(), [i % 3 == 0 for i in range(40)]),
    (pa.string(), [str(i) * i for i in range(40)]),
    (pa.large_binary(), [b"x" * i for i in range(40)]),
    (pa.binary(2), [struct.pack("<h", i) for i in range(40)]),
    (pa.decimal128(9, 2), [Decimal(i) for i in range(40)]),
]


@pytest.mark.parametrize(("type_", "values"), SLICED, ids=lambda v: str(v)[:12])
@pytest.mark.parametrize("with_nulls", [False, True])
def test_slices_have_the_codes_of_their_rows(
    type_: pa.DataType, values: list[Any], with_nulls: bool
) -> None:
    if with_nulls:
        values = [None if i % 5 == 0 else v for i, v in enumerate(values)]
    column = pa.array(values, type_)
    whole, valid = codec(type_).codes([column])
    assert (valid is None) is not with_nulls
    for start, length in ((0, 40), (1, 7), (8, 8), (13, 20), (39, 1), (40, 0)):
        part, part_valid = codec(type_).codes([column.slice(start, length)])
        keep = slice(start, start + length)
        mask = np.ones(length, bool) if valid is None else valid[keep]
        assert np.array_equal(part[mask], whole[keep][mask])
        assert np.array_equal(np.ones(length, bool) if part_valid is None else part_valid, mask)


def test_a_null_in_any_component_makes_the_row_invalid() -> None:
    columns = [pa.array([1, None, 3, None]), pa.array(["a", "b", None, None])]
    _, valid = codec(pa.int64(), pa.string()).codes(columns)
    assert valid is not None
    assert valid.tolist() == [True, False, False, False]


@pytest.mark.parametrize("type_", [type_ for type_, _ in EXACT + SLICED], ids=str)
def test_no_rows_and_only_nulls_do_not_crash(type_: pa.DataType) -> None:
    assert len(codec(type_).codes([pa.array([], type_)])[0]) == 0
    found, valid = codec(type_).codes([pa.nulls(3, type_)])
    assert len(found) == 3
    assert valid is not None
    assert not valid.any()


def test_the_mask_forces_collisions_of_hashes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "_HASH_MASK", 0x7)
    assert set(codes(pa.array([str(i) for i in range(1000)]))) == set(range(8))
    assert codes(pa.array([1000])) == [1000]


@pytest.mark.parametrize(
    "type_", [pa.float64(), pa.float32(), pa.list_(pa.int8()), pa.null(), pa.string_view()], ids=str
)
def test_types_that_cannot_be_keys_are_refused(type_: pa.DataType) -> None:
    with pytest.raises(KeyTypeError, match=r"'k0'.*cannot be a join key.*integer, a decimal"):
        codec(type_)


def test_a_codec_needs_a_column_and_as_many_as_its_key_has() -> None:
    with pytest.raises(KeyColumnError):
        KeyCodec([])
    with pytest.raises(KeyColumnError, match="2 key columns"):
        codec(pa.int64()).codes([pa.array([1]), pa.array([2])])


CLASHES = [
    (pa.string(), pa.int64()),
    (pa.int64(), pa.decimal128(10, 0)),
    (pa.decimal128(10, 0), pa.int64()),
    (pa.timestamp("us"), pa.timestamp("us", "UTC")),
    (pa.timestamp("us", "UTC"), pa.timestamp("us")),
    (pa.binary(), pa.string()),
    (pa.float64(), pa.int64()),
    (pa.date32(), pa.timestamp("s")),
    (pa.bool_(), pa.int8()),
    (pa.dictionary(pa.int8(), pa.string()), pa.int64()),
]


@pytest.mark.parametrize(("stream", "master"), CLASHES, ids=str)
def test_families_do_not_match_each_other(stream: pa.DataType, master: pa.DataType) -> None:
    with pytest.raises(KeyTypeError, match=r"'sid'.*'k0'.*Cast 'sid'"):
        codec(master).check_types([stream], ["sid"])
    with pytest.raises(KeyTypeError):
        codec(master).align([pa.array([], stream)], ["sid"])


def aligned(column: pa.Array, type_: pa.DataType) -> list[Any]:
    codec(type_).check_types([column.type], ["s"])
    (result,) = codec(type_).align([column], ["s"])
    result.validate(full=True)
    assert result.type == type_
    values: list[Any] = result.to_pylist()
    return values


def test_align_keeps_only_what_the_master_type_holds() -> None:
    assert aligned(pa.array([300, 5, -129, None]), pa.int8()) == [None, 5, None, None]
    assert aligned(pa.array([-1, 5]), pa.uint64()) == [None, 5]
    assert aligned(pa.array([2**63, 5], pa.uint64()), pa.int64()) == [None, 5]
    stamps = pa.array([1_500_000_000, 2_000_000_000], pa.timestamp("ns"))
    whole = pa.array([None, 2], pa.timestamp("s"))
    assert aligned(stamps, pa.timestamp("s")) == whole.to_pylist()
    far = pa.array([2**62, 1], pa.timestamp("s"))
    nanos = codec(pa.timestamp("ns")).align([far], ["s"])[0]
    assert nanos.view(pa.int64()).to_pylist() == [None, 10**9]


def test_align_decimals() -> None:
    values = [Decimal(v) for v in ("1.005", "1.000", "-99999999.990", "100000000.000")]
    column = pa.array(values, pa.decimal128(12, 3))
    kept = [None, Decimal("1.00"), Decimal("-99999999.99"), None]
    assert aligned(column, pa.decimal128(10, 2)) == kept
    huge = pa.array([Decimal("9" * 38)], pa.decimal128(38, 0))
    assert aligned(huge, pa.decimal128(38, 10)) == [None]
    assert aligned(huge, pa.decimal256(76, 10)) == [Decimal("9" * 38 + ".0000000000")]
    tiny = pa.array([Decimal("0.00"), Decimal("0.01")], pa.decimal128(4, 2))
    assert aligned(tiny, pa.decimal128(3, 3)) == [Decimal("0.000"), Decimal("0.010")]
    assert aligned(pa.array([Decimal(12), Decimal(0)]), pa.decimal128(2, 2)) == [
        None,
        Decimal("0.00"),
    ]


def test_align_text_bytes_dates_and_dictionaries() -> None:
    for type_ in (pa.large_string(), pa.string_view()):
        assert aligned(pa.array(["a", None], type_), pa.string()) == ["a", None]
    raw = [b"ab", b"abc", None]
    for type_ in (pa.binary(), pa.large_binary(), pa.binary_view()):
        assert aligned(pa.array(raw, type_), pa.binary(2)) == [b"ab", None, None]
    assert aligned(pa.array([b"abc"], pa.binary(3)), pa.binary(2)) == [None]
    assert aligned(pa.array([b"abc"], pa.binary(3)), pa.large_binary()) == [b"abc"]
    coded = pa.array(["a", "b", None, "a"]).dictionary_encode()
    assert aligned(coded, pa.string()) == ["a", "b", None, "a"]
    days = pa.array([86_400_000, 1], pa.date64())
    assert aligned(days, pa.date32()) == [days[0].as_py(), None]
    assert aligned(pa.nulls(2), pa.binary(4)) == [None, None]
    zoned = pa.array([5], pa.timestamp("s", "UTC"))
    (moved,) = codec(pa.timestamp("ms", "Asia/Tokyo")).align([zoned], ["s"])
    assert moved.view(pa.int64()).to_pylist() == [5000]


def test_align_is_free_for_equal_types() -> None:
    column = pa.array([1, 2])
    assert codec(pa.int64()).align([column], ["s"])[0] is column


@pytest.mark.parametrize(("type_", "values"), SLICED, ids=lambda v: str(v)[:12])
def test_equal_compares_true_keys(type_: pa.DataType, values: list[Any]) -> None:
    left = pa.array([values[1], values[2], None, None], type_)
    right = pa.array([values[1], values[0], values[1], None], type_)
    assert codec(type_).equal([left], [right]).tolist() == [
        True,
        values[2] == values[0],
        False,
        False,
    ]


def test_equal_of_a_composite_wants_every_component() -> None:
    left = [pa.array([1, 1, 2, None]), pa.array(["a", "b", None, "d"])]
    right = [pa.array([1, 1, 2, None]), pa.array(["a", "x", None, "d"])]
    same = codec(pa.int64(), pa.string()).equal(left, right)
    assert same.tolist() == [True, False, False, False]
