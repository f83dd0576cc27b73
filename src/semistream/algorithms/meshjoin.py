"""MESHJOIN: scan R in a circle, join each partition with a window over the stream.

Polyzotis et al.: *Supporting Streaming Updates in an Active Data Warehouse*, ICDE 2007,
Figure 4.

     S ─ w tuples ─► H ◄──probe── disk buffer ◄── b pages ── R, round and round
                     Q ── oldest chunk leaves after one full cycle

| paper | here |
| --- | --- |
| w | the window's `w`, tuples read per step: the option `chunk_tuples` |
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
from semistream.kernels.ring import FLOORED
from semistream.parts.disk_buffer import DiskBuffer
from semistream.parts.scan_window import ScanWindow
from semistream.parts.steps import Steps
from semistream.parts.stream_buffer import TupleSource


class MeshJoin:
    """w tuples and b pages per step; a tuple leaves after it has met every page."""

    needs: ClassVar = Needs(
        "meshjoin",
        options=("partition_pages", "stream_slots", "chunk_tuples"),
        tuples_per_partition=True,
    )

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
        """From an assembly; with a front stage, w changes with the slots of the window."""
        window = assembly.window(
            FLOORED if assembly.plan.front_rows else assembly.plan.chunk_tuples
        )
        return cls(assembly.stream, window, assembly.disk, assembly.steps(window))

    def step(self) -> Iterator[pa.RecordBatch]:
        """One iteration, or many; the numbers are the paper's lines.

        The pages of line 2 are read last: with an empty window they are not needed.
        """
        if self._steps is not None:
            yield from self._steps.step(self.stream)  # 2-10
            return
        yield from self.waiting.expire()  # 3-6
        yield from self.waiting.enter(self.stream)  # 2, 7-8
        if len(self.waiting) and self.disk.partitions:
            partition = self.disk.read(self.waiting.partition)  # 2
            if (following := self.waiting.following) is not None:
                self.disk.read_ahead(following)
            yield from self.waiting.probe(partition)  # 9-10

    def check(self) -> None:
        """Assert the invariants of the parts."""
        self.waiting.check()
