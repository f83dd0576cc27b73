"""The dense index of a master table that is not in code order.

A row per distinct code says on which pages its master rows are. That is too large for memory,
so it is itself a page file, in code order, with small pages; only its sparse index is in memory.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.keys import Codes
from semistream.relation.page_file import PageIndex, write_pages
from semistream.relation.reader import Frame, PageReader

__all__ = ["LOCATOR_PAGE_BYTES", "LOCATOR_SCHEMA", "Locator", "write_locator"]

LOCATOR_PAGE_BYTES = 16 << 10
"""Small, because a lookup wants a single row of the page."""

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

    def __init__(self, path: Path, index: PageIndex, io: str) -> None:
        self.index = index
        self.reader = PageReader(path, index, LOCATOR_SCHEMA, io)
        """Counts the locator's own reads."""

    def __enter__(self) -> Locator:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the locator's file."""
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
        return int(first_page[at]), int(last_page[at])

    def find_many(
        self, codes: Codes, frame: Frame | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """`find` for each code, reading each needed page once, in file order.

        Without a frame one is made for the call.
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
            low[asked[hit]], high[asked[hit]] = first_page[at[hit]], last_page[at[hit]]
        return low, high

    def _columns(
        self, page: int, frame: Frame
    ) -> tuple[Codes, NDArray[np.int32], NDArray[np.int32]]:
        (batch,) = self.reader.read(page, 1, frame)
        codes, first_page, last_page = (column.to_numpy() for column in batch.columns)
        return codes, first_page, last_page


def write_locator(path: Path, codes: Codes, pages: PageIndex) -> PageIndex:
    """Write the locator of a page file whose rows have these codes, equal ones adjacent."""
    begins = np.flatnonzero(np.r_[True, codes[1:] != codes[:-1]]) if len(codes) else codes
    ends = np.r_[begins[1:], len(codes)] - 1 if len(codes) else codes
    rows_before = np.cumsum(pages.rows, dtype=np.int64)
    by_code = np.argsort(codes[begins], kind="stable")
    found = codes[begins][by_code]
    table = pa.table(
        [
            pa.array(found),
            pa.array(np.searchsorted(rows_before, begins, side="right")[by_code], pa.int32()),
            pa.array(np.searchsorted(rows_before, ends, side="right")[by_code], pa.int32()),
        ],
        schema=LOCATOR_SCHEMA,
    )
    return write_pages(path, table, found, LOCATOR_PAGE_BYTES).index
