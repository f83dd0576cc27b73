"""INLJ's loop: tuples against the rows of a page."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semistream.kernels.compiling import kernel


@kernel
def match_codes(
    codes: NDArray[np.int64],
    row_codes: NDArray[np.int64],
    cursor: NDArray[np.int64],
    tuples: NDArray[np.int32],
    rows: NDArray[np.int32],
) -> int:
    """Pair stream tuples with the master rows of one page by comparing all with all.

    For INLJ, where the tuples are one or a few. `cursor` is (next tuple, next row).
    """
    written = 0
    i, row = cursor[0], cursor[1]
    while i < len(codes):
        while row < len(row_codes):
            if row_codes[row] == codes[i]:
                if written == len(rows):
                    cursor[0], cursor[1] = i, row
                    return written
                tuples[written] = i
                rows[written] = row
                written += 1
            row += 1
        i += 1
        row = 0
    cursor[0], cursor[1] = i, 0
    return written
