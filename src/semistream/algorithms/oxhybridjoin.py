"""Optimised X-HYBRIDJOIN: arriving tuples meet the popular master rows before they wait.

Naeem, Dobbie, Weber: *Optimised X-HYBRIDJOIN for Near-Real-Time Data Warehousing*, ADC 2012,
Algorithm 1.

     S ─► H_R ──hit──► output                        stream-probing phase
           │ miss
           ▼
          H_S ◄──probe── disk buffer ◄── R         disk-probing phase
           Q ─oldest key─► index ────────┘

| paper | here |
| --- | --- |
| H_R, l pages | a front stage with the rows of the first `pinned_partitions` partitions |
| H_S, hSavailable | the stream table and its free slots |
| k pages | a partition |
| w_N, w_S | tuples finished by H_R and by H_S in a step |

Tuples that hit never enter the stream table, so all of it is for the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Self

import pyarrow as pa

from semistream.algorithms.assembly import Assembly
from semistream.algorithms.sizing import Needs
from semistream.parts.disk_buffer import DiskBuffer
from semistream.parts.front_stage import FrontStage
from semistream.parts.steps import Steps
from semistream.parts.stream_buffer import TupleSource
from semistream.parts.waiting import WaitingTuples


class OptimisedXHybridJoin:
    """Each step reads the stream until the stream table is full, then one partition."""

    needs: ClassVar = Needs(
        "oxhybridjoin",
        options=("partition_pages", "stream_slots", "pinned_partitions"),
        queue=True,
        fences=True,
        pinned_share=1 / 8,
        pinned_front=True,
    )

    def __init__(
        self,
        stream: TupleSource,
        front: FrontStage,
        waiting: WaitingTuples,
        disk: DiskBuffer,
        steps: Steps | None = None,
    ) -> None:
        """From its parts; `stream` gives the tuples that the front stage does not answer.

        With `steps`, compiled code does many iterations in a call.
        """
        self.stream = stream
        self.front = front
        self.waiting = waiting
        self.disk = disk
        self._steps = steps

    @classmethod
    def assemble(cls, assembly: Assembly) -> Self:
        """From an assembly; the popular partitions go into the front stage."""
        front = assembly.front
        assert front is not None
        for number in range(assembly.plan.pinned_partitions):
            front.pin(assembly.disk.read(number))
        waiting = assembly.waiting()
        return cls(assembly.stream, front, waiting, assembly.disk, assembly.steps(waiting))

    def step(self) -> Iterator[pa.RecordBatch]:
        """One iteration of the outer loop, or many; the numbers are the paper's lines."""
        if self._steps is not None:
            yield from self._steps.step(self.stream)  # 3-21
            return
        yield from self.waiting.fill(self.stream)  # 3-11
        if not len(self.waiting):
            return
        wanted = self.waiting.look_up()  # 12
        for partition in self.disk.load(wanted):  # 13
            self.disk.look_ahead(self.waiting.next_after(partition, wanted))
            yield from self.waiting.probe(partition, wanted)  # 14-21
        yield from self.waiting.settle(wanted)

    def check(self) -> None:
        """Assert the invariants of the parts."""
        self.waiting.check()
        self.front.check()
