"""Mapped pages: the page files of a master table as memory, and which pages are really there.

The operating system keeps what was read in its page cache. A page that it holds can be searched
where it lies; touching one that it does not hold would wait for the disk, row by row, so those
are left to whoever reads pages for many tuples at a time. Mapped memory belongs to the page
cache: it counts for no process alone, and the operating system takes it back when it needs it.
"""

from __future__ import annotations

import mmap
import os
import resource
import time
from collections import OrderedDict
from typing import Final, NamedTuple, NoReturn

import numpy as np
import xxhash
from numpy.typing import NDArray

from semistream.errors import CorruptPageError
from semistream.kernels.copying import SPILL
from semistream.kernels.mapped_index import CHECKED, RESIDENT, UNLIKE, MappedIndex, note_resident
from semistream.relation.reader import PageReader

__all__ = ["MappedPages", "can_be_mapped"]

_SCRATCH: Final = 1 << 14
"""Pages of the operating system that it is asked about at a time."""
_LOOK_SHARE: Final = 20
"""Looking which pages are held takes at most one part in so many of the time."""
_MOST_PER_PAGE: Final = 200e-9
"""Seconds that it takes at most to look for a page of the operating system."""
_MOST_KNOWN: Final = 16


class _Known(NamedTuple):
    """What this process has found out about the pages of a version; see `MappedIndex`."""

    state: NDArray[np.uint8]
    places: NDArray[np.int64]


_known: OrderedDict[object, _Known] = OrderedDict()
"""By the files of a version and what its index says of them."""


class MappedPages:
    """The pages of one version, mapped into memory for as long as its reader is open."""

    def __init__(self, reader: PageReader) -> None:
        """Map the files and look which pages are held."""
        index = reader.index
        self._files = {number: os.fstat(fd) for number, fd in reader.descriptors.items()}
        self._maps: list[mmap.mmap] = []
        base = np.zeros(max(self._files, default=0) + 1, np.int64)
        for number, descriptor in reader.descriptors.items():
            memory = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
            memory.madvise(mmap.MADV_RANDOM)
            self._maps.append(memory)
            base[number] = np.frombuffer(memory, np.uint8).ctypes.data
        known = self._known_pages(reader)
        self._start(
            reader,
            MappedIndex(
                index.first,
                index.last,
                index.file,
                index.offset,
                index.length,
                index.rows,
                index.checksum,
                known.state,
                base,
                known.places,
            ),
        )

    def _start(self, reader: PageReader, index: MappedIndex) -> None:
        self._reader, self.index = reader, index
        self._scratch = np.zeros(_SCRATCH, np.uint8)
        self._looked_at = self._look_seconds = 0.0
        self._faults = 0
        self.look()

    def look(self) -> None:
        """Ask the operating system which pages it holds. O(pages), some 50 ns for each 4 KB."""
        started = time.perf_counter()
        held = note_resident(self.index, mmap.PAGESIZE, self._scratch)
        if held < 0:
            self.index.state[:] &= CHECKED | UNLIKE
        self._looked_at = time.perf_counter()
        # The first time may have compiled the kernel besides.
        most = int(self.index.length.sum()) / mmap.PAGESIZE * _MOST_PER_PAGE
        self._look_seconds = min(self._looked_at - started, most)
        self._faults = _faults()

    def look_again(self, missed: bool) -> None:
        """Look again if what is known may be old, but not too often.

        `missed`: pages that were not held have been asked for. That pages went away shows in
        faults: the process had to wait for the disk where it should not have to.
        """
        if not missed and _faults() == self._faults:
            return
        if time.perf_counter() - self._looked_at > _LOOK_SHARE * self._look_seconds:
            self.look()

    def check_files(self) -> None:
        """Raise `CorruptPageError` if a file was cut since it was mapped.

        A file that was touched otherwise, by whatever, has its pages checked again before they
        are used. What happens to a file between this and the use of a page is not noticed.
        """
        for number, descriptor in self._reader.descriptors.items():
            now, then = os.fstat(descriptor), self._files[number]
            if now.st_size < then.st_size:
                raise CorruptPageError(
                    f"{self._reader.files.shown(number)} was cut while it was in use: it had "
                    f"{then.st_size:,} bytes and has {now.st_size:,}. Restore it from a copy, or "
                    "build the master again."
                )
            if _times(now) != _times(then):
                self._files[number] = now
                self.index.state[:] &= RESIDENT

    def check_unwritten(self) -> None:
        """Raise `CorruptPageError` if a file was written to since `check_files`."""
        for number, descriptor in self._reader.descriptors.items():
            if os.fstat(descriptor).st_mtime_ns != self._files[number].st_mtime_ns:
                raise CorruptPageError(
                    f"{self._reader.files.shown(number)} was written to while rows were read from "
                    "it. Files of a master table must not be changed. Restore it from a copy, or "
                    "build the master again."
                )

    def drop(self, page: int) -> None:
        """A page is not as it was written: raise `CorruptPageError`, unless it is a mere copy."""
        self.refuse(page)

    def refuse(self, page: int) -> NoReturn:
        """Raise `CorruptPageError` for a page that is not as it was written."""
        raise self._reader.corrupt(page, "its checksum or its content is not what was written")

    def close(self) -> None:
        """Forget the memory; the files are the reader's."""
        self.index = self.index._replace(base=np.zeros_like(self.index.base))
        while self._maps:
            self._maps.pop().close()

    def _known_pages(self, reader: PageReader) -> _Known:
        """What is known in this process of the pages of just these files."""
        index = reader.index
        files = tuple(
            (number, told.st_dev, told.st_ino, told.st_size, *_times(told))
            for number, told in self._files.items()
        )
        digest = xxhash.xxh3_128(index.to_bytes()).digest()
        key = (files, digest, reader.rules.key)
        fresh = _Known(np.zeros(len(index), np.uint8), np.zeros(3, np.int64))
        known = _known.setdefault(key, fresh)
        _known.move_to_end(key)
        while len(_known) > _MOST_KNOWN:
            _known.popitem(last=False)
        return known


def can_be_mapped(reader: PageReader) -> bool:
    """Whether all files are open, local, and a little longer than their last page."""
    index, open_files = reader.index, reader.descriptors
    if not len(index) or not set(np.unique(index.file).tolist()) <= set(open_files):
        return False
    ends = np.zeros(max(open_files) + 1, np.int64)
    np.maximum.at(ends, index.file, index.offset + index.length)
    return all(os.fstat(fd).st_size >= ends[n] + SPILL for n, fd in open_files.items())


def _times(told: os.stat_result) -> tuple[int, int]:
    """When a file was last changed: its content, and anything of it."""
    return told.st_mtime_ns, told.st_ctime_ns


def _faults() -> int:
    """How often this thread had to wait for the disk when it touched memory."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
