"""What a master needs of a database, whichever it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from semistream.arrow_arrays import strings, to_arrow
from semistream.keys import Codes

__all__ = [
    "LostConnectionError",
    "Source",
    "SourceColumn",
    "TooManyBytesError",
    "UnfitValueError",
    "listed",
]


class SourceColumn(NamedTuple):
    """A column of the table, and how it is read."""

    name: str
    sql: str
    """The expression that is read."""
    type: pa.DataType
    """What it becomes in Arrow."""
    widest: int | None = None
    """The most bytes of a value of varying length; None if there is no limit."""
    is_integer: bool = False


class TooManyBytesError(Exception):
    """More rows, or wider ones, were found than there is room for; its text may say what to do."""


class UnfitValueError(Exception):
    """A value is there that the type of its column, which is the text, cannot hold."""


class LostConnectionError(Exception):
    """The connection is gone, and the transaction with it."""


class Source(Protocol):
    """A connection to one table. One thread at a time."""

    def begin(self, moment: str | None = None) -> None:
        """Begin a transaction that reads the table as it is now, however long it lasts.

        Or as of the `moment` that another connection has shared, and still holds.
        """

    def shared(self) -> str | None:
        """The name of this transaction's moment, for other connections; None if there is none."""

    def end(self) -> None:
        """End the transaction."""

    def close(self) -> None:
        """Close the connection."""

    def columns(self) -> list[SourceColumn]:
        """The columns of the table, in its order; `DatabaseError` if there is no such table."""

    def has_index(self) -> bool:
        """Whether an index has the key as its first column, for all rows and in order."""

    def between(self, low: int, high: int) -> str:
        """The condition that the key is in low..high."""

    def among(self, codes: Codes) -> str:
        """The condition that the key is one of these."""

    def rows(
        self,
        columns: Sequence[SourceColumn],
        condition: str,
        most_bytes: int,
        limit: int = 0,
        offset: int | None = None,
    ) -> pa.RecordBatch:
        """The rows for which a condition holds, in any order; the first `limit` by key, if given.

        With an `offset`, `limit` rows from there on, in an order that is the same for the whole
        transaction. `TooManyBytesError` if they take more than `most_bytes`, and `UnfitValueError`.
        """

    def bounds(self) -> tuple[int, int] | None:
        """The lowest and the highest key; None without rows."""

    def every(self, rows: int) -> NDArray[np.int64]:
        """The lowest key, and every so many rows the next one; each is above the one before."""

    def count(self, condition: str) -> int:
        """For how many rows a condition holds."""


def listed(codes: Codes) -> str:
    """Codes as a text, with commas between them.

    >>> listed(np.array([3, -5, 8]))
    '3,-5,8'
    """
    ends = to_arrow(np.array([0, len(codes)], np.int32))
    numbers = pa.ListArray.from_arrays(ends, to_arrow(codes).cast(pa.string()))
    text: str = pc.binary_join(numbers, strings([","])[0])[0].as_py()
    return text
