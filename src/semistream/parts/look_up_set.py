"""Look-up set: codes that tuples wait for, partition by partition, and the rows found for them.

It is filled twice. First the waiting tuples say which of their codes the chosen partitions
settle (`want`), then a finder lays out the rows of these codes. After that it is only read.

    partitions | p7        | p2  | p9     |
    codes      | 71  70  75 | 20  | 93  99 |      ends: 3, 4, 6
    rows       | ▪▪  ▪   ▪  | ▪   |     ▪▪ |      counts: 2, 1, 1, 1, 0, 2
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.kernels import CANDIDATE
from semistream.kernels.pages import DONE, FoundRows, Wanted
from semistream.kernels.rows import GRANULE
from semistream.parts.join_shape import JoinShape
from semistream.parts.row_arena import LaidOut, RowBlock
from semistream.relation import MasterTable
from semistream.row_bytes import Sizes

Numbers = NDArray[np.int32]
Codes = NDArray[np.int64]

_BYTES_PER_PARTITION = 17
"""Its number, where its codes end, and whether its pages are read."""
_BYTES_PER_ROW = 8 + 8 + 4 + 4
"""Where a row begins; a code, its rows and its tuples: as many codes as rows."""


def most_rows(master: MasterTable, found_bytes: int, most: int) -> tuple[int, int]:
    """Bytes of rows, and how many rows, when all arrays for them take `found_bytes`.

    So many rows should fit, or partitions are read whose rows then have no room.
    """
    rest = found_bytes - most * _BYTES_PER_PARTITION
    average = int(master.pages.length.sum()) // max(master.row_count, 1) + GRANULE
    rows = max(1, rest // (average + average // 8 + _BYTES_PER_ROW))
    return rest - rows * _BYTES_PER_ROW, rows


class CodesByRegion(Protocol):
    """A stream table that knows which codes wait for a partition."""

    def codes_in(self, regions: Codes, low: Codes, high: Codes, codes: Codes, ends: Codes) -> int:
        """Write the codes that wait in regions, each within its low..high; for how many regions.

        The codes of region i end before `ends[i]`. Where `codes` has no room for all codes of a
        region, the region is left out; only of the first some are written.
        """


class LookUpSet:
    """Some partitions, the codes that wait for them, and all master rows of these codes."""

    def __init__(
        self,
        master: MasterTable,
        shape: JoinShape,
        partition_pages: int,
        most: int,
        found_bytes: int,
    ) -> None:
        """For at most `most` partitions; whoever makes it has been granted `found_bytes`."""
        self._index = master.pages
        self._per_partition = partition_pages
        nbytes, rows = most_rows(master, found_bytes, most)
        self.block = RowBlock(shape.kept_schema(master.stored_schema), nbytes)
        self.partitions: Codes = np.zeros(0, np.int64)
        """The partitions that are looked up."""
        self._is_read = np.zeros(most, np.bool_)
        self._waits: Numbers = np.zeros(rows, np.int32)
        self.wanted = Wanted(np.zeros(rows, np.int64), np.zeros(most, np.int64))
        self.found = FoundRows(
            counts=np.zeros(rows, np.int32),
            starts=np.zeros(rows, np.int64),
            memory=self.block.memory,
            nulls=self.block.nulls,
            used=np.zeros(3, np.int64),
        )

    def want(self, partitions: Codes, table: CodesByRegion) -> None:
        """Look up the codes that wait for these partitions, or for as many as have room.

        Partition i of R is region i of the stream table.
        """
        codes, ends = self.wanted
        low, high = self._index.settled_by_runs(*self._pages(partitions))
        taken = table.codes_in(partitions, low, high, codes, ends)
        self._begin(partitions[:taken])

    def want_these(self, codes: Codes, partitions: Codes) -> None:
        """Look up the first of some codes, as many as have room.

        Each is settled by its partition. Both are in ascending order.
        """
        starts = np.flatnonzero(np.diff(partitions, prepend=-1))
        stops = np.append(starts[1:], len(codes))[: len(self._is_read)]
        count = min(len(self.wanted.codes), int(stops[-1]))
        taken = int(np.searchsorted(stops, count, side="left")) + 1
        self.wanted.codes[:count] = codes[:count]
        self.wanted.ends[:taken] = np.minimum(stops[:taken], count)
        self._begin(partitions[starts[:taken]])

    def _begin(self, partitions: Codes) -> None:
        """Nothing is found yet of what is wanted of these partitions."""
        taken = len(partitions)
        self.partitions = partitions
        self._is_read[:taken] = self._may_have_codes()
        self.found.used[:] = 0
        self.found.used[DONE] = self.wanted.ends[taken - 1]
        self.found.counts[:] = 0
        self.found.nulls[:] = False

    @property
    def runs(self) -> tuple[Codes, Codes, Codes]:
        """The pages to read, as runs first..stop, and the number of each run's partition."""
        numbers = np.flatnonzero(self._is_read[: len(self.partitions)])
        return *self._pages(self.partitions[numbers]), numbers

    @property
    def codes(self) -> Codes:
        """The codes whose rows, if there are any, are all here."""
        codes = self.wanted.codes[: self.found.used[DONE]]
        codes.flags.writeable = False
        return codes

    @property
    def counts(self) -> Numbers:
        """How many rows each of these codes has."""
        return self.found.counts[: self.found.used[DONE]]

    @property
    def waits(self) -> Numbers:
        """How many tuples wait for each of these codes, or ask for it in a turn of a front stage.

        Written by whoever joins its rows.
        """
        return self._waits[: self.found.used[DONE]]

    def left_over(self) -> Iterator[tuple[int, int]]:
        """Partitions and codes of theirs that may wait, and that such a set cannot settle.

        That is a key that crosses into the partition from the one before, and a key whose rows
        alone have no room.
        """
        for partition in self.partitions.tolist():
            page = partition * self._per_partition
            if self._index.crossed(page):
                yield partition, int(self._index.first[page])
        if not len(self.codes) and self.wanted.ends[0]:
            yield int(self.partitions[0]), int(self.wanted.codes[0])

    def sizes(self, rows: Numbers) -> Sizes:
        """Bytes that some rows take in Arrow memory, at most."""
        lengths = self.block.lengths(self.found.starts[rows])
        return np.multiply(lengths, float(GRANULE), dtype=np.float64)

    def take(self, rows: Numbers) -> pa.RecordBatch:
        """Some of the rows as columns."""
        return self.block.gather(self.found.starts[rows])

    def candidates(self, threshold: float) -> NDArray[np.void]:
        """Codes that at least `threshold` tuples wait for, with their rows here."""
        counts, waits = self.counts, self.waits
        chosen = np.flatnonzero((waits >= threshold) & (counts > 0))
        candidates = np.zeros(len(chosen), CANDIDATE)
        last = np.cumsum(counts)[chosen]
        candidates["frequency"] = waits[chosen]
        candidates["first"], candidates["last"] = last - counts[chosen], last
        candidates["number"] = chosen
        return candidates

    def codes_of(self, candidates: NDArray[np.void]) -> Codes:
        """The codes of some of them."""
        codes: Codes = self.wanted.codes[candidates["number"]]
        return codes

    def laid_out(self, rows: Codes) -> LaidOut:
        """Some rows, to be kept elsewhere."""
        return LaidOut(self.block, self.found.starts[rows])

    def _pages(self, partitions: Codes) -> tuple[Codes, Codes]:
        """The pages first..stop of each partition."""
        first = partitions * self._per_partition
        return first, np.minimum(first + self._per_partition, len(self._index))

    def _may_have_codes(self) -> NDArray[np.bool_]:
        """Which partitions can have a wanted code: those between two of them need no read."""
        count = len(self.partitions)
        ends = self.wanted.ends[:count]
        codes = self.wanted.codes[: ends[-1]]
        numbers = np.repeat(np.arange(count), np.diff(ends, prepend=0))
        first, stop = self._pages(self.partitions)
        lowest, highest = self._index.first[first], self._index.last[stop - 1]
        there = (lowest[numbers] <= codes) & (codes <= highest[numbers])
        return np.bincount(numbers[there], minlength=count) > 0
