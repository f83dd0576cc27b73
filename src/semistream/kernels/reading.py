"""Reading pages inside compiled code: many reads, and none of them waits for the interpreter.

A background thread that reads a page at a time asks for the interpreter's lock after each one,
and may get it only milliseconds later. Here it asks once for dozens of reads.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from semistream.kernels.checksum import SHORTEST, xxh3
from semistream.kernels.compiling import kernel

STRETCH: Final = np.dtype(
    [
        ("descriptor", np.int64),
        ("position", np.int64),
        ("wanted", np.int64),
        ("size", np.int64),
        ("place", np.int64),
        ("first", np.int64),
        ("stop", np.int64),
        ("run", np.int64),
    ]
)
"""Pages first..stop, in one piece in a file, and where their bytes go in a frame.

`wanted` bytes from `position` on are needed; `size` may be read, up to a multiple of the grain.
Several stretches can make one run of pages. Descriptor -1: compiled code cannot read the file.
"""

_pread: Any = types.ExternalFunction(
    "pread", types.intp(types.intc, types.intp, types.uintp, types.intp)
)
_posix_fadvise: Any = types.ExternalFunction(
    "posix_fadvise", types.intc(types.intc, types.intp, types.intp, types.intc)
)
_WILL_NEED: Final = 3


class PageList(NamedTuple):
    """What the index says of each page of a master table, and what was found out about it."""

    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    checksum: NDArray[np.uint64]
    rows: NDArray[np.int32]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    sound: NDArray[np.uint8]
    """1 once the page was found to be what the index says."""


@kernel
def _read(descriptor: int, position: int, wanted: int, size: int, to: int, grain: int) -> int:
    """Read `wanted` bytes, and up to `size`, to address `to`; returns how many, or -1."""
    filled = 0
    while filled < wanted:
        # After a short direct read the next one must begin at an aligned place again.
        at = filled & -grain
        got = _pread(descriptor, to + at, size - at, position + at)
        if got <= 0 or at + got <= filled:
            return -1
        filled = at + got
    return filled


@kernel
def intact(first: int, stop: int, base: int, pages: PageList) -> bool:
    """Whether pages have their checksums; their file would begin at address `base`."""
    for page in range(first, stop):
        length = pages.length[page]
        if length < SHORTEST or xxh3(base + pages.offset[page], length) != pages.checksum[page]:
            return False
    return True


@kernel
def read_stretch(stretch: Any, frame: int, grain: int, pages: PageList, check: bool) -> int:
    """Read a stretch into the frame at address `frame`; its bytes, or -1.

    With `check`, all its pages have their checksums.

    -1 does not say why: whoever wants to know reads again, with the operating system's errors.
    """
    to = frame + stretch.place
    filled = _read(stretch.descriptor, stretch.position, stretch.wanted, stretch.size, to, grain)
    if filled >= 0 and check:
        base = to - stretch.position
        return filled if intact(stretch.first, stretch.stop, base, pages) else -1
    return filled


@kernel
def read_pages(
    descriptor: int, first: int, stop: int, frame: int, grain: int, pages: PageList
) -> int:
    """Read pages that lie one behind the other in a file to the beginning of a frame; as above."""
    position = pages.offset[first] & -grain
    wanted = pages.offset[stop - 1] + pages.length[stop - 1] - position
    size = (wanted + grain - 1) & -grain
    filled = _read(descriptor, position, wanted, size, frame, grain)
    return filled if filled > 0 and intact(first, stop, frame - position, pages) else -1


@kernel
def announce_pages(descriptor: int, first: int, stop: int, pages: PageList) -> None:
    """Let the operating system begin to read pages into its cache; the caller does not wait."""
    begin = pages.offset[first]
    size = pages.offset[stop - 1] + pages.length[stop - 1] - begin
    _posix_fadvise(descriptor, begin, size, _WILL_NEED)
