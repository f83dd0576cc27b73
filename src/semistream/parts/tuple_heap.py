"""Tuple heap: what waiting stream tuples carry in columns whose values vary in size.

Strings, lists and structs cannot be put into slots of one size. They are kept as Arrow
segments, one per insertion, and a slot remembers its segment and row. A segment goes when its
last tuple does; when dead rows fill more than the heap can spare, the living are gathered into
one new segment. Half the grant holds segments, the other half is for that copy, so that the
heap never passes its grant.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.budget import Grant

BYTES_PER_SLOT = 8
"""Segment and row, int32 each; free slots have segment -1."""
_MOST_SEGMENTS = 64
"""About so many segments hold all rows: more make gathering slow, fewer make it late to free."""


class TupleHeap:
    """Rows of variable size, by slot."""

    def __init__(self, schema: pa.Schema, capacity: int, heap_bytes: int, grant: Grant) -> None:
        """Room for `heap_bytes` / 2 of rows."""
        grant.take(heap_bytes + capacity * BYTES_PER_SLOT)
        self.limit = heap_bytes // 2
        self._schema = schema
        self._segments: dict[int, pa.RecordBatch] = {}
        self._living: dict[int, int] = {}
        self._bytes = 0
        self._next = 0
        self._segment = np.full(capacity, -1, np.int32)
        self._row = np.zeros(capacity, np.int32)

    def fitting(self, batch: pa.RecordBatch) -> int:
        """How many of the batch's first rows can be put now. Amortised O(rows)."""
        if self._bytes + batch.nbytes > self.limit:
            self._compact()
        count: int = batch.num_rows
        while count and self._bytes + batch.slice(0, count).nbytes > self.limit:
            count = count // 2
        return count

    def put(self, slots: NDArray[np.int32], batch: pa.RecordBatch) -> None:
        """Keep the batch's rows, copied, under `slots`; `fitting` said that they fit."""
        if len(slots):
            self._add(slots, batch.take(pa.array(np.arange(len(slots), dtype=np.int32))))

    def gather(self, slots: NDArray[np.int32]) -> pa.RecordBatch:
        """The rows under `slots`, in that order."""
        used = np.unique(self._segment[slots])
        parts = [self._segments[int(number)] for number in used]
        starts = np.cumsum([0] + [part.num_rows for part in parts[:-1]])
        rows = starts[np.searchsorted(used, self._segment[slots])] + self._row[slots]
        if len(parts) == 1:
            return parts[0].take(pa.array(rows))
        table = pa.Table.from_batches(parts, self._schema).take(pa.array(rows))
        columns = [pa.concat_arrays(column.chunks) for column in table.columns]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def release(self, slots: NDArray[np.int32]) -> None:
        """The tuples under `slots` are finished."""
        numbers, counts = np.unique(self._segment[slots], return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            self._living[number] -= count
            if not self._living[number]:
                del self._living[number]
                self._bytes -= self._segments.pop(number).nbytes
        self._segment[slots] = -1

    def check(self) -> None:
        """Assert that segments, counts and bytes agree, and that the limit holds."""
        numbers, counts = np.unique(self._segment[self._segment >= 0], return_counts=True)
        assert dict(zip(numbers.tolist(), counts.tolist(), strict=True)) == self._living
        assert self._segments.keys() == self._living.keys()
        assert self._bytes == sum(part.nbytes for part in self._segments.values()) <= self.limit

    def _add(self, slots: NDArray[np.int32], rows: pa.RecordBatch) -> None:
        """Append to the newest segment while it is small, so that there are never many."""
        newest = self._segments.get(self._next)
        if newest is None or newest.nbytes + rows.nbytes > self.limit // _MOST_SEGMENTS:
            self._next += 1
            newest = rows.slice(0, 0)
            self._segments[self._next], self._living[self._next] = newest, 0
        merged = pa.concat_batches([newest, rows]) if newest.num_rows else rows
        self._segment[slots] = self._next
        self._row[slots] = np.arange(newest.num_rows, merged.num_rows, dtype=np.int32)
        self._bytes += merged.nbytes - newest.nbytes
        self._segments[self._next] = merged
        self._living[self._next] += len(slots)

    def _compact(self) -> None:
        kept = sum(self._living.values())
        held = sum(part.num_rows for part in self._segments.values())
        if 4 * kept > 3 * held:
            return
        slots = np.flatnonzero(self._segment >= 0).astype(np.int32)
        living = self.gather(slots) if len(slots) else None
        self._segments, self._living, self._bytes, self._next = {}, {}, 0, 0
        if living is not None:
            self._add(slots, living)
