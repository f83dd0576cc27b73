"""Intervals among sorted values: where each begins and ends, and the pairs that this makes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semistream.kernels.compiling import kernel

Codes = NDArray[np.int64]
Places = NDArray[np.int32]
Bytes = NDArray[np.uint8]

_HIGHEST = np.int64(2**63 - 1)


@kernel
def _first_from(values: Codes, code: int, start: int) -> int:
    """The first place whose value is not below `code`; searched outwards from `start`."""
    count = len(values)
    step = 1
    if start < count and values[start] < code:
        low = start
        while low + step < count and values[low + step] < code:
            low += step
            step *= 2
        high = min(low + step, count)
    else:
        high = min(start, count)
        while high - step >= 0 and values[high - step] >= code:
            high -= step
            step *= 2
        low = max(high - step, -1)
    while high - low > 1:
        middle = (low + high) // 2
        if values[middle] < code:
            low = middle
        else:
            high = middle
    return high


@kernel
def locate_codes(
    values: Codes, low: Codes, high: Codes, first: Places, last: Places, edges: Places
) -> int:
    """The places first..last of the sorted `values` that lie in each interval low..=high.

    `edges` counts how many intervals begin, and less how many end, at each place. Returns the
    number of pairs. Bounds near to those before are found quickly: O(1) if they are in order.
    """
    place = 0
    pairs = 0
    for i in range(len(low)):
        first[i] = last[i] = 0
        if low[i] > high[i]:
            continue
        place = _first_from(values, low[i], place)
        end = len(values)
        if high[i] != _HIGHEST:
            end = _first_from(values, high[i] + 1, place)
        if end > place:
            first[i] = place
            last[i] = end
            edges[place] += 1
            edges[end] -= 1
            pairs += end - place
    return pairs


@kernel
def _compare(left: Bytes, a: int, a_end: int, right: Bytes, b: int, b_end: int) -> int:
    """Below 0 if the left bytes come first, 0 if they are equal, above 0 otherwise."""
    common = min(a_end - a, b_end - b)
    for i in range(common):
        difference = np.int64(left[a + i]) - np.int64(right[b + i])
        if difference != 0:
            return int(difference)
    return int((a_end - a) - (b_end - b))


@kernel
def _place_of_bytes(
    ends: Codes, data: Bytes, order: Places, wanted_ends: Codes, wanted: Bytes, i: int, above: int
) -> int:
    """The first place whose value is not below the wanted one; `above`: that is above it."""
    low, high = -1, len(order)
    begin, end = wanted_ends[i], wanted_ends[i + 1]
    while high - low > 1:
        middle = (low + high) // 2
        t = order[middle]
        difference = _compare(data, ends[t], ends[t + 1], wanted, begin, end)
        if difference < 0 or (difference == 0 and above):
            low = middle
        else:
            high = middle
    return high


@kernel
def locate_bytes(
    ends: Codes,
    data: Bytes,
    order: Places,
    wanted_ends: Codes,
    wanted: Bytes,
    above: int,
    places: Places,
) -> None:
    """The place of each wanted string among the strings that `order` sorts. O(log n) each."""
    for i in range(len(places)):
        places[i] = _place_of_bytes(ends, data, order, wanted_ends, wanted, i, above)


@kernel
def cover(first: Places, last: Places, edges: Places) -> int:
    """Count the beginnings and ends of intervals by place. Returns the number of pairs."""
    pairs = 0
    for i in range(len(first)):
        if last[i] > first[i]:
            edges[first[i]] += 1
            edges[last[i]] -= 1
            pairs += last[i] - first[i]
    return pairs


@kernel
def pair_places(
    first: Places,
    last: Places,
    order: Places,
    row: int,
    place: int,
    tuples: Places,
    rows: Places,
) -> tuple[int, int, int]:
    """Pairs of each row with the tuples at its places, from a row and a place of it on.

    Stops when the output is full. Returns how many pairs there are, and where to go on.
    """
    count = 0
    while row < len(first):
        place = max(place, first[row])
        while place < last[row]:
            if count == len(tuples):
                return count, row, place
            tuples[count] = order[place]
            rows[count] = row
            count += 1
            place += 1
        row += 1
        place = 0
    return count, row, place


@kernel
def covered_tuples(edges: Places, order: Places, matched: NDArray[np.bool_]) -> int:
    """Mark the tuples at places that an interval covers. Returns how many there are."""
    depth = 0
    count = 0
    for place in range(len(order)):
        depth += edges[place]
        if depth > 0:
            matched[order[place]] = True
            count += 1
    return count
