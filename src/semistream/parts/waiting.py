"""Waiting tuples: stream table, arrival queue and output, as HYBRIDJOIN and its kin use them.

What the three papers' inner loops have in common stands here once: take arrivals in, probe
with a partition, let go of what it settled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.arrow_arrays import to_arrow
from semistream.errors import BudgetError
from semistream.kernels import NONE, oldest_outside
from semistream.kernels.step_state import Waiting
from semistream.metrics import Recorder
from semistream.parts.arrival_queue import ArrivalQueue
from semistream.parts.disk_buffer import Partition
from semistream.parts.join_shape import JoinShape
from semistream.parts.look_up_set import LookUpSet
from semistream.parts.output import Output
from semistream.parts.stream_buffer import Arrivals, TupleSource
from semistream.parts.stream_table import StreamTable
from semistream.parts.tuple_table import TupleTable

Batches = Iterator[pa.RecordBatch]

_STEPS_PER_REGION = 64
"""Waiting tuples that are looked at, at most, for each region to be looked up."""


class Observer(Protocol):
    """Learns from the disk phase which master rows the stream asks for."""

    def offer(self, partition: Partition, rows: NDArray[np.int32]) -> None:
        """Waiting tuples matched these rows, key by key, once for each tuple."""

    def offer_rows(self, partition: Partition, asked: NDArray[np.int32], turns: float) -> None:
        """So many waiting tuples matched each row, the first of its key, within some turns."""

    def offer_found(self, look_ups: LookUpSet) -> None:
        """Waiting tuples matched the rows of these look-ups."""


class Sender:
    """Sends waiting tuples out with their rows, and lets go of those that are done."""

    def __init__(
        self, shape: JoinShape, table: TupleTable, output: Output, recorder: Recorder
    ) -> None:
        """For the tuples of one table."""
        self._shape = shape
        self._tuples = table
        self._output = output
        self._recorder = recorder

    def finish(self, slots: NDArray[np.int32]) -> Batches:
        """Unlinked tuples are done: those that never matched go out as unmatched."""
        lonely = self._tuples.finish(slots)
        if len(lonely) and self._shape.how == "left":
            most = len(self._output.pairs.tuples)
            for start in range(0, len(lonely), most):
                part = self._tuples.gather(lonely[start : start + most])
                yield from self._output.unmatched(part)
        self._tuples.release(slots)

    def join(self, slots: NDArray[np.int32], master: pa.RecordBatch) -> Batches:
        """The i-th tuple with the i-th master row; codes that are no keys may not agree."""
        stream = self._tuples.gather(slots)
        stream, master, slots = self._shape.true_pairs(stream, master, slots)
        if not self._shape.codec.exact:
            self._tuples.mark_matched(slots)
        self._recorder.matches += len(slots)
        yield from self._output.matched(stream, master)


class Prober(Sender):
    """Pairs waiting tuples with the rows of a partition and sends the pairs out."""

    def __init__(
        self,
        shape: JoinShape,
        table: StreamTable,
        output: Output,
        recorder: Recorder,
        observer: Observer | None = None,
    ) -> None:
        """For the tuples of one stream table; the observer is told which rows matched."""
        super().__init__(shape, table, output, recorder)
        self._table = table
        self._observer = observer

    def probe(self, partition: Partition, region: int, start: int, stop: int) -> Batches:
        """Output r ⋈ H for rows start..stop of the partition; marks the tuples that matched."""
        output, pairs = self._output, self._output.pairs
        self._recorder.partition_probes += 1
        exact = self._shape.codec.exact
        for count in self._table.pairs(region, partition.codes, start, stop, pairs, exact):
            rows = pairs.rows[:count]
            if self._observer is not None:
                self._observer.offer(partition, rows)
            for begin, end in output.cuts(count, partial(partition.sizes, rows)):
                master = partition.batch.take(to_arrow(rows[begin:end]))
                yield from self.join(pairs.tuples[begin:end], master)

    def probe_found(self, look_ups: LookUpSet) -> Batches:
        """Output r ⋈ H for rows that were looked up; marks the tuples that matched."""
        output, pairs = self._output, self._output.pairs
        self._recorder.partition_probes += 1
        found = look_ups.codes, look_ups.counts, look_ups.waits
        for count in self._table.found_pairs(*found, pairs, self._shape.codec.exact):
            rows = pairs.rows[:count]
            for begin, end in output.cuts(count, partial(look_ups.sizes, rows)):
                yield from self.join(pairs.tuples[begin:end], look_ups.take(rows[begin:end]))
        if self._observer is not None:
            self._observer.offer_found(look_ups)


class WaitingTuples:
    """H and Q together: enter, oldest, probe, settle."""

    def __init__(
        self,
        shape: JoinShape,
        table: StreamTable,
        queue: ArrivalQueue,
        output: Output,
        recorder: Recorder,
        observer: Observer | None = None,
    ) -> None:
        """Nothing waits yet."""
        self.table = table
        self.queue = queue
        self.look_up_position: float | None = None
        self._recorder = recorder
        self._output = output
        self._prober = Prober(shape, table, output, recorder, observer)

    def __len__(self) -> int:
        """How many tuples wait."""
        return len(self.queue)

    @property
    def for_kernels(self) -> Waiting:
        """Table and queue for kernels that do a whole step."""
        return self.table.for_kernels(self.queue.links)

    @property
    def free(self) -> int:
        """How many slots do not hold one."""
        return self.queue.free

    def note_full(self) -> None:
        """There was no free slot."""
        self.queue.was_full = True

    def fill(self, stream: TupleSource) -> Batches:
        """Read as many tuples as there are free slots, or as have arrived."""
        for arrivals in stream.read(self.queue.free):
            yield from self._output.arrived(arrivals)
            if not self.enter(arrivals, stream):
                return

    def enter(self, arrivals: Arrivals, stream: TupleSource) -> bool:
        """Put arrivals into table and queue; False when the heap had no room for them all."""
        count = put_back_excess(arrivals, self.table, stream, waiting=len(self))
        if count:
            slots = self.queue.append(count)
            self.table.insert(slots, arrivals.codes[:count], arrivals.batch.slice(0, count))
        return count == len(arrivals.codes)

    def oldest(self) -> int:
        """The slot of the tuple that has waited longest; there must be one."""
        return self.queue.oldest()

    def look_up(self) -> int:
        """The code to read a partition for: of the tuple that has waited longest.

        Where load is shed from the oldest side, `look_up_position` says how far from the
        newest side the tuple stands instead (Naeem et al. 2017, §5.3.1).
        """
        if self.look_up_position is None:
            return self.table.code(self.queue.oldest())
        return self.table.code(self.queue.near(self.look_up_position))

    def shed(self, count: int, keep: Callable[[pa.RecordBatch], bool]) -> int:
        """Let go of the `count` longest-waiting tuples, unfinished; returns how many went.

        `keep` gets them before they go, a piece of output's size at a time, oldest first, and
        says whether it has them. They are the oldest of their codes, since they are the oldest.
        """
        gone = 0
        while gone < count and len(self):
            slots = self.queue.oldest_slots(min(count - gone, self._output.most_rows))
            if not keep(self.table.gather(slots)):
                break
            self.table.remove_expired(slots)
            self.table.release(slots)
            self.queue.remove(slots)
            self._recorder.deletes += len(slots)
            gone += len(slots)
        return gone

    def probe(self, partition: Partition, wanted: int | None = None) -> Batches:
        """Join a partition with all waiting tuples and let go of those it settles.

        Keys that are whole in the partition are settled; in key order so is every absent key
        in its range. Rows of `wanted`, a key that crosses partitions, are joined, not settled.
        """
        region = partition.number
        yield from self._prober.probe(partition, region, partition.start, partition.stop)
        if wanted is not None:
            first, behind = partition.partial_rows(wanted)
            if first < behind:
                yield from self._prober.probe(partition, self.table.region(wanted), first, behind)
        if self.table.clustered:
            span = (np.array([at], np.int64) for at in (region, partition.low, partition.high))
            settled = self.table.remove_ranges(*span)
        else:
            settled = self.table.remove_codes(partition.codes[partition.start : partition.stop])
        yield from self._finish(settled)

    def next_regions(
        self, marked: NDArray[np.uint8], most: int, most_tuples: int
    ) -> NDArray[np.int64]:
        """At most `most` regions in which tuples wait, the longest-waiting tuple's first.

        Regions that are marked are passed over, and those returned are marked.
        """
        links, oldest = self.queue.links, self.queue.oldest()
        return self.table.regions_from(links, oldest, marked, most, _STEPS_PER_REGION * most)

    def probe_found(self, look_ups: LookUpSet) -> Batches:
        """Join rows that were looked up with the tuples that wait for them, which are then done."""
        yield from self._prober.probe_found(look_ups)
        yield from self._finish(self.table.remove_codes(look_ups.codes))

    def probe_key(self, page: Partition, code: int) -> Batches:
        """Join the rows that one code has on a page with the tuples that wait for them."""
        first, behind = (np.searchsorted(page.codes, code, side) for side in ("left", "right"))
        yield from self._prober.probe(page, self.table.region(code), int(first), int(behind))

    def is_left(self, look_ups: LookUpSet) -> bool:
        """Whether the oldest tuple still waits though its partition was looked up."""
        return self.table.region(self.look_up()) in look_ups.partitions

    def next_after(self, partition: Partition, wanted: int) -> int | None:
        """The code that will be oldest once the partition and `wanted` are settled, if known."""
        if not self.table.clustered or self.look_up_position is not None:
            return None
        low, high = partition.low, partition.high
        slot = oldest_outside(self.queue.links, self.table.chains.nodes, low, high, wanted)
        return None if slot == NONE else self.table.code(slot)

    def settle(self, code: int) -> Batches:
        """All of `code`'s master rows have been seen: its tuples are done, matched or not."""
        codes = np.array([code], np.int64)
        codes.flags.writeable = False
        yield from self._finish(self.table.remove_codes(codes))

    def check(self) -> None:
        """Assert that table and queue hold the same tuples."""
        held = self.table.held()
        self.table.store.check()
        self.queue.check()
        assert held == sorted(self.queue.waiting())

    def _finish(self, removed: Iterator[NDArray[np.int32]]) -> Batches:
        for slots in removed:
            self.queue.remove(slots)
            yield from self._prober.finish(slots)


def put_back_excess(
    arrivals: Arrivals, table: TupleTable, stream: TupleSource, waiting: int
) -> int:
    """Put back the arrivals for which the table has no room; returns how many there are left."""
    count = table.store.how_many_fit(arrivals.batch)
    if count < len(arrivals.codes):
        stream.put_back(len(arrivals.codes) - count)
        if not count and not waiting:
            size = arrivals.batch.slice(0, 1).nbytes
            raise BudgetError(
                f"A stream tuple takes {size:,} bytes, more than the {table.store.heap_limit:,} "
                "bytes that the stream table has for all columns of varying size. "
                f"Give the join at least {8 * size:,} bytes more memory."
            )
    return count
