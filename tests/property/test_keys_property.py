"""Alignment and hashing of keys against plain Python arithmetic."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from semistream.keys import KeyCodec

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
INTEGERS += [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def bounds(type_: pa.DataType) -> tuple[int, int]:
    info = np.iinfo(type_.to_pandas_dtype())
    return int(info.min), int(info.max)


def align(column: pa.Array, type_: pa.DataType) -> pa.Array:
    (result,) = KeyCodec([pa.field("k", type_)]).align([column], ["s"])
    result.validate(full=True)
    assert result.type == type_
    return result


def near_edges(low: int, high: int) -> st.SearchStrategy[int]:
    """Integers of the range, those around powers of two and ten more often."""
    edges = {low, high, 0}
    for power in [2**n for n in range(65)] + [10**n for n in range(20)]:
        edges |= {power - 1, power, -power, -power - 1}
    inside = sorted(edge for edge in edges if low <= edge <= high)
    return st.integers(low, high) | st.sampled_from(inside)


@given(st.data())
def test_integers_align_when_and_only_when_they_fit(data: st.DataObject) -> None:
    source, target = data.draw(st.sampled_from(INTEGERS)), data.draw(st.sampled_from(INTEGERS))
    values = data.draw(st.lists(st.none() | near_edges(*bounds(source)), max_size=20))
    low, high = bounds(target)
    expected = [v if v is not None and low <= v <= high else None for v in values]
    assert align(pa.array(values, source), target).to_pylist() == expected


def rescaled(value: int | None, source: int, target: int, bits: int) -> int | None:
    """Exact ticks at the target's resolution, or None."""
    if value is None or (value * target) % source:
        return None
    ticks = value * target // source
    return ticks if -(2 ** (bits - 1)) <= ticks < 2 ** (bits - 1) else None


@given(st.data())
def test_instants_and_durations_align_exactly(data: st.DataObject) -> None:
    source, target = (
        data.draw(st.sampled_from(list(UNITS))),
        data.draw(st.sampled_from(list(UNITS))),
    )
    make: Any = data.draw(st.sampled_from([pa.timestamp, pa.duration]))
    values = data.draw(st.lists(st.none() | near_edges(-(2**63), 2**63 - 1), max_size=20))
    column = pa.array(values, pa.int64()).view(make(source))
    expected = [rescaled(v, UNITS[source], UNITS[target], 64) for v in values]
    assert align(column, make(target)).view(pa.int64()).to_pylist() == expected


@given(st.data())
def test_times_and_dates_align_exactly(data: st.DataObject) -> None:
    family = data.draw(
        st.sampled_from(
            [
                [(pa.date32(), 1), (pa.date64(), 86_400_000)],
                [
                    (pa.time32("s"), 1),
                    (pa.time32("ms"), 10**3),
                    (pa.time64("us"), 10**6),
                    (pa.time64("ns"), 10**9),
                ],
            ]
        )
    )
    (source, ticks), (target, goal) = (
        data.draw(st.sampled_from(family)),
        data.draw(st.sampled_from(family)),
    )
    plain = pa.int32() if source.bit_width == 32 else pa.int64()
    values = data.draw(st.lists(st.none() | near_edges(*bounds(plain)), max_size=20))
    result = KeyCodec([pa.field("k", target)]).align([pa.array(values, plain).view(source)], ["s"])
    expected = [rescaled(v, ticks, goal, target.bit_width) for v in values]
    assert result[0].view(f"int{target.bit_width}").to_pylist() == expected


@st.composite
def decimal_types(draw: st.DrawFn) -> pa.DataType:
    wide = draw(st.booleans())
    precision = draw(st.integers(1, 76 if wide else 38))
    scale = draw(st.integers(0, precision))
    return (pa.decimal256 if wide else pa.decimal128)(precision, scale)


def unscaled(value: Decimal | None, scale: int) -> int | None:
    if value is None:
        return None
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    number = int("".join(map(str, digits))) * int(10 ** (exponent + scale))
    return -number if sign else number


def exactly(number: int, scale: int) -> Decimal:
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))


@given(st.data())
def test_decimals_align_when_and_only_when_they_fit(data: st.DataObject) -> None:
    source, target = data.draw(decimal_types()), data.draw(decimal_types())
    top = 10**source.precision - 1
    digits = st.integers(0, source.precision)
    round_numbers = digits.flatmap(
        lambda n: st.sampled_from([10**n - 1, min(10**n, top), -(10**n) + 1])
    )
    values = data.draw(st.lists(st.none() | st.integers(-top, top) | round_numbers, max_size=10))
    expected = []
    for v in values:
        fit = None if v is None else rescaled(v, 10**source.scale, 10**target.scale, 600)
        expected.append(fit if fit is not None and abs(fit) < 10**target.precision else None)
    column = pa.array([None if v is None else exactly(v, source.scale) for v in values], source)
    found = align(column, target).to_pylist()
    assert [unscaled(v, target.scale) for v in found] == expected


@given(st.lists(st.none() | st.binary(max_size=4), max_size=20), st.integers(1, 4))
def test_bytes_align_with_a_fixed_width(values: list[bytes | None], width: int) -> None:
    expected = [v if v is not None and len(v) == width else None for v in values]
    for type_ in (pa.binary(), pa.large_binary(), pa.binary_view()):
        assert align(pa.array(values, type_), pa.binary(width)).to_pylist() == expected


@given(st.lists(st.none() | st.text(max_size=20), max_size=30), st.data())
def test_codes_depend_on_the_value_alone(values: list[str | None], data: st.DataObject) -> None:
    column, wide = pa.array(values, pa.string()), pa.array(values, pa.large_string())
    start = data.draw(st.integers(0, len(values)))
    codes, valid = KeyCodec([pa.field("k", pa.string())]).codes([column.slice(start)])
    again, _ = KeyCodec([pa.field("k", pa.large_string())]).codes([wide])
    present = np.array([v is not None for v in values[start:]], bool)
    assert np.array_equal(present, np.ones(len(present), bool) if valid is None else valid)
    assert np.array_equal(codes[present], again[start:][present])
    seen = {v: c for v, c in zip(values[start:], codes.tolist(), strict=True) if v is not None}
    assert len(set(seen.values())) == len(seen)
