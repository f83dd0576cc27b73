"""Output: joined rows on their way out.

Fragments are staged until they make a batch worth sending. The grant is cut in four: one
fragment is at most a quarter, what is staged at most two, and joining the fragments copies
those two. Emitted batches belong to whoever takes them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.budget import Grant
from semistream.errors import BudgetError
from semistream.metrics import Recorder
from semistream.parts.disk_buffer import Partition
from semistream.parts.join_shape import JoinShape
from semistream.parts.stream_buffer import Arrivals

PAIR_BYTES = 24
"""Slot, row and the arrays that hand them on, per pair found at once."""
_ENOUGH_ROWS = 1024


def staging_bytes(fragment_bytes: int, pairs: int) -> int:
    """What staging takes for fragments of that size and so many pairs at a time."""
    return 4 * fragment_bytes + pairs * PAIR_BYTES


class Output:
    """Staging of result rows; `matched` and `unmatched` yield batches when enough is staged."""

    def __init__(
        self,
        shape: JoinShape,
        widest_master_row: int,
        fragment_bytes: int,
        pairs: int,
        grant: Grant,
        recorder: Recorder,
    ) -> None:
        """Room for fragments of `fragment_bytes`, made of at most `pairs` pairs."""
        grant.take(staging_bytes(fragment_bytes, pairs))
        self.slots: NDArray[np.int32] = np.empty(pairs, np.int32)
        self.rows: NDArray[np.int32] = np.empty(pairs, np.int32)
        self._shape = shape
        self._recorder = recorder
        self._fragment_bytes = fragment_bytes
        self._widest_master_row = widest_master_row
        self._widest_tuple = 0
        self._staged: list[pa.RecordBatch] = []
        self._staged_rows = 0
        self._staged_bytes = 0

    def arrived(self, arrivals: Arrivals) -> Iterator[pa.RecordBatch]:
        """Refuse tuples that no fragment could hold; send on those that have no key."""
        self._widest_tuple = max(self._widest_tuple, arrivals.widest)
        widest = self._widest_tuple + self._widest_master_row
        if widest > self._fragment_bytes:
            raise BudgetError(
                f"A stream tuple and a master row together may take {widest:,} bytes, but a "
                f"piece of output may take {self._fragment_bytes:,}. Give the join at least "
                f"{64 * (widest - self._fragment_bytes):,} bytes more memory."
            )
        yield from self.unmatched(arrivals.keyless)

    @property
    def most_rows(self) -> int:
        """Rows that fit a fragment however wide they are."""
        widest = self._widest_tuple + self._widest_master_row
        return max(1, self._fragment_bytes // max(widest, 1))

    def cuts(self, partition: Partition, rows: NDArray[np.int32]) -> Iterator[tuple[int, int]]:
        """Cut pairs with `rows` of the partition into runs that fit a fragment."""
        count = len(rows)
        if count <= self.most_rows:
            yield 0, count
            return
        sizes = partition.row_bytes[rows]
        ends = np.cumsum(sizes + self._widest_tuple)
        start = 0
        while start < count:
            base = int(ends[start - 1]) if start else 0
            fits = int(np.searchsorted(ends, base + self._fragment_bytes, side="right"))
            stop = max(start + 1, fits)
            yield start, stop
            start = stop

    def matched(self, stream: pa.RecordBatch, master: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Result rows: the i-th stream tuple with the i-th master row."""
        payload = [master.column(name) for name in self._shape.payload]
        yield from self._stage([*stream.columns, *payload], stream.num_rows)

    def unmatched(self, stream: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Stream tuples without a master row: with nulls in a left join, else nothing."""
        if self._shape.how != "left":
            return
        for start in range(0, stream.num_rows, self.most_rows):
            part = stream.slice(start, self.most_rows)
            nulls = [pa.nulls(part.num_rows, kind) for kind in self._shape.payload_types]
            yield from self._stage([*part.columns, *nulls], part.num_rows)

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Send what is staged."""
        if self._staged:
            batch = self._staged[0] if len(self._staged) == 1 else pa.concat_batches(self._staged)
            self._staged.clear()
            self._staged_rows = self._staged_bytes = 0
            yield self._shape.declared(batch)

    def _stage(self, columns: list[pa.Array], rows: int) -> Iterator[pa.RecordBatch]:
        fragment = pa.RecordBatch.from_arrays(columns, schema=self._shape.plain_output_schema)
        self._recorder.outputs += rows
        self._staged.append(fragment)
        self._staged_rows += rows
        self._staged_bytes += fragment.nbytes
        if self._staged_rows >= _ENOUGH_ROWS or self._staged_bytes >= self._fragment_bytes:
            yield from self.flush()
