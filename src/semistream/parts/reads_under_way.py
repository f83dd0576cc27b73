"""Reads under way: stretches of a master table that is far away, asked for before they are needed.

An object store takes some 20 milliseconds to answer, but answers many requests at a time. So while
one stretch is searched, the next ones are on their way, each into a frame of its own.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from semistream.relation import Frame, MasterTable, PageReader

__all__ = ["ReadsUnderWay", "under_way_bytes"]

_MOST = 16
_SHARE = 4
"""Reads under way take at most so many times the memory of the rows that are found."""
_COPIES = 2
"""Clients of object stores hold what they have read once more before they hand it out."""


def under_way_bytes(master: MasterTable, partition_pages: int, found_bytes: int) -> int:
    """What reads under way take, for sets of `found_bytes`; nothing on local disks."""
    return _frames(master, partition_pages, found_bytes) * _each(master, partition_pages)


class ReadsUnderWay:
    """The next reads for one look-up set at a time."""

    def __init__(
        self, reader: PageReader, master: MasterTable, partition_pages: int, found_bytes: int
    ) -> None:
        """Whoever makes it has been granted `under_way_bytes`."""
        self._reader = reader
        count = _frames(master, partition_pages, found_bytes)
        size = reader.frame_bytes(partition_pages)
        self._free = [Frame(size) for _ in range(count)]
        self._reads: deque[tuple[int, Frame, Future[int]]] = deque()
        self._threads = ThreadPoolExecutor(max(count, 1), "semistream-reads")

    def fill(self, stretches: NDArray[np.void], number: int, frame: Frame) -> int:
        """Bring a stretch to its place in the frame, and ask for the next ones.

        Stretches of a set are asked for in ascending order; some may be left out.
        """
        while self._reads and self._reads[0][0] != number:
            self._end_first()
        asked_for = self._reads[-1][0] + 1 if self._reads else number
        while self._free and asked_for < len(stretches):
            own = self._free.pop()
            read = self._threads.submit(self._reader.fill, stretches[asked_for], own)
            self._reads.append((asked_for, own, read))
            asked_for += 1
        if not self._reads:
            return self._reader.fill(stretches[number], frame)
        _, own, read = self._reads[0]
        try:
            size = read.result()
            place = int(stretches[number]["place"])
            frame.view[place : place + size] = own.view[place : place + size]
        finally:
            self._end_first()
        return size

    def stop(self) -> None:
        """Forget what is under way: the set has no room for more, or has failed."""
        while self._reads:
            self._end_first()

    def close(self) -> None:
        """End its threads."""
        self._threads.shutdown()

    def _end_first(self) -> None:
        _, own, read = self._reads.popleft()
        if not read.cancel():
            read.exception()
        self._free.append(own)


def _each(master: MasterTable, partition_pages: int) -> int:
    return _COPIES * master.pages.frame_bytes(partition_pages)


def _frames(master: MasterTable, partition_pages: int, found_bytes: int) -> int:
    most = _SHARE * found_bytes // _each(master, partition_pages)
    return min(_MOST, most) if master.is_far else 0
