"""Matchers: how the pairs of a condition are found, whatever the condition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.parts.output import Pairs
from semistream.row_bytes import Sizes
from semistream.scanning.conditions import Range, Similar
from semistream.scanning.intervals import ByteIntervals, CodeIntervals
from semistream.scanning.shape import ScanShape
from semistream.scanning.similarity import Similarity
from semistream.scanning.sizing import Needs
from semistream.scanning.values import ByteOrder

__all__ = ["Keys", "Matcher", "matcher_of"]


class Keys(Protocol):
    """What a matcher needs of master rows."""

    @property
    def arrays(self) -> Sequence[Any]:
        """The Arrow and NumPy arrays that they are made of."""


class Matcher(Protocol):
    """Finds the pairs of a window's tuples with master rows, a bounded number at a time."""

    @property
    def needs(self) -> Needs:
        """What it asks of the budget."""

    def tuple_bytes(self, column: pa.Array) -> Sizes | int:
        """What each tuple with these values takes, while it waits, beside its columns."""

    def keys(self, rows: pa.RecordBatch) -> Keys:
        """What is needed of master rows; it may point into them."""

    def order(self, keys: Any) -> NDArray[np.int64] | None:
        """The order in which rows are found fastest; None if any will do, or they are in it."""

    def begin(self, column: pa.Array) -> None:
        """Another window of tuples waits; the last one is forgotten."""

    def pairs(self, keys: Any, out: Pairs | None) -> Iterator[int]:
        """Pairs with master rows: fills `out`, yields how many there are in it, and so on.

        With None it only notes which tuples match.
        """

    def matched(self) -> NDArray[np.bool_]:
        """Which tuples of the window have a match so far."""


def matcher_of(shape: ScanShape) -> Matcher:
    """The matcher for a join's condition and types."""
    condition = shape.condition
    if isinstance(condition, Similar):
        return Similarity(condition)
    assert isinstance(condition, Range)
    if isinstance(shape.orders[0], ByteOrder):
        return ByteIntervals(condition, shape.orders)
    return CodeIntervals(condition, shape.orders)
