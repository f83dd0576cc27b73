"""Values that can be put in order: numbers as int64 codes, texts as bytes.

A stream column has one order. Its values become codes with the same order, and a master's bound
becomes the outermost code that still lies inside it. So every interval is a closed one of int64
codes, whatever its type, its unit and its ends:

    8:00:00 <= at < 9:00:00, at in milliseconds      28800000 ..= 32399999
    x > 2.5, x a float                               code(2.5) + 1 ..= highest

Nothing is rounded: if the bound has a finer unit than the stream, the next tick inside it counts.
Texts, binaries and wide decimals have no such code; they are compared byte by byte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.arrow_arrays import to_arrow, to_numpy
from semistream.errors import KeyTypeError
from semistream.key_casts import ticks_per

__all__ = ["ByteOrder", "CodeOrder", "Coded", "Order", "order_of"]

Codes = NDArray[np.int64]
Truth = NDArray[np.bool_]

LOWEST: Final = -(2**63)
HIGHEST: Final = 2**63 - 1
_SIGN: Final = np.int64(LOWEST)
_INT64_DIGITS: Final = 18
_MOST_DIGITS: Final = 76
_INTEGER_DIGITS: Final = 20


class Coded(NamedTuple):
    """Codes of a column's values, and which of them can match (None: all)."""

    codes: Codes
    valid: Truth | None


@dataclass(frozen=True)
class CodeOrder:
    """An order whose values are int64 codes."""

    numbers: Callable[[pa.Array], Coded]
    """The codes of a column of the stream or, but for the unit, of the master."""
    finer: int = 1
    """Ticks of the stream in a tick of this bound."""
    coarser: int = 1
    """Ticks of this bound in a tick of the stream."""

    def low(self, bounds: pa.Array, closed: bool) -> Coded:
        """The lowest codes inside lower bounds; not valid where nothing is inside."""
        codes, valid = self.numbers(bounds)
        if self.coarser > 1:
            whole = codes // self.coarser
            up = (codes != whole * self.coarser) if closed else np.ones(len(codes), np.bool_)
            return Coded(whole + up, valid)
        inside = np.ones(len(codes), np.bool_)
        if self.finer > 1:
            most = HIGHEST // self.finer
            inside = codes <= most
            codes = np.where(codes < -most, LOWEST, codes * self.finer)
        if not closed:
            inside &= codes < HIGHEST
            codes = codes + inside
        return Coded(codes, _both(valid, inside))

    def high(self, bounds: pa.Array, closed: bool) -> Coded:
        """The highest codes inside upper bounds; not valid where nothing is inside."""
        codes, valid = self.numbers(bounds)
        if self.coarser > 1:
            whole = codes // self.coarser
            down = (codes == whole * self.coarser) & (not closed)
            return Coded(whole - down, valid)
        inside = np.ones(len(codes), np.bool_)
        if self.finer > 1:
            most = HIGHEST // self.finer
            inside = codes >= -most
            codes = np.where(codes > most, HIGHEST, codes * self.finer)
        if not closed:
            inside &= codes > LOWEST
            codes = codes - inside
        return Coded(codes, _both(valid, inside))


@dataclass(frozen=True)
class ByteOrder:
    """An order whose values are strings of bytes."""

    binary: Callable[[pa.Array], pa.Array]
    """The column as an Arrow array of `large_binary` whose order is that of the values."""


Order = CodeOrder | ByteOrder


def order_of(stream: pa.Field, bounds: Sequence[pa.Field]) -> list[Order]:
    """How a stream column is compared with each of the master's columns.

    `KeyTypeError` if there is no order that all of them share.
    """
    kinds = [field.type for field in (stream, *bounds)]
    if pa.types.is_null(kinds[0]):
        kinds[0] = kinds[1]
    families = {_family(kind) for kind in kinds}
    if len(families) == 1 and None not in families:
        (family,) = families
        if family in ("string", "binary"):
            return [ByteOrder(_plain_bytes) for _ in bounds]
        if family == "decimal":
            return _decimals(stream, bounds, kinds)
        if family == "float":
            return [CodeOrder(_floats) for _ in bounds]
        if family == "integer":
            return _integers(stream, bounds, kinds)
        return [_ticks(kinds[0], kind) for kind in kinds[1:]]
    if families == {"integer", "decimal"}:
        return _decimals(stream, bounds, kinds)
    mixed = families == {"integer", "float"}
    if mixed and all(_family(kind) == "float" or kind.bit_width <= 32 for kind in kinds):
        return [CodeOrder(_floats) for _ in bounds]
    raise _not_comparable(stream, bounds)


def _not_comparable(stream: pa.Field, bounds: Sequence[pa.Field]) -> KeyTypeError:
    others = " and ".join(f"{field.name!r} of type {field.type}" for field in bounds)
    return KeyTypeError(
        f"Stream column {stream.name!r} of type {stream.type} cannot be compared exactly with the "
        f"master's {others}. Cast {stream.name!r} to the master's type before the join."
    )


def _family(kind: pa.DataType) -> str | None:
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "timestamp with time zone"
    for name, tests in _FAMILIES.items():
        if any(test(kind) for test in tests):
            return name
    return None


_FAMILIES: Final[dict[str, tuple[Callable[[pa.DataType], bool], ...]]] = {
    "integer": (pa.types.is_integer,),
    "float": (pa.types.is_floating,),
    "decimal": (pa.types.is_decimal,),
    "string": (pa.types.is_string, pa.types.is_large_string),
    "binary": (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary),
    "date": (pa.types.is_date,),
    "time": (pa.types.is_time,),
    "duration": (pa.types.is_duration,),
}


def _both(left: Truth | None, right: Truth) -> Truth | None:
    if left is not None:
        return left & right
    return None if right.all() else right


def _valid(column: pa.Array) -> Truth | None:
    found: Truth | None = to_numpy(column.is_valid()) if column.null_count else None
    return found


def _integers(
    stream: pa.Field, bounds: Sequence[pa.Field], kinds: Sequence[pa.DataType]
) -> list[Order]:
    wide = [kind == pa.uint64() for kind in kinds]
    if any(wide) and not all(wide):
        return _decimals(stream, bounds, kinds)
    return [CodeOrder(_unsigned if wide[0] else _whole) for _ in bounds]


def _whole(column: pa.Array) -> Coded:
    """Integers of any width but unsigned 64 bits; dates, times, timestamps, durations as ticks."""
    signed = not pa.types.is_unsigned_integer(column.type)
    values = _raw(column, f"{'i' if signed else 'u'}{column.type.bit_width // 8}")
    return Coded(values.astype(np.int64, copy=False), _valid(column))


def _unsigned(column: pa.Array) -> Coded:
    return Coded(_raw(column, "i8") ^ _SIGN, _valid(column))


def _floats(column: pa.Array) -> Coded:
    """Bits of IEEE numbers have their order, if those of negative ones are turned round."""
    values = column.cast(pa.float64()) if column.type != pa.float64() else column
    numbers = _raw(values, "f8") + 0.0  # -0.0 becomes 0.0
    bits = numbers.view(np.int64)
    codes = np.where(bits < 0, bits ^ np.int64(HIGHEST), bits)
    return Coded(codes, _both(_valid(column), ~np.isnan(numbers)))


def _ticks(stream: pa.DataType, bound: pa.DataType) -> Order:
    ours, theirs = ticks_per(stream), ticks_per(bound)
    return CodeOrder(_whole, finer=max(1, ours // theirs), coarser=max(1, theirs // ours))


def _decimals(
    stream: pa.Field, bounds: Sequence[pa.Field], kinds: Sequence[pa.DataType]
) -> list[Order]:
    """Decimals, and integers beside them, as whole numbers of one scale."""
    scale = max(0, *(_digits(kind)[1] for kind in kinds))
    digits = scale + max(before for before, _ in map(_digits, kinds))
    if digits > _MOST_DIGITS:
        raise _not_comparable(stream, bounds)
    target = pa.decimal256(_MOST_DIGITS, scale)
    if digits > _INT64_DIGITS:
        return [ByteOrder(lambda column: _decimal_bytes(column, target)) for _ in bounds]
    return [CodeOrder(lambda column: _decimal_codes(column, target)) for _ in bounds]


def _digits(kind: pa.DataType) -> tuple[int, int]:
    """Digits before and behind the point."""
    if not pa.types.is_decimal(kind):
        return _INTEGER_DIGITS, 0
    return max(0, kind.precision - kind.scale), kind.scale


def _decimal_codes(column: pa.Array, target: pa.DataType) -> Coded:
    wide = _as_decimal(column, target)
    return Coded(_raw_limbs(wide)[:, 0].copy(), _valid(column))


def _decimal_bytes(column: pa.Array, target: pa.DataType) -> pa.Array:
    """The highest byte first, and negative numbers before the others."""
    wide = _as_decimal(column, target)
    limbs = _raw_limbs(wide)[:, ::-1].copy()
    limbs[:, 0] ^= _SIGN
    data = limbs.astype(">i8")
    ends = to_arrow(np.arange(len(wide) + 1, dtype=np.int64) * 32).buffers()[1]
    valid = _valid(column)
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(
        pa.large_binary(), len(wide), [bits, ends, pa.py_buffer(data.tobytes())]
    )


def _as_decimal(column: pa.Array, target: pa.DataType) -> pa.Array:
    if column.type == pa.uint64():
        column = column.cast(pa.decimal128(_INTEGER_DIGITS, 0))
    return column.cast(target)


def _raw_limbs(column: pa.Array) -> Codes:
    data = column.buffers()[1]
    if data is None:
        return np.zeros((len(column), 4), np.int64)
    return np.frombuffer(data, np.int64, 4 * len(column), 32 * column.offset).reshape(-1, 4)


def _plain_bytes(column: pa.Array) -> pa.Array:
    return column if column.type == pa.large_binary() else column.cast(pa.large_binary())


def _raw(column: pa.Array, dtype: str) -> NDArray[Any]:
    """The values as they lie in memory; null slots hold anything."""
    data = column.buffers()[1]
    width = np.dtype(dtype).itemsize
    if data is None or not len(column):
        return np.zeros(len(column), dtype)
    return np.frombuffer(data, dtype, len(column), column.offset * width)
