"""A synthetic relation: a master table that needs no disk, for priced runs.

Its pages are made when they are read: keys by arithmetic on the row number, the payload a slice
of one buffer of zeros. So a read costs next to nothing, and is still counted as a real one: rows
per page, page lengths and bytes read are those of a master table built from the same rows.

R is in key order: unless another rule is given, row i has the key i. A stream that draws ranks as
keys asks most often for the first rows, so R is then in order of frequency too; a stream that
scatters its ranks has frequent keys all over R.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.errors import OptionError
from semistream.relation.frame import Frame
from semistream.relation.master_table import MasterTable
from semistream.relation.page_file import rows_per_page
from semistream.relation.page_index import PageIndex
from semistream.relation.reader import PageReader
from semistream.relation.storage import Nowhere, PageFiles
from semistream.relation.updates.change import Change
from semistream.relation.versions.manifest import Manifest, encode_schema
from semistream.workload.zipf import Ints
from semistream_papers.workloads.keyed_rows import KEY_BYTES, KeyRule, zero_column

__all__ = ["SyntheticMaster", "synthetic_schema"]

_KEY: Final = "key"
_MAGIC_BYTES: Final = 8


def synthetic_schema(row_bytes: int) -> pa.Schema:
    """The columns of a synthetic relation."""
    return pa.schema(
        [
            pa.field(_KEY, pa.int64(), nullable=False),
            pa.field("payload", pa.binary(row_bytes - KEY_BYTES), nullable=False),
        ]
    )


def _row_number(rows: Ints) -> Ints:
    return rows


class SyntheticMaster(MasterTable):
    """R of `rows` rows of `row_bytes` bytes: an int64 column "key" and a payload of zeros.

    Only the page index is in memory, and the budget of a join is not charged for it: the papers'
    index belongs to the database.

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
    ) -> None:
        if rows < 1 or row_bytes <= KEY_BYTES:
            raise OptionError(
                f"rows={rows} and row_bytes={row_bytes}; give at least one row of more than "
                f"{KEY_BYTES} bytes: its key takes that much."
            )
        self._made = (rows, row_bytes, page_bytes, keys)
        self._keys = keys
        schema = synthetic_schema(row_bytes)
        pages = _page_index(rows, page_bytes, schema, keys)
        manifest = Manifest(
            version=1,
            key=(_KEY,),
            layout="key",
            row_count=rows,
            page_count=len(pages),
            rows_without_key=0,
            page_bytes=page_bytes,
            widest_row=row_bytes + len(schema),
            schema=encode_schema(schema),
            code_column=None,
            files={},
            page_files=(),
            shard_starts=(0, len(pages)),
        )
        super().__init__(_STORAGE, manifest, pages)

    @property
    def index_bytes(self) -> int:
        """0: the papers do not count the index as memory of the join."""
        return 0

    def reader(self, io: str = "buffered") -> PageReader:
        """A reader that makes the pages."""
        return _SyntheticReader(self.pages, self.stored_schema, io, self._keys)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled as what it is made from."""
        return SyntheticMaster, self._made

    def _updated(self, change: Change, everything: bool = False) -> MasterTable:
        raise OptionError(
            "A synthetic relation cannot be changed: it is arithmetic. Build a master table with "
            "MasterTable.from_arrow(…) to update it."
        )


_STORAGE: Final = Nowhere(Path("synthetic"))


class _SyntheticReader(PageReader):
    """Reads nothing, counts as if it had, and makes the pages."""

    waits = False

    def __init__(self, index: PageIndex, schema: pa.Schema, io: str, keys: KeyRule) -> None:
        super().__init__(PageFiles(_STORAGE, ("none",)), index, schema, io)
        self._keys = keys
        self._payload = pa.array([], schema.field(1).type)

    def fetch(self, first: int, count: int, frame: Frame) -> None:
        """Count the read of `count` pages from page `first` on."""
        last = first + count - 1
        begin = self.index.offset.item(first) & -self.grain
        end = self.index.offset.item(last) + self.index.length.item(last)
        self.bytes_read += -(-end // self.grain) * self.grain - begin
        self.pages_read += count
        self.reads += 1

    def decode(self, first: int, count: int, frame: Frame) -> list[pa.RecordBatch]:
        """Make the pages, as slices of one batch."""
        rows = self.index.rows[first : first + count]
        start = first * int(self.index.rows.item(0))
        total = int(rows.sum())
        keys = self._keys(np.arange(start, start + total))
        columns = [pa.array(keys), self._zeros(total)]
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

    def _zeros(self, rows: int) -> pa.Array:
        """A payload column of this many rows."""
        if len(self._payload) < rows:
            self._payload = zero_column(self.schema.field(1).type, rows)
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
    """Bytes of the Arrow message that a page of this many rows is."""
    columns = [pa.array(np.zeros(rows, np.int64)), zero_column(schema.field(1).type, rows)]
    return int(pa.RecordBatch.from_arrays(columns, schema=schema).serialize().size)


def _first_offset(schema: pa.Schema) -> int:
    """Where the first page begins: behind the file's magic and the schema."""
    return _MAGIC_BYTES + int(schema.serialize().size)
