"""Join keys as int64 codes.

Kernels and indexes know only int64. A single integer-like key column *is* its code (the codec
is `exact`). Every other key is hashed to a code, so rows that are paired by equal codes must then
be compared by their true keys, with `KeyCodec.equal`.

`key_hash` defines the hash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from semistream.arrow_arrays import to_arrow, to_numpy
from semistream.errors import KeyColumnError, KeyTypeError
from semistream.key_casts import cast_bytes, cast_decimal, cast_integer, cast_ticks
from semistream.key_hash import combine, hash_fixed, hash_values, hash_variable

__all__ = ["Codes", "KeyCodec", "Validity"]

Codes: TypeAlias = NDArray[np.int64]
"""One code per row."""
Validity: TypeAlias = NDArray[np.bool_] | None
"""True where no key component is null; None when that is so everywhere."""

_HASH_MASK = -1
"""Tests narrow it to force collisions. It is not used in kernels: they would compile it in."""


class KeyCodec:
    """Turns key columns into codes, and casts stream columns to the master's key types.

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
        # Always read-only, so that Numba compiles the kernels that take codes only once.
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

        A value that the master's type cannot hold becomes null, because it can match nothing.
        Columns that have the master's type already are not copied.
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
        result: NDArray[np.bool_] = to_numpy(same) & to_numpy(same.is_valid())
        return result

    def numbered(self, columns: Sequence[pa.Array], codes: Codes) -> NDArray[np.int64]:
        """A number for each row, the same for equal keys only; O(n log n).

        The columns have the master's types and no nulls; `codes` are their codes.
        """
        if self._exact or len(codes) < 2:
            return codes
        order = np.argsort(codes, kind="stable")
        one, next_one = order[:-1], order[1:]
        left, right = to_arrow(one), to_arrow(next_one)
        same = self.equal([c.take(left) for c in columns], [c.take(right) for c in columns])
        shared = codes[one[~same & (codes[one] == codes[next_one])]]
        numbers = np.unique(codes, return_inverse=True)[1].astype(np.int64)
        # Different keys that share a code are very rare, so Python may tell them apart.
        rows = np.flatnonzero(np.isin(codes, shared))
        known: dict[tuple[object, ...], int] = {}
        some = [column.take(to_arrow(rows)).to_pylist() for column in columns]
        for row, key in zip(rows.tolist(), zip(*some, strict=True), strict=True):
            numbers[row] = len(codes) + known.setdefault(key, len(known))
        return numbers

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
            combine(part, combined)
        return combined


def _family(type_: pa.DataType) -> str | None:
    """The family of types whose values can be equal to each other; None if not a key type."""
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
    # Before binary, because Arrow counts decimals as fixed-size binaries.
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
    """The column's values as int64; not copied if they are 8 bytes wide."""
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
        hash_values(values, out)
    elif pa.types.is_decimal(type_) or pa.types.is_fixed_size_binary(type_):
        width = type_.byte_width
        hash_fixed(_view(buffers[1], np.uint8, column.offset * width, rows * width), width, out)
    elif rows:
        wide = pa.types.is_large_string(type_) or pa.types.is_large_binary(type_)
        offsets = _view(buffers[1], np.int64 if wide else np.int32, column.offset, rows + 1)
        hash_variable(offsets, _view(buffers[2], np.uint8, 0, int(offsets[-1])), out)
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
        return cast_integer(column, target)
    if family == "decimal":
        return cast_decimal(column, target)
    if family in ("string", "binary"):
        return cast_bytes(column, target, name)
    return cast_ticks(column, target)
