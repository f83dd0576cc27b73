"""Look-ups: master rows for the codes of many waiting tuples, read together in the background.

HYBRIDJOIN looks up one waiting tuple at a time. Handling a partition takes longer in Python than
joining the few tuples that wait for it, so the partitions of several long-waiting tuples are
read in one go, which is the same as reading them one after the other. Of each only the rows of
waiting codes are kept, so that few partitions are in memory at a time, however many are read.

    oldest codes ─► partitions ─► frame ─► found rows (being read)      found rows (being joined)
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from threading import Lock
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.budget import Grant
from semistream.errors import InternalError
from semistream.kernels import CANDIDATE
from semistream.kernels import pages as kernels
from semistream.kernels.pages import BYTES, DONE, STRETCHES, USED, Found, Layout, Ranges
from semistream.kernels.reading import STRETCH
from semistream.kernels.rows import FIELD, GRANULE
from semistream.metrics import Recorder
from semistream.parts.join_shape import JoinShape
from semistream.parts.row_arena import LaidOut, RowBlock, RowLayout, column_width
from semistream.relation import Frame, MasterTable, PageIndex, PageReader
from semistream.row_bytes import Sizes

Numbers = NDArray[np.int32]
Codes = NDArray[np.int64]

_LOWEST, _HIGHEST = -(2**63), 2**63 - 1
_CODE_TYPES = (pa.int64(), pa.int32())
_AT_ONCE = 2
"""Sets that are read at the same time: a disk does more for two that ask."""
_BYTES_PER_PARTITION = 17
_BYTES_PER_ROW = 8 + 8 + 4 + 4
"""Where a row begins; a code, its rows and its tuples: as many codes as rows."""


def usable(master: MasterTable, shape: JoinShape) -> bool:
    """Whether rows can be found on pages as they lie: flat columns, key order, plain codes."""
    code = master.stored_schema.field(shape.code_column).type
    flat = RowLayout.holds(master.stored_schema)
    return flat and code in _CODE_TYPES and master.layout == "key" and len(master.pages) > 1


def look_up_bytes(master: MasterTable, partition_pages: int, found_bytes: int) -> int:
    """What look-ups take: frames for partitions, found rows, and marks."""
    partitions = -(-len(master.pages) // partition_pages)
    page = len(master.stored_schema) * FIELD.itemsize + 8
    frame = master.pages.frame_bytes(partition_pages) + partition_pages * page
    return _AT_ONCE * frame + (_AT_ONCE + 1) * found_bytes + partitions


def most_rows(master: MasterTable, found_bytes: int, most: int) -> tuple[int, int]:
    """Bytes of rows, and how many rows, when all arrays for them take `found_bytes`.

    So many rows should fit, or partitions are read whose rows then have no room.
    """
    rest = found_bytes - most * _BYTES_PER_PARTITION
    average = int(master.pages.length.sum()) // max(master.row_count, 1) + GRANULE
    rows = max(1, rest // (average + average // 8 + _BYTES_PER_ROW))
    return rest - rows * _BYTES_PER_ROW, rows


class Waiting(Protocol):
    """Who knows which tuples wait."""

    def want(self, found: FoundRows) -> bool:
        """Write partitions, and the codes that wait for them, longest-waiting first; if any."""


class FoundRows:
    """Codes that tuples wait for, and all their master rows."""

    def __init__(
        self,
        master: MasterTable,
        shape: JoinShape,
        partition_pages: int,
        most: int,
        found_bytes: int,
        marks: NDArray[np.uint8],
    ) -> None:
        """For at most `most` partitions; `marks` says which are in memory or being read."""
        self._index: PageIndex = master.pages
        self._per = partition_pages
        self.most = most
        self.marks = marks
        nbytes, rows = most_rows(master, found_bytes, most)
        self.block = RowBlock(shape.kept_schema(master.stored_schema), nbytes)
        self.partitions: Codes = np.zeros(0, np.int64)
        """The partitions that were looked up, which are regions of a stream table."""
        self.on_pages = np.zeros(most, np.bool_)
        """Which of them can have a wanted code on their pages."""
        self.read: NDArray[np.void] = np.zeros(0, STRETCH)
        """What was read for them."""
        self.found = Found(
            codes=np.zeros(rows, np.int64),
            ends=np.zeros(most, np.int64),
            counts=np.zeros(rows, np.int32),
            waits=np.zeros(rows, np.int32),
            starts=np.zeros(rows, np.int64),
            memory=self.block.memory,
            nulls=self.block.nulls,
            used=np.zeros(USED, np.int64),
        )

    def want(self, partitions: Codes) -> None:
        """Look these partitions up for the codes that have been written; nothing is found yet."""
        self.partitions = partitions
        found = self.found
        found.used[:] = 0
        found.used[DONE] = found.ends[len(partitions) - 1]
        found.counts[:] = 0
        found.nulls[:] = False

    @property
    def runs(self) -> tuple[Codes, Codes, Codes]:
        """The pages to read, as runs first..stop, and the number of each run's partition."""
        numbers = np.flatnonzero(self.on_pages[: len(self.partitions)])
        first = self.partitions[numbers] * self._per
        return first, np.minimum(first + self._per, len(self._index)), numbers

    @property
    def codes(self) -> Codes:
        """The codes whose rows, if there are any, are all here."""
        codes = self.found.codes[: self.found.used[DONE]]
        codes.flags.writeable = False
        return codes

    def ranges(self, partitions: Codes) -> Ranges:
        """The codes that each partition settles, whether it has them or not."""
        first, last, count = self._index.first, self._index.last, len(self._index)
        begins = partitions * self._per
        behind = np.minimum(begins + self._per, count)
        continued = (last[begins - 1] == first[begins]) & (begins > 0)
        next_first = first[behind % count]
        ends = behind < count
        # One that holds only a part of the highest or lowest key settles nothing.
        nothing = (continued & (first[begins] == _HIGHEST)) | (ends & (next_first == _LOWEST))
        low = np.where(begins > 0, first[begins] + (continued & ~nothing), _LOWEST)
        high = np.where(ends, next_first - (ends & ~nothing), _HIGHEST)
        low, high = np.where(nothing, 1, low), np.where(nothing, 0, high)
        return Ranges(low, high, first[begins], last[behind - 1])

    def sizes(self, rows: Numbers) -> Sizes:
        """Bytes that some rows take in Arrow memory, at most."""
        lengths = self.block.lengths(self.found.starts[rows])
        return np.multiply(lengths, float(GRANULE), dtype=np.float64)

    def take(self, rows: Numbers) -> pa.RecordBatch:
        """Some of the rows as columns."""
        return self.block.gather(self.found.starts[rows])

    def candidates(self, threshold: float) -> NDArray[np.void]:
        """Codes that at least `threshold` tuples wait for, with their rows here."""
        done = self.found.used[DONE]
        counts, waits = self.found.counts[:done], self.found.waits[:done]
        chosen = np.flatnonzero((waits >= threshold) & (counts > 0))
        candidates = np.zeros(len(chosen), CANDIDATE)
        last = np.cumsum(counts)[chosen]
        candidates["frequency"] = waits[chosen]
        candidates["first"], candidates["last"] = last - counts[chosen], last
        candidates["number"] = chosen
        return candidates

    def codes_of(self, candidates: NDArray[np.void]) -> Codes:
        """The codes of some of them."""
        codes: Codes = self.found.codes[candidates["number"]]
        return codes

    def laid_out(self, rows: Codes) -> LaidOut:
        """Some rows, to be kept elsewhere."""
        return LaidOut(self.block, self.found.starts[rows])


class Desk:
    """What a thread reads with: a frame for a partition, and the columns of its pages."""

    def __init__(self, frame_bytes: int, partition_pages: int, columns: int) -> None:
        """Empty."""
        self.frame = Frame(frame_bytes)
        self.fields: NDArray[np.void] = np.zeros((partition_pages, columns), FIELD)
        self.page_rows: Codes = np.zeros(partition_pages, np.int64)


class LookUps:
    """Finds rows, for the next codes in the background while those before are joined."""

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
        """At most `most` partitions at a time."""
        grant.take(look_up_bytes(master, partition_pages, found_bytes))
        self._marks = np.zeros(-(-len(master.pages) // partition_pages), np.uint8)
        self._free = deque(
            FoundRows(master, shape, partition_pages, most, found_bytes, self._marks)
            for _ in range(_AT_ONCE + 1)
        )
        self._reader: PageReader = master.reader(io)
        stored, layout = master.stored_schema, self._free[0].block.layout
        columns = np.array([stored.get_field_index(n) for n in layout.schema.names], np.int64)
        widths = np.array([column_width(field.type) for field in stored], np.int64)
        code = stored.get_field_index(shape.code_column)
        self._layout = Layout(widths, code, columns, layout.head, layout.flags)
        self._desks: SimpleQueue[Desk] = SimpleQueue()
        for _ in range(_AT_ONCE):
            size = self._reader.frame_bytes(partition_pages)
            desk = Desk(size, partition_pages, len(stored))
            desk.fields["place"][:, columns] = layout.places
            self._desks.put(desk)
        self._threads = ThreadPoolExecutor(_AT_ONCE, "semistream-look-ups")
        self._one_reads = Lock()
        self._ahead: deque[tuple[FoundRows, Future[None]]] = deque()
        self._recorder = recorder

    def take(self, waiting: Waiting) -> FoundRows:
        """What was begun first; others are begun, to be read while it is joined."""
        self._begin(waiting)
        found, ahead = self._ahead.popleft()
        ahead.result()
        self._begin(waiting)
        self._count(found)
        return found

    def done(self, found: FoundRows) -> None:
        """The rows have been joined."""
        self._marks[found.partitions] = 0
        self._free.append(found)

    def close(self) -> None:
        """Close the files, after the reads that may be under way."""
        self._threads.shutdown()
        self._reader.close()

    def _begin(self, waiting: Waiting) -> None:
        """Begin to read what will be asked for next, as much as can be read at once."""
        while len(self._ahead) < _AT_ONCE and waiting.want(self._free[0]):
            found = self._free.popleft()
            self._ahead.append((found, self._threads.submit(self._read, found)))

    def _count(self, found: FoundRows) -> None:
        pages = int((found.read["stop"] - found.read["first"]).sum())
        read = int(found.found.used[BYTES])
        self._reader.count(len(found.read), pages, read)
        runs = np.count_nonzero(np.diff(found.read["run"], prepend=-1))
        self._recorder.partitions_read += int(runs)
        self._recorder.batched_reads += int(runs)
        self._recorder.pages_read += pages
        self._recorder.bytes_read += read
        self._recorder.batched_bytes += read
        self._recorder.batched_codes += len(found.codes)
        self._recorder.probes += len(found.codes)

    def _read(self, wanted: FoundRows) -> None:
        """Read the pages of all runs and keep the rows of the wanted codes."""
        stretches = self._reader.stretches(*wanted.runs)
        desk = self._desks.get()
        try:
            self._read_with(desk, stretches, wanted.found)
        finally:
            self._desks.put(desk)
        wanted.read = stretches[: wanted.found.used[STRETCHES]]

    def _read_with(self, desk: Desk, stretches: NDArray[np.void], found: Found) -> None:
        begin, is_read = 0, False
        while begin < len(stretches):
            stopped = self._find(stretches, begin, is_read, desk, found)
            if stopped < len(stretches):
                if is_read and stopped == begin:
                    raise InternalError("A page was not understood. Please report this.")
                # It knows what to do with files that are elsewhere, and what to say of broken ones.
                with self._one_reads:
                    found.used[BYTES] += self._reader.fill(stretches[stopped], desk.frame)
            begin, is_read = stopped, True

    def _find(
        self, stretches: NDArray[np.void], begin: int, is_read: bool, desk: Desk, found: Found
    ) -> int:
        return kernels.find_rows(
            stretches,
            begin,
            is_read,
            desk.frame.address,
            self._reader.grain,
            self._reader.pages,
            self._layout,
            desk.fields,
            desk.page_rows,
            found,
        )
