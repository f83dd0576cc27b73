"""Demanded tuples: a demand table and its output, as DEMANDJOIN uses them.

Tuples are taken out of their group when their rows are there, a piece of output at a time; each
is then paired with all its rows, counted and let go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.kernels.demand import count_asked, meet
from semistream.metrics import Recorder
from semistream.parts.admission import per_turn
from semistream.parts.demand_table import Codes, DemandTable, Numbers
from semistream.parts.disk_buffer import Partition
from semistream.parts.join_shape import JoinShape
from semistream.parts.look_up_set import LookUpSet
from semistream.parts.output import Output
from semistream.parts.stream_buffer import TupleSource
from semistream.parts.waiting import Observer, Sender, put_back_excess
from semistream.row_bytes import Sizes

Batches = Iterator[pa.RecordBatch]


_Loads = Callable[[int], Iterator[Partition]]
"""Reads the partitions that hold rows of a code."""


class _Rows(Protocol):
    """Master rows by number."""

    def sizes(self, rows: Numbers) -> Sizes: ...

    def take(self, rows: Numbers) -> pa.RecordBatch: ...


class DemandedTuples:
    """Waiting tuples: enter, which partitions to read, join what was read."""

    def __init__(
        self,
        shape: JoinShape,
        table: DemandTable,
        output: Output,
        recorder: Recorder,
        observer: Observer | None = None,
        *,
        by_halves: bool = False,
    ) -> None:
        """Nothing waits yet; the observer is told which rows matched.

        `by_halves`: arrivals come in only when half of the slots are free.
        """
        self.table = table
        self.least = 1
        self.was_full = False
        """Whether there was no free slot at some time; whoever reads it may reset it."""
        self._exact = shape.codec.exact
        self._output = output
        self._recorder = recorder
        self._observer = observer
        self._by_halves = by_halves
        self._sender = Sender(shape, table, output, recorder)

    def __len__(self) -> int:
        """How many tuples wait."""
        return len(self.table)

    @property
    def free(self) -> int:
        """How many slots do not hold one."""
        return self.table.free

    def oldest(self) -> int:
        """The slot of the tuple that has waited longest; there must be one. O(n)."""
        return self.table.longest_waiting()

    @property
    def beyond(self) -> int:
        """Tuples that wait beyond the limit."""
        return self.table.beyond

    def limit(self, capacity: int) -> None:
        """Give out only slots below `capacity`."""
        self.table.limit(capacity)

    def resize(self, capacity: int) -> None:
        """The table has `capacity` slots, and gives them out itself."""

    def fill(self, stream: TupleSource) -> Batches:
        """Read as many tuples as there are free slots, or as have arrived."""
        if self._by_halves and 2 * self.free < self.table.capacity and len(self):
            return
        for arrivals in stream.read(self.table.free):
            yield from self._output.arrived(arrivals)
            count = put_back_excess(arrivals, self.table, stream, waiting=len(self))
            if count:
                self.table.enter(arrivals.codes[:count], arrivals.batch.slice(0, count))
                self.was_full = self.was_full or not self.free
            if count < len(arrivals.codes):
                return

    def next_regions(self, marked: NDArray[np.uint8], most: int, most_tuples: int) -> Codes:
        """The partitions for which the demand is greatest; those that are marked are read now."""
        return self.table.most_demanded(marked, most, most_tuples)

    def next_region(self, chosen: int | None = None) -> int:
        """The partition for which the demand is greatest; there must be one. O(partitions).

        It is the one that was `chosen` before, if tuples still wait for that.
        """
        if chosen is not None and self.table.waits_for(chosen):
            return chosen
        return int(self.table.most_demanded(self.table.unmarked(), 1, 1)[0])

    def region_after(self, region: int, partitions: int) -> int | None:
        """The partition for which the demand is greatest beside `region`; None if there is none.

        Tuples that are in no partition do not count. O(partitions).
        """
        marked = self.table.unmarked()
        marked[region] = 1
        marked[partitions:] = 1
        found = self.table.most_demanded(marked, 1, 1)
        return int(found[0]) if len(found) else None

    def join_found(self, look_ups: LookUpSet) -> Batches:
        """Join rows that were looked up with the tuples that wait for them, which are then done."""
        counts, waits = look_ups.counts, look_ups.waits
        firsts = (np.cumsum(counts) - counts).astype(np.int32)
        waits[:] = 0
        turns = self.table.turns_waited(look_ups.partitions)
        self._recorder.partition_probes += 1
        for slots, places in self.table.take_found(look_ups, self._output.pairs):
            if self._observer is not None:
                waits += np.bincount(places, minlength=len(waits)).astype(np.int32)
            found = firsts[places], counts[places]
            yield from self._pair(slots, *found, look_ups)
            yield from self._sender.finish(slots)
        if self._observer is not None:
            ends = np.minimum(look_ups.wanted.ends[: len(turns)], len(waits))
            waits[:] = per_turn(waits, np.repeat(turns, np.diff(ends, prepend=0)))
            self._observer.offer_found(look_ups)

    def join_partition(self, region: int, partition: Partition) -> Batches:
        """Join a partition with the tuples that wait for it, which are then done.

        Tuples of keys that cross its edges stay.
        """
        order = np.argsort(partition.codes, kind="stable")
        in_order = partition.codes[order]
        self._recorder.partition_probes += 1
        pairs, turns = self._output.pairs, self.table.turns_waited(np.array([region]))
        asked = np.zeros(len(order), np.int32)
        for slots in self.table.take_codes(region, partition.partial_codes, pairs, among=False):
            codes = self.table.codes(slots)
            by_code = np.argsort(codes, kind="stable")
            slots, codes = slots[by_code], codes[by_code]
            low, counts = (np.empty(len(codes), np.int32) for _ in range(2))
            meet(codes, in_order, low, counts)
            # Rows of a key are adjacent, whatever the order of keys.
            firsts = order[np.minimum(low, len(order) - 1)].astype(np.int32)
            if self._observer is not None:
                count_asked(firsts, counts, asked)
            self._recorder.probes += len(slots)
            yield from self._pair(slots, firsts, counts, partition)
            yield from self._sender.finish(slots)
        if self._observer is not None:
            self._observer.offer_rows(partition, asked, turns.item())

    def join_key(self, region: int, code: int, partitions: _Loads) -> Batches:
        """Join the tuples of one code with its rows in several partitions."""
        for slots in self.table.take_codes(region, [code], self._output.pairs, among=True):
            slots = slots.copy()
            for partition in partitions(code):
                rows = np.flatnonzero(partition.codes == code).astype(np.int32)
                if len(rows):
                    firsts = np.full(len(slots), rows[0], np.int32)
                    counts = np.full(len(slots), len(rows), np.int32)
                    yield from self._pair(slots, firsts, counts, partition)
            yield from self._sender.finish(slots)

    def let_go(self, region: int) -> Batches:
        """The tuples of a group have no row in R."""
        for slots in self.table.take_codes(region, [], self._output.pairs, among=False):
            yield from self._sender.finish(slots)

    def check(self) -> None:
        """Assert the invariants of the table."""
        self.table.check()

    def _pair(self, slots: Numbers, firsts: Numbers, counts: Numbers, rows: _Rows) -> Batches:
        """Send tuples out, each with `counts` of its rows from `firsts` on."""
        if self._exact:
            self.table.mark_matched(slots[counts > 0])
        if (counts == 1).all():
            yield from self._send(slots, firsts, rows)
            return
        ends = np.cumsum(counts, dtype=np.int64)
        total, most = int(ends[-1]), len(self._output.pairs.tuples)
        for start in range(0, total, most):
            stop = min(start + most, total)
            at = np.arange(start, stop)
            tuples = np.searchsorted(ends, at, side="right")
            numbers = (firsts[tuples] + at - (ends - counts)[tuples]).astype(np.int32)
            yield from self._send(slots[tuples], numbers, rows)

    def _send(self, slots: Numbers, numbers: Numbers, rows: _Rows) -> Batches:
        """Send each tuple out with one row."""
        for begin, end in self._output.cuts(len(slots), partial(rows.sizes, numbers)):
            yield from self._sender.join(slots[begin:end], rows.take(numbers[begin:end]))
