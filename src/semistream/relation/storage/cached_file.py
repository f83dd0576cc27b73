"""Cached file: a page file of a remote master table that is read through a `PageCache`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from semistream.errors import InternalError
from semistream.relation.storage.compressed_file import Blocks
from semistream.relation.storage.files import PageSource
from semistream.relation.storage.page_cache import MARKED, PageCache, Segment

__all__ = ["CachedFile", "FilePages"]

_TOUCH_SECONDS: Final = 1.0


class FilePages(NamedTuple):
    """The pages of one file that a version has, by ascending offset."""

    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    checksum: NDArray[np.uint64]
    place: NDArray[np.int64] | None = None
    size: NDArray[np.int64] | None = None
    """Where they are stored, if they are compressed; see `PageIndex`."""

    @property
    def blocks(self) -> Blocks:
        """The same for a compressed file."""
        if self.place is None or self.size is None:
            raise InternalError("A compressed file has no places of blocks. Please report this.")
        return Blocks(self.offset, self.length, self.place, self.size)


class CachedFile:
    """Reads stretches of pages: from the cache where it has them all, or else from their place.

    What is read from its place is kept in the cache, if it is intact. Several threads may read.
    """

    def __init__(
        self, name: str, pages: FilePages, cache: PageCache, remote: Callable[[], PageSource]
    ) -> None:
        """`name` is the file's in the cache; `remote` opens the file itself, when it is needed."""
        self.descriptor = -1
        self._name, self._pages, self._cache, self._open = name, pages, cache, remote
        self._remote: PageSource | None = None
        self._longest = int(pages.length.max(initial=0))
        self._segments: dict[int, Segment] = {}
        self._touched: dict[int, float] = {}

    def read_into(self, memory: memoryview, position: int) -> int:
        """Read the pages from `position` on that fill the memory; returns its bytes."""
        first, stop = np.searchsorted(self._pages.offset, [position, position + len(memory)])
        pages = range(int(first), int(stop))
        if not self._read_kept(pages, memory, position):
            if self._remote is None:
                self._remote = self._open()
            got = 0
            while got < len(memory):
                more = self._remote.read_into(memory[got:], position + got)
                if not more:
                    return got
                got += more
            self._keep(pages, memory, position)
        return len(memory)

    def close(self) -> None:
        """Close the file and its segments."""
        if self._remote is not None:
            self._remote.close()
        self._segments.clear()

    def segment(self, number: int, make: bool = False) -> Segment | None:
        """A segment as it is in the cache now; None if it is missing, or the disk refuses."""
        found = self._segments.get(number)
        now = time.monotonic()
        if found is not None and now - self._touched[number] > _TOUCH_SECONDS:
            self._touched[number] = now
            if found.is_gone:
                found = None
            else:
                found.touch()
        if found is None:
            try:
                found = self._cache.segment(self._name, number, self._longest, make)
            except OSError:
                found = None
            self._touched[number] = now
            if found is None:
                self._segments.pop(number, None)
            else:
                self._segments[number] = found
        return found

    def place(self, offset: int) -> tuple[int, int]:
        """The segment that a page belongs to, and where it begins in it."""
        return divmod(offset, self._cache.segment_bytes)

    def _read_kept(self, pages: range, memory: memoryview, position: int) -> bool:
        """Fill the memory with pages from the cache; False if one of them is not there, intact."""
        for page in pages:
            number, place = self.place(self._pages.offset.item(page))
            segment = self.segment(number)
            if segment is None or not segment.kept.item(place // MARKED):
                return False
            target = self._part(page, memory, position)
            if os.preadv(segment.descriptor, [target], place) < len(target):
                return False
            if not self._is_intact(page, target):
                segment.kept[place // MARKED] = 0
                return False
        return len(pages) > 0

    def _keep(self, pages: range, memory: memoryview, position: int) -> None:
        for page in pages:
            content = self._part(page, memory, position)
            number, place = self.place(self._pages.offset.item(page))
            if self._is_intact(page, content) and (segment := self.segment(number, make=True)):
                self._cache.keep(segment, place, content)

    def _part(self, page: int, memory: memoryview, position: int) -> memoryview:
        begin = self._pages.offset.item(page) - position
        return memory[begin : begin + self._pages.length.item(page)]

    def _is_intact(self, page: int, content: memoryview) -> bool:
        return xxhash.xxh3_64_intdigest(content) == self._pages.checksum.item(page)
