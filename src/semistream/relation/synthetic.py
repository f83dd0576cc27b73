"""A synthetic relation: a master table that needs no disk, for priced runs.

Its pages are made when they are read: keys by arithmetic on the row number, payload as a slice
of one constant buffer, so that a read costs next to nothing and still counts as a real one does:
rows per page, page lengths and bytes read are those of a master table built from the same rows.

Row i has the key i unless another rule is given, so that R is in key order; with a stream that
draws ranks as they are it is in order of frequency as well, and with one that scatters them it
is not.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.errors import OptionError
from semistream.kernels.reading import PageList
from semistream.keys import Codes
from semistream.relation.frame import ALIGNMENT, Frame
from semistream.relation.master_table import MasterTable
from semistream.relation.page_file import rows_per_page
from semistream.relation.page_index import PageIndex
from semistream.relation.reader import IO_MODES, PageReader
from semistream.relation.storage import LocalStorage, PageFiles
from semistream.relation.updates.change import Change
from semistream.relation.versions.manifest import Manifest, encode_schema

__all__ = ["KeyRule", "SyntheticMaster", "synthetic_schema"]

KeyRule: TypeAlias = Callable[[Codes], Codes]
"""From row numbers to keys, which never fall from one row to the next."""

KEY = "key"
_KEY_BYTES = 8
_MAGIC_BYTES = 8


def synthetic_schema(row_bytes: int, payload: str = "payload") -> pa.Schema:
    """The columns of a synthetic relation."""
    return pa.schema(
        [
            pa.field(KEY, pa.int64(), nullable=False),
            pa.field(payload, pa.binary(row_bytes - _KEY_BYTES), nullable=False),
        ]
    )


def _row_number(rows: Codes) -> Codes:
    return rows


class SyntheticMaster(MasterTable):
    """R of `rows` rows of `row_bytes` bytes: an int64 column "key" and a constant payload.

    Only the page index is in memory, and the budget of a join is not charged for it: where keys
    are row numbers it is arithmetic.

    Example:
        >>> master = SyntheticMaster(100_000_000)
        >>> master.row_count, master.page_count, master.index_bytes
        (100000000, 184163, 0)
    """

    def __init__(
        self,
        rows: int,
        row_bytes: int = 120,
        page_bytes: int = 65536,
        keys: KeyRule = _row_number,
        payload: str = "payload",
    ) -> None:
        if rows < 1 or row_bytes <= _KEY_BYTES:
            raise OptionError(
                f"rows={rows} and row_bytes={row_bytes}; give at least one row of more than "
                f"{_KEY_BYTES} bytes: its key takes that much."
            )
        self._made = (rows, row_bytes, page_bytes, keys, payload)
        self._keys = keys
        schema = synthetic_schema(row_bytes, payload)
        self._pages = _page_index(rows, page_bytes, schema, keys)
        self._open_as(
            LocalStorage(Path("synthetic")),
            Manifest(
                version=1,
                key=(KEY,),
                layout="key",
                row_count=rows,
                page_count=len(self._pages),
                rows_without_key=0,
                page_bytes=page_bytes,
                widest_row=row_bytes + len(schema),
                schema=encode_schema(schema),
                code_column=None,
                files={},
                page_files=(),
                shard_starts=(0, len(self._pages)),
            ),
        )

    @property
    def index_bytes(self) -> int:
        """None: the papers' index is the database's, and this one is arithmetic."""
        return 0

    def reader(self, io: str = "buffered") -> PageReader:
        """A reader that makes the pages."""
        return _SyntheticReader(self._pages, self._stored_schema, io, self._keys)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled as what it is made from."""
        return SyntheticMaster, self._made

    def _updated(self, change: Change, everything: bool = False) -> MasterTable:
        raise OptionError(
            "A synthetic relation cannot be changed: it is arithmetic. Build a master table with "
            "MasterTable.from_arrow(…) to update it."
        )


class _SyntheticReader(PageReader):
    """Reads nothing, counts as if it had, and makes the pages."""

    waits = False

    def __init__(self, index: PageIndex, schema: pa.Schema, io: str, keys: KeyRule) -> None:
        if io not in IO_MODES:
            raise OptionError(f"io={io!r} is not known. Use one of {', '.join(IO_MODES)}.")
        self.files = PageFiles(LocalStorage(Path("synthetic")), ())
        self.index = index
        self.schema = schema
        self.io = io
        self.pages_read = self.bytes_read = self.reads = 0
        self._keys = keys
        self.grain = ALIGNMENT if io == "direct" else 1
        self.pages = PageList(index.offset, index.length, index.checksum)
        self._payload = pa.array([], schema.field(1).type)

    def close(self) -> None:
        """Nothing is open."""

    def fetch(self, first: int, count: int, frame: Frame) -> None:
        """Count the read of `count` pages from page `first` on."""
        last = first + count - 1
        begin = self.index.offset.item(first) & -self.grain
        end = self.index.offset.item(last) + self.index.length.item(last)
        self.bytes_read += -(-end // self.grain) * self.grain - begin
        self.pages_read += count
        self.reads += 1

    def decode(self, first: int, count: int, frame: Frame) -> list[pa.RecordBatch]:
        """Make the pages; slices of one batch, so that nothing is copied."""
        rows = self.index.rows[first : first + count]
        start = first * int(self.index.rows.item(0))
        total = int(rows.sum())
        keys = self._keys(np.arange(start, start + total))
        columns = [pa.array(keys), self._constant(total)]
        batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        if count == 1:
            return [batch]
        ends = np.cumsum(rows).tolist()
        return [batch.slice(e - n, n) for e, n in zip(ends, rows.tolist(), strict=True)]

    def stretches(
        self, firsts: NDArray[np.int64], stops: NDArray[np.int64], numbers: NDArray[np.int64]
    ) -> NDArray[np.void]:
        """Refused: there is nothing to read."""
        raise OptionError(
            "Pages of a synthetic relation are made, not read into memory as they lie on disk. "
            "Join it with look_ups=0, which is the papers' one look-up at a time."
        )

    def _constant(self, rows: int) -> pa.Array:
        """A payload column of so many rows, all of them the same bytes."""
        if len(self._payload) < rows:
            self._payload = _zeros(self.schema.field(1).type, rows)
        return self._payload.slice(0, rows)


def _page_index(rows: int, page_bytes: int, schema: pa.Schema, keys: KeyRule) -> PageIndex:
    """The index of the pages that these rows would be written as."""
    per_page = rows_per_page(schema, page_bytes)
    starts = np.arange(0, rows, per_page)
    counts = np.minimum(per_page, rows - starts)
    full, rest = (_page_length(schema, n) for n in (min(per_page, rows), int(counts[-1])))
    length = np.full(len(starts), full, np.int64)
    length[-1] = rest
    before = _first_offset(schema) + np.concatenate([[0], np.cumsum(length[:-1])])
    nothing = np.zeros(len(starts), np.int64)
    return PageIndex(
        first=keys(starts),
        last=keys(starts + counts - 1),
        offset=before.astype(np.int64),
        length=length,
        rows=counts.astype(np.int32),
        checksum=nothing.view(np.uint64),
        file=nothing.astype(np.int32),
    )


def _page_length(schema: pa.Schema, rows: int) -> int:
    """Bytes of the message of a page."""
    columns = [pa.array(np.zeros(rows, np.int64)), _zeros(schema.field(1).type, rows)]
    return int(pa.RecordBatch.from_arrays(columns, schema=schema).serialize().size)


def _zeros(kind: pa.DataType, rows: int) -> pa.Array:
    """A column of zero bytes."""
    zeros = pa.py_buffer(np.zeros(rows * kind.byte_width, np.uint8))
    return pa.FixedSizeBinaryArray.from_buffers(kind, rows, [None, zeros])


def _first_offset(schema: pa.Schema) -> int:
    """Where the first page begins: behind the file's magic and the schema."""
    return _MAGIC_BYTES + int(schema.serialize().size)
