"""Rows of a table in another order, a block at a time.

Arrow's `take` on a chunked column may first concatenate the chunks, which fails for string columns
beyond 2 GB. Here rows are taken from each chunk alone, and only one block of rows is concatenated.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.arrow_arrays import to_arrow

__all__ = ["OrderedRows"]

_CHUNK_BYTES = 512 << 20


class OrderedRows:
    """The rows of a table in the order `order`; None keeps them as they are."""

    def __init__(self, table: pa.Table, order: NDArray[np.int64] | None) -> None:
        self._schema = table.schema
        # A few large chunks, because a block takes from every chunk that has one of its rows.
        self._chunks = _joined(table) if order is not None else table.to_batches()
        self._starts = np.cumsum([0] + [chunk.num_rows for chunk in self._chunks])
        self._order = order

    def take(self, start: int, stop: int) -> pa.RecordBatch:
        """Rows `start` to `stop` as one record batch; O(rows)."""
        if self._order is None:
            return self._run(start, stop)
        wanted = self._order[start:stop]
        home = np.searchsorted(self._starts, wanted, side="right") - 1
        by_chunk = np.argsort(home, kind="stable")
        cuts = np.searchsorted(home[by_chunk], np.arange(len(self._chunks) + 1))
        pieces = [
            chunk.take(to_arrow(wanted[by_chunk[low:high]] - self._starts[i]))
            for i, chunk in enumerate(self._chunks)
            if (low := cuts[i]) < (high := cuts[i + 1])
        ]
        if len(pieces) == 1:
            return pieces[0]
        back = np.empty(len(wanted), np.int64)
        back[by_chunk] = np.arange(len(wanted))
        return pa.concat_batches(pieces).take(to_arrow(back))

    def _run(self, start: int, stop: int) -> pa.RecordBatch:
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        pieces = []
        for i in range(first, len(self._chunks)):
            low, high = int(self._starts[i]), int(self._starts[i + 1])
            if low >= stop:
                break
            begin = max(start, low)
            pieces.append(self._chunks[i].slice(begin - low, min(stop, high) - begin))
        return pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)


def _joined(table: pa.Table) -> list[pa.RecordBatch]:
    """The table as record batches, with small neighbours concatenated up to `_CHUNK_BYTES`."""
    joined: list[pa.RecordBatch] = []
    group: list[pa.RecordBatch] = []
    size = 0
    for batch in table.to_batches():
        if group and size + batch.nbytes > _CHUNK_BYTES:
            joined.append(pa.concat_batches(group))
            group, size = [], 0
        group.append(batch)
        size += batch.nbytes
    return [*joined, pa.concat_batches(group)] if group else joined
