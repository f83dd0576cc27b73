"""Stream tuples set aside by the shard they belong to, until its engine has its turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.arrow_arrays import to_arrow

__all__ = ["RowsByShard", "pieces_of"]


def pieces_of(batch: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """The batch in pieces of at most so many bytes, or of one row; nothing is copied."""
    if batch.nbytes <= most_bytes or batch.num_rows <= 1:
        yield batch
        return
    half = batch.num_rows // 2
    yield from pieces_of(batch.slice(0, half), most_bytes)
    yield from pieces_of(batch.slice(half), most_bytes)


class _Ordered(NamedTuple):
    """Rows in the order of their shards, and where the rows of each shard begin."""

    rows: pa.RecordBatch
    shards: list[int]
    starts: list[int]

    def of(self, shard: int) -> pa.RecordBatch | None:
        if shard not in self.shards:
            return None
        i = self.shards.index(shard)
        stops = [*self.starts[1:], self.rows.num_rows]
        return self.rows.slice(self.starts[i], stops[i] - self.starts[i])


class RowsByShard:
    """Copies of stream tuples, ordered by shard within each batch that was added."""

    def __init__(self) -> None:
        """No tuples yet."""
        self.bytes = 0
        """What the tuples take."""
        self._ordered: list[_Ordered] = []

    def add(
        self,
        batch: pa.RecordBatch,
        shards: NDArray[np.int32],
        order: NDArray[np.int64],
    ) -> None:
        """Copy the rows of these numbers; `order` sorts them by their shards."""
        rows = batch.take(to_arrow(order))
        found, starts = np.unique(shards[order], return_index=True)
        self.bytes += rows.nbytes
        self._ordered.append(_Ordered(rows, found.tolist(), starts.tolist()))

    @property
    def shards(self) -> list[int]:
        """The shards that have tuples here, in order."""
        return sorted({shard for ordered in self._ordered for shard in ordered.shards})

    def of(self, shard: int) -> Iterator[pa.RecordBatch]:
        """The tuples of one shard."""
        for ordered in self._ordered:
            rows = ordered.of(shard)
            if rows is not None:
                yield rows

    def clear(self) -> None:
        """Drop all tuples."""
        self._ordered.clear()
        self.bytes = 0
