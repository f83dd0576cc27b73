"""A second implementation of joins by a condition: every tuple with every row, in plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa

_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_DAY = 86_400 * 10**9

Test = Callable[..., bool]
"""Whether a stream value and a row's values meet; none of them is null or not a number."""


def plain_values(column: pa.ChunkedArray) -> list[Any]:
    """The values as Python objects that compare exactly: moments are whole nanoseconds."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_date(kind):
        factor = _DAY if pa.types.is_date32(kind) else 10**6
    elif pa.types.is_temporal(kind):
        factor = _NANOSECONDS[kind.unit]
    else:
        return [None if _is_nan(value) else value for value in column.to_pylist()]
    width = pa.int32() if kind.bit_width == 32 else pa.int64()
    ticks = [chunk.view(width).to_pylist() for chunk in column.chunks]
    return [None if t is None else t * factor for part in ticks for t in part]


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def meeting(
    stream: pa.ChunkedArray, bounds: list[pa.ChunkedArray], test: Test
) -> list[tuple[int, int]]:
    """Numbers of the tuples and rows that meet."""
    rows = list(zip(*map(plain_values, bounds), strict=True))
    return [
        (i, j)
        for i, value in enumerate(plain_values(stream))
        if value is not None
        for j, row in enumerate(rows)
        if None not in row and test(value, *row)
    ]


def expected(how: str, tuples: int, pairs: list[tuple[int, int]]) -> list[tuple[Any, ...]]:
    """What a join gives of numbered tuples and rows."""
    met = {i for i, _ in pairs}
    if how == "inner":
        return list(pairs)
    if how == "left":
        return [*pairs, *((i, None) for i in range(tuples) if i not in met)]
    return [(i,) for i in range(tuples) if (i in met) == (how == "semi")]
