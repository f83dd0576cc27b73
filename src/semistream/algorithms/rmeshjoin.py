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
from semistream.kernels.ring import SPREAD
from semistream.parts.disk_buffer import DiskBuffer
from semistream.parts.scan_window import ScanWindow
from semistream.parts.steps import Steps
from semistream.parts.stream_buffer import TupleSource


class RMeshJoin:
    """A share of the window and b pages per step; a tuple leaves after a full cycle."""

    needs: ClassVar = Needs("rmeshjoin")

    def __init__(
        self,
        stream: TupleSource,
        window: ScanWindow,
        disk: DiskBuffer,
        steps: Steps | None = None,
    ) -> None:
        """From its parts; with `steps`, compiled code does many iterations in a call."""
        self.stream = stream
        self.waiting = window
        self.disk = disk
        self._steps = steps

    @classmethod
    def assemble(cls, assembly: Assembly) -> Self:
        """From an assembly."""
        window = assembly.window(SPREAD)
        return cls(assembly.stream, window, assembly.disk, assembly.steps(window))

    def step(self) -> Iterator[pa.RecordBatch]:
        """One iteration, or many, in MESHJOIN's order."""
        if self._steps is not None:
            yield from self._steps.step(self.stream)
            return
        yield from self.waiting.expire()
        yield from self.waiting.enter(self.stream)
        if len(self.waiting) and self.disk.partitions:
            partition = self.disk.read(self.waiting.partition)
            if (following := self.waiting.following) is not None:
                self.disk.read_ahead(following)
            yield from self.waiting.probe(partition)

    def check(self) -> None:
        """Assert the invariants of the parts."""
        self.waiting.check()
