"""MESHJOIN: scan R in a circle, join each partition with a window over the stream.

Polyzotis et al.: *Supporting Streaming Updates in an Active Data Warehouse*, ICDE 2007,
Figure 4.

     S ─ w tuples ─► H ◄──probe── disk buffer ◄── b pages ── R, round and round
                     Q ── oldest chunk leaves after one full cycle

| paper | here |
| --- | --- |
| w | `w`, tuples read per step: the option `chunk_tuples` |
| b | `partition_pages` |
| k = N_R / b | partitions per cycle, the last one smaller when b does not divide N_R |
| H | the stream table |
| Q | the scan window's ring of chunks |

No index is used. When the stream pauses or ends, chunks are smaller or missing and the scan
goes on until the window is empty, so that no tuple waits for more than one cycle.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Self

import pyarrow as pa

from semistream.algorithms.assembly import Assembly
from semistream.algorithms.sizing import Needs
from semistream.parts.disk_buffer import DiskBuffer
from semistream.parts.scan_window import ScanWindow
from semistream.parts.stream_buffer import TupleSource


class MeshJoin:
    """w tuples and b pages per step; a tuple leaves after it has met every page."""

    needs: ClassVar = Needs(
        "meshjoin",
        options=("partition_pages", "stream_slots", "chunk_tuples"),
        tuples_per_partition=True,
    )

    def __init__(
        self, stream: TupleSource, window: ScanWindow, disk: DiskBuffer, w: int | None
    ) -> None:
        """From its parts; without `w` the window is filled in one cycle."""
        self.stream = stream
        self.waiting = window
        self.disk = disk
        self.w = w
        self._position = 0

    @classmethod
    def assemble(cls, assembly: Assembly) -> Self:
        """From an assembly."""
        w = None if assembly.plan.front_rows else assembly.plan.chunk_tuples
        return cls(assembly.stream, assembly.window(), assembly.disk, w)

    def step(self) -> Iterator[pa.RecordBatch]:
        """One iteration; the numbers are the paper's lines.

        The pages of line 2 are read last: with an empty window they are not needed.
        """
        yield from self.waiting.expire(self._position)  # 3-6
        w = self.w or max(1, self.waiting.table.capacity // max(self.disk.partitions, 1))
        yield from self.waiting.enter(self.stream, w, self._position)  # 2, 7-8
        if len(self.waiting) and self.disk.partitions:
            partition = self.disk.read(self._position % self.disk.partitions)  # 2
            self._position += 1
            if self.waiting.outlasts(self._position):
                self.disk.read_ahead(self._position % self.disk.partitions)
            yield from self.waiting.probe(partition)  # 9-10

    def check(self) -> None:
        """Assert the invariants of the parts."""
        self.waiting.check()
