"""Scan window: the sliding window over the stream that MESHJOIN keeps while it scans R.

Tuples enter in chunks and leave in the same order, each after exactly one full cycle of R, so
the queue Q of Polyzotis et al. 2007, §3.1, is a ring of slots: no links are needed. For each
position of the cycle the ring has how many tuples entered there; see `kernels.ring`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.kernels import NONE
from semistream.kernels.ring import (
    LATEST,
    POSITION,
    RING_COUNT,
    RING_END,
    RING_LIMIT,
    RING_NEXT,
    RING_OLDEST,
    RING_SCALARS,
    Ring,
    chunk_room,
    ring_append,
    ring_free,
)
from semistream.kernels.step_state import Window
from semistream.parts.disk_buffer import Partition
from semistream.parts.output import Output
from semistream.parts.stream_buffer import TupleSource
from semistream.parts.stream_table import StreamTable
from semistream.parts.waiting import Prober, put_back_excess

Batches = Iterator[pa.RecordBatch]


class ScanWindow:
    """Chunks of waiting tuples in a ring; the stream table finds them by key."""

    def __init__(self, table: StreamTable, prober: Prober, output: Output, w: int) -> None:
        """A chunk of `w` tuples, or of a share of all slots, stays for the table's cycle."""
        self.table = table
        self.w = w
        """Tuples that enter at a position, or FLOORED or SPREAD (see `kernels.ring`)."""
        self.least = len(table.entered_at)
        self._prober = prober
        self._output = output
        self._ring = Ring(table.entered_at, np.zeros(RING_SCALARS, np.int64))
        self._ring.ends[RING_END] = NONE
        self._ring.ends[RING_LIMIT] = table.capacity
        self.was_full = False
        """Whether no more could enter at some time; whoever reads it may reset it."""

    def __len__(self) -> int:
        """How many tuples wait."""
        return int(self._ring.ends[RING_COUNT])

    @property
    def for_kernels(self) -> Window:
        """Table and ring for kernels that do a whole step."""
        return self.table.window(self._ring, self.w)

    @property
    def free(self) -> int:
        """How many slots can be given out before the oldest chunk leaves."""
        return ring_free(self._ring)

    @property
    def partition(self) -> int:
        """The partition of R that is next."""
        return int(self._ring.ends[POSITION]) % self.least

    @property
    def following(self) -> int | None:
        """The partition behind that one, if a tuple that waits now will wait for it too."""
        ends = self._ring.ends
        follows = len(self) and ends[LATEST] > ends[POSITION] + 1
        return int(ends[POSITION] + 1) % self.least if follows else None

    def oldest(self) -> int:
        """The slot of the tuple that has waited longest; there must be one."""
        return int(self._ring.ends[RING_OLDEST])

    def limit(self, capacity: int) -> None:
        """Give out only slots below `capacity` from now on. O(1)."""
        self._ring.ends[RING_LIMIT] = capacity

    @property
    def beyond(self) -> int:
        """How many tuples still wait in slots beyond the limit. O(1)."""
        limit = int(self._ring.ends[RING_LIMIT])
        return sum(max(0, stop - max(start, limit)) for start, stop in self._stretches())

    def resize(self, capacity: int) -> None:
        """The table has `capacity` slots now."""
        self._ring.ends[RING_LIMIT] = capacity

    def expire(self) -> Batches:
        """Let go of the chunk that has seen all of R by now."""
        for slots in self.table.remove_expired_of(self._ring):
            yield from self._prober.finish(slots)

    def enter(self, stream: TupleSource) -> Batches:
        """Read the tuples whose turn it is as a chunk that first meets the next partition."""
        for arrivals in stream.read(chunk_room(self._ring, self.w, self.table.capacity)):
            yield from self._output.arrived(arrivals)
            count = put_back_excess(arrivals, self.table, stream, waiting=len(self))
            if count:
                slots: NDArray[np.int32] = np.empty(count, np.int32)
                ring_append(self._ring, slots)
                self.table.insert(slots, arrivals.codes[:count], arrivals.batch.slice(0, count))
                # Equal chunks that fill the window leave fewer slots over than there are chunks.
                if self.free < self.least:
                    self.note_full()
            if count < len(arrivals.codes):
                return

    def note_full(self) -> None:
        """No more could enter."""
        self.was_full = True

    def probe(self, partition: Partition) -> Batches:
        """Output r ⋈ H for every row of the next partition, which the scan passes then."""
        self._ring.ends[POSITION] += 1
        yield from self._prober.probe(partition, 0, 0, len(partition.codes))

    def check(self) -> None:
        """Assert that the ring and the table hold the same tuples."""
        held = self.table.held()
        self.table.store.check()
        ring = [slot for start, stop in self._stretches() for slot in range(start, stop)]
        assert held == sorted(ring)
        assert len(ring) == len(self) == int(self._ring.chunks.sum()) <= self.table.capacity
        assert (self._ring.chunks >= 0).all()

    def _stretches(self) -> list[tuple[int, int]]:
        """The slots in use, oldest first, as stretches (first, behind the last)."""
        ends = self._ring.ends
        oldest, end, following = (int(ends[i]) for i in (RING_OLDEST, RING_END, RING_NEXT))
        return [(oldest, following)] if end == NONE else [(oldest, end), (0, following)]
