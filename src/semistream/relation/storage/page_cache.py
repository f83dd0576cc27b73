"""Page cache: copies of pages of remote master tables on a local disk, shared by its processes.

    /local/ssd/semistream-pages/<boot>/
      lock                     held while a page is written or room is made
      used                     bytes of all copies together
      <file>.<number>.copy     a segment: a part of a page file, with holes where no page was kept
      <file>.<number>.kept     a byte for each 512 of the segment: 1 where a kept page begins

Page files never change, so a copy never grows old. When the cache is full, the segment that was
used the longest ago is unlinked as a whole. A process that has it open or mapped goes on with what
it has until it looks again: nothing is ever overwritten or cut under a reader.

A process that is killed leaves pages that are written but not marked, which is harmless. After a
crash of the machine a mark may be on the disk without its page; so each boot has a folder of its
own. Every page is compared with its checksum before its rows are used, here as anywhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os
import shutil
import time
import weakref
from collections.abc import Iterator
from functools import lru_cache
from io import FileIO
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from semistream.budget import parse_memory
from semistream.errors import OptionError
from semistream.relation.storage.faults import storage_faults
from semistream.relation.storage.location import local_path

__all__ = ["MARKED", "CacheSetting", "PageCache", "Segment"]

MARKED: Final = 512
"""A page is known by the stretch of so many bytes that it begins in; a shorter one is not kept."""
_ROOT: Final = "semistream-pages"
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_SEGMENTS: Final = 16
"""A segment is at most one part in so many of the cache."""
_LEAST_SEGMENT, _MOST_SEGMENT = 1 << 18, 1 << 30
_REST_SECONDS: Final = 60.0
"""How long nothing is kept after the disk has refused to."""

_log = logging.getLogger("semistream")


class CacheSetting(NamedTuple):
    """Which folder to keep copies in, and how many bytes of them."""

    folder: str
    limit: int

    @classmethod
    def of(cls, folder: str | os.PathLike[str], limit: int | str) -> CacheSetting:
        """Checked, but not yet used: the folder may be on the disks of other machines only."""
        size = parse_memory(limit, "cache_bytes")
        if size < _SEGMENTS * _LEAST_SEGMENT:
            raise OptionError(
                f"cache_bytes is {size:,}; give at least {_SEGMENTS * _LEAST_SEGMENT:,}, and "
                "better as much as the pages that the stream asks for."
            )
        return cls(os.path.abspath(local_path(folder, "cache")), size)

    def opened(self) -> PageCache:
        """The cache on this machine; always the same one in a process."""
        return _opened_cache(self)


class PageCache:
    """A folder that holds copies of pages, at most `limit` bytes of them."""

    def __init__(self, folder: Path, limit: int) -> None:
        """Make the folder if it is missing; copies from before the last boot are removed."""
        self.folder, self.limit = folder, limit
        whole = 1 << (limit // _SEGMENTS).bit_length() - 1
        self.segment_bytes = min(whole, _MOST_SEGMENT)
        """Bytes of a page file that one segment copies."""
        self._resting_until = 0.0
        with storage_faults(folder, "used as a cache"):
            self._root = folder / _ROOT / _boot()
            self._root.mkdir(0o700, parents=True, exist_ok=True)
            with self._alone():
                self._forget_older_boots()
                self._used = self._counter()

    def segment(self, file: str, number: int, longest: int, make: bool) -> Segment | None:
        """A segment of the page file with this name; None if it is missing and not to be made.

        `longest` are the bytes of the file's longest page: the last one may reach beyond the end.
        """
        path = self._root / f"{file}.{self.segment_bytes:x}.{number}"
        if not make and not os.path.exists(f"{path}.kept"):
            return None
        with self._alone():
            return Segment(path, self.segment_bytes, self.segment_bytes + longest + mmap.PAGESIZE)

    def keep(self, segment: Segment, place: int, page: memoryview) -> None:
        """Write a page to its place in a segment, and mark it. A full or broken disk is no error.

        Room is made first. The page is not marked if the segment itself had to go.
        """
        if len(page) < MARKED or time.monotonic() < self._resting_until:
            return
        try:
            with self._alone():
                if self._used[0] + len(page) > self.limit:
                    self._make_room(len(page))
                if segment.is_gone:
                    return
                self._used[0] += len(page)
                _write(segment.descriptor, page, place)
            segment.kept[place // MARKED] = 1
        except OSError as error:
            self._resting_until = time.monotonic() + _REST_SECONDS
            _log.warning(
                "Pages are not kept in the cache %s for a minute, since it refuses to: %s. They "
                "are read from the master table meanwhile.",
                self.folder,
                error,
            )

    def _make_room(self, wanted: int) -> None:
        """Unlink segments, the longest unused first, until so many bytes fit."""
        marks = sorted(self._root.glob("*.kept"), key=lambda mark: mark.stat().st_mtime)
        self._used[0] = sum(_disk_bytes(_copy_of(mark)) for mark in marks)
        for mark in marks:
            if self._used[0] + wanted <= self.limit:
                return
            self._used[0] -= _disk_bytes(_copy_of(mark))
            # The mark first: a copy without one is as good as none.
            mark.unlink(missing_ok=True)
            _copy_of(mark).unlink(missing_ok=True)

    def _counter(self) -> NDArray[np.int64]:
        with _opened(self._root / "used", 8) as file:
            return np.frombuffer(mmap.mmap(file.fileno(), 8), np.int64)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """No other process, and no other thread, is in here meanwhile."""
        with _opened(self._root / "lock", 0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _forget_older_boots(self) -> None:
        for folder in self._root.parent.iterdir():
            if folder != self._root:
                shutil.rmtree(folder, ignore_errors=True)


class Segment:
    """The copy of a part of a page file. Its descriptors are closed with its last reference."""

    def __init__(self, path: Path, covered: int, size: int) -> None:
        """Open the segment, or make it empty. It copies `covered` bytes of its file."""
        copy = _opened(Path(f"{path}.copy"), size)
        self.descriptor = copy.fileno()
        weakref.finalize(self, copy.close)
        self._mark = Path(f"{path}.kept")
        marks = covered // MARKED + 1
        with _opened(self._mark, marks) as file:
            self.kept: NDArray[np.uint8] = np.frombuffer(mmap.mmap(file.fileno(), marks), np.uint8)
            """By place // MARKED: 1 where a page begins that is here as a whole."""

    @property
    def is_gone(self) -> bool:
        """Whether the segment was removed from the cache; what is in it can still be read."""
        return os.fstat(self.descriptor).st_nlink == 0

    def touch(self) -> None:
        """The segment is in use: others are removed before it."""
        with contextlib.suppress(OSError):
            os.utime(self._mark)


@lru_cache(maxsize=4)
def _opened_cache(setting: CacheSetting) -> PageCache:
    return PageCache(Path(setting.folder), setting.limit)


def _boot() -> str:
    """What is another word after each start of the machine."""
    return _BOOT.read_text().strip() if _BOOT.exists() else "any"


def _opened(path: Path, size: int) -> FileIO:
    """A file to read and write at any place, with at least so many bytes."""
    file = FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b")
    if os.fstat(file.fileno()).st_size < size:
        file.truncate(size)
    return file


def _copy_of(mark: Path) -> Path:
    return mark.with_suffix(".copy")


def _disk_bytes(path: Path) -> int:
    """Bytes that a file with holes takes on the disk."""
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError:
        return 0


def _write(descriptor: int, data: memoryview, place: int) -> None:
    while len(data):
        written = os.pwrite(descriptor, data, place)
        data, place = data[written:], place + written
