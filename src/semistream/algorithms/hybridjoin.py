"""HYBRIDJOIN: read the partition that the longest-waiting tuple needs, join it with all.

Naeem, Dobbie, Weber: *HYBRIDJOIN for Near-Real-Time Data Warehousing*, IJDWM 2011, Figure 5.

     S ─► stream buffer ─► H ◄──probe── disk buffer ◄── partition of R
                           Q ─oldest key─► index ─────────┘

| paper | here |
| --- | --- |
| H, h_S | the stream table and its slots |
| Q | the arrival queue |
| w | the free slots: what the last iteration finished |
| p | a partition of `partition_pages` pages |

Where the paper assumes that every key is in R and has one row, this is exact for any R: a key
that is absent leaves as unmatched, and one whose rows cross partitions is read to its end.
When fewer than w tuples have arrived, those are taken and the join goes on.

By default lines 7 to 15 are done for several long-waiting tuples at a time, where R's pages and
the memory allow it: their partitions would be read in that order anyway. Then w is what all of
them finish. The option `look_ups=0` is the paper's variant, one tuple at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Self

import pyarrow as pa

from semistream.algorithms.assembly import Assembly
from semistream.algorithms.sizing import Needs
from semistream.parts.disk_buffer import DiskBuffer
from semistream.parts.look_ups import LookUps
from semistream.parts.steps import Steps
from semistream.parts.stream_buffer import TupleSource
from semistream.parts.waiting import WaitingTuples


class HybridJoin:
    """Each step reads the partitions that the oldest waiting tuples need: one, or several."""

    needs: ClassVar = Needs(
        "hybridjoin",
        queue=True,
        fences=True,
        look_ups=True,
        options=("partition_pages", "look_ups", "stream_slots"),
    )

    def __init__(
        self,
        stream: TupleSource,
        waiting: WaitingTuples,
        disk: DiskBuffer,
        look_ups: LookUps | None = None,
        steps: Steps | None = None,
    ) -> None:
        """From its parts; without `look_ups`, one look-up is done at a time.

        With `steps`, compiled code does many such iterations in a call.
        """
        self.stream = stream
        self.waiting = waiting
        self.disk = disk
        self._look_ups = look_ups
        self._steps = steps

    @classmethod
    def assemble(cls, assembly: Assembly) -> Self:
        """From an assembly."""
        waiting = assembly.waiting()
        steps = assembly.steps(waiting)
        return cls(assembly.stream, waiting, assembly.disk, assembly.look_ups, steps)

    def step(self) -> Iterator[pa.RecordBatch]:
        """One iteration of the outer loop, or many; the numbers are the paper's lines."""
        if self._steps is not None:
            yield from self._steps.step(self.stream)  # 3-15
            return
        yield from self.waiting.fill(self.stream)  # 3-6
        if not len(self.waiting):
            return
        if self._look_ups is not None:
            yield from self._look_up_several(self._look_ups)
        else:
            yield from self._look_up()

    def _look_up(self) -> Iterator[pa.RecordBatch]:
        wanted = self.waiting.look_up()  # 7
        for partition in self.disk.load(wanted):  # 8
            self.disk.look_ahead(self.waiting.next_after(partition, wanted))
            yield from self.waiting.probe(partition, wanted)  # 9-15
        yield from self.waiting.settle(wanted)

    def _look_up_several(self, look_ups: LookUps) -> Iterator[pa.RecordBatch]:
        some = look_ups.take(self.waiting)  # 7, 8
        yield from self.waiting.probe_found(some)  # 9-15
        look_ups.done(some)
        if len(self.waiting) and self.waiting.is_left(some):
            yield from self._look_up_alone()

    def _look_up_alone(self) -> Iterator[pa.RecordBatch]:
        """Look up a key whose rows cross partitions, or have no room in a set, page by page."""
        wanted = self.waiting.look_up()
        for page in self.disk.load_key(wanted):
            yield from self.waiting.probe_key(page, wanted)
        yield from self.waiting.settle(wanted)

    def check(self) -> None:
        """Assert the invariants of the parts."""
        self.waiting.check()
