"""Disk buffer: the partition of the master now in memory.

    R   | p0 | p1 | p2 | p3 | …        partition = `partition_pages` consecutive pages
          pinned    ^ swapped in
Partitions lie on a fixed grid. All rows of a key are adjacent in the file but may cross from
one partition into the next; a partition therefore says which of its rows are *whole*, that is,
belong to keys that lie entirely inside it. Only those can be settled by this partition alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from itertools import cycle

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.arrow_arrays import to_arrow
from semistream.budget import Grant
from semistream.kernels.reading import STRETCH
from semistream.metrics import Recorder
from semistream.parts.join_shape import JoinShape
from semistream.relation import Frame, Locator, MasterTable
from semistream.row_bytes import Sizes, row_bytes


class Partition:
    """Decoded rows of consecutive pages, and which of them are whole keys."""

    def __init__(self, number: int, batch: pa.RecordBatch, codes: NDArray[np.int64]) -> None:
        """All rows whole, until the disk buffer says otherwise."""
        self.number = number
        self.batch = batch
        self.codes = codes
        self.start, self.stop = 0, len(codes)
        self.low, self.high = 1, 0
        """The codes that it settles, whether it has them or not; none without key order."""

    @cached_property
    def row_bytes(self) -> Sizes:
        """Bytes of each row."""
        return row_bytes(self.batch)

    def sizes(self, rows: NDArray[np.int32]) -> Sizes:
        """Bytes of some rows."""
        return self.row_bytes[rows]

    def codes_of(self, candidates: NDArray[np.void]) -> NDArray[np.int64]:
        """The codes of candidates, whose rows begin at `first`."""
        codes: NDArray[np.int64] = self.codes[candidates["first"]]
        return codes

    def take(self, rows: NDArray[np.int32]) -> pa.RecordBatch:
        """Some of the rows."""
        return self.batch.take(to_arrow(rows))

    @property
    def partial_codes(self) -> list[int]:
        """The codes that cross an edge of this partition, each once."""
        head, tail = (
            self.codes[: min(self.start, 1)],
            self.codes[max(self.stop, len(self.codes) - 1) :],
        )
        return sorted({*head.tolist(), *tail.tolist()})

    def partial_rows(self, code: int) -> tuple[int, int]:
        """The rows (first, behind last) of a code that crosses this partition's edge, if here."""
        if self.start > 0 and self.codes[0] == code:
            return 0, self.start
        if self.stop < len(self.codes) and self.codes[-1] == code:
            return self.stop, len(self.codes)
        return 0, 0


class DiskBuffer:
    """Reads partitions by number or by key; keeps the first ones when they are pinned."""

    def __init__(
        self,
        master: MasterTable,
        shape: JoinShape,
        partition_pages: int,
        io: str,
        grant: Grant,
        recorder: Recorder,
        pinned: int = 0,
        frames: int = 2,
    ) -> None:
        """Open the files; `pinned` partitions are read at once and stay.

        A partition is valid until `frames` - 1 others have been read.
        """
        self._shape = shape
        self._columns = len(master.stored_schema)
        self._all_columns = master.stored_schema.names == shape.read_columns
        self._pages = master.pages
        self.per_partition = partition_pages
        self.page_bytes = master.page_bytes
        self._recorder = recorder
        self.reader = master.reader(io)
        self._locator = master.locator(io)
        self._bytes_counted = self._index_pages_counted = 0
        self.read_until = -1
        grant.take(disk_bytes(master, partition_pages, pinned, frames))
        size = master.pages.frame_bytes(partition_pages)
        # Several pages are copied together when decoded: the copy takes a frame's place.
        all_frames = [Frame(size) for _ in range(frames if partition_pages == 1 else 1)]
        self._frames = cycle(all_frames)
        self._frame_bytes = size * frames
        self.frame = all_frames[0]
        """Where compiled code reads partitions to."""
        self._thread = ThreadPoolExecutor(1, "semistream-read-ahead")
        self._ahead: tuple[int, Frame, Future[None]] | None = None
        if self._locator is not None:
            self._locator_frame = Frame(self._locator.frame_bytes())
        self.partitions = -(-len(self._pages) // partition_pages)
        self.pinned = [self._read(number, copy=True) for number in range(pinned)]

    def close(self) -> None:
        """Close the files, after the read that may be under way."""
        self._thread.shutdown()
        self.reader.close()
        if self._locator is not None:
            self._locator.close()

    def span(self, code: int) -> range:
        """The partitions that hold rows of `code`; empty when it is certain that none does."""
        if self._locator is None:
            first, last = self._pages.span(code)
        else:
            first, last = self._locator.find(code, self._locator_frame)
            self._count_index_pages(self._locator)
        if first > last:
            return range(0)
        return range(first // self.per_partition, last // self.per_partition + 1)

    def spans(self, codes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First and last page of each code; last below first when there is certainly none."""
        if self._locator is None:
            first = np.searchsorted(self._pages.last, codes, side="left")
            return first, np.searchsorted(self._pages.first, codes, side="right") - 1
        low, high = self._locator.find_many(codes, self._locator_frame)
        self._count_index_pages(self._locator)
        return low.astype(np.int64), high.astype(np.int64)

    def load(self, code: int) -> Iterator[Partition]:
        """The partitions that hold rows of `code`, one after the other in the buffer."""
        span = self.span(code)
        for number in span:
            partition = self.read(number)
            if number + 1 in span:
                self.read_ahead(number + 1)
            yield partition

    def load_key(self, code: int) -> Iterator[Partition]:
        """The same, or no more than the code's own rows if they can be asked for."""
        if self.reader.by_code:
            for batch in self.reader.lots_of(code, self._frame_bytes):
                yield self._asked_for(batch)
        else:
            yield from self.load(code)

    @property
    def most_codes(self) -> int:
        """How many codes `rows_of` may be asked for; 0 if only whole pages can be read."""
        if not self.reader.by_code:
            return 0
        row = int(self._pages.length.sum()) / max(self._pages.row_count, 1)
        return max(1, int(self._frame_bytes / 2 / max(row, 1.0)))

    def rows_of(self, codes: NDArray[np.int64]) -> Partition:
        """All rows of these codes, in one read of nothing else; they take the frames' room."""
        return self._asked_for(self.reader.rows_of(codes, self._frame_bytes))

    def _asked_for(self, batch: pa.RecordBatch) -> Partition:
        self._recorder.partitions_read += 1
        self._recorder.bytes_read += self._count_bytes()
        found = self._shape.row_codes(batch)
        return Partition(-1, batch.select(self._shape.read_columns), found)

    def read(self, number: int) -> Partition:
        """One partition; the one read before is no longer valid."""
        return self.pinned[number] if number < len(self.pinned) else self._read(number)

    def look_ahead(self, code: int | None) -> None:
        """Read ahead for the code that will be asked for next, if it is known."""
        if code is not None and self._ahead is None and (span := self.span(code)):
            self.read_ahead(span[0])

    def read_ahead(self, number: int) -> None:
        """Begin to read the partition that will certainly be read next, in the background."""
        if self._ahead is None and self.reader.waits and number >= len(self.pinned):
            frame, (first, count) = next(self._frames), self._page_range(number)
            future = self._thread.submit(self.reader.fetch, first, count, frame)
            self._ahead = number, frame, future

    def have_two_frames(self) -> None:
        """Read ahead into a frame of its own; partitions are not decoded as a whole then."""
        self._frames = cycle([self.frame, Frame(self.frame.nbytes)])

    def fetch(self, number: int, following: int | None) -> int:
        """Have a partition's bytes in the frame, unchecked; returns how many were read.

        The `following` partition is read in the background. There must be two frames.
        """
        self.frame = self._fetched(number)
        if following is not None:
            self.read_ahead(following)
        return self._count_bytes()

    @property
    def readable_in_kernels(self) -> bool:
        """Whether compiled code can read each partition with one read."""
        one_read = self.per_partition == 1 or self.reader.is_one_stretch
        return one_read and bool((self.descriptors[np.unique(self._pages.file)] >= 0).all())

    @property
    def descriptors(self) -> NDArray[np.int64]:
        """The operating system's number of each file; -1 where compiled code cannot read it."""
        found = np.full(len(self.reader.files.names), -1, np.int64)
        for number, descriptor in self.reader.descriptors.items():
            found[number] = descriptor
        return found

    def note_reads(self, numbers: NDArray[np.int64]) -> None:
        """Compiled code has read these partitions, one after the other."""
        firsts = numbers * self.per_partition
        self.reader.note(firsts, np.minimum(firsts + self.per_partition, len(self._pages)))

    def fill(self, number: int) -> int:
        """Read a partition for compiled code, or raise what is wrong with it; returns the bytes."""
        first, count = self._page_range(number)
        stretch = np.zeros(1, STRETCH)
        stretch["first"], stretch["stop"] = first, first + count
        return self.reader.fill(stretch[0], self.frame)

    def in_memory(self, number: int) -> Partition:
        """The partition that is pinned, or that compiled code has read last."""
        return (
            self.pinned[number] if number < len(self.pinned) else self._decoded(number, self.frame)
        )

    def offered(self, number: int, candidates: NDArray[np.void]) -> Partition:
        """The same, with at least the rows of some whole keys.

        Of several pages only those rows are copied, and the candidates' rows are numbered anew.
        """
        if self.per_partition == 1 or number < len(self.pinned):
            return self.in_memory(number)
        first, count = self._page_range(number)
        counts = candidates["last"] - candidates["first"]
        rows = np.sort(row_ranges(candidates["first"], counts))
        ends = np.cumsum(self._pages.rows[first : first + count])
        places, pieces = np.searchsorted(ends, rows, side="right"), []
        for place in np.unique(places).tolist():
            page = self.reader.decode_page(first, first + place, self.frame)
            here = rows[places == place] - (ends[place] - page.num_rows)
            pieces.append(page.take(to_arrow(here)))
        candidates["first"] = np.searchsorted(rows, candidates["first"])
        candidates["last"] = candidates["first"] + counts
        batch = pa.concat_batches(pieces)
        return Partition(
            number, batch.select(self._shape.read_columns), self._shape.row_codes(batch)
        )

    def _read(self, number: int, copy: bool = False) -> Partition:
        first, count = self._page_range(number)
        partition = self._decoded(number, self._fetched(number), copy)
        recorder = self._recorder
        recorder.partitions_read += 1
        recorder.sequential_reads += first == self.read_until
        self.read_until = first + count
        recorder.pages_read += count
        recorder.decoded_columns += count * self._columns
        recorder.bytes_read += self._count_bytes()
        return partition

    def _count_bytes(self) -> int:
        """The bytes read since they were last counted."""
        before, self._bytes_counted = self._bytes_counted, self.reader.bytes_read
        return self._bytes_counted - before

    def _decoded(self, number: int, frame: Frame, copy: bool = False) -> Partition:
        first, count = self._page_range(number)
        pages = self.reader.decode(first, count, frame)
        batch = pages[0] if count == 1 else pa.concat_batches(pages)
        if count == 1 and (copy or self.per_partition > 1):
            batch = batch.take(to_arrow(np.arange(batch.num_rows)))
        codes = self._shape.row_codes(batch)
        if not self._all_columns:
            batch = batch.select(self._shape.read_columns)
        partition = Partition(number, batch, codes)
        self._mark_whole(partition, first, first + count)
        return partition

    def _count_index_pages(self, locator: Locator) -> None:
        self._recorder.index_pages_read += locator.pages_read - self._index_pages_counted
        self._index_pages_counted = locator.pages_read

    def _page_range(self, number: int) -> tuple[int, int]:
        first = number * self.per_partition
        return first, min(self.per_partition, len(self._pages) - first)

    def _fetched(self, number: int) -> Frame:
        """The frame with the partition's bytes: read ahead, or read now."""
        if self._ahead is not None:
            ahead, frame, future = self._ahead
            self._ahead = None
            future.result()
            if ahead == number:
                self._recorder.reads_ahead += 1
                return frame
        frame, (first, count) = next(self._frames), self._page_range(number)
        self.reader.fetch(first, count, frame)
        return frame

    def _mark_whole(self, partition: Partition, first: int, stop: int) -> None:
        """Narrow the partition to the keys that neither begin before nor end behind it."""
        index, codes = self._pages, partition.codes
        if index.crossed(first):
            partition.start = _run(codes)
        if index.crossed(stop):
            partition.stop = max(len(codes) - _run(codes[::-1]), partition.start)
        if self._locator is None:
            partition.low, partition.high = index.settled(first, stop)


def _run(codes: NDArray[np.int64]) -> int:
    """How many leading codes are equal."""
    other = np.flatnonzero(codes != codes[0])
    return int(other[0]) if len(other) else len(codes)


def row_ranges(firsts: NDArray[np.int32], counts: NDArray[np.int32]) -> NDArray[np.int64]:
    """The numbers first, first + 1, … of each range, one range after the other."""
    ends = np.cumsum(counts)
    offsets = np.arange(int(ends[-1])) - np.repeat(ends - counts, counts)
    return np.repeat(firsts, counts) + offsets


def disk_bytes(master: MasterTable, partition_pages: int, pinned: int, frames: int = 2) -> int:
    """What a disk buffer takes: its frames, one of which may be a copy, and pinned partitions."""
    frame = master.pages.frame_bytes(partition_pages)
    kept = int(master.pages.length[: pinned * partition_pages].sum())
    return frames * frame + kept + master.locator_frame_bytes
