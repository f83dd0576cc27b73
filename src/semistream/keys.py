"""Join keys as int64 codes.

Kernels and indexes know only int64. A single integer-like key column *is* its code (the codec
is `exact`). Every other key is hashed to a code, and whoever pairs two rows by equal codes
compares their true keys with `KeyCodec.equal`.

Codes are written to disk, so the hash never changes. All arithmetic is modulo 2**64:

    fmix64(h):   h ^= h >> 33; h *= 0xFF51AFD7ED558CCD
                 h ^= h >> 33; h *= 0xC4CEB9FE1A85EC53; h ^= h >> 33        (MurmurHash3)
    bytes:       h = length * 0x9E3779B97F4A7C15
                 for each little-endian 8-byte word w, the last one padded with zero bytes:
                     h = (h ^ w) * 0x9FB21C651E98DF25; h ^= h >> 32
                 fmix64(h)
    exact value: fmix64(code), as a component of a composite key
    composite:   h = 0; for each component c: h = fmix64(((h + 0x9E3779B97F4A7C15)
                                                          * 0x9FB21C651E98DF25) ^ c)

Strings are hashed as their UTF-8 bytes, decimals as the bytes of their unscaled
two's-complement value at the width of the master's type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, TypeAlias, TypeVar, cast

import numba
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from semistream.errors import KeyColumnError, KeyTypeError

__all__ = ["Codes", "KeyCodec", "Validity"]

Codes: TypeAlias = NDArray[np.int64]
"""One code per row."""
Validity: TypeAlias = NDArray[np.bool_] | None
"""True where no key component is null; None when that is so everywhere."""

# Tests narrow it to force collisions; applied outside the compiled kernels, which would freeze it.
_HASH_MASK = -1

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_PRIME = np.uint64(0x9FB21C651E98DF25)
_MIX_1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX_2 = np.uint64(0xC4CEB9FE1A85EC53)
_S32, _S33 = np.uint64(32), np.uint64(33)
_B1, _B2, _B3, _B4 = np.uint64(8), np.uint64(16), np.uint64(24), np.uint64(32)
_B5, _B6, _B7 = np.uint64(40), np.uint64(48), np.uint64(56)

_INT64_MAX = 2**63 - 1
_TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_MILLIS_PER_DAY = 86_400_000

_Function = TypeVar("_Function", bound=Callable[..., Any])


def kernel(function: _Function) -> _Function:
    """Compile `function`, cached on disk and free of the GIL, and keep its type."""
    return cast(_Function, numba.njit(cache=True, nogil=True)(function))


@kernel
def _fmix64(h: np.uint64) -> np.uint64:
    h = (h ^ (h >> _S33)) * _MIX_1
    h = (h ^ (h >> _S33)) * _MIX_2
    return h ^ (h >> _S33)


@kernel
def _word(data: NDArray[np.uint8], at: int) -> np.uint64:
    # Written out so that LLVM makes one 8-byte load of it.
    return (
        np.uint64(data[at])
        | (np.uint64(data[at + 1]) << _B1)
        | (np.uint64(data[at + 2]) << _B2)
        | (np.uint64(data[at + 3]) << _B3)
        | (np.uint64(data[at + 4]) << _B4)
        | (np.uint64(data[at + 5]) << _B5)
        | (np.uint64(data[at + 6]) << _B6)
        | (np.uint64(data[at + 7]) << _B7)
    )


@kernel
def _hash_span(data: NDArray[np.uint8], start: int, stop: int) -> np.uint64:
    h = np.uint64(stop - start) * _GOLDEN
    at = start
    while at + 8 <= stop:
        h = (h ^ _word(data, at)) * _PRIME
        h ^= h >> _S32
        at += 8
    if at < stop:
        tail = np.uint64(0)
        for i in range(at, stop):
            tail |= np.uint64(data[i]) << np.uint64(8 * (i - at))
        h = (h ^ tail) * _PRIME
        h ^= h >> _S32
    return _fmix64(h)


@kernel
def _hash_variable(offsets: NDArray[Any], data: NDArray[np.uint8], out: NDArray[np.uint64]) -> None:
    for i in range(out.size):
        out[i] = _hash_span(data, np.int64(offsets[i]), np.int64(offsets[i + 1]))  # type: ignore[arg-type]


@kernel
def _hash_fixed(data: NDArray[np.uint8], width: int, out: NDArray[np.uint64]) -> None:
    for i in range(out.size):
        out[i] = _hash_span(data, i * width, (i + 1) * width)


@kernel
def _hash_values(values: NDArray[np.int64], out: NDArray[np.uint64]) -> None:
    for i in range(out.size):
        out[i] = _fmix64(np.uint64(values[i]))


@kernel
def _combine(parts: NDArray[np.uint64], into: NDArray[np.uint64]) -> None:
    for i in range(into.size):
        into[i] = _fmix64(((into[i] + _GOLDEN) * _PRIME) ^ parts[i])


class KeyCodec:
    """Turns key columns of the master's types into codes, and other columns into those types.

    >>> codec = KeyCodec([pa.field("id", pa.int32())])
    >>> codec.exact, codec.codes([pa.array([7, -1], pa.int32())])[0].tolist()
    (True, [7, -1])
    """

    def __init__(self, fields: Sequence[pa.Field]) -> None:
        if not fields:
            raise KeyColumnError("No key column was given. Name at least one column as the key.")
        for field in fields:
            if _family(field.type) is None or _is_view(field.type):
                raise KeyTypeError(
                    f"Key column {field.name!r} has type {field.type}, which cannot be a join key. "
                    "Cast it to an integer, a decimal, a string or another exactly comparable type."
                )
        self._fields = tuple(fields)
        self._exact = len(fields) == 1 and _is_exact(fields[0].type)

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        """The master's key fields, in key order."""
        return self._fields

    @property
    def exact(self) -> bool:
        """True when equal codes mean equal keys; otherwise pairs are checked with `equal`."""
        return self._exact

    def codes(self, columns: Sequence[pa.Array]) -> tuple[Codes, Validity]:
        """The code and the validity of every row; O(bytes of the keys).

        The columns have the master's types (see `align`). Rows with a null component are
        invalid and their code means nothing. The codes are read-only, and a view of the
        column when it is int64 already: they live as long as its memory does.
        """
        self._check_count(len(columns))
        if self._exact:
            codes = _values(columns[0])
        else:
            codes = self._hashes(columns).view(np.int64)
            if _HASH_MASK != -1:
                codes = codes & np.int64(_HASH_MASK)
        # One flag for all makes one Numba specialisation of the kernels that take codes.
        codes.flags.writeable = False
        return codes, _validity(columns)

    def check_types(self, types: Sequence[pa.DataType], names: Sequence[str]) -> None:
        """Raise `KeyTypeError` unless stream columns of these types can match the key."""
        self._check_count(len(types))
        for field, type_, name in zip(self._fields, types, names, strict=True):
            plain = type_.value_type if pa.types.is_dictionary(type_) else type_
            if not pa.types.is_null(plain) and _family(plain) != _family(field.type):
                raise KeyTypeError(
                    f"Stream column {name!r} has type {type_} and master key column "
                    f"{field.name!r} has type {field.type}; these never match. Cast {name!r} to "
                    f"{field.type} before the join, or rebuild the master with another key type."
                )

    def align(self, columns: Sequence[pa.Array], names: Sequence[str]) -> list[pa.Array]:
        """Cast stream key columns to the master's types, losslessly.

        A value that the master's type cannot hold becomes null: it can match nothing. Free
        where the types are equal; a cast otherwise.
        """
        self._check_count(len(columns))
        aligned = list(columns)
        for i, field in enumerate(self._fields):
            if columns[i].type != field.type:
                self.check_types([column.type for column in columns], names)
                aligned[i] = _cast_key(columns[i], field.type, names[i])
        return aligned

    def equal(self, left: Sequence[pa.Array], right: Sequence[pa.Array]) -> NDArray[np.bool_]:
        """Row by row, whether the true keys are equal; a null equals nothing."""
        self._check_count(len(left))
        self._check_count(len(right))
        same = pc.equal(left[0], right[0])
        for i in range(1, len(left)):
            same = pc.and_(same, pc.equal(left[i], right[i]))
        result: NDArray[np.bool_] = pc.fill_null(same, False).to_numpy(zero_copy_only=False)
        return result

    def _check_count(self, count: int) -> None:
        if count != len(self._fields):
            names = ", ".join(repr(field.name) for field in self._fields)
            raise KeyColumnError(
                f"{count} key columns were given, but the master's key has {len(self._fields)}: "
                f"{names}. Give one column for each of them."
            )

    def _hashes(self, columns: Sequence[pa.Array]) -> NDArray[np.uint64]:
        parts = [_component_hashes(column) for column in columns]
        if len(parts) == 1:
            return parts[0]
        combined = np.zeros(len(columns[0]), np.uint64)
        for part in parts:
            _combine(part, combined)
        return combined


def _family(type_: pa.DataType) -> str | None:
    """The set of types whose values can be equal to each other's; None if not a key type."""
    if pa.types.is_timestamp(type_):
        return "timestamp" if type_.tz is None else "timestamp with time zone"
    for name, test in _FAMILIES.items():
        if test(type_):
            return name
    return None


def _is_string(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(type_)
        or pa.types.is_large_string(type_)
        or pa.types.is_string_view(type_)
    )


def _is_binary(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(type_)
        or pa.types.is_large_binary(type_)
        or pa.types.is_fixed_size_binary(type_)
        or pa.types.is_binary_view(type_)
    )


_FAMILIES: dict[str, Callable[[pa.DataType], bool]] = {
    "integer": pa.types.is_integer,
    "boolean": pa.types.is_boolean,
    "string": _is_string,
    # Before binary: Arrow counts decimals among the fixed-size binaries.
    "decimal": pa.types.is_decimal,
    "binary": _is_binary,
    "date": pa.types.is_date,
    "time": pa.types.is_time,
    "duration": pa.types.is_duration,
}


def _is_view(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(type_) or pa.types.is_binary_view(type_))


def _is_exact(type_: pa.DataType) -> bool:
    return _family(type_) not in ("string", "binary", "decimal", None)


def _view(buffer: pa.Buffer | None, dtype: Any, start: int, count: int) -> NDArray[Any]:
    """`count` items from item `start` of an Arrow buffer, read-only."""
    if buffer is None or count == 0:
        values = np.zeros(count, dtype)
    else:
        values = np.frombuffer(buffer, dtype, count, start * np.dtype(dtype).itemsize)
    values.flags.writeable = False
    return values


def _bits(buffer: pa.Buffer | None, start: int, count: int) -> NDArray[np.uint8]:
    """`count` bits from bit `start` of an Arrow bitmap, a byte each."""
    first = start // 8
    packed = _view(buffer, np.uint8, first, -(-(start + count) // 8) - first if count else 0)
    return np.unpackbits(packed, bitorder="little", count=start % 8 + count)[start % 8 :]


def _values(column: pa.Array) -> Codes:
    """The column's own values as int64, without a copy where its width allows."""
    type_ = column.type
    buffer = column.buffers()[1]
    if pa.types.is_boolean(type_):
        return _bits(buffer, column.offset, len(column)).astype(np.int64)
    signed = not pa.types.is_unsigned_integer(type_)
    dtype = np.dtype(f"{'i' if signed else 'u'}{type_.bit_width // 8}")
    values = _view(buffer, dtype, column.offset, len(column))
    return values.view(np.int64) if dtype.itemsize == 8 else values.astype(np.int64)


def _validity(columns: Sequence[pa.Array]) -> Validity:
    valid: Validity = None
    for column in columns:
        if column.null_count:
            bits = _bits(column.buffers()[0], column.offset, len(column)).view(np.bool_)
            valid = bits if valid is None else valid & bits
    return valid


def _component_hashes(column: pa.Array) -> NDArray[np.uint64]:
    type_, rows, buffers = column.type, len(column), column.buffers()
    out = np.empty(rows, np.uint64)
    if _is_exact(type_):
        values = _values(column)
        values.flags.writeable = False
        _hash_values(values, out)
    elif pa.types.is_decimal(type_) or pa.types.is_fixed_size_binary(type_):
        width = type_.byte_width
        _hash_fixed(_view(buffers[1], np.uint8, column.offset * width, rows * width), width, out)
    elif rows:
        wide = pa.types.is_large_string(type_) or pa.types.is_large_binary(type_)
        offsets = _view(buffers[1], np.int64 if wide else np.int32, column.offset, rows + 1)
        _hash_variable(offsets, _view(buffers[2], np.uint8, 0, int(offsets[-1])), out)
    return out


def _cast_key(column: pa.Array, target: pa.DataType, name: str) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.type == target:
        return column
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), target)
    family = _family(target)
    if family == "integer":
        return _cast_integer(column, target)
    if family == "decimal":
        return _cast_decimal(column, target)
    if family in ("string", "binary"):
        return _cast_bytes(column, target, name)
    return _cast_ticks(column, target)


def _keep(mask: pa.Array, values: pa.Array) -> pa.Array:
    """The values where the mask is true, null elsewhere."""
    return pc.if_else(mask, values, pa.scalar(None, values.type))


def _integer_range(type_: pa.DataType) -> tuple[int, int]:
    info = np.iinfo(type_.to_pandas_dtype())
    return int(info.min), int(info.max)


def _cast_integer(column: pa.Array, target: pa.DataType) -> pa.Array:
    (low, high), (target_low, target_high) = _integer_range(column.type), _integer_range(target)
    if low < target_low:
        column = _keep(pc.greater_equal(column, pa.scalar(target_low, column.type)), column)
    if high > target_high:
        column = _keep(pc.less_equal(column, pa.scalar(target_high, column.type)), column)
    # Values under a null slot may be anything, hence unsafe; the others are now in range.
    return pc.cast(column, target, safe=False)


def _ticks(type_: pa.DataType) -> int:
    """Ticks per day for dates, per second for the rest."""
    if pa.types.is_date(type_):
        return 1 if pa.types.is_date32(type_) else _MILLIS_PER_DAY
    return _TICKS[type_.unit]


def _cast_ticks(column: pa.Array, target: pa.DataType) -> pa.Array:
    source, goal = _ticks(column.type), _ticks(target)
    ticks = column.view(f"int{column.type.bit_width}").cast(pa.int64())
    if goal > source:
        factor = goal // source
        limit = _INT64_MAX // factor
        fits = pc.and_(pc.less_equal(ticks, limit), pc.greater_equal(ticks, -limit))
        ticks = pc.multiply(_keep(fits, ticks), factor)
    elif goal < source:
        factor = source // goal
        whole = pc.divide(ticks, factor)
        ticks = _keep(pc.equal(pc.multiply(whole, factor), ticks), whole)
    narrow = _cast_integer(ticks, pa.int32()) if target.bit_width == 32 else ticks
    return narrow.view(target)


def _cast_decimal(column: pa.Array, target: pa.DataType) -> pa.Array:
    source = column.type
    wide = column.cast(pa.decimal256(76, source.scale))
    # |value| < 10**digits must hold; in unscaled source units the bound has `zeros` zeros.
    zeros = target.precision - target.scale + source.scale
    if zeros < source.precision:
        bound = Decimal((0, (1, *(0,) * max(zeros, 0)), -source.scale))
        high, low = pa.scalar(bound, wide.type), pa.scalar(bound.copy_negate(), wide.type)
        wide = _keep(pc.and_(pc.less(wide, high), pc.greater(wide, low)), wide)
    scaled = wide.cast(pa.decimal256(76, target.scale), safe=False)
    if target.scale < source.scale:
        scaled = _keep(pc.equal(scaled.cast(wide.type, safe=False), wide), scaled)
    return scaled.cast(target, safe=False)


def _cast_bytes(column: pa.Array, target: pa.DataType, name: str) -> pa.Array:
    if pa.types.is_fixed_size_binary(target):
        if pa.types.is_fixed_size_binary(column.type):
            return pa.nulls(len(column), target)
        plain = column.cast(pa.large_binary())
        fits = pc.equal(pc.binary_length(plain), target.byte_width)
        filler = pa.scalar(b"\0" * target.byte_width, pa.large_binary())
        return _keep(fits, pc.if_else(pc.fill_null(fits, False), plain, filler).cast(target))
    try:
        return column.cast(target)
    except pa.ArrowInvalid as error:
        raise KeyTypeError(
            f"Stream column {name!r} cannot be cast from {column.type} to {target}: {error}. "
            "Send smaller stream batches."
        ) from error
