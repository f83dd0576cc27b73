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
| H_R, l pages | pinned rows, the first `pinned_partitions` partitions |
| H_S, hSavailable | the stream table and its free slots |
| k pages | a partition |
| w_N, w_S | tuples finished by H_R and by H_S in a step |

Tuples that hit never enter the stream table, so all of it is for the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa

from semistream.algorithms.assembly import Assembly, Needs
from semistream.metrics import Recorder
from semistream.parts.disk_buffer import DiskBuffer
from semistream.parts.output import Output
from semistream.parts.pinned_rows import BYTES_PER_ROW, PinnedRows
from semistream.parts.stream_buffer import Arrivals, TupleSource
from semistream.parts.waiting import WaitingTuples, fitting


class OptimisedXHybridJoin:
    """Each step reads the stream until the stream table is full, then one partition."""

    needs: ClassVar = Needs(
        "oxhybridjoin",
        options=("partition_pages", "stream_slots", "pinned_partitions"),
        queue=True,
        fences=True,
        pinned_share=1 / 8,
        pinned_row_bytes=BYTES_PER_ROW,
    )

    def __init__(
        self,
        stream: TupleSource,
        pinned: PinnedRows,
        waiting: WaitingTuples,
        disk: DiskBuffer,
        output: Output,
        recorder: Recorder,
    ) -> None:
        """From its parts."""
        self.stream = stream
        self.pinned = pinned
        self.waiting = waiting
        self.disk = disk
        self.output = output
        self._recorder = recorder

    @classmethod
    def assemble(cls, assembly: Assembly) -> Self:
        """From an assembly."""
        pinned = PinnedRows(
            assembly.disk.pinned,
            assembly.shape,
            assembly.output,
            assembly.budget.grant("pinned rows"),
            assembly.recorder,
        )
        return cls(
            assembly.stream,
            pinned,
            assembly.waiting(),
            assembly.disk,
            assembly.output,
            assembly.recorder,
        )

    def step(self) -> Iterator[pa.RecordBatch]:
        """One iteration of the outer loop; the numbers are the paper's lines."""
        yield from self._probe_with_stream()  # 3-11
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

    def _probe_with_stream(self) -> Iterator[pa.RecordBatch]:
        """While tuples arrive and slots are free: hits go out, misses wait."""
        while free := self.waiting.queue.free:
            arrived = False
            for arrivals in self.stream.read(free):
                arrived = True
                yield from self.output.arrived(arrivals)
                table, waiting = self.waiting.table, len(self.waiting)
                count = fitting(arrivals, table, self.stream, waiting)
                yield from self._probe(arrivals.first(count))
                if count < len(arrivals.codes):
                    return
            if not arrived:
                return

    def _probe(self, arrivals: Arrivals) -> Iterator[pa.RecordBatch]:
        missed = np.ones(len(arrivals.codes), np.bool_)
        yield from self.pinned.probe(arrivals, missed)  # 5-6
        hits = len(missed) - int(np.count_nonzero(missed))
        self._recorder.joined += hits
        self._recorder.processing.add(0.0, hits)
        self.waiting.enter(arrivals.only(missed) if hits else arrivals, self.stream)  # 8-9
