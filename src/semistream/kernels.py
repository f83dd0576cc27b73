"""The Numba loops under the parts: int64 codes and row numbers in, slots and row numbers out.

Only here does anything run once per tuple. Kernels are compiled on first use, cached on disk
and run without the GIL; they allocate nothing, so that the memory of a part is what its grant
says. A kernel that fills its output array returns early and can be called again to go on.

    heads[bucket] -> slot --next_key--> slot --next_key--> NONE       one slot per distinct code
                      | next_same        | next_same
                      v                  v
                     slot               NONE                          further tuples, oldest first
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

NONE: Final = -1
"""No slot."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FULL = np.uint64(64)
OLDEST, NEWEST, FREE, COUNT = 0, 1, 2, 3
_BINS_PER_OCTAVE = 16
HISTOGRAM_BINS = 33 * _BINS_PER_OCTAVE

_Function = TypeVar("_Function", bound=Callable[..., Any])


def kernel(function: _Function) -> _Function:
    """Compile `function` with caching and without the GIL, keeping its type."""
    return cast(_Function, numba.njit(cache=True, nogil=True)(function))


class Chains(NamedTuple):
    """The arrays of a stream table, indexed by bucket (`heads`) or by slot (the rest)."""

    heads: NDArray[np.int32]
    code: NDArray[np.int64]
    next_key: NDArray[np.int32]
    next_same: NDArray[np.int32]
    last_same: NDArray[np.int32]


class Links(NamedTuple):
    """The arrays of an arrival queue, indexed by slot; `ends` holds its four scalars."""

    older: NDArray[np.int32]
    newer: NDArray[np.int32]
    ends: NDArray[np.int64]


@kernel
def region_of(fences: NDArray[np.int64], code: int) -> int:
    """The last region whose fence is not above `code`; 0 without fences. O(log regions)."""
    low, high = 0, len(fences)
    while low < high:
        middle = (low + high) >> 1
        if fences[middle] <= code:
            low = middle + 1
        else:
            high = middle
    return max(low - 1, 0)


@kernel
def bucket_of(region: int, bits: int, code: int) -> int:
    """The bucket of `code` within its region's 2**bits buckets (Fibonacci hashing)."""
    mixed = np.uint64(code) * _GOLDEN
    return (region << bits) + np.int64(mixed >> (_FULL - np.uint64(bits)))


@kernel
def insert(
    chains: Chains,
    fences: NDArray[np.int64],
    bits: int,
    codes: NDArray[np.int64],
    slots: NDArray[np.int32],
) -> None:
    """Put each code's tuple, already given a slot, behind the earlier tuples of its code."""
    for i in range(len(codes)):
        code, slot = codes[i], slots[i]
        bucket = bucket_of(region_of(fences, code), bits, code)
        first = chains.heads[bucket]
        while first != NONE and chains.code[first] != code:
            first = chains.next_key[first]
        chains.code[slot] = code
        chains.next_same[slot] = NONE
        if first == NONE:
            chains.next_key[slot] = chains.heads[bucket]
            chains.last_same[slot] = slot
            chains.heads[bucket] = slot
        else:
            chains.next_same[chains.last_same[first]] = slot
            chains.last_same[first] = slot


@kernel
def probe(
    chains: Chains,
    region: int,
    bits: int,
    row_codes: NDArray[np.int64],
    stop: int,
    cursor: NDArray[np.int64],
    slots: NDArray[np.int32],
    rows: NDArray[np.int32],
) -> int:
    """Pair master rows cursor[0]..stop with the waiting tuples of their code.

    Returns how many pairs were written; fewer than `len(slots)` means that all rows are done.
    `cursor` is (next row, next slot of that row's code, or NONE).
    """
    written = 0
    row, slot = cursor[0], cursor[1]
    while row < stop:
        if slot == NONE:
            code = row_codes[row]
            slot = chains.heads[bucket_of(region, bits, code)]
            while slot != NONE and chains.code[slot] != code:
                slot = chains.next_key[slot]
        while slot != NONE:
            if written == len(slots):
                cursor[0], cursor[1] = row, slot
                return written
            slots[written] = slot
            rows[written] = row
            written += 1
            slot = chains.next_same[slot]
        row += 1
    cursor[0], cursor[1] = row, NONE
    return written


@kernel
def _drain(
    chains: Chains,
    bucket: int,
    previous: int,
    first: int,
    out: NDArray[np.int32],
    written: int,
) -> int:
    """Unlink the tuples of the code whose oldest is `first`, as many as `out` has room for."""
    slot = first
    while slot != NONE and written < len(out):
        out[written] = slot
        written += 1
        slot = chains.next_same[slot]
    rest = chains.next_key[first]
    if slot != NONE:
        chains.last_same[slot] = chains.last_same[first]
        chains.next_key[slot] = chains.next_key[first]
        rest = slot
    if previous == NONE:
        chains.heads[bucket] = rest
    else:
        chains.next_key[previous] = rest
    return written


@kernel
def remove_range(
    chains: Chains, region: int, bits: int, low: int, high: int, out: NDArray[np.int32]
) -> int:
    """Unlink every tuple of the region with low <= code <= high; call again while `out` fills."""
    written = 0
    for bucket in range(region << bits, (region + 1) << bits):
        previous, slot = NONE, chains.heads[bucket]
        while slot != NONE:
            following = chains.next_key[slot]
            if low <= chains.code[slot] <= high:
                if written == len(out):
                    return written
                written = _drain(chains, bucket, previous, slot, out, written)
                if written == len(out):
                    return written
            else:
                previous = slot
            slot = following
    return written


@kernel
def remove_codes(
    chains: Chains,
    fences: NDArray[np.int64],
    bits: int,
    codes: NDArray[np.int64],
    out: NDArray[np.int32],
) -> int:
    """Unlink every tuple that has one of `codes`; call again while `out` fills."""
    written = 0
    for i in range(len(codes)):
        code = codes[i]
        if i > 0 and code == codes[i - 1]:
            continue
        bucket = bucket_of(region_of(fences, code), bits, code)
        previous, slot = NONE, chains.heads[bucket]
        while slot != NONE and chains.code[slot] != code:
            previous = slot
            slot = chains.next_key[slot]
        if slot != NONE:
            if written == len(out):
                return written
            written = _drain(chains, bucket, previous, slot, out, written)
            if written == len(out):
                return written
    return written


@kernel
def remove_oldest_of_code(
    chains: Chains, fences: NDArray[np.int64], bits: int, slots: NDArray[np.int32]
) -> bool:
    """Unlink slots, each of which must be the oldest waiting tuple of its code."""
    for i in range(len(slots)):
        slot = slots[i]
        code = chains.code[slot]
        bucket = bucket_of(region_of(fences, code), bits, code)
        previous, first = NONE, chains.heads[bucket]
        while first != NONE and chains.code[first] != code:
            previous = first
            first = chains.next_key[first]
        if first != slot:
            return False
        rest = chains.next_same[slot]
        if rest == NONE:
            rest = chains.next_key[slot]
        else:
            chains.last_same[rest] = chains.last_same[slot]
            chains.next_key[rest] = chains.next_key[slot]
        if previous == NONE:
            chains.heads[bucket] = rest
        else:
            chains.next_key[previous] = rest
    return True


@kernel
def append(links: Links, slots: NDArray[np.int32]) -> None:
    """Fill `slots` with free slots and queue them, in this order, as the newest."""
    ends = links.ends
    for i in range(len(slots)):
        slot = ends[FREE]
        ends[FREE] = links.newer[slot]
        newest = ends[NEWEST]
        links.older[slot] = newest
        links.newer[slot] = NONE
        if newest == NONE:
            ends[OLDEST] = slot
        else:
            links.newer[newest] = slot
        ends[NEWEST] = slot
        slots[i] = slot
    ends[COUNT] += len(slots)


@kernel
def unlink(links: Links, slots: NDArray[np.int32]) -> None:
    """Take slots out of the queue, wherever they stand, and make them free."""
    ends = links.ends
    for i in range(len(slots)):
        slot = slots[i]
        older, newer = links.older[slot], links.newer[slot]
        if older == NONE:
            ends[OLDEST] = newer
        else:
            links.newer[older] = newer
        if newer == NONE:
            ends[NEWEST] = older
        else:
            links.older[newer] = older
        links.newer[slot] = ends[FREE]
        ends[FREE] = slot
    ends[COUNT] -= len(slots)


@kernel
def bin_of(micros: int) -> int:
    """The histogram bin of a duration: 16 bins per power of two, 0 for nothing."""
    return int(np.log2(micros + 1.0) * _BINS_PER_OCTAVE)


@kernel
def record_waits(
    histogram: NDArray[np.int64],
    entered: NDArray[np.uint32],
    slots: NDArray[np.int32],
    now: np.uint32,
) -> int:
    """Count now - entered, in wrapping microseconds, for each slot; returns their sum."""
    total = 0
    for i in range(len(slots)):
        micros = np.int64(np.uint32(now - entered[slots[i]]))
        histogram[bin_of(micros)] += 1
        total += micros
    return total


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
