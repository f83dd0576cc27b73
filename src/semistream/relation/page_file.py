"""Page files: rows of R as an Arrow IPC file with one record batch per page.

    | magic, schema | page 0 | page 1 | ... | page n-1 | footer |
                    ^ offset[0], length[0], checksum[0], rows[0], first[0], last[0]

A page is the whole encapsulated IPC message, metadata included, so that it is decoded from one
contiguous read. The file stays an ordinary Arrow file: any Arrow tool reads it without the index.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from semistream.arrow_arrays import to_arrow
from semistream.errors import InternalError
from semistream.keys import Codes
from semistream.relation.columns import has_union
from semistream.relation.gather import OrderedRows
from semistream.relation.page_index import PageIndex
from semistream.relation.storage import PACKED, Packing, Storage, compressed
from semistream.row_bytes import PACKED_FLAG, Sizes, row_bytes

__all__ = [
    "PageIndex",
    "PageWriter",
    "WrittenPages",
    "page_file_name",
    "rows_per_page",
    "write_pages",
]

_BLOCK_BYTES = 32 << 20
_MAX_ROWS = 2**31 - 1
_PADDING = 8
_SUFFIX = {"lz4": ".lz4", "zstd": ".zst", PACKED: ".packed"}


@dataclass(frozen=True, eq=False)
class WrittenPages:
    """A page file that was written."""

    index: PageIndex
    widest_row: int
    """An upper bound of the bytes of a single row alone in Arrow memory."""
    bytes: int
    """Bytes of the file."""


class PageWriter:
    """Packs rows, as they come, into pages of one new file; use it as a context manager.

    To fill pages, it holds back the last rows, less than two pages of them, until more rows come.
    `placed` is called with the codes of each page when the page is written.
    """

    def __init__(
        self,
        storage: Storage,
        name: str,
        schema: pa.Schema,
        page_bytes: int,
        number: int = 0,
        placed: Callable[[Codes], None] | None = None,
        compression: str | None = None,
    ) -> None:
        """Open the file. `number` is its file number in the index."""
        self.name = name
        self._storage, self._number, self._placed = storage, number, placed
        self._compression = compression
        self._packing: Packing | None = None
        if compression == PACKED:
            Packing.check(schema)
        self._page_bytes = page_bytes
        self._payload = page_bytes - _overhead(schema)
        self._file = storage.open_sink(name)
        self._page = _PageBytes()
        self._writer = pa.ipc.new_file(pa.PythonFile(self._page, "w"), schema)
        self._has_union = any(has_union(field.type) for field in schema)
        self._widest_row = self._bytes = 0
        self._position = 0
        """Bytes so far, as if they were not compressed."""
        self._entries: dict[str, list[int]] = {name: [] for name in _entry_names(compression)}
        self._waiting: list[tuple[pa.RecordBatch, Codes, Sizes]] = []
        self._waiting_bytes = 0.0

    def __enter__(self) -> PageWriter:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        try:
            if kind is None:
                self.end_page()
            self._writer.close()
            self._store(self._page.take())
            self._bytes = self._file.tell()
        finally:
            self._file.close()
        if kind is None:
            self._storage.settle([self.name])

    @property
    def page_count(self) -> int:
        """Pages written so far."""
        return len(self._entries["offset"])

    def written(self) -> WrittenPages:
        """The pages that were written. Call it after the file is closed."""
        return WrittenPages(PageIndex.of(self._entries), self._widest_row, self._bytes)

    def add(self, rows: pa.RecordBatch, codes: Codes) -> None:
        """Add rows after those added before, with their codes. Neither may change later."""
        if not rows.num_rows:
            return
        sizes = row_bytes(rows, PACKED_FLAG)
        self._waiting.append((rows, codes, sizes))
        self._waiting_bytes += float(sizes.sum())
        if self._waiting_bytes >= 2 * self._payload:
            self._cut(final=False, even=False)

    def end_page(self, even: bool = False) -> None:
        """Write all rows held back; rows added later begin a new page.

        `even` makes the last two pages equally long, so that both have room to grow.
        """
        if self._waiting:
            self._cut(final=True, even=even)

    def _cut(self, final: bool, even: bool) -> None:
        """Write the waiting rows as pages. Unless `final`, keep the last ones, up to two pages."""
        rows = pa.concat_batches([rows for rows, _, _ in self._waiting])
        codes = np.concatenate([codes for _, codes, _ in self._waiting])
        ends = np.cumsum(np.concatenate([sizes for _, _, sizes in self._waiting]))
        if self._compression == PACKED and self._packing is None:
            self._packing = Packing.learned(rows)
            self._file.write(self._packing.head)
        start, base = 0, 0.0
        while start < len(codes):
            left = float(ends[-1]) - base
            if not final and left < 2 * self._payload:
                break
            halves = even and self._payload < left <= 2 * self._payload
            stop = _stop(ends, start, base + (left / 2 if halves else self._payload))
            start += self._append(rows.slice(start, stop - start), codes[start:stop])
            base = float(ends[start - 1])
        self._waiting, self._waiting_bytes = [], 0.0
        if start < len(codes):
            # Copied: a slice of a few rows would keep the whole block in memory.
            rest = rows.take(to_arrow(np.arange(start, len(codes))))
            self._waiting_bytes = float(ends[-1]) - base
            sizes = np.diff(ends[start:], prepend=base)
            self._waiting = [(rest, codes[start:].copy(), sizes)]

    def _append(self, page: pa.RecordBatch, codes: Codes) -> int:
        """Write as many of the rows as one page holds. Returns how many were written."""
        page, size = self._sized(page)
        while size > self._page_bytes and page.num_rows > 1:
            fit = int(page.num_rows * self._page_bytes / size * 0.99)
            page, size = self._sized(page.slice(0, min(max(fit, 1), page.num_rows - 1)))
        self._writer.write_batch(page)
        written = self._page.take()
        # The writer puts the schema before the first page, so count back from the end of the page.
        before = len(written) - size
        if before < 0 or (before and self._entries["offset"]):
            raise InternalError(
                f"A page of {size} bytes was written as {len(written)}. Please report this."
            )
        self._store(written[:before])
        offset, place = self._position, self._file.tell()
        self._store(written[before:], page.num_rows)
        # The checksum is of the bytes that are in the file: Arrow may write the same rows
        # differently the next time.
        checksum = xxhash.xxh3_64_intdigest(memoryview(written)[before:])
        self._note(page, codes[: page.num_rows], offset, size, checksum)
        if self._compression is not None:
            self._entries["place"].append(place)
            self._entries["size"].append(self._file.tell() - place)
        return int(page.num_rows)

    def _store(self, data: bytes, rows: int = 0) -> None:
        """Write a page of so many rows, or what is no page, to the file."""
        self._position += len(data)
        if self._compression == PACKED:
            data = self._packing.packed(data, rows) if self._packing and rows else data
        elif self._compression is not None and data:
            data = compressed(data, self._compression)
        self._file.write(data)

    def _sized(self, page: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
        """The rows and their bytes as a page."""
        if self._has_union and page.num_rows:
            # Of a slice with a union, Arrow writes bytes besides its rows, some never set.
            page = page.take(to_arrow(np.arange(page.num_rows)))
        return page, int(pa.ipc.get_record_batch_size(page))

    def _note(
        self, page: pa.RecordBatch, codes: Codes, offset: int, length: int, checksum: int
    ) -> None:
        for name, value in (
            ("first", codes[0]),
            ("last", codes[-1]),
            ("offset", offset),
            ("length", length),
            ("rows", page.num_rows),
            ("checksum", checksum),
            ("file", self._number),
        ):
            self._entries[name].append(int(value))
        self._widest_row = max(self._widest_row, int(np.ceil(row_bytes(page).max())))
        if self._placed is not None:
            self._placed(codes)


class _PageBytes(io.RawIOBase):
    """What Arrow writes, until it is taken: the bytes of one page."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        """All bytes that were written since the last time."""
        written = b"".join(self._pieces)
        self._pieces.clear()
        return written


def write_pages(
    storage: Storage,
    name: str,
    table: pa.Table,
    codes: Codes,
    page_bytes: int,
    order: NDArray[np.int64] | None = None,
    cuts: Sequence[int] = (),
    compression: str | None = None,
) -> WrittenPages:
    """Write a table as pages of at most `page_bytes` each; a longer row gets its own page.

    Rows are taken in `order` (by default as they are), and rows of one code must be adjacent
    in it. They are gathered a block of pages at a time: the file is never in memory as a whole.
    A page ends before each row whose number in this order is in `cuts`.
    """
    rows = OrderedRows(table, order)
    codes = codes if order is None else codes[order]
    sizes = row_bytes(table, PACKED_FLAG)
    ends = np.cumsum(sizes if order is None else sizes[order])
    writer = PageWriter(storage, name, table.schema, page_bytes, compression=compression)
    with writer:
        start = 0
        for cut in (*cuts, len(codes)):
            while start < cut:
                base = float(ends[start - 1]) if start else 0.0
                stop = min(_stop(ends, start, base + _BLOCK_BYTES), cut)
                writer.add(rows.take(start, stop), codes[start:stop])
                start = stop
            writer.end_page()
    return writer.written()


def page_file_name(compression: str | None) -> str:
    """How the name of a page file ends: as `zstd -d` and `lz4 -d` like it."""
    return "pages.arrow" + ("" if compression is None else _SUFFIX[compression])


def _entry_names(compression: str | None) -> list[str]:
    """The columns of the index."""
    names = [field.name for field in fields(PageIndex)]
    return names if compression is not None else names[:-2]


def rows_per_page(schema: pa.Schema, page_bytes: int) -> int:
    """Rows that a full page holds where all columns are of fixed size."""
    row = sum(PACKED_FLAG + field.type.bit_width / 8 for field in schema)
    return max(1, int((page_bytes - _overhead(schema)) / row))


def _stop(ends: Sizes, start: int, limit: float) -> int:
    """The row after the last one that ends at or before byte `limit`; at least one row."""
    stop = int(np.searchsorted(ends, limit, side="right"))
    return min(max(stop, start + 1), start + _MAX_ROWS)


def _overhead(schema: pa.Schema) -> int:
    """Bytes of a page besides its rows: the metadata, and the padding after each buffer."""
    empty = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
    buffers = sum(len(column.buffers()) for column in empty.columns)
    return int(pa.ipc.get_record_batch_size(empty)) + _PADDING * buffers
