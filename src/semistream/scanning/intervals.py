"""Intervals: waiting tuples in the order of their values, so that each row's are adjacent.

    values of waiting tuples, sorted   1 3 4 4 7 9
    a row with 3 <= value <= 7           └─────┘      two searches, four pairs

Rows of R that come in the order of their lower bounds are found in a step or two, since a search
begins where the last one ended. Which tuples have a match at all is told by the edges of the
intervals alone, without going through the pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from semistream.arrow_arrays import to_numpy
from semistream.kernels.intervals import (
    cover,
    covered_tuples,
    locate_bytes,
    locate_codes,
    pair_places,
)
from semistream.parts.output import Pairs
from semistream.row_bytes import Sizes
from semistream.scanning.conditions import Range
from semistream.scanning.sizing import Needs
from semistream.scanning.values import HIGHEST, LOWEST, ByteOrder, Coded, CodeOrder, Order

__all__ = ["Bounds", "ByteIntervals", "CodeIntervals", "ends_and_data"]

Places = NDArray[np.int32]
Truth = NDArray[np.bool_]


class Bounds(NamedTuple):
    """Closed intervals of codes; low is above high where nothing can match."""

    low: NDArray[np.int64]
    high: NDArray[np.int64]

    @property
    def arrays(self) -> list[NDArray[np.int64]]:
        """What they take in memory."""
        return [self.low, self.high]


class ByteBounds(NamedTuple):
    """Intervals of strings; None for a bound that is left out."""

    low: pa.Array | None
    high: pa.Array | None

    @property
    def arrays(self) -> list[pa.Array]:
        """What they take in memory."""
        return [bound for bound in self if bound is not None]


class _Sorted:
    """A window's tuples in the order of their values, and the edges of the intervals met so far."""

    def __init__(self, tuples: int, order: Places) -> None:
        self.tuples = tuples
        self.order = order
        self.edges = np.zeros(len(order) + 1, np.int32)

    def matched(self) -> Truth:
        """Which tuples have a match. O(tuples)."""
        found = np.zeros(self.tuples, np.bool_)
        covered_tuples(self.edges, self.order, found)
        return found

    def pairs(self, first: Places, last: Places, out: Pairs) -> Iterator[int]:
        """Fill `out` again and again; yields how many pairs there are in it."""
        row = place = 0
        while row < len(first):
            count, row, place = pair_places(first, last, self.order, row, place, *out)
            if count:
                yield count


class CodeIntervals:
    """Finds the pairs of a range whose values are codes."""

    needs: Final = Needs(waiting=96, row=96, kept_row=16)

    def __init__(self, condition: Range, orders: list[Order]) -> None:
        known = dict(zip(condition.master_columns, orders, strict=True))
        self._condition = condition
        self._orders: dict[str, CodeOrder] = {
            name: order for name, order in known.items() if isinstance(order, CodeOrder)
        }
        self._numbers = next(iter(self._orders.values())).numbers
        self._values: NDArray[np.int64] = np.empty(0, np.int64)
        self._window = _Sorted(0, np.empty(0, np.int32))

    def tuple_bytes(self, column: pa.Array) -> Sizes | int:
        """What a waiting tuple takes beside its columns."""
        return self.needs.waiting

    def keys(self, rows: pa.RecordBatch) -> Bounds:
        """The intervals of master rows."""
        condition, count = self._condition, rows.num_rows
        low = Coded(np.full(count, LOWEST), None)
        high = Coded(np.full(count, HIGHEST), None)
        if condition.low is not None:
            bounds = rows.column(condition.low)
            low = self._orders[condition.low].low(bounds, condition.low_closed)
        if condition.high is not None:
            bounds = rows.column(condition.high)
            high = self._orders[condition.high].high(bounds, condition.high_closed)
        lows, highs = np.array(low.codes), np.array(high.codes)
        for valid in (low.valid, high.valid):
            if valid is not None:
                lows[~valid], highs[~valid] = 1, 0
        return Bounds(lows, highs)

    def order(self, keys: Bounds) -> NDArray[np.int64] | None:
        """The order in which rows are found fastest; None if they are in it."""
        low = keys.low
        return None if (low[1:] >= low[:-1]).all() else np.argsort(low, kind="stable")

    def begin(self, column: pa.Array) -> None:
        """Another window of tuples waits."""
        codes, valid = self._numbers(column)
        if valid is None:
            order = np.argsort(codes)
        else:
            places = np.flatnonzero(valid)
            order = places[np.argsort(codes[places])]
        self._values = codes[order]
        self._window = _Sorted(len(codes), order.astype(np.int32))

    def pairs(self, keys: Bounds, out: Pairs | None) -> Iterator[int]:
        """Fill `out` with pairs again and again, or with None only note which tuples match."""
        first, last = np.empty((2, len(keys.low)), np.int32)
        found = locate_codes(self._values, *keys, first, last, self._window.edges)
        if found and out is not None:
            yield from self._window.pairs(first, last, out)

    def matched(self) -> Truth:
        """Which tuples of the window have a match."""
        return self._window.matched()


class ByteIntervals:
    """Finds the pairs of a range whose values are strings of bytes.

    A wide decimal must be turned into one first, which takes the most memory.
    """

    needs: Final = Needs(waiting=192, row=320, kept_row=96)

    def __init__(self, condition: Range, orders: list[Order]) -> None:
        order = orders[0]
        assert isinstance(order, ByteOrder)
        self._condition = condition
        self._binary = order.binary
        self._values = pa.nulls(0, pa.large_binary())
        self._window = _Sorted(0, np.empty(0, np.int32))

    def tuple_bytes(self, column: pa.Array) -> Sizes | int:
        """What a waiting tuple takes beside its columns."""
        return self.needs.waiting

    def keys(self, rows: pa.RecordBatch) -> ByteBounds:
        """The intervals of master rows."""
        names = (self._condition.low, self._condition.high)
        return ByteBounds(*(n and self._binary(rows.column(n)) for n in names))

    def order(self, keys: ByteBounds) -> NDArray[np.int64] | None:
        """Any order will do: each bound is searched for anew."""
        return None

    def begin(self, column: pa.Array) -> None:
        """Another window of tuples waits."""
        self._values = self._binary(column)
        by_value = to_numpy(pc.array_sort_indices(self._values, null_placement="at_end"))
        order = by_value[: len(column) - self._values.null_count].astype(np.int32)
        self._window = _Sorted(len(column), order)

    def pairs(self, keys: ByteBounds, out: Pairs | None) -> Iterator[int]:
        """Fill `out` with pairs again and again, or with None only note which tuples match."""
        condition, window = self._condition, self._window
        rows = len(keys.arrays[0])
        first = np.zeros(rows, np.int32)
        last = np.full(rows, len(window.order), np.int32)
        if keys.low is not None:
            self._locate(keys.low, not condition.low_closed, first)
        if keys.high is not None:
            self._locate(keys.high, condition.high_closed, last)
        for bound in keys:
            if bound is not None and bound.null_count:
                last[to_numpy(bound.is_null())] = 0
        found = cover(first, last, window.edges)
        if found and out is not None:
            yield from window.pairs(first, last, out)

    def matched(self) -> Truth:
        """Which tuples of the window have a match."""
        return self._window.matched()

    def _locate(self, bound: pa.Array, above: bool, places: Places) -> None:
        locate_bytes(
            *ends_and_data(self._values), self._window.order, *ends_and_data(bound), above, places
        )


def ends_and_data(column: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """The offsets of a column of large binaries or strings and its bytes."""
    _, ends, data = column.buffers()
    if not len(column):
        return np.frombuffer(bytes(8), np.int64), np.frombuffer(b"", np.uint8)
    offsets = np.frombuffer(ends, np.int64, len(column) + 1, 8 * column.offset)
    return offsets, np.frombuffer(b"" if data is None else data, np.uint8)
