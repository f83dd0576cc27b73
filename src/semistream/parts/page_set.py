"""Page set: partitions from anywhere in R, read together and used as they lie in memory.

HYBRIDJOIN looks up one waiting tuple at a time. When little waits for any one partition, most
of the time would go into handling pages, not tuples; so the partitions of several long-waiting
tuples are read at once, which is the same as reading them one after the other, and their pages
are probed in one go, without being decoded.

    | pages 68-71    | pages 16-19    | pages 920-923  | …    each in a place of the same size
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.budget import Grant
from semistream.errors import InternalError
from semistream.kernels import pages as kernels
from semistream.kernels.copying import SPILL
from semistream.kernels.rows import FIELD
from semistream.metrics import Recorder
from semistream.parts.columns import array_of, fixed_dtype
from semistream.parts.join_shape import JoinShape
from semistream.parts.row_arena import Chosen, RowLayout, column_width, varying_array
from semistream.relation import Frame, MasterTable, PageReader
from semistream.row_bytes import Sizes

Numbers = NDArray[np.int32]

_LOWEST, _HIGHEST = -(2**63), 2**63 - 1
_CODE_TYPES = (pa.int64(), pa.int32())


def usable(master: MasterTable, shape: JoinShape) -> bool:
    """Whether the pages of a master can be used so: flat columns, in key order, plain codes."""
    code = master.stored_schema.field(shape.code_column).type
    flat = RowLayout.holds(master.stored_schema)
    return flat and code in _CODE_TYPES and master.layout == "key" and len(master.pages) > 1


def place_bytes(master: MasterTable, partition_pages: int) -> int:
    """What each partition of a set takes in memory."""
    columns = len(master.stored_schema)
    page = columns * FIELD.itemsize + 64
    return master.pages.frame_bytes(partition_pages) + partition_pages * page


def loader_bytes(master: MasterTable, partition_pages: int, most: int) -> int:
    """What a page loader takes: two sets of at most `most` partitions, and marks."""
    partitions = -(-len(master.pages) // partition_pages)
    return 2 * (most * place_bytes(master, partition_pages) + 4096) + partitions


class PageSet:
    """At most `most` partitions in memory."""

    def __init__(
        self, master: MasterTable, shape: JoinShape, partition_pages: int, most: int
    ) -> None:
        """An empty set."""
        self._per_partition = partition_pages
        self._index = master.pages
        self._schema = master.stored_schema
        self._taken = shape.taken_schema(master.stored_schema)
        self._columns = [master.stored_schema.get_field_index(n) for n in self._taken.names]
        self._types = master.stored_schema.types
        self.code = master.stored_schema.get_field_index(shape.code_column)
        self._widths = np.array([column_width(f.type) for f in master.stored_schema], np.int64)
        widths = self._widths[self._columns]
        numbers = np.array(self._columns, np.int64)
        self._fixed, self._bits = numbers[widths > 0], numbers[widths == 0]
        self._varying = numbers[widths < 0]
        self._dtypes = [fixed_dtype(self._types[number]) for number in self._fixed.tolist()]
        self._fixed_bytes = len(widths) + np.abs(widths).sum() + np.count_nonzero(widths == 0)
        self._nulls: NDArray[np.bool_] = np.zeros(len(self._types), np.bool_)
        self._place = master.pages.frame_bytes(partition_pages)
        self._frame = Frame(most * self._place + SPILL)
        self._address = np.frombuffer(self._frame.view, np.uint8).ctypes.data
        self._all_fields = np.zeros((most * partition_pages, len(self._widths)), FIELD)
        self.partitions: NDArray[np.int64] = np.zeros(0, np.int64)
        """The partitions in memory, which are regions of a stream table."""
        self.pages = self.regions = self.starts = self.stops = self.partitions
        """Their pages, and of each page its partition and which rows are of whole keys."""

    @property
    def fields(self) -> NDArray[np.void]:
        """The columns of the pages, a row per page."""
        return self._all_fields[: len(self.pages)]

    def read(self, reader: PageReader, partitions: NDArray[np.int64]) -> None:
        """Read some partitions and check them; it may run in another thread."""
        per, count = self._per_partition, len(self._index)
        runs = [range(p * per, min((p + 1) * per, count)) for p in partitions.tolist()]
        begins = reader.scatter(runs, self._frame, self._place)
        self.partitions = partitions
        self.pages = np.concatenate([np.arange(run.start, run.stop) for run in runs])
        self.regions = self.pages // per
        self.starts, self.stops = np.zeros_like(self.pages), np.zeros_like(self.pages)
        crosses = self._crossing(self.pages - self.pages % per, per)
        kernels.open_pages(
            self._address,
            np.array(begins, np.int64),
            self._widths,
            self._all_fields,
            self.code,
            *crosses,
            self.starts,
            self.stops,
        )
        if (self.stops < 0).any():
            raise InternalError("A page was not understood. Please report this.")
        self._nulls = (self.fields["valid"] != 0).any(axis=0)

    def _crossing(
        self, begins: NDArray[np.int64], per: int
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which pages begin, and which end, with a key that crosses their partition's edge.

        Such a key is left for a look-up of its own; one that only crosses from page to page
        within a partition is not.
        """
        first, last = self._index.first, self._index.last
        behind = np.minimum(begins + per, len(first))
        into = (begins > 0) & (last[begins - 1] == first[begins])
        out = (behind < len(first)) & (first[behind % len(first)] == last[behind - 1])
        into &= first[begins] == first[self.pages]
        out &= last[behind - 1] == last[self.pages]
        return into, out

    def ranges(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The lowest and highest code that each partition settles, whether it has it or not."""
        first, last, count = self._index.first, self._index.last, len(self._index)
        begins = self.partitions * self._per_partition
        behind = begins + self._per_partition
        continued = (last[begins - 1] == first[begins]) & (begins > 0)
        next_first = first[behind % count]
        ends = behind < count
        # One that holds only a part of the highest or lowest key settles nothing.
        nothing = (continued & (first[begins] == _HIGHEST)) | (ends & (next_first == _LOWEST))
        lows = np.where(begins > 0, first[begins] + (continued & ~nothing), _LOWEST)
        highs = np.where(ends, next_first - (ends & ~nothing), _HIGHEST)
        return np.where(nothing, 1, lows), np.where(nothing, 0, highs)

    def codes_of(self, candidates: NDArray[np.void]) -> NDArray[np.int64]:
        """The codes of keys whose rows begin at `first` of `page`."""
        codes = np.empty(len(candidates), np.int64)
        kernels.codes_at(self.fields, self.code, candidates["page"], candidates["first"], codes)
        return codes

    def frequent(
        self, pages: Numbers, rows: Numbers, threshold: float, found: NDArray[np.void]
    ) -> int:
        """Keys that at least `threshold` tuples matched, written to `found`; how many."""
        return kernels.frequent_in_pages(
            self.fields, self.code, self.starts, self.stops, pages, rows, threshold, found
        )

    def chosen(self, layout: RowLayout, pages: Numbers, rows: NDArray[np.int64]) -> Chosen:
        """Some rows, to be laid out with the columns of `layout`."""
        columns = [self._schema.get_field_index(name) for name in layout.schema.names]
        fields = self.fields[:, columns]
        fields["place"] = layout.places
        return Chosen(fields, pages, rows, self._nulls[columns])

    def sizes(self, pages: Numbers, rows: Numbers) -> Sizes:
        """Bytes that some rows take in Arrow memory, at most."""
        sizes = np.full(len(rows), float(self._fixed_bytes))
        kernels.add_lengths(self.fields, self._varying, pages, rows, sizes)
        return sizes

    def take(self, pages: Numbers, rows: Numbers) -> pa.RecordBatch:
        """Some rows, with the columns that are needed of the master."""
        found = self._take_fixed(pages, rows) | self._take_varying(pages, rows)
        columns = [found[number] for number in self._columns]
        return pa.RecordBatch.from_arrays(columns, schema=self._taken)

    def _take_fixed(self, pages: Numbers, rows: Numbers) -> dict[int, pa.Array]:
        values = [np.empty(len(rows), dtype) for dtype in self._dtypes]
        addresses = np.array([column.ctypes.data for column in values], np.int64)
        kernels.take_fixed(self.fields, self._fixed, pages, rows, addresses)
        for number in self._bits.tolist():
            column = np.empty(len(rows), np.bool_)
            kernels.take_bits(self.fields, number, pages, rows, False, column)
            values.append(column)
        numbers = [*self._fixed.tolist(), *self._bits.tolist()]
        return {
            number: array_of(column, self._types[number], self._valid(number, pages, rows))
            for number, column in zip(numbers, values, strict=True)
        }

    def _take_varying(self, pages: Numbers, rows: Numbers) -> dict[int, pa.Array]:
        offsets = np.empty((len(self._varying), len(rows) + 1), np.int32)
        kernels.take_offsets(self.fields, self._varying, pages, rows, offsets)
        data = [np.empty(size + SPILL, np.uint8) for size in offsets[:, -1].tolist()]
        addresses = np.array([column.ctypes.data for column in data], np.int64)
        kernels.take_bytes(self.fields, self._varying, pages, rows, offsets, addresses)
        return {
            number: varying_array(
                self._types[number], offsets[i], data[i], self._valid(number, pages, rows)
            )
            for i, number in enumerate(self._varying.tolist())
        }

    def _valid(self, number: int, pages: Numbers, rows: Numbers) -> NDArray[np.bool_] | None:
        if not self._nulls[number]:
            return None
        valid = np.empty(len(rows), np.bool_)
        kernels.take_bits(self.fields, number, pages, rows, True, valid)
        return valid


class PageLoader:
    """Reads page sets, the next one in the background while this one is used."""

    def __init__(
        self,
        master: MasterTable,
        shape: JoinShape,
        partition_pages: int,
        most: int,
        io: str,
        grant: Grant,
        recorder: Recorder,
    ) -> None:
        """Two sets of at most `most` partitions."""
        grant.take(loader_bytes(master, partition_pages, most))
        self.most = most
        self.marks = np.zeros(-(-len(master.pages) // partition_pages), np.uint8)
        """Partitions that are in memory or being read."""
        self._reader = master.reader(io)
        self._free, self._used = (PageSet(master, shape, partition_pages, most) for _ in range(2))
        self._thread = ThreadPoolExecutor(1, "semistream-read-pages")
        self._ahead: Future[None] | None = None
        self._recorder = recorder
        self._bytes_counted = 0

    def load(self, look_up: Callable[[], NDArray[np.int64]]) -> PageSet:
        """The set that is being read ahead or, if none is, the partitions that `look_up` gives."""
        if self._ahead is None:
            self.read_ahead(look_up())
        assert self._ahead is not None
        ahead, self._ahead = self._ahead, None
        ahead.result()
        self._free, self._used = self._used, self._free
        read = self._reader.bytes_read
        self._recorder.partitions_read += len(self._used.partitions)
        self._recorder.pages_read += len(self._used.pages)
        self._recorder.bytes_read += read - self._bytes_counted
        self._bytes_counted = read
        return self._used

    def read_ahead(self, partitions: NDArray[np.int64]) -> None:
        """Begin to read the set that will be asked for next."""
        if len(partitions):
            self._ahead = self._thread.submit(self._free.read, self._reader, partitions)

    def close(self) -> None:
        """Close the files, after the read that may be under way."""
        self._thread.shutdown()
        self._reader.close()
