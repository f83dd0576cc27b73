"""Conditions of a join besides equality: what `on=` takes in place of key columns.

    between("ip", "low", "high")      low <= ip <= high
    below("x", "y")                   x <  y        at_most("x", "y")     x <= y
    above("x", "y")                   x >  y        at_least("x", "y")    x >= y
    similar("name", "title", at_least=0.9)

The first name is the stream's column, the others are the master's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from semistream.errors import OptionError

__all__ = [
    "Condition",
    "Range",
    "Similar",
    "above",
    "at_least",
    "at_most",
    "below",
    "between",
    "similar",
]

_CLOSED: Final = ("both", "low", "high", "neither")


@dataclass(frozen=True)
class Condition:
    """What a stream tuple and a master row must fulfil to be joined.

    Made by `between`, `below`, `at_most`, `above`, `at_least` or `similar`.
    """

    stream: str
    """The stream's column."""

    @property
    def master_columns(self) -> tuple[str, ...]:
        """The master's columns that it looks at."""
        raise NotImplementedError


@dataclass(frozen=True)
class Range(Condition):
    """The stream's value lies between two columns of the master; either may be left out."""

    low: str | None
    high: str | None
    low_closed: bool = True
    high_closed: bool = True

    @property
    def master_columns(self) -> tuple[str, ...]:
        """The bounds."""
        return tuple(dict.fromkeys(name for name in (self.low, self.high) if name is not None))

    def __str__(self) -> str:
        """As people write it: low <= ip < high."""
        low = "" if self.low is None else f"{self.low} {'<=' if self.low_closed else '<'} "
        high = "" if self.high is None else f" {'<=' if self.high_closed else '<'} {self.high}"
        return f"{low}{self.stream}{high}"


@dataclass(frozen=True)
class Similar(Condition):
    """The stream's text is like the master's: 1 − edits / length of the longer one."""

    master: str
    at_least: float

    @property
    def master_columns(self) -> tuple[str, ...]:
        """The text it is compared with."""
        return (self.master,)

    def __str__(self) -> str:
        """In short: name like title, at least 0.9."""
        return f"{self.stream} like {self.master}, at least {self.at_least:g}"


def between(value: str, low: str, high: str, *, closed: str = "both") -> Condition:
    """The stream's `value` lies between the master's columns `low` and `high`.

    `closed` says which ends belong to the interval: "both", "low", "high" or "neither".

    >>> print(between("ip", "low", "high"), "|", between("at", "start", "end", closed="low"))
    low <= ip <= high | start <= at < end
    """
    if closed not in _CLOSED:
        raise OptionError(f"closed={closed!r} is not known. Use one of: {', '.join(_CLOSED)}.")
    _check_names((value, low, high))
    return Range(value, low, high, closed in ("both", "low"), closed in ("both", "high"))


def below(value: str, bound: str) -> Condition:
    """The stream's `value` is less than the master's `bound`."""
    _check_names((value, bound))
    return Range(value, None, bound, high_closed=False)


def at_most(value: str, bound: str) -> Condition:
    """The stream's `value` is less than the master's `bound`, or equal to it."""
    _check_names((value, bound))
    return Range(value, None, bound)


def above(value: str, bound: str) -> Condition:
    """The stream's `value` is greater than the master's `bound`."""
    _check_names((value, bound))
    return Range(value, bound, None, low_closed=False)


def at_least(value: str, bound: str) -> Condition:
    """The stream's `value` is greater than the master's `bound`, or equal to it."""
    _check_names((value, bound))
    return Range(value, bound, None)


def similar(value: str, to: str, *, at_least: float) -> Condition:
    """The stream's text `value` is like the master's text `to`.

    The measure is the normalised Levenshtein similarity: 1 minus the fewest characters that have to
    be inserted, deleted or replaced to turn one text into the other, divided by the length of the
    longer one. Two empty texts are alike. `at_least` is above 0 and at most 1.
    """
    _check_names((value, to))
    given: object = at_least
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given <= 1:
        raise OptionError(
            f"at_least={at_least!r} must be a number above 0 and at most 1. At 0 every pair would "
            "be alike; 0.9 lets one character in ten be different."
        )
    return Similar(value, to, float(at_least))


def _check_names(names: Iterable[object]) -> None:
    for name in names:
        if not isinstance(name, str) or not name:
            raise OptionError(f"{name!r} is not a column. A condition takes names of columns.")
