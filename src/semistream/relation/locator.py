"""The dense index of a master table that is not in code order.

One row per distinct code says on which pages its master rows are. That is too large for memory,
so it is a page file itself, in code order, with small pages; only its sparse index is in memory.
In a sharded master each shard has its own run of locator pages.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.arrow_arrays import to_arrow, to_numpy
from semistream.keys import Codes
from semistream.relation.page_file import WrittenPages, write_pages
from semistream.relation.page_index import PageIndex
from semistream.relation.page_rules import PageRules, rows_fault
from semistream.relation.reader import Frame, PageReader
from semistream.relation.shards import shard_of
from semistream.relation.storage import PageFiles, Storage

__all__ = [
    "LOCATOR_PAGE_BYTES",
    "LOCATOR_SCHEMA",
    "Locator",
    "locator_rows",
    "merged_locator_rows",
    "page_starts",
    "write_locator",
]

LOCATOR_PAGE_BYTES = 16 << 10
"""Small, because a look-up needs a single row of the page."""

LOCATOR_SCHEMA = pa.schema(
    [
        pa.field("code", pa.int64(), nullable=False),
        pa.field("first_page", pa.int32(), nullable=False),
        pa.field("last_page", pa.int32(), nullable=False),
    ]
)
"""The columns of a locator file."""

_ABSENT = (1, 0)


class Locator:
    """Finds the pages of a code with one read of a small page."""

    def __init__(
        self, files: PageFiles, index: PageIndex, io: str, pages: int, base: int = 0
    ) -> None:
        """For a master table of `pages` pages, counted from page `base` on.

        `base` is subtracted from page numbers: a shard's first page is its page 0.
        """
        self.index = index
        rules = PageRules(
            LOCATOR_SCHEMA,
            codes=lambda batch: to_numpy(batch.column(0)),
            in_order=True,
            fault=lambda batch: rows_fault(
                to_numpy(batch.column(1)) - base, to_numpy(batch.column(2)) - base, pages
            ),
            key=(pages, base),
        )
        self.reader = PageReader(files, index, LOCATOR_SCHEMA, io, rules)
        """Counts the locator's own reads."""
        self._base = base

    def __enter__(self) -> Locator:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the locator's files."""
        self.reader.close()

    @property
    def nbytes(self) -> int:
        """Bytes the locator holds in memory."""
        return self.index.nbytes

    @property
    def pages_read(self) -> int:
        """Locator pages read so far."""
        return self.reader.pages_read

    def frame_bytes(self) -> int:
        """Bytes of the frame that `find` and `find_many` need."""
        return self.reader.frame_bytes(1)

    def find(self, code: int, frame: Frame) -> tuple[int, int]:
        """First and last page of the code's rows, or (1, 0) if it has none; at most one read."""
        page, last = self.index.span(code)
        if page > last:
            return _ABSENT
        codes, first_page, last_page = self._columns(page, frame)
        at = int(np.searchsorted(codes, code))
        if codes[at] != code:
            return _ABSENT
        return int(first_page[at]) - self._base, int(last_page[at]) - self._base

    def find_many(
        self, codes: Codes, frame: Frame | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """`find` for each code, reading each needed page once, in file order.

        Without `frame`, one is made for the call.
        """
        low, high = np.full(len(codes), 1, np.int32), np.zeros(len(codes), np.int32)
        home = np.searchsorted(self.index.last, codes, side="left")
        inside = np.flatnonzero(home < len(self.index))
        inside = inside[self.index.first[home[inside]] <= codes[inside]]
        if len(inside) == 0:
            return low, high
        frame = frame or Frame(self.frame_bytes())
        inside = inside[np.argsort(home[inside], kind="stable")]
        pages, starts = np.unique(home[inside], return_index=True)
        for page, asked in zip(pages.tolist(), np.split(inside, starts[1:]), strict=True):
            found, first_page, last_page = self._columns(page, frame)
            at = np.searchsorted(found, codes[asked])
            hit = found[at] == codes[asked]
            low[asked[hit]] = first_page[at[hit]] - self._base
            high[asked[hit]] = last_page[at[hit]] - self._base
        return low, high

    def _columns(
        self, page: int, frame: Frame
    ) -> tuple[Codes, NDArray[np.int32], NDArray[np.int32]]:
        (batch,) = self.reader.read(page, 1, frame)
        codes, first_page, last_page = (to_numpy(column) for column in batch.columns)
        return codes, first_page, last_page


def locator_rows(codes: Codes, pages: PageIndex) -> pa.Table:
    """The locator rows, in code order, of pages with these codes. Equal codes must be adjacent."""
    begins = np.flatnonzero(np.r_[True, codes[1:] != codes[:-1]]) if len(codes) else codes
    ends = np.r_[begins[1:], len(codes)] - 1 if len(codes) else codes
    rows_before = np.cumsum(pages.rows, dtype=np.int64)
    by_code = np.argsort(codes[begins], kind="stable")
    return pa.table(
        [
            to_arrow(codes[begins][by_code]),
            to_arrow(np.searchsorted(rows_before, begins, side="right")[by_code].astype(np.int32)),
            to_arrow(np.searchsorted(rows_before, ends, side="right")[by_code].astype(np.int32)),
        ],
        schema=LOCATOR_SCHEMA,
    )


def merged_locator_rows(codes: Codes, low: NDArray[np.int32], high: NDArray[np.int32]) -> pa.Table:
    """One locator row per code, in code order, from spans; a code may have several spans."""
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    begins = np.flatnonzero(np.r_[True, codes[1:] != codes[:-1]])
    columns = [
        codes[begins],
        np.minimum.reduceat(low[order], begins),
        np.maximum.reduceat(high[order], begins),
    ]
    return pa.table([to_arrow(column) for column in columns], schema=LOCATOR_SCHEMA)


def write_locator(
    storage: Storage, name: str, rows: pa.Table, shards: int = 1
) -> tuple[WrittenPages, tuple[int, ...]]:
    """Write locator rows, given in code order. Returns the pages and the first of each shard."""
    codes = to_numpy(rows["code"].combine_chunks())
    owner = shard_of(codes, shards)
    order = np.argsort(owner, kind="stable") if shards > 1 else None
    cuts = np.cumsum(np.bincount(owner, minlength=shards))
    written = write_pages(storage, name, rows, codes, LOCATOR_PAGE_BYTES, order, cuts[:-1].tolist())
    return written, page_starts(written.index, cuts)


def page_starts(pages: PageIndex, cuts: NDArray[np.int64]) -> tuple[int, ...]:
    """The first page of each shard, then the number of pages; `cuts` are the rows after shards."""
    rows_before = np.concatenate([[0], np.cumsum(pages.rows, dtype=np.int64)])
    return (0, *np.searchsorted(rows_before, cuts).tolist())
