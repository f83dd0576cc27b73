"""R-MESHJOIN: MESHJOIN whose disk buffer does not depend on the size of R.

Naeem, Dobbie, Weber: *R-MESHJOIN for Near-Real-Time Data Warehousing*, DOLAP 2010, after its
abstract: in MESHJOIN the window must be a whole number of equal chunks, one per partition of
R, which ties the disk buffer to the size of R. Here window and disk buffer are sized apart.

     S ─ its share of the window ─► H ◄──probe── disk buffer ◄── b pages ── R, in a circle
                                    Q ── leaves after one full cycle

| paper | here |
| --- | --- |
| h_S | slots of the stream table; any number |
| w | a share of h_S per step: h_S / k on average, rounded so that h_S enter in a cycle |
| b, k | `partition_pages`; partitions per cycle |

The scan, the expiry after one full cycle and the results are MESHJOIN's.
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


class RMeshJoin:
    """A share of the window and b pages per step; a tuple leaves after a full cycle."""

    needs: ClassVar = Needs("rmeshjoin")

    def __init__(self, stream: TupleSource, window: ScanWindow, disk: DiskBuffer) -> None:
        """From its parts."""
        self.stream = stream
        self.waiting = window
        self.disk = disk
        self._position = 0

    @classmethod
    def assemble(cls, assembly: Assembly) -> Self:
        """From an assembly."""
        return cls(assembly.stream, assembly.window(), assembly.disk)

    def step(self) -> Iterator[pa.RecordBatch]:
        """One iteration, in MESHJOIN's order."""
        yield from self.waiting.expire(self._position)
        yield from self.waiting.enter(self.stream, self._share(), self._position)
        if len(self.waiting) and self.disk.partitions:
            partition = self.disk.read(self._position % self.disk.partitions)
            self._position += 1
            if self.waiting.outlasts(self._position):
                self.disk.read_ahead(self._position % self.disk.partitions)
            yield from self.waiting.probe(partition)

    def check(self) -> None:
        """Assert the invariants of the parts."""
        self.waiting.check()

    def _share(self) -> int:
        """The slots whose turn it is at this position; at least one when nothing waits."""
        slots, cycle = self.waiting.table.capacity, max(self.disk.partitions, 1)
        place = self._position % cycle
        share = (place + 1) * slots // cycle - place * slots // cycle
        return share if len(self.waiting) else max(share, 1)
