"""Rows of a round: which tuple of the stream and which found master rows belong together.

Nothing but numbers moves while look-ups follow one another. Columns are copied at the end, and only
those that are not in the order of the stream already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.arrow_arrays import to_arrow

__all__ = ["BYTES_AT_WORK", "BYTES_PER_ROW", "Chunks", "Found", "Rows", "matched_tuples"]

Numbers = NDArray[np.int32]

ABSENT: Final = -1
"""In the place of a row's number: there is none, and its columns are null."""
BYTES_PER_ROW: Final = 12
"""Of a row in a look-up: its number, that of the row found for it, and marks."""
BYTES_AT_WORK: Final = 32
"""Of a row while a look-up is added to it: counts, and an order."""


class Chunks:
    """Columns in pieces, one after the other; rows have numbers from 0."""

    def __init__(self, batches: Sequence[pa.RecordBatch], first: int, types: Sequence[Any]) -> None:
        """The columns of record batches from number `first` on, which have these types."""
        self.starts: NDArray[np.int64] = np.cumsum([0, *(batch.num_rows for batch in batches)])
        self._columns = [
            [batch.column(first + i) for batch in batches] or [pa.nulls(0, kind)]
            for i, kind in enumerate(types)
        ]

    def between(self, start: int, stop: int) -> list[pa.Array]:
        """The columns of the rows from `start` to before `stop`; no copy inside one piece."""
        first = int(np.searchsorted(self.starts, start, side="right")) - 1
        last = int(np.searchsorted(self.starts, stop, side="left"))
        begins = self.starts.tolist()
        found = []
        for arrays in self._columns:
            parts = [
                arrays[i].slice(max(start - begins[i], 0), stop - max(start, begins[i]))
                for i in range(first, last)
            ]
            found.append(parts[0] if len(parts) == 1 else pa.concat_arrays(parts))
        return found

    def taken(self, numbers: Numbers) -> list[pa.Array]:
        """The columns of chosen rows; null where the number is ABSENT."""
        self._unite()
        chosen = _indices(numbers)
        return [arrays[0].take(chosen) for arrays in self._columns]

    def _unite(self) -> None:
        """Make one piece of all, a column at a time, so that one of them is there twice."""
        for arrays in self._columns:
            if len(arrays) > 1:
                arrays[:] = [pa.concat_arrays(arrays)]
        self.starts = self.starts[[0, -1]]


@dataclass(frozen=True)
class Found:
    """The master rows that a look-up has found, and which of them belongs to each row."""

    chunks: Chunks
    numbers: Numbers | None = None
    """None if the rows are in order, each once."""

    def between(self, start: int, stop: int) -> list[pa.Array]:
        """The master's columns of some rows."""
        if self.numbers is None:
            return self.chunks.between(start, stop)
        return self.chunks.taken(self.numbers[start:stop])

    def chosen(self, rows: Numbers) -> Found:
        """For some rows only, or for some of them several times."""
        return replace(self, numbers=rows if self.numbers is None else self.numbers[rows])


@dataclass(frozen=True)
class Rows:
    """The result so far: tuples of the stream in its order, each with one found row a look-up."""

    stream: Sequence[pa.RecordBatch]
    tuples: Numbers | None = None
    """The number of each row's tuple, ascending; None if each tuple has one row."""
    found: tuple[Found, ...] = ()
    """In the order in which look-ups were made."""
    lacking: NDArray[np.bool_] | None = None
    """Which rows lack a master row; None if none does."""
    starts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    """The number of each stream batch's first tuple, and that of the end."""

    @classmethod
    def of(cls, stream: Sequence[pa.RecordBatch]) -> Rows:
        """The tuples of a round, before any look-up."""
        return cls(stream, starts=np.cumsum([0, *(batch.num_rows for batch in stream)]))

    def __len__(self) -> int:
        """Rows."""
        return int(self.starts[-1]) if self.tuples is None else len(self.tuples)

    def keys(self, names: Mapping[str, str], number: str) -> Iterator[pa.RecordBatch]:
        """What a look-up gets: row numbers, under that name, and key columns under theirs."""
        for batch, start, stop in self._by_batch():
            columns = [batch.column(name) for name in names]
            if self.tuples is not None:
                local = to_arrow(self.tuples[start:stop] - self._start(start))
                columns = [column.take(local) for column in columns]
            numbers = to_arrow(np.arange(start, stop, dtype=np.int32))
            yield pa.RecordBatch.from_arrays([numbers, *columns], names=[number, *names.values()])

    def results(
        self, schema: pa.Schema, places: Sequence[int], most: int
    ) -> Iterator[pa.RecordBatch]:
        """The result batches, of at most so many rows; `places` orders the look-ups' columns."""
        for batch, begin, end in self._by_batch():
            for start in range(begin, end, most):
                stop = min(start + most, end)
                columns = self._stream_columns(batch, start, stop)
                for place in places:
                    columns += self.found[place].between(start, stop)
                yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def _stream_columns(self, batch: pa.RecordBatch, start: int, stop: int) -> list[pa.Array]:
        first = self._start(start)
        if self.tuples is None:
            return list(batch.slice(start - first, stop - start).columns)
        local = to_arrow(self.tuples[start:stop] - first)
        return [column.take(local) for column in batch.columns]

    def _start(self, row: int) -> np.int32:
        """The number of the first tuple in the batch that the row's tuple is in."""
        tuple_ = row if self.tuples is None else self.tuples[row]
        return np.int32(self.starts[np.searchsorted(self.starts, tuple_, side="right") - 1])

    def _by_batch(self) -> Iterator[tuple[pa.RecordBatch, int, int]]:
        """Each batch of the stream that has rows, with its first row and the end of its rows."""
        ends = self.starts if self.tuples is None else np.searchsorted(self.tuples, self.starts)
        bounds = ends.tolist()
        for i, batch in enumerate(self.stream):
            if bounds[i] < bounds[i + 1]:
                yield batch, bounds[i], bounds[i + 1]

    def with_found(
        self, chunks: Chunks, numbers: Numbers, absent: NDArray[np.bool_] | None
    ) -> Rows:
        """The rows after a look-up that has found a master row for each row in `numbers`.

        Rows in `absent` have none and stay; other rows without one go.
        """
        size = len(self)
        if len(numbers) == size and _in_order(numbers):
            return replace(self, found=(*self.found, Found(chunks)))
        found = np.bincount(numbers, minlength=size)
        times = found if absent is None else found + absent
        if (times == 1).all():
            places = np.full(size, ABSENT, np.int32)
            places[numbers] = np.arange(len(numbers), dtype=np.int32)
            rows = self
        else:
            source = np.repeat(np.arange(size, dtype=np.int32), times)
            places = np.full(len(source), ABSENT, np.int32)
            places[found[source] > 0] = np.argsort(numbers, kind="stable")
            rows = self._chosen(source)
        if absent is None and _in_order(places):
            return replace(rows, found=(*rows.found, Found(chunks)))
        lacking = rows.lacking
        if absent is not None and absent.any():
            lacking = (places == ABSENT) | (False if lacking is None else lacking)
        return replace(rows, found=(*rows.found, Found(chunks, places)), lacking=lacking)

    def filtered(self, stays: NDArray[np.bool_]) -> Rows:
        """The rows after a look-up that adds nothing but says which of them stay."""
        rows = self if stays.all() else self._chosen(np.flatnonzero(stays).astype(np.int32))
        return replace(rows, found=(*rows.found, Found(Chunks([], 0, []))))

    def part(self, start: int, stop: int) -> Rows:
        """Some of the rows, which follow one another."""
        return self._chosen(np.arange(start, min(stop, len(self)), dtype=np.int32))

    def _chosen(self, rows: Numbers) -> Rows:
        return replace(
            self,
            tuples=rows if self.tuples is None else self.tuples[rows],
            found=tuple(found.chosen(rows) for found in self.found),
            lacking=None if self.lacking is None else self.lacking[rows],
        )


def _in_order(numbers: Numbers) -> bool:
    """Whether the numbers are 0, 1, 2 and so on."""
    return bool((numbers == np.arange(len(numbers), dtype=np.int32)).all())


def matched_tuples(rows: Rows) -> Numbers | slice:
    """The tuples of rows for which every look-up has found a master row."""
    if rows.lacking is None:
        return slice(None) if rows.tuples is None else rows.tuples
    matched = np.flatnonzero(~rows.lacking).astype(np.int32)
    return matched if rows.tuples is None else rows.tuples[matched]


def _indices(numbers: Numbers) -> pa.Array:
    """Numbers to take rows by; ABSENT is null."""
    present = numbers != ABSENT
    if present.all():
        return to_arrow(numbers)
    bitmap = pa.py_buffer(np.packbits(present, bitorder="little"))
    data = pa.py_buffer(np.ascontiguousarray(numbers))
    return pa.Array.from_buffers(pa.int32(), len(numbers), [bitmap, data])
