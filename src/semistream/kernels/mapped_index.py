"""The pages of a mapped master table, for kernels, and which of them the operating system holds."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from semistream.kernels.compiling import kernel

RESIDENT: Final = 1
"""The operating system holds the page."""
CHECKED: Final = 2
"""Its checksum and its shape were right."""
UNLIKE: Final = 4
"""It was, but the page is not laid out as the others are."""
READY: Final = RESIDENT | CHECKED
BLOCK: Final = 16
"""Rows whose memory is asked for together."""
LINE: Final = 64
"""Bytes of a cache line."""

Numbers = NDArray[np.int32]
Codes = NDArray[np.int64]


class MappedIndex(NamedTuple):
    """Of each page: first and last code, file, offset, bytes, rows, checksum and state."""

    first: Codes
    last: Codes
    file: Numbers
    offset: Codes
    length: Codes
    rows: Numbers
    checksum: NDArray[np.uint64]
    state: NDArray[np.uint8]
    base: Codes
    """Of each file, the address at which it is mapped."""
    places: Codes
    """Where a page's nodes, list of buffers and body begin; 0 until the first is checked."""


_mincore: Any = types.ExternalFunction("mincore", types.intc(types.uintp, types.uintp, types.uintp))


@kernel
def note_resident(index: MappedIndex, grain: int, held: NDArray[np.uint8]) -> int:
    """Ask the operating system which pages it holds; returns how many it does, or -1.

    `grain` is the size of its own pages; `held` is scratch, a byte for each of them.
    """
    length, state = index.length, index.state
    at = index.base[index.file] + index.offset
    count, page = 0, 0
    most = len(held) * grain
    while page < len(at):
        begin = at[page] & -grain
        file = index.file[page]
        stop = page
        # What lies between two files may be no memory at all, and neither is one without a base.
        while (
            stop < len(at)
            and index.file[stop] == file
            and index.base[file] != 0
            and begin <= at[stop]
            and at[stop] + length[stop] - begin <= most
        ):
            stop += 1
        if stop == page:
            # Longer than the scratch: it is read as if it were not held.
            state[page] &= ~np.uint8(RESIDENT)
            page += 1
            continue
        end = at[stop - 1] + length[stop - 1]
        if _mincore(begin, end - begin, held.ctypes.data) != 0:
            return -1
        for k in range(page, stop):
            there = True
            for i in range((at[k] - begin) // grain, (at[k] + length[k] - 1 - begin) // grain + 1):
                there = there and held[i] & 1 != 0
            if there:
                state[k] |= np.uint8(RESIDENT)
                count += 1
            else:
                state[k] &= ~np.uint8(RESIDENT)
        page = stop
    return count
