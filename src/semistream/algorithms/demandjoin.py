"""DEMANDJOIN: read the partitions for which most tuples wait, and have waited longest.

An algorithm of this project, not of the papers (docs/demand-join.md). The partition that a tuple
needs is known when it arrives, so the waiting tuples are the reference string of the disk.
HYBRIDJOIN follows the oldest of them, MESHJOIN none. Here the partition is read whose tuples have
held most memory for longest.

     S ─► front stage ──hit──► output
            │ miss   ▲ rows that many waiting tuples matched
            ▼        │
          groups of waiting tuples, one per partition ◄──join── rows ◄── partitions of R
                     └─ how many wait × for how long ─► which to read ────────┘

A step takes arrivals in, takes the set of partitions that was read first, joins its rows, and lets
the partitions of greatest demand be read meanwhile. A group that has waited for long comes before
all others, so that no tuple waits for ever.

Where R or its storage do not allow sets of look-ups, one partition is read at a time. The next one
is chosen, and if the disk is waited for, read, while its predecessor is joined.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Self

import pyarrow as pa

from semistream.algorithms.assembly import Assembly
from semistream.algorithms.sizing import Needs
from semistream.parts.demand import DemandedTuples
from semistream.parts.disk_buffer import DiskBuffer
from semistream.parts.look_ups import LookUps
from semistream.parts.stream_buffer import TupleSource


class DemandJoin:
    """Each step reads the partitions of greatest demand: several, or one."""

    needs: ClassVar = Needs(
        "demandjoin",
        grouped=True,
        look_ups=True,
        front_share=0.15,
        options=(
            *("partition_pages", "look_ups", "stream_slots"),
            *("admission", "front_percent", "front_rows", "threshold"),
        ),
    )

    def __init__(
        self,
        stream: TupleSource,
        waiting: DemandedTuples,
        disk: DiskBuffer,
        look_ups: LookUps | None = None,
    ) -> None:
        """From its parts; without `look_ups`, one partition is read at a time."""
        self.stream = stream
        self.waiting = waiting
        self.disk = disk
        self._look_ups = look_ups
        self._following: int | None = None
        """The partition that is being read in the background."""

    @classmethod
    def assemble(cls, assembly: Assembly) -> Self:
        """From an assembly."""
        return cls(assembly.stream, assembly.demanded(), assembly.disk, assembly.look_ups)

    def step(self) -> Iterator[pa.RecordBatch]:
        """Take arrivals in, read for the greatest demand, join."""
        yield from self.waiting.fill(self.stream)
        if not len(self.waiting):
            return
        if self._look_ups is not None:
            yield from self._look_up_several(self._look_ups)
        else:
            yield from self._look_up()

    def _look_up_several(self, look_ups: LookUps) -> Iterator[pa.RecordBatch]:
        some = look_ups.take(self.waiting)
        yield from self.waiting.join_found(some)
        # What a set cannot settle: keys that cross from one partition into the next, and a key
        # whose rows have no room in it.
        for region, code in some.left_over():
            yield from self.waiting.join_key(region, code, self.disk.load)
        look_ups.done(some)

    def _look_up(self) -> Iterator[pa.RecordBatch]:
        region = self.waiting.next_region(self._following)
        self._following = None
        if region == self.disk.partitions:
            yield from self.waiting.let_go(region)
            return
        partition = self.disk.read(region)
        self._following = self.waiting.region_after(region, self.disk.partitions)
        if self._following is not None:
            self.disk.read_ahead(self._following)
        crossing = partition.partial_codes
        yield from self.waiting.join_partition(region, partition)
        for code in crossing:
            yield from self.waiting.join_key(region, code, self.disk.load)

    def check(self) -> None:
        """Assert the invariants of the parts."""
        self.waiting.check()
