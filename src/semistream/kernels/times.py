"""How long tuples waited, counted as they finish."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semistream.kernels.chains import EVEN, MATCHED
from semistream.kernels.compiling import kernel

BINS_PER_OCTAVE = 16


HISTOGRAM_BINS = 34 * BINS_PER_OCTAVE


@kernel
def bin_of(micros: int) -> int:
    """The histogram bin of a duration: 16 bins per power of two, 0 for nothing."""
    mantissa, exponent = math.frexp(micros + 1.0)
    return (exponent - 1) * BINS_PER_OCTAVE + int((2.0 * mantissa - 1.0) * BINS_PER_OCTAVE)


@kernel
def finish(
    nodes: Any,
    slots: NDArray[np.int32],
    now: int,
    histogram: NDArray[np.int64],
    lonely: NDArray[np.int32],
) -> tuple[int, int]:
    """Count how long the tuples waited; write those without a match to `lonely`.

    Returns how many there are of those, and the sum of all waits in microseconds, which wrap
    at 2**32 and are therefore right for waits of up to 71 minutes.
    """
    unmatched = 0
    total = 0
    for i in range(len(slots)):
        stamp = nodes[slots[i]].stamp
        micros = (now - (int(stamp) & EVEN)) & 0xFFFFFFFF
        histogram[bin_of(micros)] += 1
        total += micros
        if not stamp & MATCHED:
            lonely[unmatched] = slots[i]
            unmatched += 1
    return unmatched, total
