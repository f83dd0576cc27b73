"""History in the master: which of a key's rows counts at the time of a stream tuple.

Times are compared as whole numbers. Where the two sides have different units, the finer one is
rounded to the coarser in the direction that changes no comparison, so nothing overflows.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.arrow_arrays import to_numpy
from semistream.errors import OptionError
from semistream.matching.condition import Columns, Place
from semistream.matching.terms import Terms

__all__ = ["TimeRule"]

_Ints: TypeAlias = NDArray[np.int64]
_Mask: TypeAlias = NDArray[np.bool_]

_NANOS: Final = {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}
_DAY: Final = 86400 * 10**9
_LEAST: Final = -(2**63)


@dataclass(frozen=True)
class TimeRule:
    """When a master row counts: from a time on, and perhaps until another."""

    event: Place
    begins: Place
    ends: Place | None
    """None if the latest row that has begun counts, as long as there is no later one."""
    tolerance: int | None = None
    """How much older the latest row may be, in the finer unit of both columns."""

    @classmethod
    def of(cls, terms: Terms, columns: Columns) -> TimeRule | None:
        """The rule of a join; `OptionError` if the columns are no times that can be compared."""
        named = terms.valid or terms.as_of
        if named is None:
            return None
        what = "valid" if terms.valid is not None else "as_of"
        event, *bounds = (
            _place(columns.stream if not i else columns.master, name, not i, what)
            for i, name in enumerate(named)
        )
        for bound in bounds:
            if _kind(event.type) != _kind(bound.type):
                raise OptionError(
                    f"{what} compares the stream's {event.name!r}, {_told(event.type)}, with the "
                    f"master's {bound.name!r}, {_told(bound.type)}. Cast one of them, so that "
                    "both are timestamps with a time zone, timestamps without, dates, or integers."
                )
        tolerance = None
        if terms.tolerance is not None:
            tolerance = _in_units(terms.tolerance, event.type, bounds[0].type)
        return cls(event, bounds[0], bounds[1] if len(bounds) > 1 else None, tolerance)

    @property
    def places(self) -> list[Place]:
        """The columns that it needs."""
        return [place for place in (self.event, self.begins, self.ends) if place is not None]

    def holds(self, pairs: pa.RecordBatch) -> _Mask:
        """In which pairs the row has begun at the tuple's time, and has not ended."""
        time, begins = pairs.column(self.event.inside), pairs.column(self.begins.inside)
        found = _both(time, begins)
        at, start = _aligned(time, begins)
        found &= start <= at
        if self.ends is not None:
            ends = pairs.column(self.ends.inside)
            at, end = _aligned(time, ends)
            found &= (at < end) | _nulls(ends)
        if self.tolerance is not None:
            found &= self._is_recent(time, begins)
        return found

    def begin(self, pairs: pa.RecordBatch) -> _Ints:
        """When the rows of pairs begin, in the master's unit."""
        return _ints(pairs.column(self.begins.inside))

    def _is_recent(self, time: pa.Array, begins: pa.Array) -> _Mask:
        assert self.tolerance is not None
        at, start = _ints(time), _ints(begins)
        ratio = _unit(begins.type) // _unit(time.type)
        if ratio >= 1:
            # start * ratio >= at - tolerance
            oldest = np.maximum(at, _LEAST + self.tolerance) - self.tolerance
            return np.asarray(start >= -(-oldest // ratio))
        finer = _unit(time.type) // _unit(begins.type)
        latest = np.minimum(start, -_LEAST - 1 - self.tolerance) + self.tolerance
        return np.asarray(latest // finer >= at)


def _place(schema: pa.Schema, name: str, of_stream: bool, what: str) -> Place:
    side = "stream" if of_stream else "master"
    if name not in schema.names:
        raise OptionError(
            f"{what} names the {side}'s column {name!r}, which does not exist. The {side} has "
            f"{schema.names}. Use one of these."
        )
    place = Place(name, of_stream, schema.field(name).type)
    if _kind(place.type) is None:
        raise OptionError(
            f"{what} names the {side}'s column {name!r}, which is {_told(place.type)}. Cast it to "
            "a timestamp, a date or an integer."
        )
    return place


def _kind(kind: pa.DataType) -> str | None:
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "timestamp with a time zone"
    if pa.types.is_date(kind):
        return "date"
    return "integer" if pa.types.is_integer(kind) and kind != pa.uint64() else None


def _told(kind: pa.DataType) -> str:
    return f"of type {kind}"


def _unit(kind: pa.DataType) -> int:
    """Nanoseconds of the type's unit; 1 for plain numbers."""
    if pa.types.is_timestamp(kind):
        return _NANOS[kind.unit]
    return _DAY if pa.types.is_date(kind) else 1


def _in_units(tolerance: int | dt.timedelta, *types: pa.DataType) -> int:
    is_number = _kind(types[0]) == "integer"
    if is_number != isinstance(tolerance, int):
        wanted = "a number" if is_number else 'a duration, such as "10m"'
        raise OptionError(
            f"tolerance={tolerance!r} does not go with as_of on {_told(types[0])}: it must be "
            f"{wanted}."
        )
    if isinstance(tolerance, int):
        return min(tolerance, -_LEAST - 1)
    nanos = tolerance // dt.timedelta(microseconds=1) * 1000
    return min(nanos // min(map(_unit, types)), -_LEAST - 1)


def _ints(column: pa.Array) -> _Ints:
    """The values as whole numbers of the type's unit; null slots hold anything."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        column = column.view(pa.int64())
    elif pa.types.is_date(kind):
        column = column.cast(pa.date32()).view(pa.int32())
    values: NDArray[Any] = to_numpy(column)
    return values.astype(np.int64, copy=False)


def _aligned(time: pa.Array, bound: pa.Array) -> tuple[_Ints, _Ints]:
    """Times and bounds in one unit: `bound <= time` holds afterwards where it did before."""
    at, start = _ints(time), _ints(bound)
    coarse, fine = _unit(bound.type), _unit(time.type)
    if coarse > fine:
        return at // (coarse // fine), start
    if fine > coarse:
        return at, -(-start // (fine // coarse))
    return at, start


def _nulls(column: pa.Array) -> _Mask:
    if not column.null_count:
        return np.zeros(len(column), np.bool_)
    return np.asarray(to_numpy(column.is_null()))


def _both(left: pa.Array, right: pa.Array) -> _Mask:
    return ~(_nulls(left) | _nulls(right))
