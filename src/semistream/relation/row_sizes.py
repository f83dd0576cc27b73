"""How many bytes each row takes in Arrow memory.

Pages are cut, and gathers are cut into blocks, by these sizes. They are a plan, exact for
flat columns and close for nested ones; the page writer checks the real size afterwards.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

__all__ = ["row_sizes", "widest_flat"]

_VALIDITY = 1 / 8


def row_sizes(table: pa.Table) -> NDArray[np.float64]:
    """The bytes of each row; O(rows x columns), without a Python loop per row."""
    total = np.zeros(table.num_rows)
    for column in table.columns:
        validity = _VALIDITY if column.null_count else 0.0
        start = 0
        for chunk in column.chunks:
            total[start : start + len(chunk)] += _array_bytes(chunk) + validity
            start += len(chunk)
    return total


def widest_flat(column: pa.ChunkedArray) -> int | None:
    """The most bytes a row of this column takes, or None for a nested column.

    Validity counts as a whole byte, because a single row's bitmap is one.
    """
    type_ = _storage(column.type)
    if pa.types.is_nested(type_):
        return None
    if _is_variable(type_):
        longest = pc.max(pc.binary_length(_plain(column))).as_py() or 0
        return int(longest) + 1 + _offset_bytes(type_)
    if pa.types.is_null(type_):
        return 0
    return 1 + -(-int(type_.bit_width) // 8)


def _array_bytes(array: pa.Array) -> NDArray[np.float64] | float:
    type_ = array.type
    if isinstance(array, pa.ExtensionArray):
        return _array_bytes(array.storage)
    if pa.types.is_null(type_) or len(array) == 0:
        return 0.0
    if _is_variable(type_):
        return _lengths(pc.binary_length(array)) + _offset_bytes(type_)
    if pa.types.is_struct(type_):
        children = [_array_bytes(array.field(i)) for i in range(type_.num_fields)]
        return np.zeros(len(array)) + sum(children) + _VALIDITY
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return _list_bytes(array, array.values) + _VALIDITY
    if pa.types.is_map(type_):
        return _list_bytes(array, array.keys) + _list_bytes(array, array.items)
    try:
        return float(type_.bit_width) / 8
    except ValueError:
        # Unions and fixed-size lists: the average will do, the writer splits what is too large.
        return float(array.nbytes) / len(array)


def _list_bytes(array: pa.Array, values: pa.Array) -> NDArray[np.float64]:
    """Offsets plus the bytes of each list's elements, by differences of a running sum."""
    sums = np.zeros(len(values) + 1)
    np.cumsum(np.zeros(len(values)) + _array_bytes(values) + _VALIDITY, out=sums[1:])
    offsets = array.offsets.to_numpy(zero_copy_only=False)
    sizes: NDArray[np.float64] = np.diff(sums[offsets]) + _offset_bytes(array.type)
    return sizes


def _lengths(lengths: pa.Array) -> NDArray[np.float64]:
    result: NDArray[np.float64] = pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False)
    return result.astype(np.float64)


def _is_variable(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(type_)
        or pa.types.is_large_string(type_)
        or pa.types.is_binary(type_)
        or pa.types.is_large_binary(type_)
    )


def _offset_bytes(type_: pa.DataType) -> int:
    wide = (
        pa.types.is_large_string(type_)
        or pa.types.is_large_binary(type_)
        or pa.types.is_large_list(type_)
    )
    return 8 if wide else 4


def _storage(type_: pa.DataType) -> pa.DataType:
    return type_.storage_type if isinstance(type_, pa.BaseExtensionType) else type_


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if isinstance(column.type, pa.BaseExtensionType):
        return pa.chunked_array(
            [chunk.storage for chunk in column.chunks], column.type.storage_type
        )
    return column
