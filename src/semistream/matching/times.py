"""History in the master: which of a key's rows counts at the time of a stream tuple."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from semistream.errors import OptionError
from semistream.history import Ints, Mask, aligned, nulls, time_kind, time_unit, whole
from semistream.matching.condition import Columns, Place
from semistream.matching.terms import Terms

__all__ = ["TimeRule"]


_LEAST: Final = -(2**63)
_MOST: Final = 2**63 - 1


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
            _place(columns.of_master() if i else columns.of_stream(), name, what)
            for i, name in enumerate(named)
        )
        for bound in bounds:
            if time_kind(event.type) != time_kind(bound.type):
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

    def holds(self, pairs: pa.RecordBatch) -> Mask:
        """In which pairs the row has begun at the tuple's time, and has not ended."""
        time, begins = pairs.column(self.event.inside), pairs.column(self.begins.inside)
        found = ~(nulls(time) | nulls(begins))
        at, start = _aligned(time, begins)
        found &= start <= at
        if self.ends is not None:
            ends = pairs.column(self.ends.inside)
            at, end = _aligned(time, ends)
            found &= (at < end) | nulls(ends)
        if self.tolerance is not None:
            found &= self._is_recent(time, begins)
        return found

    def begin(self, pairs: pa.RecordBatch) -> Ints:
        """When the rows of pairs begin, in the master's unit."""
        return whole(pairs.column(self.begins.inside))

    def _is_recent(self, time: pa.Array, begins: pa.Array) -> Mask:
        assert self.tolerance is not None
        at, start = whole(time), whole(begins)
        ratio = time_unit(begins.type) // time_unit(time.type)
        if ratio >= 1:
            # start * ratio >= at - tolerance, without a product or a large difference.
            steps, rest = divmod(self.tolerance, ratio)
            oldest = -(-(np.maximum(at, _LEAST + rest) - rest) // ratio)
            steps = min(steps, _MOST)
            return np.asarray(start >= np.maximum(oldest, _LEAST + steps) - steps)
        finer = time_unit(time.type) // time_unit(begins.type)
        steps, rest = divmod(self.tolerance, finer)
        latest = (np.minimum(start, _MOST - rest) + rest) // finer
        steps = min(steps, _MOST)
        return np.asarray(np.minimum(latest, _MOST - steps) + steps >= at)


def _place(places: list[Place], name: str, what: str) -> Place:
    side = "stream" if places[0].of_stream else "master"
    place = next((place for place in places if place.name == name), None)
    if place is None:
        raise OptionError(
            f"{what} names the {side}'s column {name!r}, which does not exist. The {side} has "
            f"{[place.name for place in places]}. Use one of these."
        )
    if time_kind(place.type) is None:
        raise OptionError(
            f"{what} names the {side}'s column {name!r}, which is {_told(place.type)}. Cast it to "
            "a timestamp, a date or an integer."
        )
    return place


def _told(kind: pa.DataType) -> str:
    return f"of type {kind}"


def _in_units(tolerance: int | dt.timedelta, *types: pa.DataType) -> int:
    is_number = time_kind(types[0]) == "integer"
    if is_number != isinstance(tolerance, int):
        wanted = "a number" if is_number else 'a duration, such as "10m"'
        raise OptionError(
            f"tolerance={tolerance!r} does not go with times {_told(types[0])}: it must be "
            f"{wanted}."
        )
    if isinstance(tolerance, int):
        return tolerance
    nanos = tolerance // dt.timedelta(microseconds=1) * 1000
    return nanos // min(map(time_unit, types))


def _aligned(time: pa.Array, bound: pa.Array) -> tuple[Ints, Ints]:
    return aligned(whole(time), time.type, whole(bound), bound.type)
