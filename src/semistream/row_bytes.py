"""How many bytes each row of a column takes in Arrow memory, without a loop over rows.

Pages are cut, and pieces of output are bounded, by these sizes. Nested columns are followed
down; what has no per-row size (a union, say) counts its whole column for each row, which is an
upper bound.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_FLAG = 1
"""Validity: a bit, counted as a byte."""


def row_bytes(columns: pa.RecordBatch | pa.StructArray) -> NDArray[np.int64]:
    """Bytes per row over all columns. O(rows + nested values).

    >>> row_bytes(pa.record_batch({"id": [1, 2], "name": ["a", "bcd"]})).tolist()
    [15, 17]
    """
    total = np.zeros(len(columns), np.int64)
    arrays = columns.flatten() if isinstance(columns, pa.StructArray) else columns.columns
    for array in arrays:
        total += _value_bytes(array)
    return total


def _value_bytes(array: pa.Array) -> NDArray[np.int64]:
    kind = array.type
    if pa.types.is_struct(kind):
        return row_bytes(array) + _FLAG
    if pa.types.is_fixed_size_list(kind):
        inner = array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size)
        sizes = _value_bytes(inner).reshape(len(array), kind.list_size)
        return np.asarray(sizes.sum(axis=1) + _FLAG, np.int64)
    if pa.types.is_list(kind) or pa.types.is_map(kind) or pa.types.is_large_list(kind):
        wide = pa.types.is_large_list(kind)
        offsets = _offsets(array, wide)
        inner = pa.StructArray.from_arrays([array.keys, array.items], ["k", "v"]) if (
            pa.types.is_map(kind)
        ) else array.values
        ends = np.concatenate([[0], np.cumsum(_value_bytes(inner))])
        return ends[offsets[1:]] - ends[offsets[:-1]] + (8 if wide else 4) + _FLAG
    wide = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    if wide or pa.types.is_string(kind) or pa.types.is_binary(kind):
        return np.diff(_offsets(array, wide)) + (8 if wide else 4) + _FLAG
    try:
        size = (kind.bit_width + 7) // 8
    except ValueError:
        size = array.nbytes
    return np.full(len(array), size + _FLAG, np.int64)


def _offsets(array: pa.Array, wide: bool) -> NDArray[np.int64]:
    dtype = np.dtype(np.int64 if wide else np.int32)
    buffer = array.buffers()[1]
    if buffer is None or not buffer.size:
        return np.zeros(len(array) + 1, np.int64)
    offsets = np.frombuffer(buffer, dtype, len(array) + 1, array.offset * dtype.itemsize)
    return offsets.astype(np.int64)
