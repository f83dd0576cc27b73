"""The front stage's loops: hits among arriving tuples, and which codes are frequent."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from semistream.kernels.chains import BLOCK, GOLDEN, NONE, WORD_BITS, Chains, bucket_of
from semistream.kernels.compiling import kernel

CANDIDATE: Final = np.dtype(
    [("frequency", np.float64), ("first", np.int32), ("last", np.int32), ("number", np.int32)],
    align=True,
)
"""A code that waiting tuples asked for: how often, and its rows first..last where it was found.

Of a look-up set, `number` is the code's place in it; else it is 0.
"""


@kernel
def probe_front(
    chains: Chains,
    codes: NDArray[np.int64],
    cursor: NDArray[np.int64],
    missed: NDArray[np.bool_],
    tuples: NDArray[np.int32],
    slots: NDArray[np.int32],
) -> int:
    """Pair arriving tuples, from cursor[0] on, with the master rows kept for their code.

    A hit adds one to its code's count, which is the `stamp` of its first row.
    Returns how many pairs were written. A code has at most `len(slots)` rows here.
    """
    written = 0
    at = cursor[0]
    firsts = np.empty(BLOCK, np.int32)
    while at < len(codes):
        block = min(BLOCK, len(codes) - at)
        for i in range(block):
            firsts[i] = chains.heads[bucket_of(chains.starts, 0, codes[at + i])]
        for i in range(block):
            code = codes[at + i]
            first = firsts[i]
            while first != NONE and chains.nodes[first].code != code:
                first = chains.nodes[first].next_key
            missed[at + i] = first == NONE
            begun = written
            slot = first
            while slot != NONE:
                if written == len(slots):
                    cursor[0] = at + i
                    return begun
                tuples[written] = at + i
                slots[written] = slot
                written += 1
                slot = chains.nodes[slot].next_same
            if first != NONE:
                chains.nodes[first].stamp += np.uint32(1)
        at += block
    cursor[0] = at
    return written


@kernel
def frequent_codes(
    rows: NDArray[np.int32],
    row_codes: NDArray[np.int64],
    start: int,
    stop: int,
    threshold: float,
    found: Any,
) -> int:
    """Codes that at least `threshold` waiting tuples matched, from pairs that come code by code.

    Writes (frequency, first row, row behind the last) per code whose rows lie in start..stop.
    """
    written = 0
    i = 0
    while i < len(rows) and written < len(found):
        row = rows[i]
        behind = i + 1
        while behind < len(rows) and rows[behind] == row:
            behind += 1
        if behind - i >= threshold and start <= row < stop:
            code = row_codes[row]
            first, last = row, row + 1
            while first > start and row_codes[first - 1] == code:
                first -= 1
            while last < stop and row_codes[last] == code:
                last += 1
            found[written].frequency = behind - i
            found[written].first = first
            found[written].last = last
            found[written].number = 0
            written += 1
            while behind < len(rows) and first <= rows[behind] < last:
                behind += 1
        i = behind
    return written


@kernel
def _asked_for(asked: NDArray[np.int32], start: int, stop: int, least: float) -> int:
    """How many rows were asked for at least so often."""
    many = 0
    for row in range(start, stop):
        many += asked[row] >= least
    return many


@kernel
def frequent_rows(
    asked: NDArray[np.int32],
    row_codes: NDArray[np.int64],
    start: int,
    stop: int,
    least: float,
    found: Any,
) -> int:
    """As `frequent_codes`, from how often the first row of each code was asked for.

    If more were asked for at least so often than have room, the most frequent, about.
    """
    most = 0
    for row in range(start, stop):
        most = max(most, asked[row])
    while 1.25 * least <= most and _asked_for(asked, start, stop, least) > len(found):
        least *= 1.25
    written = 0
    for row in range(start, stop):
        if asked[row] < least or written == len(found):
            continue
        last = row + 1
        while last < stop and row_codes[last] == row_codes[row]:
            last += 1
        found[written].frequency = asked[row]
        found[written].first = row
        found[written].last = last
        found[written].number = 0
        written += 1
    return written


@kernel
def count_codes(sketch: NDArray[np.uint8], bits: int, codes: NDArray[np.int64]) -> None:
    """Add arriving codes to a count-min sketch of four rows; counters stop at 255."""
    for i in range(len(codes)):
        mixed = np.uint64(codes[i])
        for depth in range(4):
            mixed = (mixed ^ (mixed >> np.uint64(29))) * GOLDEN
            place = mixed >> (WORD_BITS - np.uint64(bits))
            if sketch[depth, place] < 255:
                sketch[depth, place] += np.uint8(1)


@kernel
def estimate_codes(
    sketch: NDArray[np.uint8],
    bits: int,
    codes: NDArray[np.int64],
    out: NDArray[np.float64],
) -> None:
    """How often each code was counted, never too low."""
    for i in range(len(codes)):
        mixed = np.uint64(codes[i])
        least = 255
        for depth in range(4):
            mixed = (mixed ^ (mixed >> np.uint64(29))) * GOLDEN
            place = mixed >> (WORD_BITS - np.uint64(bits))
            least = min(least, int(sketch[depth, place]))
        out[i] = least
