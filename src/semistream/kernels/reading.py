"""Reading pages inside compiled code: many reads, and none of them waits for the interpreter.

A background thread that reads a page at a time asks for the interpreter's lock after each one,
and may get it only milliseconds later. Here it asks once for dozens of reads.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from semistream.kernels.checksum import LONG, xxh3
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
def read_stretch(stretch: Any, frame: int, grain: int, pages: PageList) -> int:
    """Read a stretch into the frame at address `frame` and check it; its bytes, or -1.

    -1 does not say why: whoever wants to know reads again, with the operating system's errors.
    """
    filled = 0
    while filled < stretch.wanted:
        # After a short direct read the next one must begin at an aligned place again.
        at = filled & -grain
        to = frame + stretch.place + at
        got = _pread(stretch.descriptor, to, stretch.size - at, stretch.position + at)
        if got <= 0 or at + got <= filled:
            return -1
        filled = at + got
    for page in range(stretch.first, stretch.stop):
        at = frame + stretch.place + pages.offset[page] - stretch.position
        if pages.length[page] <= LONG or xxh3(at, pages.length[page]) != pages.checksum[page]:
            return -1
    return filled
