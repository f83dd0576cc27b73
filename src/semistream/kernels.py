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

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

NONE: Final = -1
"""No slot."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FULL = np.uint64(64)
OLDEST, NEWEST, FREE, COUNT, FREE_COUNT, LIMIT, BEYOND, FINGER = 0, 1, 2, 3, 4, 5, 6, 7
"""The scalars of an arrival queue. Slots from LIMIT on are not used again; BEYOND of them wait."""
BINS_PER_OCTAVE = 16
HISTOGRAM_BINS = 34 * BINS_PER_OCTAVE
MATCHED = np.uint32(1)
EVEN = 0xFFFFFFFE
_BLOCK = 64

_Function = TypeVar("_Function", bound=Callable[..., Any])


def kernel(function: _Function) -> _Function:
    """Compile `function` with caching and without the GIL, keeping its type."""
    return cast(_Function, numba.njit(cache=True, nogil=True)(function))


NODE: Final = np.dtype(
    [
        ("code", np.int64),
        ("next_key", np.int32),
        ("next_same", np.int32),
        ("last_same", np.int32),
        ("entered", np.uint32),
    ]
)
"""One slot of a hash table. What a look-up needs lies together: one cache miss, not five.

`entered` is the time of entry in even microseconds; made odd when the tuple has matched.
"""

CANDIDATE: Final = np.dtype(
    [("frequency", np.float64), ("first", np.int32), ("last", np.int32)], align=True
)
"""A code that waiting tuples asked for: how often, and its rows in the partition."""

LINK: Final = np.dtype([("older", np.int32), ("newer", np.int32)])
"""One slot of an arrival queue."""


class Chains(NamedTuple):
    """A hash table: the first slot of each bucket, and the slots."""

    heads: NDArray[np.int32]
    nodes: Any


class Links(NamedTuple):
    """An arrival queue: its slots, and its scalars."""

    links: Any
    ends: NDArray[np.int64]


@kernel
def region_of(fences: NDArray[np.int64], code: int) -> int:
    """The last region whose fence is not above `code`; 0 without fences. O(log regions).

    Codes are often spread evenly: then the guess is right and nothing is searched.
    """
    low, high = 0, len(fences)
    if high > 1:
        width = float(fences[high - 1]) - float(fences[0])
        guess = int((float(code) - float(fences[0])) / width * (high - 1)) if width > 0.0 else 0
        guess = min(max(guess, 0), high - 1)
        if fences[guess] <= code:
            if guess + 1 == high or fences[guess + 1] > code:
                return guess
            low = guess + 1
        else:
            if guess > 0 and fences[guess - 1] <= code:
                return guess - 1
            high = guess
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
    return (region << bits) + int(mixed >> (_FULL - np.uint64(bits)))


@kernel
def insert(
    chains: Chains,
    fences: NDArray[np.int64],
    bits: int,
    codes: NDArray[np.int64],
    slots: NDArray[np.int32],
    entered: int,
) -> int:
    """Put each code's tuple, already given a slot, behind the earlier tuples of its code.

    The number returned means nothing; it keeps the compiler from dropping the early loads.
    """
    buckets = np.empty(_BLOCK, np.int64)
    touched = np.int64(0)
    at = 0
    while at < len(codes):
        block = min(_BLOCK, len(codes) - at)
        # Touch what the block will need first: loads that do not wait for each other.
        for i in range(block):
            code = codes[at + i]
            bucket = bucket_of(region_of(fences, code), bits, code)
            buckets[i] = bucket
            touched += chains.heads[bucket]
        for i in range(block):
            first = chains.heads[buckets[i]]
            if first != NONE:
                touched += chains.nodes[first].last_same
            touched += chains.nodes[slots[at + i]].last_same
        for i in range(block):
            code, slot, bucket = codes[at + i], slots[at + i], buckets[i]
            first = chains.heads[bucket]
            while first != NONE and chains.nodes[first].code != code:
                first = chains.nodes[first].next_key
            chains.nodes[slot].code = code
            chains.nodes[slot].next_same = NONE
            chains.nodes[slot].entered = entered & EVEN
            if first == NONE:
                chains.nodes[slot].next_key = chains.heads[bucket]
                chains.nodes[slot].last_same = slot
                chains.heads[bucket] = slot
            else:
                chains.nodes[chains.nodes[first].last_same].next_same = slot
                chains.nodes[first].last_same = slot
        at += block
    return int(touched)


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
    mark: bool,
) -> int:
    """Pair master rows cursor[0]..stop with the waiting tuples of their code.

    Returns how many pairs were written; fewer than `len(slots)` means that all rows are done.
    `cursor` is (next row, next slot of that row's code, or NONE). With `mark` the tuples count
    as matched.
    """
    written = 0
    row, slot = cursor[0], cursor[1]
    firsts = np.empty(_BLOCK, np.int32)
    while row < stop:
        block = min(_BLOCK, stop - row)
        # First all heads of a block, then their nodes: loads that do not wait for each other.
        for i in range(block):
            firsts[i] = chains.heads[bucket_of(region, bits, row_codes[row + i])]
        for i in range(block):
            if slot == NONE:
                slot = firsts[i]
                code = row_codes[row + i]
                while slot != NONE and chains.nodes[slot].code != code:
                    slot = chains.nodes[slot].next_key
            while slot != NONE:
                if written == len(slots):
                    cursor[0], cursor[1] = row + i, slot
                    return written
                if mark:
                    chains.nodes[slot].entered |= MATCHED
                slots[written] = slot
                rows[written] = row + i
                written += 1
                slot = chains.nodes[slot].next_same
        row += block
    cursor[0], cursor[1] = row, NONE
    return written


@kernel
def probe_front(
    chains: Chains,
    bits: int,
    codes: NDArray[np.int64],
    cursor: NDArray[np.int64],
    missed: NDArray[np.bool_],
    tuples: NDArray[np.int32],
    slots: NDArray[np.int32],
) -> int:
    """Pair arriving tuples, from cursor[0] on, with the master rows kept for their code.

    A hit adds one to its code's count, which is what `entered` of the first row is used for.
    Returns how many pairs were written. A code has at most `len(slots)` rows here.
    """
    written = 0
    at = cursor[0]
    firsts = np.empty(_BLOCK, np.int32)
    while at < len(codes):
        block = min(_BLOCK, len(codes) - at)
        for i in range(block):
            firsts[i] = chains.heads[bucket_of(0, bits, codes[at + i])]
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
                chains.nodes[first].entered += np.uint32(1)
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
    """Codes that at least `threshold` waiting tuples matched, from pairs in row order.

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
            written += 1
            while behind < len(rows) and rows[behind] < last:
                behind += 1
        i = behind
    return written


@kernel
def find_codes(
    chains: Chains, bits: int, codes: NDArray[np.int64], slots: NDArray[np.int32]
) -> None:
    """The first slot of each code, or NONE."""
    for i in range(len(codes)):
        slot = chains.heads[bucket_of(0, bits, codes[i])]
        while slot != NONE and chains.nodes[slot].code != codes[i]:
            slot = chains.nodes[slot].next_key
        slots[i] = slot


@kernel
def count_codes(sketch: NDArray[np.uint8], bits: int, codes: NDArray[np.int64]) -> None:
    """Add arriving codes to a count-min sketch of four rows; counters stop at 255."""
    for i in range(len(codes)):
        mixed = np.uint64(codes[i])
        for depth in range(4):
            mixed = (mixed ^ (mixed >> np.uint64(29))) * _GOLDEN
            place = mixed >> (_FULL - np.uint64(bits))
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
            mixed = (mixed ^ (mixed >> np.uint64(29))) * _GOLDEN
            place = mixed >> (_FULL - np.uint64(bits))
            least = min(least, int(sketch[depth, place]))
        out[i] = least


@kernel
def gather_codes(nodes: Any, slots: NDArray[np.int32], out: NDArray[np.int64]) -> None:
    """The codes of the tuples in `slots`."""
    for i in range(len(slots)):
        out[i] = nodes[slots[i]].code


@kernel
def mark_matched(nodes: Any, slots: NDArray[np.int32]) -> None:
    """These tuples have found a master row."""
    for i in range(len(slots)):
        nodes[slots[i]].entered |= MATCHED


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
        slot = chains.nodes[slot].next_same
    rest = chains.nodes[first].next_key
    if slot != NONE:
        chains.nodes[slot].last_same = chains.nodes[first].last_same
        chains.nodes[slot].next_key = chains.nodes[first].next_key
        rest = slot
    if previous == NONE:
        chains.heads[bucket] = rest
    else:
        chains.nodes[previous].next_key = rest
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
            following = chains.nodes[slot].next_key
            if low <= chains.nodes[slot].code <= high:
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
        while slot != NONE and chains.nodes[slot].code != code:
            previous = slot
            slot = chains.nodes[slot].next_key
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
        code = chains.nodes[slot].code
        bucket = bucket_of(region_of(fences, code), bits, code)
        previous, first = NONE, chains.heads[bucket]
        while first != NONE and chains.nodes[first].code != code:
            previous = first
            first = chains.nodes[first].next_key
        if first != slot:
            return False
        rest = chains.nodes[slot].next_same
        if rest == NONE:
            rest = chains.nodes[slot].next_key
        else:
            chains.nodes[rest].last_same = chains.nodes[slot].last_same
            chains.nodes[rest].next_key = chains.nodes[slot].next_key
        if previous == NONE:
            chains.heads[bucket] = rest
        else:
            chains.nodes[previous].next_key = rest
    return True


@kernel
def append(links: Links, slots: NDArray[np.int32]) -> None:
    """Fill `slots` with free slots and queue them, in this order, as the newest."""
    ends = links.ends
    for i in range(len(slots)):
        slot = ends[FREE]
        ends[FREE] = links.links[slot].newer
        newest = ends[NEWEST]
        links.links[slot].older = newest
        links.links[slot].newer = NONE
        if newest == NONE:
            ends[OLDEST] = slot
        else:
            links.links[newest].newer = slot
        ends[NEWEST] = slot
        slots[i] = slot
    ends[COUNT] += len(slots)
    ends[FREE_COUNT] -= len(slots)


@kernel
def unlink(links: Links, slots: NDArray[np.int32]) -> None:
    """Take slots out of the queue, wherever they stand, and make them free.

    A finger that stands on one of them moves on to its neighbour.
    """
    ends = links.ends
    for i in range(len(slots)):
        slot = slots[i]
        older, newer = links.links[slot].older, links.links[slot].newer
        if slot == ends[FINGER]:
            ends[FINGER] = older if newer == NONE else newer
        if older == NONE:
            ends[OLDEST] = newer
        else:
            links.links[older].newer = newer
        if newer == NONE:
            ends[NEWEST] = older
        else:
            links.links[newer].older = older
        if slot < ends[LIMIT]:
            links.links[slot].newer = ends[FREE]
            ends[FREE] = slot
            ends[FREE_COUNT] += 1
        else:
            ends[BEYOND] -= 1
    ends[COUNT] -= len(slots)


@kernel
def set_limit(links: Links, limit: int) -> None:
    """From now on use only the slots below `limit`; those beyond leave as they are finished."""
    ends = links.ends
    ends[LIMIT] = limit
    kept, free, count = NONE, ends[FREE], 0
    while free != NONE:
        following = links.links[free].newer
        if free < limit:
            links.links[free].newer = kept
            kept = free
            count += 1
        free = following
    ends[FREE], ends[FREE_COUNT], ends[BEYOND] = kept, count, 0
    slot = ends[OLDEST]
    while slot != NONE:
        if slot >= limit:
            ends[BEYOND] += 1
        slot = links.links[slot].newer


@kernel
def add_free(links: Links, start: int, stop: int) -> None:
    """The slots start..stop are new and free."""
    ends = links.ends
    for slot in range(start, stop):
        links.links[slot].newer = ends[FREE]
        ends[FREE] = slot
    ends[FREE_COUNT] += stop - start
    ends[LIMIT] = stop


@kernel
def oldest_slots(links: Links, slots: NDArray[np.int32]) -> None:
    """The slots that have waited longest, oldest first; at least so many wait."""
    slot = links.ends[OLDEST]
    for i in range(len(slots)):
        slots[i] = slot
        slot = links.links[slot].newer


@kernel
def place_finger(links: Links, newer: int) -> None:
    """Put the finger on the slot that has so many newer ones behind it."""
    slot = links.ends[NEWEST]
    for _ in range(newer):
        slot = links.links[slot].older
    links.ends[FINGER] = slot


@kernel
def oldest_outside(links: Links, nodes: Any, low: int, high: int, except_code: int) -> int:
    """The longest-waiting slot whose code is not in low..high and not `except_code`, or NONE."""
    slot = links.ends[OLDEST]
    while slot != NONE:
        code = nodes[slot].code
        if (code < low or code > high) and code != except_code:
            break
        slot = links.links[slot].newer
    return int(slot)


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
        entered = nodes[slots[i]].entered
        micros = (now - (int(entered) & EVEN)) & 0xFFFFFFFF
        histogram[bin_of(micros)] += 1
        total += micros
        if not entered & MATCHED:
            lonely[unmatched] = slots[i]
            unmatched += 1
    return unmatched, total


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
