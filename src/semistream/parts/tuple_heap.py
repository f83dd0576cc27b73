"""Tuple heap: rows whose values vary in size, kept by slot.

Strings, lists and structs cannot be put into slots of one size. They are kept in Arrow
segments, and a slot remembers its segment and row. Rows are appended to the newest segment
until it is large enough; a segment goes when its last row does. When there is no room, the
segment with the most dead rows is copied without them: that takes the space of one segment,
which is set aside, so that the heap never passes its grant.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.arrow_arrays import no_rows, to_arrow
from semistream.budget import Grant

Slots = NDArray[np.int32]

BYTES_PER_SLOT = 8
"""Segment and row, int32 each; free slots have segment -1."""
_WORTH_COPYING = 8
"""A segment is copied only when at least one row in so many is dead."""


def heap_limit(heap_bytes: int, segments: int) -> int:
    """The bytes of rows that a heap holds: one segment and a half are spare, to copy into."""
    return heap_bytes * 2 * segments // (2 * segments + 3)


class TupleHeap:
    """Rows of varying size, by slot."""

    def __init__(
        self,
        schema: pa.Schema,
        capacity: int,
        heap_bytes: int,
        grant: Grant,
        segments: int = 16,
    ) -> None:
        """An empty heap; about `segments` hold all rows. From fewer, rows are gathered faster."""
        self._granted = heap_bytes + capacity * BYTES_PER_SLOT
        grant.take(self._granted)
        self._grant = grant
        self._segments_wanted = segments
        self.set_bytes(heap_bytes)
        self._schema = schema
        self._segments: dict[int, pa.RecordBatch] = {}
        self._living: dict[int, int] = {}
        self._bytes = 0
        self._newest = 0
        self._segment = np.full(capacity, -1, np.int32)
        self._row = np.zeros(capacity, np.int32)

    def how_many_fit(self, batch: pa.RecordBatch) -> int:
        """How many of the batch's first rows can be put now. Amortised O(rows)."""
        while self._bytes + batch.nbytes > self.limit and self._compact_one():
            pass
        count: int = batch.num_rows
        while count and self._bytes + batch.slice(0, count).nbytes > self.limit:
            count //= 2
        return count

    @property
    def free_bytes(self) -> int:
        """Bytes of rows that could be put, dead rows not counted against them."""
        held = sum(segment.num_rows for segment in self._segments.values())
        living = sum(self._living.values())
        return self.limit - (self._bytes * living // held if held else 0)

    def put(self, slots: Slots, batch: pa.RecordBatch) -> None:
        """Keep the batch's rows, copied, under `slots`; `how_many_fit` said that they fit."""
        if not len(slots):
            return
        pieces = max(1, -(-2 * batch.nbytes // self._segment_bytes))
        step = -(-len(slots) // pieces)
        for start in range(0, len(slots), step):
            rows = np.arange(start, min(start + step, len(slots)), dtype=np.int32)
            self._add(slots[start : start + step], batch.take(to_arrow(rows)))

    def pieces(self, slots: Slots) -> Iterator[tuple[NDArray[np.intp] | None, pa.RecordBatch]]:
        """The rows under `slots`, segment by segment: places in `slots` (None: all), rows."""
        numbers = self._segment[slots]
        used = np.unique(numbers)
        for number in used.tolist():
            here = None if len(used) == 1 else np.flatnonzero(numbers == number)
            rows = self._row[slots if here is None else slots[here]]
            yield here, self._segments[number].take(to_arrow(rows))

    def gather(self, slots: Slots) -> pa.RecordBatch:
        """The rows under `slots`, in that order."""
        found = list(self.pieces(slots))
        if len(found) == 1:
            return found[0][1]
        if not found:
            return no_rows(self._schema)
        order = np.empty(len(slots), np.int64)
        order[np.concatenate([here for here, _ in found if here is not None])] = np.arange(
            len(slots)
        )
        return pa.concat_batches([rows for _, rows in found]).take(to_arrow(order))

    def release(self, slots: Slots) -> None:
        """The rows under `slots` are needed no more."""
        numbers, counts = np.unique(self._segment[slots], return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            self._living[number] -= count
            if not self._living[number]:
                self._drop(number)
        self._segment[slots] = -1

    def resize(self, capacity: int, heap_bytes: int) -> None:
        """Have slots and bytes for more or fewer rows; what is beyond must be free."""
        before, after = self._granted, heap_bytes + capacity * BYTES_PER_SLOT
        if after > before:
            self._grant.take(after - before)
        self._granted = after
        old = len(self._segment)
        self._segment.resize(capacity, refcheck=False)
        self._segment[old:] = -1
        self._row.resize(capacity, refcheck=False)
        self.set_bytes(heap_bytes)
        if after < before:
            self._grant.give(before - after)

    @property
    def arena_bytes(self) -> int:
        """Bytes for rows, dead ones and spare room included."""
        return self._granted - len(self._segment) * BYTES_PER_SLOT

    def belong_to(self, grant: Grant) -> None:
        """From now on its bytes are taken from this grant."""
        grant.take(self._granted)
        self._grant.give(self._granted)
        self._grant = grant

    def set_bytes(self, heap_bytes: int) -> None:
        """Hold fewer or more bytes of rows from now on; the grant does not change."""
        self.limit = heap_limit(heap_bytes, self._segments_wanted)
        self._segment_bytes = max(1, self.limit // self._segments_wanted)

    @property
    def fits(self) -> bool:
        """Whether the rows held are within the limit, which may have been lowered."""
        return self._bytes <= self.limit

    def compact(self) -> bool:
        """Make room by copying the segment with the most dead rows; False when none is worth it."""
        return self._compact_one()

    def move(self, old: Slots, new: Slots) -> None:
        """Rename slots: all that are used, `new` being the lowest ones."""
        segment, row = self._segment[old], self._row[old]
        self._segment[:] = -1
        self._segment[new], self._row[new] = segment, row

    def check(self) -> None:
        """Assert that segments, counts and bytes agree, and that the limit holds."""
        numbers, counts = np.unique(self._segment[self._segment >= 0], return_counts=True)
        assert dict(zip(numbers.tolist(), counts.tolist(), strict=True)) == self._living
        assert self._segments.keys() == self._living.keys()
        assert self._bytes == sum(part.nbytes for part in self._segments.values())

    def _add(self, slots: Slots, rows: pa.RecordBatch) -> None:
        newest = self._segments.get(self._newest)
        if newest is None or newest.nbytes + rows.nbytes > self._segment_bytes:
            self._newest += 1
            newest = rows.slice(0, 0)
            self._living[self._newest] = 0
        merged = pa.concat_batches([newest, rows]) if newest.num_rows else rows
        self._bytes += merged.nbytes - (newest.nbytes if newest.num_rows else 0)
        self._segments[self._newest] = merged
        self._living[self._newest] += len(slots)
        self._segment[slots] = self._newest
        self._row[slots] = np.arange(newest.num_rows, merged.num_rows, dtype=np.int32)

    def _compact_one(self) -> bool:
        """Copy the segment with the most dead rows without them; False when none is worth it."""
        dead = {
            number: segment.num_rows - self._living[number]
            for number, segment in self._segments.items()
        }
        worst = max(dead, key=lambda number: dead[number], default=None)
        if worst is None or dead[worst] * _WORTH_COPYING < self._segments[worst].num_rows:
            return False
        slots = np.flatnonzero(self._segment == worst).astype(np.int32)
        living = self._segments[worst].take(to_arrow(self._row[slots]))
        self._drop(worst)
        self._newest = max(self._newest, worst)
        self._add(slots, living)
        return True

    def _drop(self, number: int) -> None:
        del self._living[number]
        self._bytes -= self._segments.pop(number).nbytes
