"""Which codes a run of pages settles by itself, told by the first and last code of each page."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semistream.kernels.compiling import kernel

_LOWEST, _HIGHEST = np.int64(-(2**63)), np.int64(2**63 - 1)

Codes = NDArray[np.int64]


@kernel
def settled_codes(first: Codes, last: Codes, begin: int, stop: int) -> tuple[int, int]:
    """The codes low..high that the pages begin..stop settle; low is above high if none."""
    low, high = _LOWEST, _HIGHEST
    if begin > 0:
        low = first[begin]
        if last[begin - 1] == low:
            if low == _HIGHEST:
                return 1, 0
            low += 1
    if stop < len(first):
        if first[stop] == _LOWEST:
            return 1, 0
        high = first[stop] - 1
    return int(low), int(high)


@kernel
def settled_by_runs(
    first: Codes, last: Codes, begins: Codes, stops: Codes, low: Codes, high: Codes
) -> None:
    """The same for several runs of pages."""
    for i in range(len(begins)):
        low[i], high[i] = settled_codes(first, last, begins[i], stops[i])
