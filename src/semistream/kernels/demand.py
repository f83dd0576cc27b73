"""Waiting tuples, grouped by the partition of R that they need.

    groups[partition] ─head─► tuple ─next─► tuple ─► NONE      newest first
        how many wait, and since when

The partition of a tuple is known when it arrives, so there is no hash table: a partition that is
read meets its own group, and the tuples look for their rows on it. Nor is there a queue: which
partition to read is told by the groups.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from semistream.kernels.chains import EVEN, NONE, region_of
from semistream.kernels.compiling import borrowing_kernel, kernel
from semistream.kernels.copying import prefetch
from semistream.kernels.queue import FURTHER

Numbers = NDArray[np.int32]
Codes = NDArray[np.int64]

TUPLE: Final = np.dtype([("code", np.int64), ("next", np.int32), ("stamp", np.uint32)])
"""One slot. `stamp` is as in the stream table; `next` also links the free slots.

The `code` of a free slot is the one `FURTHER` in their list, as in the arrival queue.
"""
GROUP: Final = np.dtype([("head", np.int32), ("count", np.int32), ("since", np.uint32)])
"""The tuples that wait for a partition. `since` counts tuples: how many had entered before.

It wraps, so ages are right up to four billion tuples.
"""

FREE, FRESH, WAITING, FREE_COUNT, LIMIT, BEYOND, ENTERED = range(7)
"""The scalars: as in the arrival queue, and how many tuples have ever entered."""
SCALARS: Final = 7

WRAP: Final = 0xFFFFFFFF
_OVERDUE: Final = 1e18
"""Above any count × age."""
_ENOUGH: Final = 0.5
"""A group is read before one of more demand, which has no room, if it has this part of that."""


class Demand(NamedTuple):
    """Slots, groups and scalars."""

    tuples: Any
    groups: Any
    ends: Codes


@kernel
def regions_of(fences: Codes, codes: Codes, regions: Numbers) -> None:
    """The region of each code, between the fences."""
    for i in range(len(codes)):
        regions[i] = region_of(fences, codes[i])


@kernel
def partitions_of(
    firsts: Codes, lasts: Codes, per_partition: int, codes: Codes, nowhere: int, regions: Numbers
) -> None:
    """The partition of each code's first row, by the first and the last code of each page.

    A code that lies between two pages is `nowhere`.
    """
    for i in range(len(codes)):
        page, code = region_of(firsts, codes[i]), codes[i]
        if page < len(firsts) and firsts[page] <= code <= lasts[page]:
            while page > 0 and lasts[page - 1] == code:
                page -= 1
            regions[i] = page // per_partition
        else:
            regions[i] = nowhere


@kernel
def enter(demand: Demand, codes: Codes, regions: Numbers, slots: Numbers, stamp: int) -> None:
    """Put arriving tuples into free slots, which are written to `slots`, and into their groups."""
    tuples, groups, ends = demand.tuples, demand.groups, demand.ends
    address = tuples.ctypes.data
    for i in range(len(codes)):
        slot = ends[FREE]
        if slot == NONE:
            slot = ends[FRESH]
            ends[FRESH] += 1
        else:
            ends[FREE] = tuples[slot].next
            prefetch(address + tuples.itemsize * tuples[slot].code)
        region = regions[i]
        if groups[region].count == 0:
            groups[region].since = ends[ENTERED] & WRAP
        tuples[slot].code = codes[i]
        tuples[slot].next = groups[region].head
        tuples[slot].stamp = stamp & EVEN
        groups[region].head = slot
        groups[region].count += 1
        ends[ENTERED] += 1
        slots[i] = slot
    ends[WAITING] += len(codes)
    ends[FREE_COUNT] -= len(codes)


@kernel
def most_demanded(
    demand: Demand, marked: NDArray[np.uint8], most_tuples: int, bound: int, out: Codes
) -> int:
    """The groups of most demand, in ascending order; returns how many.

    Demand is how many tuples wait × how long the first of them has waited: the memory that
    reading the partition gives back, times how long it was held. A group that has waited for more
    than `bound` tuples comes before all others. Marked ones are passed over.

    Together they have at most `most_tuples`, or there is only one. Where the next one has no room,
    it takes the place of all before it, if it is larger than they are and the first one has not
    waited for twice the bound; else it is passed over.
    """
    groups, now = demand.groups, demand.ends[ENTERED]
    best, found = np.empty(len(out), np.float64), 0
    for region in range(len(groups)):
        count = groups[region].count
        if count == 0 or marked[region]:
            continue
        age = float((now - int(groups[region].since)) & WRAP)
        worth = _OVERDUE + age if age > bound else count * age
        if found == len(out) and worth <= best[found - 1]:
            continue
        at = found - 1 if found == len(out) else found
        while at > 0 and best[at - 1] < worth:
            best[at], out[at] = best[at - 1], out[at - 1]
            at -= 1
        best[at], out[at] = worth, region
        found = min(found + 1, len(out))
    if not found:
        return 0
    waited = (now - int(groups[out[0]].since)) & WRAP
    tuples, fit, least = 0, 0, 0.0
    for i in range(found):
        count = groups[out[i]].count
        if fit == 0 or tuples + count <= most_tuples:
            if best[i] >= least:
                out[fit] = out[i]
                tuples, fit = tuples + count, fit + 1
            continue
        if waited <= 2 * bound and count > tuples and best[i] >= least:
            # It would find no room beside others later, but those it takes the place of will.
            out[0] = out[i]
            tuples, fit = count, 1
        least = max(least, _ENOUGH * best[i])
    out[:fit].sort()
    return fit


@borrowing_kernel
def _without_repeats(codes: Codes, start: int, stop: int) -> int:
    """Leave each of the ascending codes start..stop once; returns where they end then."""
    end = start
    for i in range(start, stop):
        if i == start or codes[i] != codes[i - 1]:
            codes[end] = codes[i]
            end += 1
    return end


@kernel
def codes_of_groups(
    demand: Demand, regions: Codes, lows: Codes, highs: Codes, codes: Codes, ends: Codes
) -> int:
    """Write the codes that wait in some groups and lie in low..high of their group.

    Those of group i are ascending, each once, and end before `ends[i]`. Returns for how many
    groups `codes` had room; of the first one, those that have waited longest are written.
    """
    written = 0
    for i in range(len(regions)):
        begun = written
        written = _distinct_codes(demand, regions[i], lows[i], highs[i], codes, begun)
        if written == NONE and i > 0:
            return i
        if written == NONE:
            written = _longest_waiting_codes(demand, regions[i], lows[i], highs[i], codes)
        ends[i] = written
    return len(regions)


@kernel
def _distinct_codes(
    demand: Demand, region: int, low: int, high: int, codes: Codes, begun: int
) -> int:
    """Write the codes of a group from `begun` on; returns where they end, NONE if there is no room.

    Whenever the room is used up, repeated codes are left out: an eighth of them, or it gives up.
    """
    written, slot = begun, demand.groups[region].head
    while slot != NONE:
        code = demand.tuples[slot].code
        if low <= code <= high:
            if written == len(codes):
                codes[begun:written].sort()
                written = _without_repeats(codes, begun, written)
                if 8 * (written - begun) >= 7 * (len(codes) - begun):
                    return NONE
            codes[written] = code
            written += 1
        slot = demand.tuples[slot].next
    codes[begun:written].sort()
    return _without_repeats(codes, begun, written)


@kernel
def _longest_waiting_codes(demand: Demand, region: int, low: int, high: int, codes: Codes) -> int:
    """Write the codes of as many tuples as there is room for; returns where they end."""
    group, written = demand.groups[region], 0
    surplus, slot = group.count - len(codes), group.head
    while slot != NONE:
        code = demand.tuples[slot].code
        if surplus <= 0 and low <= code <= high:
            codes[written] = code
            written += 1
        surplus -= 1
        slot = demand.tuples[slot].next
    codes[:written].sort()
    return _without_repeats(codes, 0, written)


@borrowing_kernel
def _unlink(demand: Demand, region: int, previous: int, slot: int) -> None:
    """Take a tuple out of its group."""
    following = demand.tuples[slot].next
    if previous == NONE:
        demand.groups[region].head = following
    else:
        demand.tuples[previous].next = following
    demand.groups[region].count -= 1
    # Who is left has come while the partition was read.
    demand.groups[region].since = demand.ends[ENTERED] & WRAP


@kernel
def take_found(
    demand: Demand,
    regions: Codes,
    codes: Codes,
    ends: Codes,
    cursor: Codes,
    slots: Numbers,
    places: Numbers,
) -> int:
    """Take tuples out of groups, and write where their codes are among `codes`.

    Those of group i are ascending and end before `ends[i]`. Tuples with other codes stay. Returns
    how many were written; `cursor` is the group to go on with.
    """
    taken = 0
    while cursor[0] < len(regions):
        i = cursor[0]
        start, stop = ends[i - 1] if i > 0 else 0, min(ends[i], len(codes))
        if start >= stop:
            cursor[0] += 1
            continue
        previous, slot = NONE, demand.groups[regions[i]].head
        while slot != NONE:
            code, following = demand.tuples[slot].code, demand.tuples[slot].next
            low, high = start, stop
            while low < high:
                middle = (low + high) >> 1
                if codes[middle] < code:
                    low = middle + 1
                else:
                    high = middle
            if low < stop and codes[low] == code:
                if taken == len(slots):
                    return taken
                _unlink(demand, regions[i], previous, slot)
                slots[taken], places[taken] = slot, low
                taken += 1
            else:
                previous = slot
            slot = following
        cursor[0] += 1
    return taken


@kernel
def take_codes(demand: Demand, region: int, codes: Codes, among: bool, slots: Numbers) -> int:
    """Take the tuples of a group out whose code is, or is not, `among` a few codes.

    Returns how many were written; call again while `slots` fills.
    """
    taken, previous, slot = 0, NONE, demand.groups[region].head
    while slot != NONE and taken < len(slots):
        following, is_there = demand.tuples[slot].next, False
        for i in range(len(codes)):
            is_there = is_there or codes[i] == demand.tuples[slot].code
        if is_there == among:
            _unlink(demand, region, previous, slot)
            slots[taken] = slot
            taken += 1
        else:
            previous = slot
        slot = following
    return taken


@kernel
def meet(codes: Codes, rows: Codes, firsts: Numbers, counts: Numbers) -> None:
    """Where the rows of each code begin, and how many it has; codes and rows are ascending."""
    at = 0
    for i in range(len(codes)):
        while at < len(rows) and rows[at] < codes[i]:
            at += 1
        end = at
        while end < len(rows) and rows[end] == codes[i]:
            end += 1
        firsts[i], counts[i] = at, end - at


@kernel
def count_asked(firsts: Numbers, counts: Numbers, asked: Numbers) -> None:
    """Count for each row how many tuples begin with it; those with a count of 0 have none."""
    for i in range(len(firsts)):
        if counts[i] > 0:
            asked[firsts[i]] += 1


@kernel
def release(demand: Demand, slots: Numbers) -> None:
    """Slots that are in no group any more are free again."""
    tuples, ends = demand.tuples, demand.ends
    for i in range(len(slots)):
        slot = slots[i]
        if slot < ends[LIMIT]:
            tuples[slot].next = ends[FREE]
            tuples[slot].code = slots[i - FURTHER] if i >= FURTHER else NONE
            ends[FREE] = slot
            ends[FREE_COUNT] += 1
        else:
            ends[BEYOND] -= 1
    ends[WAITING] -= len(slots)
    if ends[WAITING] == 0:
        ends[FREE], ends[FRESH] = NONE, 0


@kernel
def set_limit(demand: Demand, limit: int) -> None:
    """From now on use only the slots below `limit`; those beyond leave as they are finished."""
    tuples, groups, ends = demand.tuples, demand.groups, demand.ends
    ends[LIMIT], ends[FRESH] = limit, min(ends[FRESH], limit)
    kept, free, count = NONE, ends[FREE], limit - ends[FRESH]
    while free != NONE:
        following = tuples[free].next
        if free < limit:
            tuples[free].next = kept
            kept = free
            count += 1
        free = following
    ends[FREE], ends[FREE_COUNT], ends[BEYOND] = kept, count, 0
    for region in range(len(groups)):
        slot = groups[region].head
        while slot != NONE:
            ends[BEYOND] += slot >= limit
            slot = tuples[slot].next


@kernel
def longest_waiting(demand: Demand, now: int) -> int:
    """The slot of the tuple that entered first, by its stamp, which wraps; there must be one."""
    oldest, longest = NONE, -1
    for region in range(len(demand.groups)):
        slot = demand.groups[region].head
        while slot != NONE:
            waited = (now - demand.tuples[slot].stamp) & EVEN
            if waited > longest:
                oldest, longest = slot, waited
            slot = demand.tuples[slot].next
    return int(oldest)
