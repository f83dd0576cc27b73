"""Fixed-width Arrow columns as NumPy arrays, and back, without touching a value in Python.

Waiting stream tuples live in preallocated NumPy arrays, one per column, because a slot is
freed and used again long before its neighbours are: an Arrow batch could not give it back.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.arrow_arrays import to_numpy

Values = NDArray[np.generic]


def values_of(array: pa.Array, dtype: np.dtype[np.generic]) -> Values:
    """The column's values as a NumPy view (booleans are unpacked). Null slots hold anything."""
    if pa.types.is_boolean(array.type):
        return to_numpy(array)
    data = array.buffers()[1]
    if data is None:
        return np.zeros(len(array), dtype)
    return np.frombuffer(data, dtype, len(array), array.offset * dtype.itemsize)


def array_of(values: Values, kind: pa.DataType, valid: NDArray[np.bool_] | None) -> pa.Array:
    """An Arrow column over `values`, which it takes over."""
    data = values.view(np.uint8)
    if values.dtype == np.bool_:
        data = np.packbits(data, bitorder="little")
    bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [bitmap, pa.py_buffer(data)])


def valid_of(array: pa.Array) -> NDArray[np.bool_]:
    """Which values are not null."""
    return to_numpy(array.is_valid())
