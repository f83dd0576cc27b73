"""Numbers between NumPy and Arrow, without pandas.

PyArrow's own conversions import pandas, even for an array of integers: a quarter of a second and
28 MB in each process. Numbers are shared here, not copied; truth values are packed as Arrow wants
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["no_rows", "strings", "to_arrow", "to_numpy"]


def to_arrow(values: NDArray[Any]) -> pa.Array:
    """An Arrow array of numbers or truth values, none of them null.

    >>> to_arrow(np.array([3, 5], np.int32)).to_pylist()
    [3, 5]
    >>> to_arrow(np.array([True, False])).to_pylist()
    [True, False]
    """
    kind = pa.from_numpy_dtype(values.dtype)
    is_bool = values.dtype == np.bool_
    data = np.packbits(values, bitorder="little") if is_bool else np.ascontiguousarray(values)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(data)])


def to_numpy(array: pa.Array) -> NDArray[Any]:
    """The values of an Arrow array of numbers or truth values; null slots hold anything.

    >>> to_numpy(pa.array([3, 5, 8])[1:]).tolist()
    [5, 8]
    >>> to_numpy(pa.array([True, False, True])[1:]).tolist()
    [False, True]
    """
    data, begin, end = array.buffers()[1], array.offset, array.offset + len(array)
    if pa.types.is_boolean(array.type):
        packed = np.frombuffer(data, np.uint8) if end else np.empty(0, np.uint8)
        return np.unpackbits(packed, count=end, bitorder="little")[begin:].view(np.bool_)
    dtype = np.dtype(array.type.to_pandas_dtype())
    if data is None:
        return np.empty(0, dtype)
    values = np.frombuffer(data, dtype, len(array), begin * dtype.itemsize)
    values.flags.writeable = False
    return values


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """A batch of these columns, without rows."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)


def strings(values: Sequence[str]) -> pa.Array:
    """An Arrow array of strings.

    >>> strings(["a", "", "bc"]).to_pylist()
    ['a', '', 'bc']
    """
    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(
        len(encoded), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))
    )
