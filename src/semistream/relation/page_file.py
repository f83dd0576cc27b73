"""Page files: R as an Arrow IPC file with one record batch per page, and the index of it.

    | magic, schema | page 0 | page 1 | ... | page n-1 | footer |
                    ^ offset[0], length[0], checksum[0], rows[0], first[0], last[0]

A page is the whole encapsulated IPC message, metadata included, so that it is decoded from one
contiguous read. The file stays an ordinary Arrow file: any Arrow tool reads it without the index.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from semistream.errors import InternalError, MasterFormatError
from semistream.keys import Codes
from semistream.relation import files
from semistream.relation.gather import OrderedRows
from semistream.row_bytes import PACKED_FLAG, row_bytes

__all__ = ["PageIndex", "WrittenPages", "write_pages"]

_BLOCK_BYTES = 128 << 20
_MAX_ROWS = 2**31 - 1
_PADDING = 8
_DTYPES: dict[str, Any] = {
    "first": np.int64,
    "last": np.int64,
    "offset": np.int64,
    "length": np.int64,
    "rows": np.int32,
    "checksum": np.uint64,
}


@dataclass(frozen=True, eq=False)
class PageIndex:
    """Where each page of a page file lies and what it holds: one array item per page."""

    first: Codes
    """Code of the page's first row."""
    last: Codes
    """Code of the page's last row."""
    offset: NDArray[np.int64]
    """Where the page's message begins in the file."""
    length: NDArray[np.int64]
    """Bytes of the page's message."""
    rows: NDArray[np.int32]
    """Rows of the page."""
    checksum: NDArray[np.uint64]
    """xxh3_64 of the page's message."""

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def nbytes(self) -> int:
        """Bytes the index takes in memory."""
        return sum(int(getattr(self, name).nbytes) for name in _DTYPES)

    @property
    def row_count(self) -> int:
        """Rows in all pages together."""
        return int(self.rows.sum(dtype=np.int64))

    @property
    def max_length(self) -> int:
        """Bytes of the longest page, 0 without pages."""
        return int(self.length.max(initial=0))

    def span(self, code: int) -> tuple[int, int]:
        """First and last page that may hold the code, or a pair lo > hi; O(log pages).

        Only for files in code order. Their rows of one code are adjacent and may span pages.
        """
        low = int(np.searchsorted(self.last, code, side="left"))
        return low, int(np.searchsorted(self.first, code, side="right")) - 1

    def save(self, path: Path) -> None:
        """Write the index as an Arrow IPC file, a row per page, and wait for the disk."""
        batch = pa.record_batch({name: pa.array(getattr(self, name)) for name in _DTYPES})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        files.write_bytes(path, sink.getvalue().to_pybytes())

    @classmethod
    def load(cls, path: Path, checksum: str) -> PageIndex:
        """Read an index back; `MasterFormatError` unless it has the checksum."""
        try:
            data = files.read_bytes(path)
            found = files.checksum_bytes(data)
            if found != checksum:
                raise MasterFormatError(
                    f"Index {path} has checksum {found}, expected {checksum}: it was changed or "
                    "cut short. Restore the file or build the master again."
                )
            table = pa.ipc.open_file(pa.py_buffer(data)).read_all().combine_chunks()
            return cls(**{name: table.column(name).to_numpy() for name in _DTYPES})
        except (OSError, KeyError, pa.ArrowException) as error:
            raise MasterFormatError(
                f"Index {path} cannot be read: {error}. Restore it or build the master again."
            ) from error

    @classmethod
    def of(cls, columns: dict[str, list[int]]) -> PageIndex:
        """An index from one list per array."""
        return cls(**{f.name: np.array(columns[f.name], _DTYPES[f.name]) for f in fields(cls)})


@dataclass(frozen=True, eq=False)
class WrittenPages:
    """What `write_pages` has to tell of the file it wrote."""

    index: PageIndex
    widest_row: int
    """Bytes that no row passes when it stands alone in Arrow memory."""


def write_pages(
    path: Path,
    table: pa.Table,
    codes: Codes,
    page_bytes: int,
    order: NDArray[np.int64] | None = None,
) -> WrittenPages:
    """Write a table as pages of at most `page_bytes` each; a longer row gets its own page.

    Rows are taken in `order` (by default as they are), and rows of one code must be adjacent
    in it. They are gathered a block of pages at a time: the file is never in memory as a whole.
    """
    rows = OrderedRows(table, order)
    codes = codes if order is None else codes[order]
    sizes = row_bytes(table, PACKED_FLAG)
    ends = np.cumsum(sizes if order is None else sizes[order])
    with _PageSink(path, table.schema, page_bytes) as sink:
        start = 0
        while start < len(codes):
            # A block holds its first page at least, or the loop would stand still.
            block_stop = max(
                _stop(ends, start, _BLOCK_BYTES), _stop(ends, start, sink.payload_bytes)
            )
            block = rows.take(start, block_stop)
            block_start = start
            while start < block_stop:
                stop = _stop(ends, start, sink.payload_bytes)
                if stop > block_stop:
                    break  # the page would be cut short by the block: it opens the next one
                page = block.slice(start - block_start, stop - start)
                start += sink.append(page, codes[start:stop])
    files.sync(path)
    return WrittenPages(PageIndex.of(sink.entries), sink.widest_row)


def _stop(ends: NDArray[np.float64], start: int, size: float) -> int:
    """The row after the last one that fits into `size` bytes from row `start` on; one at least."""
    base = ends[start - 1] if start else 0.0
    stop = int(np.searchsorted(ends, base + size, side="right"))
    return min(max(stop, start + 1), start + _MAX_ROWS)


class _PageSink:
    """An Arrow file being written, and the index entries of its pages so far."""

    def __init__(self, path: Path, schema: pa.Schema, page_bytes: int) -> None:
        self._page_bytes = page_bytes
        self._file = files.open_sink(path)
        self._writer = pa.ipc.new_file(self._file, schema)
        self.widest_row = 0
        self.entries: dict[str, list[int]] = {name: [] for name in _DTYPES}
        self.payload_bytes = page_bytes - _overhead(schema)

    def __enter__(self) -> _PageSink:
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            self._writer.close()
        finally:
            self._file.close()

    def append(self, page: pa.RecordBatch, codes: Codes) -> int:
        """Write the rows as a page, or as many of them as a page holds; how many were written."""
        message = page.serialize()
        while message.size > self._page_bytes and page.num_rows > 1:
            fit = int(page.num_rows * self._page_bytes / message.size * 0.99)
            page = page.slice(0, min(max(fit, 1), page.num_rows - 1))
            message = page.serialize()
        before = self._file.tell()
        self._writer.write_batch(page)
        # The writer puts the schema before the first page, so the page is what ends here.
        offset = self._file.tell() - message.size
        if self.entries["offset"] and offset != before:
            raise InternalError(f"Page at {before} was written at {offset}. Please report this.")
        self._note(page, codes, offset, message)
        return int(page.num_rows)

    def _note(self, page: pa.RecordBatch, codes: Codes, offset: int, message: pa.Buffer) -> None:
        for name, value in (
            ("first", codes[0]),
            ("last", codes[page.num_rows - 1]),
            ("offset", offset),
            ("length", message.size),
            ("rows", page.num_rows),
            ("checksum", xxhash.xxh3_64_intdigest(message)),
        ):
            self.entries[name].append(int(value))
        self.widest_row = max(self.widest_row, int(np.ceil(row_bytes(page).max())))


def _overhead(schema: pa.Schema) -> int:
    """Bytes of a page that are not rows: the metadata, and the padding after each buffer."""
    empty = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
    buffers = sum(len(column.buffers()) for column in empty.columns)
    return int(pa.ipc.get_record_batch_size(empty)) + _PADDING * buffers
