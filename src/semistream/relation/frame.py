"""Frames: the memory that pages are read into, which the papers call the disk buffer."""

from __future__ import annotations

import mmap

import pyarrow as pa

__all__ = ["ALIGNMENT", "Frame", "aligned"]

ALIGNMENT = 4096
"""Direct reads begin and end at multiples of this, in the file and in memory."""


def aligned(size: int) -> int:
    """The size rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class Frame:
    """Reusable, aligned memory that pages are read into, outside the heaps of Python and Arrow."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = aligned(max(nbytes, 1))
        """The size of the frame: the bytes asked for, rounded up to the alignment."""
        memory = mmap.mmap(-1, self.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.view = memoryview(memory)
        """The memory, to read into."""
        self.buffer = pa.py_buffer(memory)
        """The memory, for Arrow to decode from."""
        self.address: int = self.buffer.address
        """The memory, for kernels."""
