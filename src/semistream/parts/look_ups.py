"""Look-ups: master rows for the codes of many waiting tuples, found in the background.

HYBRIDJOIN looks up one waiting tuple at a time. In Python, handling a partition takes longer
than joining the few tuples that wait for it. So the partitions of several long-waiting tuples
are looked up together, which gives the same rows as one after the other. Of each partition only
the rows of waiting codes are kept. Two sets are being found while a third is joined:

    waiting tuples ─which codes─► look-up set ─► finder ─► look-up set ─rows─► join
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from semistream.budget import Grant
from semistream.metrics import Recorder
from semistream.parts.frame_finder import FrameFinder, ReadCounts, finder_bytes
from semistream.parts.join_shape import JoinShape
from semistream.parts.look_up_set import Codes, CodesByRegion, LookUpSet
from semistream.parts.row_finder import RowFinder, row_finder_bytes
from semistream.relation import MasterTable

_AT_ONCE = 2
"""Sets that are read at the same time: two readers get more out of a disk than one."""


def look_up_bytes(master: MasterTable, partition_pages: int, found_bytes: int) -> int:
    """What look-ups take: the finder, the sets, and a mark per partition."""
    partitions = -(-len(master.pages) // partition_pages)
    if master.is_live:
        finder = row_finder_bytes(found_bytes)
    else:
        finder = finder_bytes(master, partition_pages, _AT_ONCE, found_bytes)
    return finder + (_AT_ONCE + 1) * found_bytes + partitions


class Waiting(Protocol):
    """Tuples that wait, and know which partitions are to be read for them."""

    @property
    def table(self) -> CodesByRegion:
        """Where they wait."""

    def next_regions(self, marked: NDArray[np.uint8], most: int, most_tuples: int) -> Codes:
        """At most `most` regions to be read next, for about `most_tuples`.

        Regions that are marked are passed over, and those returned are marked.
        """


class LookUps:
    """Look-up sets: the next ones are found while the one before is joined."""

    def __init__(
        self,
        master: MasterTable,
        shape: JoinShape,
        partition_pages: int,
        most: int,
        found_bytes: int,
        io: str,
        grant: Grant,
        recorder: Recorder,
    ) -> None:
        """At most `most` partitions in a set."""
        grant.take(look_up_bytes(master, partition_pages, found_bytes))
        self._most = most
        self.partition_pages = partition_pages
        self._under_way = np.zeros(-(-len(master.pages) // partition_pages), np.uint8)
        """Which partitions are in a set that is being found or joined."""
        self._free = deque(
            LookUpSet(master, shape, partition_pages, most, found_bytes)
            for _ in range(_AT_ONCE + 1)
        )
        rows = self._free[0].block.layout
        self._finder: FrameFinder | RowFinder
        if master.is_live:
            self._finder = RowFinder(master, shape.code_column, rows, found_bytes, io)
        else:
            self._finder = FrameFinder(
                master, shape.code_column, rows, partition_pages, _AT_ONCE, found_bytes, io
            )
        self._threads = ThreadPoolExecutor(_AT_ONCE, "semistream-look-ups")
        self._ahead: deque[tuple[LookUpSet, Future[ReadCounts]]] = deque()
        self._recorder = recorder

    def take(self, waiting: Waiting) -> LookUpSet:
        """The set that was begun first; others are begun, to be found while it is joined."""
        self._begin(waiting)
        look_ups, found = self._ahead.popleft()
        read = found.result()
        self._begin(waiting)
        self._count(look_ups, read)
        self._recorder.batched_iterations += 1
        return look_ups

    def done(self, look_ups: LookUpSet) -> None:
        """The rows of the set have been joined."""
        self._under_way[look_ups.partitions] = 0
        self._free.append(look_ups)

    def sweep(self, codes: Codes, partitions: Codes) -> Iterator[LookUpSet]:
        """The rows of codes that no tuple waits for, a set at a time; nothing may be under way.

        Each code is settled by its partition. They come in ascending order.
        """
        done = 0
        while done < len(codes):
            look_ups = self._free[0]
            look_ups.want_these(codes[done:], partitions[done:])
            self._count(look_ups, self._finder.find(look_ups))
            # A code whose rows alone have no room is left out.
            done += max(len(look_ups.codes), 1)
            yield look_ups

    def close(self) -> None:
        """Close the files, after the reads that may be under way."""
        self._threads.shutdown()
        self._finder.close()

    def _begin(self, waiting: Waiting) -> None:
        """Begin sets for the partitions to be read next, as many as are found at once."""
        while len(self._ahead) < _AT_ONCE:
            look_ups = self._free[0]
            most_codes = len(look_ups.wanted.codes)
            partitions = waiting.next_regions(self._under_way, self._most, most_codes)
            if not len(partitions):
                return
            self._free.popleft()
            look_ups.want(partitions, waiting.table)
            self._under_way[partitions[len(look_ups.partitions) :]] = 0
            self._ahead.append((look_ups, self._threads.submit(self._finder.find, look_ups)))

    def _count(self, look_ups: LookUpSet, read: ReadCounts) -> None:
        recorder, codes = self._recorder, len(look_ups.codes)
        recorder.partitions_read += read.partitions
        recorder.batched_reads += read.partitions
        recorder.pages_read += read.pages
        recorder.bytes_read += read.bytes
        recorder.batched_bytes += read.bytes
        recorder.batched_codes += codes
        recorder.probes += codes
