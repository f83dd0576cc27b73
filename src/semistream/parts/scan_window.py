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
from semistream.parts.waiting import Prober, put_back_excess

Batches = Iterator[pa.RecordBatch]


class _Chunk(NamedTuple):
    slots: tuple[range, ...]
    due: int


class ScanWindow:
    """Chunks of waiting tuples in a ring; the stream table finds them by key."""

    def __init__(self, table: StreamTable, prober: Prober, output: Output, cycle: int) -> None:
        """A chunk stays for `cycle` scan positions."""
        self.table = table
        self.cycle = cycle
        self.least = max(cycle, 1)
        self._prober = prober
        self._output = output
        self._chunks: deque[_Chunk] = deque()
        self._next = 0
        self._count = 0
        self._limit = table.capacity
        self.was_full = False
        """Whether no more could enter at some time; whoever reads it may reset it."""

    def __len__(self) -> int:
        """How many tuples wait."""
        return self._count

    @property
    def free(self) -> int:
        """How many slots can be given out before the oldest chunk leaves."""
        return sum(map(len, self._gaps()))

    def oldest(self) -> int:
        """The slot of the tuple that has waited longest; there must be one."""
        return self._chunks[0].slots[0].start

    def limit(self, capacity: int) -> None:
        """Give out only slots below `capacity` from now on. O(1)."""
        self._limit = capacity

    @property
    def beyond(self) -> int:
        """How many tuples still wait in slots beyond the limit. O(chunks)."""
        return sum(
            max(0, piece.stop - max(piece.start, self._limit))
            for chunk in self._chunks
            for piece in chunk.slots
        )

    def resize(self, capacity: int) -> None:
        """The table has `capacity` slots now."""
        self._limit = capacity

    def expire(self, position: int) -> Batches:
        """Let go of the chunks that have seen all of R by this position."""
        while self._chunks and self._chunks[0].due <= position:
            slots = _numbers(self._chunks.popleft().slots)
            self.table.remove_expired(slots)
            self._count -= len(slots)
            yield from self._prober.finish(slots)

    def outlasts(self, position: int) -> bool:
        """Whether a tuple will still wait at this position."""
        return bool(self._chunks) and self._chunks[-1].due > position

    def enter(self, stream: TupleSource, limit: int, position: int) -> Batches:
        """Read at most `limit` tuples as a chunk that first meets the partition at `position`."""
        for arrivals in stream.read(min(limit, self.free)):
            yield from self._output.arrived(arrivals)
            count = put_back_excess(arrivals, self.table, stream, waiting=self._count)
            if count:
                chunk = _Chunk(self._take(count), position + self.cycle)
                slots = _numbers(chunk.slots)
                self.table.insert(slots, arrivals.codes[:count], arrivals.batch.slice(0, count))
                self._chunks.append(chunk)
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
        ring = [slot for chunk in self._chunks for piece in chunk.slots for slot in piece]
        assert held == sorted(ring)
        assert len(ring) == self._count <= self.table.capacity
        assert [chunk.due for chunk in self._chunks] == sorted(c.due for c in self._chunks)

    def _gaps(self) -> tuple[range, ...]:
        """The free slots in the order in which they are given out."""
        end = self._limit
        if not self._chunks:
            return (range(end),)
        oldest = self._chunks[0].slots[0].start
        if self._next <= oldest:
            return (range(self._next, min(oldest, end)),)
        return range(self._next, end), range(min(oldest, end))

    def _take(self, count: int) -> tuple[range, ...]:
        taken = []
        for gap in self._gaps():
            piece = gap[:count]
            if len(piece):
                taken.append(piece)
                count -= len(piece)
                self._next = piece.stop
        # Equal chunks that fill the window leave fewer slots over than there are chunks.
        self.was_full = self.was_full or self.free < max(self.cycle, 1)
        return tuple(taken)


def _numbers(pieces: tuple[range, ...]) -> NDArray[np.int32]:
    return np.concatenate([np.arange(p.start, p.stop, dtype=np.int32) for p in pieces])
