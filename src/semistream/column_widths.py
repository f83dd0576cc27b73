"""How wide the values of a column are, as the kernels that go through them want to know."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

__all__ = ["column_width", "fixed_dtype", "is_flat", "is_large"]


def fixed_dtype(kind: pa.DataType) -> np.dtype[np.generic] | None:
    """How one value of `kind` is kept in a slot, or None when its size varies."""
    if pa.types.is_boolean(kind):
        return np.dtype(np.bool_)
    if pa.types.is_dictionary(kind) or not (
        pa.types.is_primitive(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_fixed_size_binary(kind)
    ):
        return None
    width: int = kind.bit_width // 8
    if width == 0:
        return None
    return np.dtype(f"i{width}") if width in (1, 2, 4, 8) else np.dtype(f"V{width}")


def column_width(kind: pa.DataType) -> int:
    """The width of a column as `kernels.rows.FIELD` has it."""
    dtype = fixed_dtype(kind)
    if dtype is None:
        return -8 if is_large(kind) else -4
    return 0 if dtype == np.bool_ else dtype.itemsize


def is_flat(kind: pa.DataType) -> bool:
    """Whether kernels know how its values lie in memory: not nested, not a dictionary."""
    varying = pa.types.is_string(kind) or pa.types.is_binary(kind) or is_large(kind)
    return fixed_dtype(kind) is not None or bool(varying)


def is_large(kind: pa.DataType) -> bool:
    """Whether a varying column has offsets of eight bytes."""
    return bool(pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))
