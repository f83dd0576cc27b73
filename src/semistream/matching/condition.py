"""A condition on pairs of a stream tuple and a master row, beside their keys.

It is given as SQL or as a `pyarrow.compute` expression, before any stream is known. Once the
columns of both sides are, it is bound to them, and what cannot be evaluated is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import pyarrow as pa

from semistream.errors import OptionError

__all__ = ["PREFIX", "BoundCondition", "Columns", "Condition", "Place", "condition_of"]

PREFIX: Final = "__match_"
"""Inside a join the names of stream columns begin so: the master may have a column of that name."""


@dataclass(frozen=True)
class Place:
    """A column of one side, and what it is called in a batch of pairs."""

    name: str
    of_stream: bool
    type: pa.DataType
    column: str
    """Its name in the data, where the user knows it by another."""

    @property
    def inside(self) -> str:
        """Its name in a batch of pairs."""
        return PREFIX + self.column if self.of_stream else self.column


@dataclass(frozen=True)
class Columns:
    """The columns that a condition can name."""

    stream: pa.Schema
    master: pa.Schema
    keys: Mapping[str, str]
    """From master key column to stream column: these are equal in every pair."""
    known_as: Mapping[str, str] = field(default_factory=dict)
    """From stream column to the name by which the user knows it, where that is another."""

    def of_stream(self) -> list[Place]:
        """The stream's columns."""
        names = self.known_as
        return [Place(names.get(f.name, f.name), True, f.type, f.name) for f in self.stream]

    def of_master(self) -> list[Place]:
        """The master's columns."""
        return [Place(f.name, False, f.type, f.name) for f in self.master]

    def all(self) -> list[Place]:
        """Every column of both sides, the stream's first."""
        return [*self.of_stream(), *self.of_master()]

    def find(self, name: str, side: str = "") -> Place:
        """The column of this name; upper and lower case matter only where they must.

        `side` may be "stream" or "master".
        """
        known = [each for each in self.all() if _is_on(each, side)]
        same = [each for each in known if each.name == name]
        same = same or [each for each in known if each.name.lower() == name.lower()]
        if len(same) == 2 and self.keys.get(same[1].name) == same[0].column:
            return same[0]
        if len(same) == 1:
            return same[0]
        raise OptionError(
            f"The condition names the column {name!r}, which "
            + (
                "is there more than once. Say stream.column or master.column, or rename one of "
                "them in the stream."
                if same
                else f"does not exist. The stream has {[each.name for each in self.of_stream()]}, "
                f"the master {self.master.names}. Use one of these."
            )
        )


def _is_on(place: Place, side: str) -> bool:
    return not side or place.of_stream == (side == "stream")


@dataclass(frozen=True)
class BoundCondition:
    """A condition that knows its columns."""

    places: tuple[Place, ...]
    """The columns that it needs."""
    passing: Callable[[pa.RecordBatch], pa.RecordBatch]
    """The pairs for which it is true: neither false nor null."""


class Condition(Protocol):
    """A condition of any kind. Equal conditions are the same; Spark ships it."""

    def bind(self, columns: Columns) -> BoundCondition:
        """The condition for these columns; `OptionError` if it cannot be evaluated."""

    def __hash__(self) -> int: ...


def condition_of(given: Any) -> Condition:
    """The condition of a `where` argument."""
    if isinstance(given, str):
        from semistream.matching.sql import parsed

        return parsed(given)
    from semistream.matching.expression import ExpressionCondition

    return ExpressionCondition.of(given)
