"""Lossless casts of stream key columns to the master's key types.

A value that the master's type cannot hold becomes null, which matches nothing. A cast must neither
fail on such a value nor turn it into another one.
"""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.errors import KeyTypeError

__all__ = ["cast_bytes", "cast_decimal", "cast_integer", "cast_ticks", "ticks_per"]

_INT64_MAX = 2**63 - 1
_TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_MILLIS_PER_DAY = 86_400_000


def _keep(mask: pa.Array, values: pa.Array) -> pa.Array:
    """The values where the mask is true, null elsewhere."""
    return pc.if_else(mask, values, pa.scalar(None, values.type))


def _integer_range(type_: pa.DataType) -> tuple[int, int]:
    info = np.iinfo(type_.to_pandas_dtype())
    return int(info.min), int(info.max)


def cast_integer(column: pa.Array, target: pa.DataType) -> pa.Array:
    """Integers of any width and sign."""
    (low, high), (target_low, target_high) = _integer_range(column.type), _integer_range(target)
    if low < target_low:
        column = _keep(pc.greater_equal(column, pa.scalar(target_low, column.type)), column)
    if high > target_high:
        column = _keep(pc.less_equal(column, pa.scalar(target_high, column.type)), column)
    # All valid values are in range now. Null slots may hold anything, so the cast must not check.
    return pc.cast(column, target, safe=False)


def ticks_per(type_: pa.DataType) -> int:
    """Ticks per day for dates, per second for the rest."""
    if pa.types.is_date(type_):
        return 1 if pa.types.is_date32(type_) else _MILLIS_PER_DAY
    return _TICKS[type_.unit]


def cast_ticks(column: pa.Array, target: pa.DataType) -> pa.Array:
    """Dates, timestamps, times and durations, which are counts of ticks of some unit."""
    source, goal = ticks_per(column.type), ticks_per(target)
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
    narrow = cast_integer(ticks, pa.int32()) if target.bit_width == 32 else ticks
    return narrow.view(target)


def cast_decimal(column: pa.Array, target: pa.DataType) -> pa.Array:
    """Decimals of any precision and scale."""
    source = column.type
    wide = column.cast(pa.decimal256(76, source.scale))
    # The target holds |value| < 10 ** (precision - scale). As an unscaled number of the source's
    # scale, that bound is a 1 with `zeros` zeros.
    zeros = target.precision - target.scale + source.scale
    if zeros < source.precision:
        bound = Decimal((0, (1, *(0,) * max(zeros, 0)), -source.scale))
        high, low = pa.scalar(bound, wide.type), pa.scalar(bound.copy_negate(), wide.type)
        wide = _keep(pc.and_(pc.less(wide, high), pc.greater(wide, low)), wide)
    scaled = wide.cast(pa.decimal256(76, target.scale), safe=False)
    if target.scale < source.scale:
        scaled = _keep(pc.equal(scaled.cast(wide.type, safe=False), wide), scaled)
    return scaled.cast(target, safe=False)


def cast_bytes(column: pa.Array, target: pa.DataType, name: str) -> pa.Array:
    """Strings, and bytes of fixed or varying length."""
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
