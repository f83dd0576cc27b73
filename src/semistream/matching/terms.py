"""Terms: what a join asks for beside equal keys, checked as far as that goes without a stream."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from semistream.errors import OptionError
from semistream.matching.condition import Condition, condition_of

__all__ = ["HOWS", "Terms"]

HOWS: Final = ("inner", "left", "semi", "anti")
_DURATION: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(us|ms|s|m|h|d)\s*")
_MICROS: Final = {
    "us": 1,
    "ms": 1000,
    "s": 10**6,
    "m": 60 * 10**6,
    "h": 3600 * 10**6,
    "d": 86400 * 10**6,
}


@dataclass(frozen=True)
class Terms:
    """What is asked for. Equal terms are equal joins, so engines can be kept by them."""

    how: str = "inner"
    where: Condition | None = None
    valid: tuple[str, str, str] | None = None
    """The stream's time, and from when to when a master row is valid."""
    as_of: tuple[str, str] | None = None
    """The stream's time, and from when on a master row counts."""
    tolerance: int | dt.timedelta | None = None
    """How much older the row may be."""
    preserve_order: bool = False
    known_as: tuple[tuple[str, str], ...] = ()
    """Stream columns and the names by which the user knows them, where these are others."""
    once: bool = False
    """Of a left join: whether a tuple is given once, with any one of its rows."""

    @classmethod
    def of(
        cls,
        how: str,
        where: Any = None,
        valid: Sequence[str] | None = None,
        as_of: Sequence[str] | None = None,
        tolerance: Any = None,
        preserve_order: bool = False,
    ) -> Terms:
        """The terms of a join's arguments; `OptionError` if they do not go together."""
        if how not in HOWS:
            known = ", ".join(f'"{name}"' for name in HOWS)
            raise OptionError(f"how={how!r} is not known. Use one of: {known}.")
        if type(preserve_order) is not bool:
            raise OptionError(f"preserve_order={preserve_order!r} must be True or False.")
        if valid is not None and as_of is not None:
            raise OptionError(
                "valid and as_of both say which row of a key counts at a time. Give one of them."
            )
        if tolerance is not None and as_of is None:
            raise OptionError(
                f"tolerance={tolerance!r} says how old the row found by as_of may be. Give as_of "
                "too, or leave it out."
            )
        named = _names(valid, 3, "valid", '("sold_at", "valid_from", "valid_to")')
        found = _names(as_of, 2, "as_of", '("sold_at", "valid_from")')
        condition = None if where is None else condition_of(where)
        age = None if tolerance is None else _tolerance(tolerance)
        return cls(how, condition, named, found, age, preserve_order)

    @property
    def is_plain(self) -> bool:
        """Whether an engine alone gives this join."""
        return self.how in ("inner", "left") and self == Terms(self.how, known_as=self.known_as)

    def refuse_all_but_how(self, on: object) -> None:
        """Raise `OptionError` for terms that a join on a condition does not have."""
        if self != Terms(self.how):
            raise OptionError(
                f"A join on {on} has no where, valid, as_of, tolerance and preserve_order. Leave "
                "them out, and filter or sort the result."
            )

    def told(self) -> str:
        """In words, for a plan."""
        asked = [f'"{self.how}"']
        asked += [] if self.where is None else [f"where {self.where}"]
        asked += [] if self.valid is None else ["valid {1} to {2} at {0}".format(*self.valid)]
        asked += [] if self.as_of is None else ["as of {1} at {0}".format(*self.as_of)]
        asked += [] if self.tolerance is None else [f"at most {self.tolerance} older"]
        asked += ["in stream order"] if self.preserve_order else []
        return ", ".join(asked)


def _names(given: Any, count: int, name: str, example: str) -> Any:
    """The names of the columns as a tuple; None if they are not given."""
    if given is None:
        return None
    fits = isinstance(given, Sequence) and not isinstance(given, str) and len(given) == count
    if not fits or not all(isinstance(each, str) for each in given):
        raise OptionError(f"{name}={given!r} must name {count} columns, as in {name}={example}.")
    return tuple(given)


def _tolerance(given: Any) -> int | dt.timedelta:
    """A number of the time columns' own kind, or a duration.

    >>> _tolerance("10m"), _tolerance(5)
    (datetime.timedelta(seconds=600), 5)
    """
    found = _DURATION.fullmatch(given) if isinstance(given, str) else None
    if found:
        return dt.timedelta(microseconds=round(float(found[1]) * _MICROS[found[2]]))
    is_number = isinstance(given, int) and not isinstance(given, bool)
    if (is_number and given >= 0) or (isinstance(given, dt.timedelta) and given >= dt.timedelta()):
        return given  # type: ignore[no-any-return]
    raise OptionError(
        f"tolerance={given!r} must be a duration that is not negative, such as "
        'datetime.timedelta(minutes=10) or "10m"; for times that are numbers, a number.'
    )
