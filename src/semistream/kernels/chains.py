"""Hash tables of chains: the stream table and the front stage.

heads[bucket] -> slot --next_key--> slot --next_key--> NONE       one slot per distinct code
                  | next_same        | next_same
                  v                  v
                 slot               NONE                          further tuples, oldest first
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from semistream.kernels.compiling import borrowing_kernel, kernel
from semistream.kernels.copying import prefetch

NONE: Final = -1
"""No slot."""
MATCHED = np.uint32(1)
EVEN = 0xFFFFFFFE
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""The odd number next to 2**64 / φ, which spreads neighbouring codes (Fibonacci hashing)."""
WORD_BITS = np.uint64(64)
_HALF = np.uint64(32)
BLOCK = 64
"""Codes that are handled together, so that their loads from memory overlap."""
_AHEAD: Final = 8
"""Buckets are asked for so far ahead."""

NODE: Final = np.dtype(
    [
        ("code", np.int64),
        ("next_key", np.int32),
        ("next_same", np.int32),
        ("last_same", np.int32),
        ("stamp", np.uint32),
    ]
)
"""One slot of a hash table. What a look-up needs lies together: one cache miss, not five.

`stamp` is whatever the owner of the table notes. In the stream table it is the time of entry in
even microseconds, made odd when the tuple has matched; in the front stage, the hits of a key.
"""


class Chains(NamedTuple):
    """A hash table: the first slot of each bucket, the slots, and the buckets of each region."""

    heads: NDArray[np.int32]
    nodes: Any
    starts: NDArray[np.int32]
    """The first bucket of each region, and behind the last one."""


@borrowing_kernel
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


@borrowing_kernel
def bucket_of(starts: NDArray[np.int32], region: int, code: int) -> int:
    """The bucket of `code` among those of its region."""
    begin = starts[region]
    count = np.uint64(starts[region + 1] - begin)
    mixed = (np.uint64(code) * GOLDEN) >> _HALF
    return int(begin) + int(mixed * count >> _HALF)


@borrowing_kernel
def ask_for_bucket(chains: Chains, bucket: int, behind: int) -> None:
    """Ask for the tuples of a later bucket, so that memory is not waited for one by one."""
    first = chains.heads[min(bucket + _AHEAD, behind - 1)]
    prefetch(chains.nodes.ctypes.data + chains.nodes.itemsize * first)


@borrowing_kernel
def ask_for_codes(
    chains: Chains,
    fences: NDArray[np.int64],
    codes: NDArray[np.int64],
    buckets: NDArray[np.int64],
) -> None:
    """The buckets of some codes, whose first tuples are asked for: no load waits for another."""
    heads, nodes = chains.heads.ctypes.data, chains.nodes.ctypes.data
    for i in range(len(codes)):
        buckets[i] = bucket_of(chains.starts, region_of(fences, codes[i]), codes[i])
        prefetch(heads + chains.heads.itemsize * buckets[i])
    for i in range(len(codes)):
        prefetch(nodes + chains.nodes.itemsize * chains.heads[buckets[i]])


@kernel
def insert(
    chains: Chains,
    fences: NDArray[np.int64],
    codes: NDArray[np.int64],
    slots: NDArray[np.int32],
    entered: int,
) -> None:
    """Put each code's tuple, already given a slot, behind the earlier tuples of its code."""
    buckets, address = np.empty(BLOCK, np.int64), chains.nodes.ctypes.data
    at = 0
    while at < len(codes):
        block = min(BLOCK, len(codes) - at)
        ask_for_codes(chains, fences, codes[at : at + block], buckets)
        for i in range(block):
            prefetch(address + chains.nodes.itemsize * slots[at + i])
            # The last tuple of the same code, or the bucket's next code.
            first = chains.heads[buckets[i]]
            if first != NONE:
                if chains.nodes[first].code == codes[at + i]:
                    following = chains.nodes[first].last_same
                else:
                    following = chains.nodes[first].next_key
                prefetch(address + chains.nodes.itemsize * following)
        for i in range(block):
            code, slot, bucket = codes[at + i], slots[at + i], buckets[i]
            previous, first = NONE, chains.heads[bucket]
            while first != NONE and chains.nodes[first].code != code:
                previous = first
                first = chains.nodes[first].next_key
            chains.nodes[slot].code = code
            chains.nodes[slot].next_same = NONE
            chains.nodes[slot].stamp = entered & EVEN
            if first == NONE:
                # Codes that come often come early: at the front of the chain they are soon found.
                chains.nodes[slot].next_key = NONE
                chains.nodes[slot].last_same = slot
                if previous == NONE:
                    chains.heads[bucket] = slot
                else:
                    chains.nodes[previous].next_key = slot
            else:
                chains.nodes[chains.nodes[first].last_same].next_same = slot
                chains.nodes[first].last_same = slot
        at += block


@kernel
def probe(
    chains: Chains,
    region: int,
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
    firsts = np.empty(BLOCK, np.int32)
    while row < stop:
        block = min(BLOCK, stop - row)
        # First all heads of a block, then their nodes: loads that do not wait for each other.
        for i in range(block):
            firsts[i] = chains.heads[bucket_of(chains.starts, region, row_codes[row + i])]
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
                    chains.nodes[slot].stamp |= MATCHED
                slots[written] = slot
                rows[written] = row + i
                written += 1
                slot = chains.nodes[slot].next_same
        row += block
    cursor[0], cursor[1] = row, NONE
    return written


@borrowing_kernel
def _first_row(codes: NDArray[np.int64], start: int, stop: int, code: int) -> int:
    """The first of the ascending codes start..stop that is not below `code`.

    Codes are often spread evenly, so a guess by proportion leaves little to search.
    """
    low, high = start, stop
    if high - low > 16:
        width = float(codes[high - 1]) - float(codes[low])
        share = (float(code) - float(codes[low])) / width if width > 0.0 else 0.0
        guess = min(max(low + int(share * (high - 1 - low)), low), high - 1)
        step = 8
        if codes[guess] < code:
            low = guess + 1
            while low + step < high and codes[low + step] < code:
                low += step
                step *= 2
            high = min(low + step + 1, high)
        else:
            high = guess + 1
            while high - step > low and codes[high - step] >= code:
                high -= step
                step *= 2
            low = max(high - step, low)
    while low < high:
        middle = (low + high) >> 1
        if codes[middle] < code:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def probe_region(
    chains: Chains,
    region: int,
    row_codes: NDArray[np.int64],
    stop: int,
    cursor: NDArray[np.int64],
    slots: NDArray[np.int32],
    rows: NDArray[np.int32],
    mark: bool,
) -> int:
    """Pair the region's waiting tuples with master rows, in code order, up to `stop`.

    Far fewer tuples wait in a region than its partition has rows: they look for their rows.
    The pairs of a code come together. `cursor` is (first row, next bucket, first slot of the
    code under way or NONE, its next row, next slot); the pairs are complete when the bucket is
    behind the region's last. Returns how many were written.
    """
    written = 0
    start, bucket, first, row, slot = cursor[0], cursor[1], cursor[2], cursor[3], cursor[4]
    behind = chains.starts[region + 1]
    while bucket < behind:
        ask_for_bucket(chains, bucket, behind)
        if first == NONE:
            first = chains.heads[bucket]
            if first != NONE:
                row, slot = _first_row(row_codes, start, stop, chains.nodes[first].code), first
        while first != NONE:
            code = chains.nodes[first].code
            while row < stop and row_codes[row] == code:
                while slot != NONE:
                    if written == len(slots):
                        cursor[1], cursor[2], cursor[3], cursor[4] = bucket, first, row, slot
                        return written
                    if mark:
                        chains.nodes[slot].stamp |= MATCHED
                    slots[written] = slot
                    rows[written] = row
                    written += 1
                    slot = chains.nodes[slot].next_same
                row += 1
                slot = first
            first = chains.nodes[first].next_key
            if first != NONE:
                row, slot = _first_row(row_codes, start, stop, chains.nodes[first].code), first
        bucket += 1
    cursor[1], cursor[2] = behind, NONE
    return written


@kernel
def codes_to_pass(chains: Chains) -> float:
    """How many codes share the bucket of a waiting code, on average of their regions."""
    total, squares, begin = 0, 0.0, 0
    for behind in chains.starts[1:]:
        count = 0
        for bucket in range(begin, behind):
            ask_for_bucket(chains, bucket, behind)
            slot = chains.heads[bucket]
            while slot != NONE:
                count += 1
                slot = chains.nodes[slot].next_key
        total += count
        squares += count * count / (behind - begin)
        begin = behind
    return squares / max(total, 1)


@kernel
def spread_buckets(chains: Chains, fences: NDArray[np.int64]) -> None:
    """Give each region buckets for the codes that wait there: half of all by these, half evenly."""
    heads, nodes, starts = chains.heads, chains.nodes, chains.starts
    # All codes in one chain, backwards, so that each bucket's come in the same order again.
    every, total, begin = NONE, 0, 0
    for region in range(len(starts) - 1):
        before, behind = total, starts[region + 1]
        for bucket in range(begin, behind):
            ask_for_bucket(chains, bucket, behind)
            slot = heads[bucket]
            heads[bucket] = NONE
            while slot != NONE:
                following = nodes[slot].next_key
                nodes[slot].next_key = every
                every, slot, total = slot, following, total + 1
        starts[region + 1] = total - before
        begin = behind
    evenly = max(1, len(heads) // 2 // (len(starts) - 1))
    rest, passed = len(heads) - evenly * (len(starts) - 1), 0
    for region in range(1, len(starts)):
        passed += starts[region]
        starts[region] = evenly * region + rest * passed // max(total, 1)
    starts[-1] = len(heads)
    while every != NONE:
        code, following = nodes[every].code, nodes[every].next_key
        bucket = bucket_of(starts, region_of(fences, code), code)
        nodes[every].next_key = heads[bucket]
        heads[bucket] = every
        every = following


@kernel
def find_codes(chains: Chains, codes: NDArray[np.int64], slots: NDArray[np.int32]) -> None:
    """The first slot of each code, or NONE."""
    for i in range(len(codes)):
        slot = chains.heads[bucket_of(chains.starts, 0, codes[i])]
        while slot != NONE and chains.nodes[slot].code != codes[i]:
            slot = chains.nodes[slot].next_key
        slots[i] = slot


@kernel
def gather_codes(nodes: Any, slots: NDArray[np.int32], out: NDArray[np.int64]) -> None:
    """The codes of the tuples in `slots`."""
    for i in range(len(slots)):
        out[i] = nodes[slots[i]].code


@kernel
def mark_matched(nodes: Any, slots: NDArray[np.int32]) -> None:
    """These tuples have found a master row."""
    for i in range(len(slots)):
        nodes[slots[i]].stamp |= MATCHED


@borrowing_kernel
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
def remove_ranges(
    chains: Chains,
    regions: NDArray[np.int64],
    lows: NDArray[np.int64],
    highs: NDArray[np.int64],
    cursor: NDArray[np.int64],
    out: NDArray[np.int32],
) -> int:
    """Unlink every tuple whose code lies in its region's range; call again while `out` fills.

    `cursor` holds the region to go on with.
    """
    written = 0
    while cursor[0] < len(regions):
        at = cursor[0]
        low, high = lows[at], highs[at]
        for bucket in range(chains.starts[regions[at]], chains.starts[regions[at] + 1]):
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
        cursor[0] += 1
    return written


@kernel
def remove_codes(
    chains: Chains,
    fences: NDArray[np.int64],
    codes: NDArray[np.int64],
    out: NDArray[np.int32],
) -> int:
    """Unlink every tuple that has one of `codes`; call again while `out` fills."""
    written = 0
    for i in range(len(codes)):
        code = codes[i]
        if i > 0 and code == codes[i - 1]:
            continue
        bucket = bucket_of(chains.starts, region_of(fences, code), code)
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
    chains: Chains, fences: NDArray[np.int64], slots: NDArray[np.int32]
) -> bool:
    """Unlink slots, each of which must be the oldest waiting tuple of its code."""
    for i in range(len(slots)):
        slot = slots[i]
        code = chains.nodes[slot].code
        bucket = bucket_of(chains.starts, region_of(fences, code), code)
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
