"""Scan window: the sliding window over the stream that MESHJOIN keeps while it scans R.

Tuples enter in chunks and leave in the same order, each after exactly one full cycle of R, so
the queue Q of Polyzotis et al. 2007, §3.1, is a ring of slots: no links are needed. A chunk
remembers the scan position at which it is due.

    slots  |....[chunk due at 7][chunk due at 8][chunk due at 9]....|
                 ^ oldest                                       ^ next free
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.parts.disk_buffer import Partition
from semistream.parts.output import Output
from semistream.parts.stream_buffer import TupleSource
from semistream.parts.stream_table import StreamTable
from semistream.parts.waiting import Prober, fitting

Batches = Iterator[pa.RecordBatch]


class _Chunk(NamedTuple):
    start: int
    tuples: int
    due: int


class ScanWindow:
    """Chunks of waiting tuples in a ring; the stream table finds them by key."""

    def __init__(self, table: StreamTable, prober: Prober, output: Output, cycle: int) -> None:
        """A chunk stays for `cycle` scan positions."""
        self.table = table
        self.cycle = cycle
        self._prober = prober
        self._output = output
        self._chunks: deque[_Chunk] = deque()
        self._next = 0
        self._count = 0

    def __len__(self) -> int:
        """How many tuples wait."""
        return self._count

    @property
    def free(self) -> int:
        """How many slots do not hold one."""
        return self.table.capacity - self._count

    def expire(self, position: int) -> Batches:
        """Let go of the chunks that have seen all of R by this position."""
        while self._chunks and self._chunks[0].due <= position:
            chunk = self._chunks.popleft()
            slots = self._ring(chunk.start, chunk.tuples)
            self.table.remove_expired(slots)
            self._count -= chunk.tuples
            yield from self._prober.finish(slots)

    def outlasts(self, position: int) -> bool:
        """Whether a tuple will still wait at this position."""
        return bool(self._chunks) and self._chunks[-1].due > position

    def enter(self, stream: TupleSource, limit: int, position: int) -> Batches:
        """Read at most `limit` tuples as a chunk that first meets the partition at `position`."""
        for arrivals in stream.read(min(limit, self.free)):
            yield from self._output.arrived(arrivals)
            count = fitting(arrivals, self.table, stream, waiting=self._count)
            if count:
                slots = self._ring(self._next, count)
                self.table.insert(slots, arrivals.codes[:count], arrivals.batch.slice(0, count))
                self._chunks.append(_Chunk(self._next, count, position + self.cycle))
                self._next = (self._next + count) % self.table.capacity
                self._count += count
            if count < len(arrivals.codes):
                return

    def probe(self, partition: Partition) -> Batches:
        """Output r ⋈ H for every row of the partition."""
        yield from self._prober.probe(partition, 0, 0, len(partition.codes))

    def check(self) -> None:
        """Assert that the ring and the table hold the same tuples."""
        self.table.check()
        held = sorted(slot for chain in self.table.waiting().values() for slot in chain)
        ring = [int(slot) for chunk in self._chunks for slot in self._ring(*chunk[:2])]
        assert held == sorted(ring)
        assert len(ring) == self._count <= self.table.capacity
        assert [chunk.due for chunk in self._chunks] == sorted(c.due for c in self._chunks)

    def _ring(self, start: int, count: int) -> NDArray[np.int32]:
        return np.arange(start, start + count, dtype=np.int64).astype(np.int32) % np.int32(
            self.table.capacity
        )
