"""Whole numbers in as few bits as they need, each readable by itself.

    number i = base + trend · i + bits i

The trend is a straight line from the first number to the last, so that ascending keys and offsets
take few bits. Base and trend are stored first, then the bits of all numbers.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from semistream.kernels.compiling import kernel
from semistream.kernels.copying import fill_1, fill_8, load_8

HEAD: Final = 16
"""Bytes before the bits: base and trend."""
MOST_BITS: Final = 56
"""More do not fit the eight bytes that a number is read from, whatever bit it begins at."""

_FRACTION: Final = 12
"""Bits of the trend behind its point."""
_STEEPEST: Final = 1 << 50
"""A trend that rises by more, from the first number to the last, could overflow."""

Numbers = NDArray[np.int64]


@kernel
def packed_bytes(count: int, bits: int) -> int:
    """What numbers take. To read the last ones, eight bytes more are touched."""
    return HEAD + ((count * bits + 7) >> 3)


@kernel
def _around(numbers: Numbers, count: int, trend: int) -> tuple[int, int]:
    """The least and the greatest distance of numbers from the trend."""
    low = high = numbers[0]
    for i in range(count):
        rest = numbers[i] - ((trend * i) >> _FRACTION)
        low, high = min(low, rest), max(high, rest)
    return low, high


@kernel
def _bit_length(number: int) -> int:
    bits = 0
    while number:
        bits, number = bits + 1, number >> 1
    return bits


@kernel
def measure_numbers(numbers: Numbers, count: int) -> tuple[int, int, int]:
    """Bits, base and trend for the first `count` numbers; -1 bits if they take too many."""
    low, high = _around(numbers, count, 0)
    # The difference of two that are too far apart is negative.
    if not 0 <= high - low < 1 << MOST_BITS:
        return -1, 0, 0
    bits, base, trend = _bit_length(high - low), low, 0
    rise = numbers[count - 1] - numbers[0]
    if count > 1 and -_STEEPEST < rise < _STEEPEST:
        slope = (rise << _FRACTION) // (count - 1)
        low, high = _around(numbers, count, slope)
        if _bit_length(high - low) < bits:
            bits, base, trend = _bit_length(high - low), low, slope
    return bits, base, trend


@kernel
def put_numbers(numbers: Numbers, count: int, bits: int, base: int, trend: int, to: int) -> None:
    """Write numbers to address `to`, as they were measured."""
    fill_8(to, base)
    fill_8(to + 8, trend)
    at, held, pending = to + HEAD, 0, 0
    for i in range(count):
        held |= (numbers[i] - ((trend * i) >> _FRACTION) - base) << pending
        pending += bits
        while pending >= 8:
            fill_1(at, held)
            at, held, pending = at + 1, held >> 8, pending - 8
    if pending:
        fill_1(at, held)


@kernel
def number_at(at: int, bits: int, i: int) -> int:
    """The i-th of the numbers that were written to address `at`."""
    place = i * bits
    rest = (load_8(at + HEAD + (place >> 3)) >> (place & 7)) & ((1 << bits) - 1)
    return load_8(at) + ((load_8(at + 8) * i) >> _FRACTION) + rest
