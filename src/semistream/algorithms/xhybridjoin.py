"""X-HYBRIDJOIN: HYBRIDJOIN with the most popular partitions always in memory.

Naeem, Dobbie, Weber: *Efficient processing of streaming updates with archived master data*,
KAIS 2013, Algorithm 1.

     S ─► stream buffer ─► H ◄──probe── disk buffer: pinned p_1 | swapped p_i ◄── R
                           Q ─oldest key─► index ─────────────────────────────────┘

| paper | here |
| --- | --- |
| H, h_S, Q, w | as in HYBRIDJOIN |
| p_1 (non-swappable) | the first `pinned_partitions` partitions |
| p_i (swappable) | the partition of the oldest waiting key |

It pays when R is laid out by access frequency (`layout="given"`), so that the first partitions
are what the stream asks for most; it is exact for any layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Self

import pyarrow as pa

from semistream.algorithms.assembly import Assembly
from semistream.algorithms.sizing import Needs
from semistream.parts.disk_buffer import DiskBuffer
from semistream.parts.steps import Steps
from semistream.parts.stream_buffer import TupleSource
from semistream.parts.waiting import WaitingTuples


class XHybridJoin:
    """Each step probes with the pinned partitions, then with the oldest tuple's."""

    needs: ClassVar = Needs(
        "xhybridjoin",
        options=("partition_pages", "stream_slots", "pinned_partitions"),
        queue=True,
        fences=True,
        pinned_share=1 / 16,
    )

    def __init__(
        self,
        stream: TupleSource,
        waiting: WaitingTuples,
        disk: DiskBuffer,
        steps: Steps | None = None,
    ) -> None:
        """From its parts; the pinned partitions are loaded (line 1).

        With `steps`, compiled code does many iterations in a call.
        """
        self.stream = stream
        self.waiting = waiting
        self.disk = disk
        self._steps = steps

    @classmethod
    def assemble(cls, assembly: Assembly) -> Self:
        """From an assembly."""
        waiting = assembly.waiting()
        return cls(assembly.stream, waiting, assembly.disk, assembly.steps(waiting))

    def step(self) -> Iterator[pa.RecordBatch]:
        """One iteration of the outer loop, or many; the numbers are the paper's lines."""
        if self._steps is not None:
            yield from self._steps.step(self.stream)  # 4-23
            return
        yield from self.waiting.fill(self.stream)  # 4-7
        for pinned in self.disk.pinned:
            yield from self.waiting.probe(pinned)  # 8-14
        if not len(self.waiting):
            return
        wanted = self.waiting.look_up()  # 15
        for partition in self.disk.load(wanted):  # 16
            self.disk.look_ahead(self.waiting.next_after(partition, wanted))
            yield from self.waiting.probe(partition, wanted)  # 17-23
        yield from self.waiting.settle(wanted)

    def check(self) -> None:
        """Assert the invariants of the parts."""
        self.waiting.check()
