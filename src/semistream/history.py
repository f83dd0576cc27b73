"""Times that rows begin and end at: which types they may have, and how they are compared.

Times are compared as whole numbers. Where two have different units, the finer one is rounded to the
coarser in the direction that changes no comparison, so nothing overflows.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from semistream.arrow_arrays import to_numpy
from semistream.errors import HistoryError, OptionError

__all__ = [
    "aligned",
    "check_history",
    "check_no_overlap",
    "nulls",
    "time_kind",
    "time_unit",
    "whole",
]

Ints: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]

_NANOS: Final = {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}
_DAY: Final = 86400 * 10**9


def time_kind(kind: pa.DataType) -> str | None:
    """What kind of time a type is; only times of one kind are compared. None if it is none.

    >>> time_kind(pa.timestamp("us", "UTC")), time_kind(pa.float64())
    ('timestamp with a time zone', None)
    """
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "timestamp with a time zone"
    if pa.types.is_date(kind):
        return "date"
    return "integer" if pa.types.is_integer(kind) and kind != pa.uint64() else None


def time_unit(kind: pa.DataType) -> int:
    """Nanoseconds of the type's unit; 1 for plain numbers."""
    if pa.types.is_timestamp(kind):
        return _NANOS[kind.unit]
    return _DAY if pa.types.is_date(kind) else 1


def whole(column: pa.Array) -> Ints:
    """The values as whole numbers of the type's unit; null slots hold anything."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        column = column.view(pa.int64())
    elif pa.types.is_date(kind):
        column = column.cast(pa.date32()).view(pa.int32())
    values: NDArray[Any] = to_numpy(column)
    return values.astype(np.int64, copy=False)


def aligned(
    time: Ints, time_type: pa.DataType, bound: Ints, bound_type: pa.DataType
) -> tuple[Ints, Ints]:
    """Times and bounds in one unit: `bound <= time` holds afterwards where it did before."""
    coarse, fine = time_unit(bound_type), time_unit(time_type)
    if coarse > fine:
        return time // (coarse // fine), bound
    if fine > coarse:
        return time, -(-bound // (fine // coarse))
    return time, bound


def nulls(column: pa.Array) -> Mask:
    """Which values are null."""
    if not column.null_count:
        return np.zeros(len(column), np.bool_)
    return np.asarray(to_numpy(column.is_null()))


def check_history(schema: pa.Schema, key: tuple[str, ...], valid: object) -> tuple[str, str] | None:
    """The two columns of `valid=`; `OptionError` unless rows can begin and end at them."""
    if valid is None:
        return None
    names = tuple(valid) if isinstance(valid, tuple | list) else ()
    if len(names) != 2 or len({*names}) != 2 or not all(isinstance(name, str) for name in names):
        raise OptionError(
            f'valid={valid!r} must name two columns, as in valid=("valid_from", "valid_to").'
        )
    missing = [name for name in names if name not in schema.names or name in key]
    if missing:
        raise OptionError(
            f"valid={names!r} must name columns of the data that are not of its key; the data has "
            f"{schema.names}, and the key is {list(key)}."
        )
    kinds = [schema.field(name).type for name in names]
    if time_kind(kinds[0]) is None or time_kind(kinds[0]) != time_kind(kinds[1]):
        raise OptionError(
            f"valid={names!r} are of types {kinds[0]} and {kinds[1]}. Cast them, so that both are "
            "timestamps with a time zone, timestamps without, dates, or integers."
        )
    return names[0], names[1]


def check_no_overlap(rows: pa.Table, key: tuple[str, ...], valid: tuple[str, str]) -> None:
    """Raise `HistoryError` if two rows of a key are valid at the same time. O(n log n).

    Sorted by their beginning, rows overlap only if two neighbours do.
    """
    begins, ends = (rows.column(name).combine_chunks() for name in valid)
    begin, end = whole(begins), whole(ends)
    never = nulls(begins)
    is_open = nulls(ends)
    at, until = aligned(begin, begins.type, end, ends.type)
    never |= ~is_open & (until <= at)
    chosen = np.flatnonzero(~never)
    owner = _owners(rows, key)[chosen]
    order = chosen[np.lexsort((begin[chosen], owner))]
    owner = np.sort(owner)
    first, second = order[:-1], order[1:]
    later, until = aligned(begin[second], begins.type, end[first], ends.type)
    overlap = (owner[1:] == owner[:-1]) & (is_open[first] | (later < until))
    if overlap.any():
        place = int(second[np.flatnonzero(overlap)[0]])
        told = ", ".join(f"{name}={rows.column(name)[place]}" for name in key)
        raise HistoryError(
            f"The data has, for the key {told}, more than one row that is valid at "
            f"{valid[0]}={begins[place]}. Mend its rows, so that each ends before the next begins."
        )


def _owners(rows: pa.Table, key: tuple[str, ...]) -> Ints:
    """A number for the key of each row, the same for equal keys."""
    owner = np.zeros(rows.num_rows, np.int64)
    for name in key:
        values = pc.dictionary_encode(rows.column(name).combine_chunks())
        places = to_numpy(values.indices).astype(np.int64)
        owner = np.unique(owner * (len(values.dictionary) + 1) + places, return_inverse=True)[1]
    return owner
