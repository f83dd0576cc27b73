"""Compressed files: page files whose pages are compressed one by one.

    as it is read   | schema | page 0    | page 1    | ... | footer |     offset, length
    as it is stored | block  | block 0 | block 1 | ...   | block |         place, size

Whoever reads it sees the file as if it were not compressed. Each block is a frame of its codec, so
that `zstd -d` or `lz4 -d` gives back the Arrow file. A block that would not become smaller is
stored as it is: its size is its length.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.errors import InternalError, OptionError
from semistream.relation.frame import ALIGNMENT, Frame, aligned
from semistream.relation.storage.files import PageSource
from semistream.relation.storage.packing import PACKED, Packing

__all__ = ["CODECS", "Blocks", "CompressedFile", "check_compression", "compressed", "room_to_read"]

CODECS: Final = ("lz4", "zstd", PACKED)

_DIRECT_BYTES: Final = 1 << 16
"""Stored bytes that a direct read brings at a time."""


_expanding = threading.Lock()
"""One page is expanded at a time, however many threads read: each takes memory of its own."""


class Blocks(NamedTuple):
    """The pages of one file that a version has, by ascending offset, and where each is stored."""

    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    place: NDArray[np.int64]
    size: NDArray[np.int64]


class CompressedFile:
    """Reads stretches of pages from a compressed file. Several threads may read."""

    def __init__(self, source: PageSource, codec: str, blocks: Blocks, direct: bool) -> None:
        """`source` is the file as it is stored, `direct` if it bypasses the page cache."""
        self.descriptor = -1
        self.stored = source
        """The file as it is stored."""
        self._packing: Packing | None = None
        self._source, self._codec, self._blocks, self._direct = source, codec, blocks, direct
        self._mine = threading.local()

    def read_into(self, memory: memoryview, position: int) -> int:
        """Read the pages from `position` on that fill the memory, or the first of them.

        Returns their bytes. `OSError` if the first one cannot be decompressed, 0 if it is cut.
        """
        offset = self._blocks.offset
        first, stop = np.searchsorted(offset, [position, position + len(memory)]).tolist()
        if first == stop or offset.item(first) != position:
            raise InternalError(f"No page begins at byte {position}. Please report this.")
        if self._direct:
            stored, stop = self._read_direct(first, stop)
        else:
            stored = self._read(memory, first, stop)
        return self._expand(memory, first, stop, stored)

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    @property
    def packing(self) -> Packing:
        """How its pages are packed; `OSError` if it does not say."""
        if self._packing is None:
            try:
                size = Packing.head_bytes(self._begin(ALIGNMENT))
                self._packing = Packing.of_head(self._begin(size))
            except ValueError as error:
                raise OSError(f"it cannot be unpacked: {error}") from error
        return self._packing

    def _begin(self, size: int) -> bytes:
        """The first bytes of the file."""
        frame = Frame(size)
        grain = ALIGNMENT if self._direct else 1
        return bytes(frame.view[: min(size, _filled(self._source, frame.view, 0, size, grain))])

    def _read(self, memory: memoryview, first: int, stop: int) -> memoryview:
        """Read blocks to the end of the memory that their pages will fill.

        No block is longer than its page, so that pages that are expanded from the beginning on
        never reach a block that is still to come.
        """
        place, size = self._blocks.place, self._blocks.size
        begin = place.item(first)
        tail = memory[len(memory) - (place.item(stop - 1) + size.item(stop - 1) - begin) :]
        return tail[: _filled(self._source, tail, begin, len(tail), 1)]

    def _read_direct(self, first: int, stop: int) -> tuple[memoryview, int]:
        """Read blocks into memory of this thread, and before which block it ended.

        Direct reads need memory and positions that are aligned.
        """
        place, size = self._blocks.place, self._blocks.size
        begin = place.item(first) & -ALIGNMENT
        ends = place[first:stop] + size[first:stop] - begin
        some = max(1, int(np.searchsorted(ends, _DIRECT_BYTES, side="right")))
        wanted = ends.item(some - 1)
        frame: Frame | None = getattr(self._mine, "frame", None)
        if frame is None or frame.nbytes < wanted:
            frame = self._mine.frame = Frame(aligned(max(wanted, _DIRECT_BYTES)))
        got = _filled(self._source, frame.view, begin, wanted, ALIGNMENT)
        return frame.view[place.item(first) - begin : min(got, wanted)], first + some

    def _expand(self, memory: memoryview, first: int, stop: int, stored: memoryview) -> int:
        """Expand blocks to where their pages go, up to the first that is cut or damaged."""
        at = done = 0
        for block in range(first, stop):
            size, length = self._blocks.size.item(block), self._blocks.length.item(block)
            if at + size > len(stored):
                break
            try:
                with _expanding:
                    page = self._expanded(stored[at : at + size], length)
                    memory[done : done + length] = page
                    del page
            except OSError:
                # Whoever reads on from there is told, and knows which page it is.
                if not done:
                    raise
                break
            at, done = at + size, done + length
        return done

    def _expanded(self, block: memoryview, length: int) -> memoryview:
        if len(block) == length:
            return block
        packing = self.packing if self._codec == PACKED else None
        try:
            if packing is not None:
                return packing.unpacked(block, length)
            page = memoryview(_codec(self._codec).decompress(block, length)).cast("B")
        except (pa.ArrowException, OSError, ValueError) as error:
            raise OSError(f"it cannot be decompressed: {error}") from error
        if len(page) != length:
            raise OSError(f"it has {len(page):,} bytes when decompressed, and not {length:,}")
        return page


def _filled(source: PageSource, memory: memoryview, position: int, wanted: int, grain: int) -> int:
    """Read until `wanted` bytes are there, or the file ends. Returns the bytes read.

    Each read begins at a multiple of `grain`, also after one that was short.
    """
    got = 0
    while got < wanted:
        at = got & -grain
        more = at + source.read_into(memory[at:], position + at)
        if more <= got:
            break
        got = more
    return got


def compressed(data: bytes, codec: str) -> bytes:
    """A block; the data itself if it does not become smaller."""
    block: bytes = _codec(codec).compress(data, asbytes=True)
    return block if len(block) < len(data) else data


def room_to_read(longest: int) -> int:
    """Bytes that reading takes beside frames, if the longest page has so many.

    A page that is being expanded; and for direct reads, where one thread reads ahead of another,
    memory for each.
    """
    return longest + 2 * (max(longest, _DIRECT_BYTES) + 2 * ALIGNMENT)


def check_compression(codec: str | None) -> None:
    """Raise `OptionError` unless it is a codec, or None."""
    if codec is not None and codec not in CODECS:
        raise OptionError(
            f"compression={codec!r} is not known. Use one of {', '.join(CODECS)}, or None."
        )


@cache
def _codec(name: str) -> pa.Codec:
    return pa.Codec(name)
