"""Reading pages: one contiguous read for any stretch of pages, then a decode without copies.

The bytes land in a `Frame` that the caller owns and reuses, so reading allocates nothing that
grows with the data.
"""

from __future__ import annotations

import errno
import resource
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import PurePath
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from semistream.errors import CorruptPageError, InternalError, OptionError
from semistream.kernels.reading import STRETCH, PageList
from semistream.relation.frame import ALIGNMENT, Frame, aligned
from semistream.relation.page_index import PageIndex
from semistream.relation.page_rules import PageRules
from semistream.relation.storage import (
    PACKED,
    CachedFile,
    FilePages,
    PageFiles,
    PageSource,
)
from semistream.relation.stored_pages import NOT_PACKED, Stored, packed_pages

__all__ = ["IO_MODES", "Frame", "PageReader"]

IO_MODES: Final = ("buffered", "unmapped", "direct")
"""Through the operating system's page cache, in place where it holds a page; the same, but always
copied; past the cache (O_DIRECT)."""

_MOST_OPEN = 128
_DESCRIPTOR_SHARE = 8
"""A reader has at most one in so many of the files that the process may have open."""
_TOO_MANY = {errno.EMFILE, errno.ENFILE}
_MEND = "Restore the file from a copy, or build the master again."


class _Known(NamedTuple):
    """Which pages this process has found to be what the index says: by Arrow, and by kernels."""

    decoded: NDArray[np.bool_]
    followed: NDArray[np.uint8]


_MOST_KNOWN = 16
_known: OrderedDict[object, _Known] = OrderedDict()
"""By what the index says, checksums included: a page with the same one needs no second look."""


class PageReader:
    """Reads runs of pages of a master table's page files.

    `pages_read`, `bytes_read` (alignment included) and `reads` count since it was opened.
    Close it, or use it as a context manager. One thread at a time.
    """

    waits = True
    """Whether a read waits for a disk, so that reading ahead in another thread pays."""
    by_code = False
    """Whether rows can be asked for by their codes, as those of a database."""

    def __init__(
        self,
        files: PageFiles,
        index: PageIndex,
        schema: pa.Schema,
        io: str,
        rules: PageRules | None = None,
    ) -> None:
        """Open the files, up to a limit; the others are opened when they are needed.

        `rules` are asked about each page that is decoded for the first time.
        """
        if io not in IO_MODES:
            raise OptionError(f"io={io!r} is not known. Use one of {', '.join(IO_MODES)}.")
        self.files = files
        self.index = index
        self.schema = schema
        self.io = io
        self.pages_read = 0
        self.bytes_read = 0
        self.reads = 0
        self._direct = io == "direct"
        self.grain = ALIGNMENT if self._direct and not files.compression else 1
        """Reads begin and end at multiples of this."""
        self.rules = rules or PageRules(schema)
        known = _known_pages(index, self.rules)
        self._decoded = known.decoded
        self.pages = PageList(
            index.offset,
            index.length,
            index.checksum,
            index.rows,
            index.first,
            index.last,
            known.followed,
        )
        """The pages, for kernels."""
        self.is_one_stretch = len(index) > 0 and len(index.stretches(0, len(index))) == 1
        """Whether all pages lie one behind the other in one file."""
        self._open: OrderedDict[int, PageSource] = OrderedDict()
        self._finalizer = weakref.finalize(self, _close_all, self._open)
        self._most_open = min(_MOST_OPEN, max(1, _allowed_files() // _DESCRIPTOR_SHARE))
        # Opened now, because an open file can still be read after a vacuum removes it.
        for number in np.unique(index.file)[: self._most_open].tolist():
            self._source(number)
        self._descriptors = self._open_descriptors()
        self.stored = Stored(self.pages, NOT_PACKED, self._descriptors, self.grain)
        """The pages as they are stored; packed ones only where kernels can read their files."""
        if files.compression == PACKED and self.keeps_files_open:
            packed = packed_pages(self._open, index, self.pages, self._direct)
            self.stored = packed or self.stored

    @property
    def path(self) -> PurePath:
        """The first of its files, inside the folder of the master table."""
        return PurePath(*self.files.names[:1])

    def __enter__(self) -> PageReader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files; batches already read stay valid. Closing twice is harmless."""
        self._finalizer()

    def frame_bytes(self, count: int) -> int:
        """Bytes a frame needs for any `count` consecutive pages; O(pages)."""
        return self.index.frame_bytes(count, self.stored.grain)

    def read(self, first: int, count: int, frame: Frame) -> list[pa.RecordBatch]:
        """Pages `first` to `first + count - 1`, each as a record batch.

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
                f"Pages {first} to {stop - 1} were asked for, but the master table has "
                f"{len(self.index)}. Please report this."
            )
        place = 0
        for begin, end in self._stretches(first, stop):
            place += self._fill(frame, place, begin, end)
            self.reads += 1
        self.pages_read += count

    def decode(self, first: int, count: int, frame: Frame) -> list[pa.RecordBatch]:
        """The second half of `read`: pages that `fetch` has put into the frame, checked."""
        batches: list[pa.RecordBatch] = []
        place = 0
        for begin, end in self._stretches(first, first + count):
            base = self._base(begin) - place
            batches += [self._decode(page, base, frame) for page in range(begin, end)]
            place += self._size(begin, end)
        return batches

    def decode_page(self, first: int, page: int, frame: Frame) -> pa.RecordBatch:
        """One of the pages that were put into the frame, in one stretch, from `first` on."""
        return self._decode(page, self._base(first), frame)

    def rows_of(self, codes: NDArray[np.int64], most_bytes: int) -> pa.RecordBatch:
        """All rows of some codes, by code, if they take no more than so many bytes.

        Only if `by_code`.
        """
        raise InternalError("Rows of files were asked for by their codes. Please report this.")

    def lots_of(self, code: int, most_bytes: int) -> Iterator[pa.RecordBatch]:
        """The same for one code, in lots that take no more than so many bytes each."""
        raise InternalError("Rows of files were asked for by their codes. Please report this.")

    def _decode(self, page: int, base: int, frame: Frame) -> pa.RecordBatch:
        """A page in a frame that has byte `base` of its file at its beginning."""
        index = self.index
        message = frame.buffer.slice(index.offset.item(page) - base, index.length.item(page))
        if xxhash.xxh3_64_intdigest(message) != index.checksum.item(page):
            raise self.corrupt(page, "its checksum is not the one that was written")
        try:
            batch = pa.ipc.read_record_batch(message, self.schema)
        except (OSError, EOFError, ValueError, pa.ArrowException) as error:
            raise self.corrupt(page, f"it cannot be decoded ({error})") from error
        if not self._decoded.item(page):
            self._check_content(page, message, batch)
        return batch

    def stretches(
        self, firsts: NDArray[np.int64], stops: NDArray[np.int64], numbers: NDArray[np.int64]
    ) -> NDArray[np.void]:
        """The reads for numbered runs of pages; each run goes to the beginning of a frame."""
        if not self.is_one_stretch:
            runs = zip(firsts.tolist(), stops.tolist(), numbers.tolist(), strict=True)
            found = [(*piece, n) for a, b, n in runs for piece in self._stretches(a, b)]
            table = np.array(found, np.int64).reshape(-1, 3)
            firsts, stops, numbers = table[:, 0], table[:, 1], table[:, 2]
        stretches = np.zeros(len(firsts), STRETCH)
        stretches["first"], stretches["stop"], stretches["run"] = firsts, stops, numbers
        (offset, length, *_), grain, last = self.stored.pages, self.stored.grain, stops - 1
        position = offset[firsts] & -grain
        stretches["position"] = position
        stretches["wanted"] = offset[last] + length[last] - position
        size = (stretches["wanted"] + grain - 1) & -grain
        stretches["size"] = size
        before = np.cumsum(size) - size
        starts = np.flatnonzero(np.diff(numbers, prepend=-1))
        stretches["place"] = before - np.repeat(before[starts], np.diff([*starts, len(size)]))
        stretches["descriptor"] = self.stored.descriptors[self.index.file[firsts]]
        return stretches

    def fill(self, stretch: np.void, frame: Frame) -> int:
        """Read a stretch to its place in the frame and check it. Returns the bytes read."""
        place, first, stop = (int(stretch[name]) for name in ("place", "first", "stop"))
        read = self._read(frame, place, first, stop)
        for page in range(first, stop):
            self._check(page, place - self._base(first), frame)
        return read

    def unsound(self, stretch: np.void) -> CorruptPageError:
        """What is raised for a stretch with a page that is not what the index says."""
        pages = range(int(stretch["first"]), int(stretch["stop"]))
        page = next((page for page in pages if not self.pages.sound[page]), pages.start)
        return self.corrupt(page, "its content is not what its index says")

    def note(self, firsts: NDArray[np.int64], stops: NDArray[np.int64]) -> None:
        """Compiled code has read these runs of pages, in this order."""
        self.reads += len(firsts)
        self.pages_read += int((stops - firsts).sum())

    def _check(self, page: int, base: int, frame: Frame) -> None:
        """Raise unless the page is intact. The frame's byte `base` is the beginning of the file."""
        begin = base + self.index.offset.item(page)
        message = frame.view[begin : begin + self.index.length.item(page)]
        if xxhash.xxh3_64_intdigest(message) != self.index.checksum.item(page):
            raise self.corrupt(page, "its checksum is not the one that was written")

    def _check_content(self, page: int, message: pa.Buffer, batch: pa.RecordBatch) -> None:
        """Raise unless the page holds what the index says; once per page is enough."""
        index = self.index
        expected = index.rows.item(page), index.first.item(page), index.last.item(page)
        if (fault := self.rules.fault(message, batch, expected)) is not None:
            raise self.corrupt(page, fault)
        self._decoded[page] = True

    def _stretches(self, first: int, stop: int) -> list[tuple[int, int]]:
        if self.is_one_stretch or stop == first + 1:
            return [(first, stop)]
        return self.index.stretches(first, stop)

    def _base(self, first: int) -> int:
        """The position in the file of a read that begins with page `first`."""
        return int(self.index.offset.item(first)) & -self.grain

    def _end(self, stop: int) -> int:
        """Where the page before page `stop` ends in its file."""
        return int(self.index.offset.item(stop - 1) + self.index.length.item(stop - 1))

    def _size(self, first: int, stop: int) -> int:
        """Bytes that the read of a stretch takes in the frame."""
        size = self._end(stop) - self._base(first)
        return aligned(size) if self.grain > 1 else size

    def _fill(self, frame: Frame, place: int, first: int, stop: int) -> int:
        """Read a stretch of pages to `place` in the frame. Returns the bytes it takes there."""
        self.bytes_read += self._read(frame, place, first, stop)
        return self._size(first, stop)

    def _read(self, frame: Frame, place: int, first: int, stop: int) -> int:
        """Read a stretch of pages to `place` in the frame. Returns the bytes read."""
        base = self._base(first)
        wanted, size = self._end(stop) - base, self._size(first, stop)
        if place + size > frame.nbytes:
            raise InternalError(
                f"A read of {size} bytes does not fit a frame of {frame.nbytes} from byte {place} "
                "on. Please report this."
            )
        source = self._source(self.index.file.item(first))
        filled = read = 0
        while filled < wanted:
            # After a short direct read, the next one must begin at an aligned position again.
            at = filled & -self.grain
            try:
                got = source.read_into(frame.view[place + at : place + size], base + at)
            except OSError as error:
                page = self._page_at(base + filled, first, stop)
                raise self.corrupt(page, f"reading it failed ({error})") from error
            if at + got <= filled:
                page = self._page_at(base + filled, first, stop)
                raise self.corrupt(page, f"the file ends at byte {base + filled}")
            read += at + got - filled
            filled = at + got
        return read if self.files.compression is None else self.index.stored_bytes(first, stop)

    @property
    def keeps_files_open(self) -> bool:
        """Whether no file is closed before the reader is: then several threads may `fill`."""
        return len(np.unique(self.index.file)) <= len(self._open)

    @property
    def descriptors(self) -> dict[int, int]:
        """The operating system's numbers of the files that stay open, by file number."""
        return {n: int(fd) for n, fd in enumerate(self._descriptors) if fd >= 0}

    def _open_descriptors(self) -> NDArray[np.int64]:
        """The descriptor of each file, for kernels; -1 where it has none or may be closed."""
        descriptors = np.full(len(self.files.names), -1, np.int64)
        if self.keeps_files_open:
            for number, source in self._open.items():
                descriptors[number] = source.descriptor
        return descriptors

    def _source(self, number: int) -> PageSource:
        """The open file with this number. At the limit, the least recently used one is closed."""
        source = self._open.get(number)
        if source is None:
            if not self._finalizer.alive:
                raise InternalError("A closed page reader was asked to read. Please report this.")
            while len(self._open) >= self._most_open:
                self._open.popitem(last=False)[1].close()
            source = self._open[number] = self._opened(number)
        elif len(self._open) > 1:
            self._open.move_to_end(number)
        return source

    def _opened(self, number: int) -> PageSource:
        """Open a file; if the process has too many open, this reader gives up its own."""
        while True:
            try:
                return self.files.opened(number, self._direct, self._pages_of)
            except OSError as error:
                if error.errno not in _TOO_MANY:
                    raise
                if not self._open:
                    raise OptionError(
                        f"{self.files.shown(number)} cannot be opened: this process has too "
                        "many files open. Raise the limit (ulimit -n)."
                    ) from error
                self._open.popitem(last=False)[1].close()

    @property
    def cached_files(self) -> dict[int, CachedFile]:
        """The files that are read through a page cache; none unless all stay open."""
        cached = {n: file for n, file in self._open.items() if isinstance(file, CachedFile)}
        return cached if self.keeps_files_open and len(cached) == len(self._open) else {}

    def _pages_of(self, number: int) -> FilePages:
        """The pages of one file, as they lie in it."""
        pages = np.flatnonzero(self.index.file == number)
        pages = pages[np.argsort(self.index.offset[pages])]
        index = self.index
        place = None if index.place is None else index.place[pages]
        size = None if index.size is None else index.size[pages]
        return FilePages(
            index.offset[pages], index.length[pages], index.checksum[pages], place, size
        )

    def _page_at(self, position: int, first: int, stop: int) -> int:
        """The first page of a stretch that is not complete before `position`."""
        ends = self.index.offset[first:stop] + self.index.length[first:stop]
        return first + int(np.searchsorted(ends, position, side="right"))

    def corrupt(self, page: int, reason: str) -> CorruptPageError:
        """What is raised for a broken page."""
        file = self.files.shown(self.index.file.item(page))
        places = self.index.offset if self.index.place is None else self.index.place
        place = places.item(page)
        return CorruptPageError(
            f"Page {page} of {file} (at byte {place}) is broken: {reason}. {_MEND}"
        )


def _close_all(sources: OrderedDict[int, PageSource]) -> None:
    while sources:
        sources.popitem()[1].close()


def _allowed_files() -> int:
    """How many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def _known_pages(index: PageIndex, rules: PageRules) -> _Known:
    digest = xxhash.xxh3_128()
    for array in (index.checksum, index.length, index.rows, index.first, index.last):
        digest.update(array.tobytes())
    key = (digest.digest(), rules.key)
    fresh = _Known(np.zeros(len(index), np.bool_), np.zeros(len(index), np.uint8))
    known = _known.setdefault(key, fresh)
    _known.move_to_end(key)
    while len(_known) > _MOST_KNOWN:
        _known.popitem(last=False)
    return known
