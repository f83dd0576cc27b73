"""Cached pages: copies in a page cache as memory, as `MappedPages` has the files themselves."""

from __future__ import annotations

import mmap
import time
from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from semistream.kernels.mapped_index import CHECKED, RESIDENT, UNLIKE, MappedIndex
from semistream.relation.mapped_pages import MappedPages, can_be_mapped
from semistream.relation.reader import PageReader
from semistream.relation.storage.cached_file import CachedFile
from semistream.relation.storage.page_cache import MARKED, Segment

__all__ = ["CachedPages", "mapped_pages"]

_GLANCE_SECONDS: Final = 1.0
"""How often to look whether a segment was removed or made."""


class CachedPages(MappedPages):
    """The pages of one version of which a cache has copies.

    In the index, a page's file is its segment's number here. Other processes add pages and remove
    segments meanwhile. A segment stays mapped until this object has looked again.
    """

    def __init__(
        self, reader: PageReader, files: Mapping[int, CachedFile], segment_bytes: int
    ) -> None:
        """Map the segments that there are, and look which pages are kept and held."""
        index = reader.index
        numbers, places = np.divmod(index.offset, segment_bytes)
        keys, segments = np.unique(np.stack([index.file, numbers]), axis=1, return_inverse=True)
        self._keys = list(zip(*keys.tolist(), strict=True))
        """Of each segment, its file and its number in it."""
        self._cached = files
        self._segments: list[Segment | None] = [None] * len(self._keys)
        self._memory: list[mmap.mmap | None] = [None] * len(self._keys)
        self._glanced_at = 0.0
        self._start(
            reader,
            MappedIndex(
                index.first,
                index.last,
                segments.ravel().astype(np.int32),
                places,
                index.length,
                index.rows,
                index.checksum,
                np.zeros(len(index), np.uint8),
                np.zeros(len(self._keys), np.int64),
                np.zeros(3, np.int64),
            ),
        )

    def look(self) -> None:
        """Find out which pages are kept, and of those which the operating system holds."""
        self._map_anew()
        super().look()
        self.index.state[~self._kept()] &= CHECKED | UNLIKE

    def check_files(self) -> None:
        """Let go of segments that were removed; use those that were made."""
        if time.monotonic() - self._glanced_at > _GLANCE_SECONDS and self._map_anew():
            self.look()

    def check_unwritten(self) -> None:
        """Nothing to do: what is marked as kept is not written again."""

    def drop(self, page: int) -> None:
        """A copy is not what was written: the page is read from its own file."""
        segment = self._segments[self.index.file[page]]
        if segment is not None:
            segment.kept[self.index.offset[page] // MARKED] = 0
        self.index.state[page] &= ~np.uint8(RESIDENT)

    def close(self) -> None:
        """Forget the memory."""
        self.index = self.index._replace(base=np.zeros_like(self.index.base))
        self._segments = [None] * len(self._keys)
        for memory in self._memory:
            if memory is not None:
                memory.close()
        self._memory = [None] * len(self._keys)

    def _map_anew(self) -> bool:
        """Map the segments as they are in the cache now; returns whether one is another."""
        self._glanced_at = time.monotonic()
        changed = False
        for i, (file, number) in enumerate(self._keys):
            segment = self._cached[file].segment(number)
            if segment is self._segments[i]:
                continue
            changed = True
            self._segments[i] = segment
            self.index.base[i] = 0
            self.index.state[self.index.file == i] = 0
            memory, self._memory[i] = self._memory[i], None
            if memory is not None:
                memory.close()
            if segment is not None:
                mapped = mmap.mmap(segment.descriptor, 0, prot=mmap.PROT_READ)
                mapped.madvise(mmap.MADV_RANDOM)
                self._memory[i] = mapped
                self.index.base[i] = np.frombuffer(mapped, np.uint8).ctypes.data
        return changed

    def _kept(self) -> NDArray[np.bool_]:
        """Which pages are marked in the segments that are mapped."""
        kept = np.zeros(len(self.index.file), np.bool_)
        for i, segment in enumerate(self._segments):
            if segment is not None:
                here = self.index.file == i
                kept[here] = segment.kept[self.index.offset[here] // MARKED] != 0
        return kept


def mapped_pages(reader: PageReader) -> MappedPages | None:
    """The reader's pages as memory: the files, or copies of them; None if they have no place."""
    if (cache := reader.files.cache) is not None and (files := reader.cached_files):
        return CachedPages(reader, files, cache.opened().segment_bytes)
    return MappedPages(reader) if can_be_mapped(reader) else None
