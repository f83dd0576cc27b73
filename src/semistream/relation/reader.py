"""Reading pages: one contiguous read for any run of pages, then a decode without copies.

The bytes land in a `Frame` that the caller owns and reuses, so reading allocates nothing that
grows with the data: the frame *is* the disk buffer of the papers.
"""

from __future__ import annotations

import errno
import mmap
import os
import weakref
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import xxhash

from semistream.errors import CorruptPageError, InternalError, MasterFormatError, OptionError
from semistream.relation.page_file import PageIndex

__all__ = ["IO_MODES", "Frame", "PageReader"]

IO_MODES: Final = ("buffered", "direct")
"""Through the operating system's page cache, or past it (O_DIRECT)."""

_ALIGNMENT = 4096


def _up(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class Frame:
    """Reusable memory that pages are read into: aligned, outside Python's and Arrow's heaps."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = _up(max(nbytes, 1))
        """Bytes the frame takes: what was asked for, rounded up to the alignment."""
        memory = mmap.mmap(-1, self.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.view = memoryview(memory)
        """The memory, to read into."""
        self.buffer = pa.py_buffer(memory)
        """The memory, for Arrow to decode from."""


class PageReader:
    """Reads runs of pages of one page file.

    `pages_read`, `bytes_read` (alignment included) and `reads` count since it was opened.
    Close it, or use it as a context manager. One thread at a time.
    """

    def __init__(self, path: Path, index: PageIndex, schema: pa.Schema, io: str) -> None:
        if io not in IO_MODES:
            raise OptionError(f"io={io!r} is not known. Use one of {', '.join(IO_MODES)}.")
        self.path = path
        self.index = index
        self.schema = schema
        self.io = io
        self.pages_read = 0
        self.bytes_read = 0
        self.reads = 0
        self._direct = io == "direct"
        self._descriptor = _open(path, self._direct)
        self._finalizer = weakref.finalize(self, os.close, self._descriptor)

    def __enter__(self) -> PageReader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; batches already read stay valid. Closing twice is harmless."""
        self._finalizer()

    def frame_bytes(self, count: int) -> int:
        """Bytes a frame needs for any `count` consecutive pages; O(pages)."""
        if count < 1:
            raise InternalError(f"A read of {count} pages was planned. Please report this.")
        pages = len(self.index)
        if pages == 0:
            return _ALIGNMENT
        count = min(count, pages)
        starts = self.index.offset[: pages - count + 1]
        stops = (self.index.offset + self.index.length)[count - 1 :]
        if self._direct:
            starts, stops = starts & -_ALIGNMENT, (stops + _ALIGNMENT - 1) & -_ALIGNMENT
        return _up(int((stops - starts).max()))

    def read(self, first: int, count: int, frame: Frame) -> list[pa.RecordBatch]:
        """Pages `first` to `first + count - 1` in one contiguous read, each as a record batch.

        The batches are views of the frame: valid until the next read into it. Take or copy
        what must live longer. Raises `CorruptPageError` for a page that is not as written.
        """
        self.fetch(first, count, frame)
        return self.decode(first, count, frame)

    def fetch(self, first: int, count: int, frame: Frame) -> None:
        """The first half of `read`: bytes into the frame. It may run in another thread."""
        stop = first + count
        if not 0 <= first < stop <= len(self.index):
            raise InternalError(
                f"Pages {first} to {stop - 1} were asked for, but {self.path} has "
                f"{len(self.index)}. Please report this."
            )
        last = stop - 1
        end = self.index.offset.item(last) + self.index.length.item(last)
        self._fill(frame, self._base(first), end, first)
        self.reads += 1
        self.pages_read += count

    def decode(self, first: int, count: int, frame: Frame) -> list[pa.RecordBatch]:
        """The second half of `read`: pages that `fetch` has put into the frame, checked."""
        offset, length, checksum = self.index.offset, self.index.length, self.index.checksum
        buffer, schema, decode = frame.buffer, self.schema, pa.ipc.read_record_batch
        base = self._base(first)
        batches = []
        for page in range(first, first + count):
            message = buffer.slice(offset.item(page) - base, length.item(page))
            if xxhash.xxh3_64_intdigest(message) != checksum.item(page):
                raise self._corrupt(page, "its checksum is not the one that was written")
            try:
                batches.append(decode(message, schema))
            except (OSError, pa.ArrowException) as error:
                raise self._corrupt(page, f"it cannot be decoded ({error})") from error
        return batches

    def _base(self, first: int) -> int:
        """Where a read that begins with page `first` begins in the file."""
        base = int(self.index.offset.item(first))
        return base & -_ALIGNMENT if self._direct else base

    def _fill(self, frame: Frame, base: int, end: int, first: int) -> None:
        """Read the file from `base` to `end` into the frame's beginning."""
        wanted = end - base
        size = _up(wanted) if self._direct else wanted
        if size > frame.nbytes:
            raise InternalError(
                f"A read of {size} bytes does not fit a frame of {frame.nbytes}. "
                "Please report this."
            )
        filled = 0
        while filled < wanted:
            # After a short direct read the next one must begin at an aligned place again.
            at = filled & -_ALIGNMENT if self._direct else filled
            try:
                got = os.preadv(self._descriptor, [frame.view[at:size]], base + at)
            except OSError as error:
                page = self._page_at(base + filled, first)
                raise self._corrupt(page, f"reading it failed ({error})") from error
            if at + got <= filled:
                page = self._page_at(base + filled, first)
                raise self._corrupt(page, f"the file ends at byte {base + filled}")
            self.bytes_read += at + got - filled
            filled = at + got

    def _page_at(self, position: int, first: int) -> int:
        """The first page, from `first` on, that the bytes before `position` do not hold whole."""
        ends = self.index.offset[first:] + self.index.length[first:]
        return first + int(np.searchsorted(ends, position, side="right"))

    def _corrupt(self, page: int, reason: str) -> CorruptPageError:
        return CorruptPageError(
            f"Page {page} of {self.path} is broken: {reason}. "
            "Restore the file from a copy, or build the master again."
        )


def _open(path: Path, direct: bool) -> int:
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
    if direct:
        if not hasattr(os, "O_DIRECT"):
            raise _no_direct(path, "this operating system has no O_DIRECT")
        flags |= os.O_DIRECT
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError as error:
        raise MasterFormatError(
            f"Page file {path} is missing. Restore it, or build the master again."
        ) from error
    except OSError as error:
        if direct and error.errno == errno.EINVAL:
            raise _no_direct(path, "its filesystem refuses O_DIRECT") from error
        raise
    if direct:
        _try_direct(path, descriptor)
    return descriptor


def _try_direct(path: Path, descriptor: int) -> None:
    """Some filesystems take the flag and refuse the first read: find out before the join runs."""
    block: Any = Frame(_ALIGNMENT).view
    try:
        os.preadv(descriptor, [block], 0)
    except OSError as error:
        os.close(descriptor)
        raise _no_direct(path, f"its filesystem refuses direct reads ({error})") from error


def _no_direct(path: Path, reason: str) -> OptionError:
    return OptionError(f'io="direct" is not possible for {path}: {reason}. Use io="buffered".')
