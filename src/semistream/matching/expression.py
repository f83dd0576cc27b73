"""A condition as a `pyarrow.compute` expression: Arrow's meaning, not SQL's, where they differ."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from semistream.arrow_arrays import no_rows
from semistream.errors import OptionError
from semistream.matching.condition import BoundCondition, Columns, Place

__all__ = ["ExpressionCondition"]


@dataclass(frozen=True)
class ExpressionCondition:
    """An expression over the columns of both sides by their names."""

    pickled: bytes
    """The expression; two of them cannot be compared, their bytes can."""
    text: str

    @classmethod
    def of(cls, given: Any) -> ExpressionCondition:
        """The condition of an expression; `OptionError` if it is something else."""
        if not isinstance(given, pc.Expression):
            raise OptionError(
                f"where={given!r} must be an SQL predicate, such as 'quantity >= minimum', or a "
                "pyarrow.compute expression."
            )
        return cls(pickle.dumps(given), str(given))

    def __str__(self) -> str:
        """The expression."""
        return self.text

    def bind(self, columns: Columns) -> BoundCondition:
        """The condition for these columns; `OptionError` if Arrow cannot evaluate it."""
        expression = pickle.loads(self.pickled)
        places = {place.name: place for place in reversed(columns.all())}
        try:
            needed = _needed(expression, list(places.values()))
        except (pa.ArrowException, TypeError) as error:
            raise OptionError(
                f"where={self.text} cannot be evaluated: {error}. The stream has "
                f"{[place.name for place in columns.of_stream()]}, the master "
                f"{columns.master.names}."
            ) from error
        known = tuple(columns.find(place.name) for place in needed)
        inside, text = {place.inside: place.name for place in known}, self.text

        def passing(pairs: pa.RecordBatch) -> pa.RecordBatch:
            names = [inside.get(name, f"{i}#") for i, name in enumerate(pairs.schema.names)]
            try:
                found = pairs.rename_columns(names).filter(expression)
            except pa.ArrowException as error:
                raise OptionError(f"where={text} cannot be computed: {error}.") from error
            return found.rename_columns(pairs.schema.names)

        return BoundCondition(known, passing)


def _needed(expression: pc.Expression, places: list[Place]) -> list[Place]:
    """The columns without which the expression cannot be evaluated."""
    _try(expression, places)
    needed = list(places)
    for place in places:
        fewer = [other for other in needed if other is not place]
        try:
            _try(expression, fewer)
        except (pa.ArrowException, TypeError):
            continue
        needed = fewer
    return needed


def _try(expression: pc.Expression, places: list[Place]) -> None:
    schema = pa.schema([pa.field(place.name, place.type) for place in places])
    no_rows(schema).filter(expression)
