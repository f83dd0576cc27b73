"""How many bytes each row takes in Arrow memory, without a loop over rows.

Pages are cut, and pieces of output are bounded, by these sizes. Nested columns are followed
down. A type without a size per row counts its whole column for each row: an upper bound.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

WHOLE_FLAG = 1.0
"""Bytes of a validity bit when a row is alone in an array: an upper bound."""
PACKED_FLAG = 1 / 8
"""Bytes of a validity bit among many rows."""

Sizes = NDArray[np.float64]


def row_bytes(rows: pa.RecordBatch | pa.Table, flag: float = WHOLE_FLAG) -> Sizes:
    """Bytes per row over all columns. O(rows + nested values).

    >>> row_bytes(pa.record_batch({"id": [1, 2], "name": ["a", "bcd"]})).tolist()
    [15.0, 17.0]
    """
    total = np.zeros(rows.num_rows)
    for column in rows.columns:
        start = 0
        for array in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            total[start : start + len(array)] += _value_bytes(array, flag)
            start += len(array)
    return total


def widest_row(batch: pa.RecordBatch) -> int:
    """The most that a row of `batch` takes; columns of fixed width are not looked at.

    >>> widest_row(pa.record_batch({"id": [1, 2], "name": ["a", "bcd"]}))
    17
    """
    fixed, varying = 0.0, None
    for column in batch.columns:
        if _is_varying(column.type):
            offsets = _offsets(column)
            fixed += WHOLE_FLAG + offsets.itemsize
            sizes = offsets[1:] - offsets[:-1]
        elif pa.types.is_primitive(column.type):
            fixed += WHOLE_FLAG + column.type.bit_width / 8
            continue
        else:
            sizes = _value_bytes(column, WHOLE_FLAG)
        varying = sizes if varying is None else np.add(varying, sizes, dtype=np.float64)
    return math.ceil(fixed + (0 if varying is None else float(varying.max())))


def _value_bytes(array: pa.Array, flag: float) -> Sizes:
    if isinstance(array, pa.ExtensionArray):
        return _value_bytes(array.storage, flag)
    kind = array.type
    sizes = np.full(len(array), flag)
    if not len(array) or pa.types.is_null(kind):
        return sizes
    if pa.types.is_struct(kind):
        # Not `flatten`: it ends the process if a child is a union.
        children = (array.field(i) for i in range(kind.num_fields))
        return sum((_value_bytes(child, flag) for child in children), start=sizes)
    if pa.types.is_union(kind) and kind.mode == "sparse":
        # Every row has a value in each of the fields, used or not, and a byte that says which.
        fields = (array.field(i) for i in range(kind.num_fields))
        return sum((_value_bytes(field, flag) for field in fields), start=sizes + 1)
    if pa.types.is_fixed_size_list(kind):
        inner = array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size)
        values = _value_bytes(inner, flag).reshape(len(array), kind.list_size)
        return np.asarray(sizes + values.sum(axis=1))
    if pa.types.is_map(kind):
        pairs = _value_bytes(array.keys, flag) + _value_bytes(array.items, flag)
        return sizes + _list_bytes(array, pairs)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return sizes + _list_bytes(array, _value_bytes(array.values, flag))
    if _is_varying(kind):
        offsets = _offsets(array)
        return sizes + np.diff(offsets) + offsets.itemsize
    try:
        return sizes + float(kind.bit_width) / 8
    except ValueError:
        return sizes + float(array.nbytes)


def _is_varying(kind: pa.DataType) -> bool:
    return any(
        is_kind(kind)
        for is_kind in (
            pa.types.is_string,
            pa.types.is_binary,
            pa.types.is_large_string,
            pa.types.is_large_binary,
        )
    )


def _list_bytes(array: pa.Array, values: Sizes) -> Sizes:
    """Bytes of each list: its offset and its values, from differences of a running sum."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    offsets = _offsets(array)
    return np.asarray(np.diff(sums[offsets]) + offsets.itemsize)


def _offsets(array: pa.Array) -> NDArray[Any]:
    kind = array.type
    wide = any(
        is_kind(kind)
        for is_kind in (pa.types.is_large_list, pa.types.is_large_string, pa.types.is_large_binary)
    )
    dtype = np.dtype(np.int64) if wide else np.dtype(np.int32)
    return np.frombuffer(array.buffers()[1], dtype, len(array) + 1, array.offset * dtype.itemsize)
