"""Which pages a new version has: old ones that stay and new ones, in their order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.keys import Codes
from semistream.relation.locator import LOCATOR_SCHEMA
from semistream.relation.page_index import PageIndex

__all__ = ["Rewritten", "merged_locator_rows"]


class _Piece(NamedTuple):
    """A run of pages, of the old version or of the new file."""

    new: bool
    first: int
    stop: int


class Rewritten:
    """Collects, page by page, what the new version has."""

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []
        self._pages = self.new_pages = 0
        self._shard_starts = [0]
        self._noted: list[Codes] = []

    def keep(self, first: int, stop: int) -> None:
        """The old pages `first` to before `stop` come next."""
        self._pieces.append(_Piece(False, first, stop))
        self._pages += stop - first

    def add(self, count: int) -> None:
        """The next `count` pages of the new file come next."""
        if count:
            self._pieces.append(_Piece(True, self.new_pages, self.new_pages + count))
            self._pages += count
            self.new_pages += count

    def note(self, codes: Codes) -> None:
        """The next page of the new file has these codes, equal ones adjacent."""
        self._noted.append(codes[np.r_[True, codes[1:] != codes[:-1]]])

    def end_shard(self) -> None:
        """What comes next is of the next shard."""
        self._shard_starts.append(self._pages)

    @property
    def shard_starts(self) -> tuple[int, ...]:
        """The first page of each shard, and the number of pages."""
        return tuple(self._shard_starts)

    def index(self, old: PageIndex, new: PageIndex | None) -> PageIndex:
        """The index of the new version."""
        sides = (old, new if new is not None else old)
        return PageIndex.joined(sides[piece.new].part(*piece[1:]) for piece in self._pieces)

    def moved(self, old_count: int) -> NDArray[np.int32]:
        """The new number of each old page; -1 for those that are no more."""
        return self._numbers(False, old_count)

    def located(self) -> pa.Table:
        """Locator rows of the new file's pages, in code order."""
        if not self._noted:
            return LOCATOR_SCHEMA.empty_table()
        page = np.repeat(self._numbers(True, self.new_pages), [len(codes) for codes in self._noted])
        return merged_locator_rows(np.concatenate(self._noted), page, page)

    def _numbers(self, new: bool, count: int) -> NDArray[np.int32]:
        numbers = np.full(count, -1, np.int32)
        at = 0
        for piece in self._pieces:
            size = piece.stop - piece.first
            if piece.new == new:
                numbers[piece.first : piece.stop] = np.arange(at, at + size)
            at += size
        return numbers


def merged_locator_rows(codes: Codes, low: NDArray[np.int32], high: NDArray[np.int32]) -> pa.Table:
    """A locator row per code, in code order, from spans of which a code may have several."""
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    begins = np.flatnonzero(np.r_[True, codes[1:] != codes[:-1]])
    columns = [
        codes[begins],
        np.minimum.reduceat(low[order], begins),
        np.maximum.reduceat(high[order], begins),
    ]
    return pa.table([pa.array(column) for column in columns], schema=LOCATOR_SCHEMA)
