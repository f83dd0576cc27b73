"""The arrival queue: slots linked both ways, in order of arrival, free ones in a list."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from semistream.kernels.chains import NONE
from semistream.kernels.compiling import kernel
from semistream.kernels.copying import prefetch

OLDEST, NEWEST, FREE, COUNT, FREE_COUNT, LIMIT, BEYOND, FINGER, FRESH = range(9)
"""The scalars of an arrival queue. Slots from LIMIT on are not used again; BEYOND of them wait.

Free slots below FRESH are in a list that begins with FREE; all from FRESH to LIMIT are free. When
nothing waits any more all are fresh: given out one behind the other, they are soon found in memory.
"""
FURTHER: Final = 16
"""A free slot also knows the one so much further in the list, to ask for it early. That one may be
in use again by then, which does no harm.
"""


LINK: Final = np.dtype([("older", np.int32), ("newer", np.int32)])
"""One slot of an arrival queue."""


class Links(NamedTuple):
    """An arrival queue: its slots, and its scalars."""

    links: Any
    ends: NDArray[np.int64]


@kernel
def append(links: Links, slots: NDArray[np.int32]) -> None:
    """Fill `slots` with free slots and queue them, in this order, as the newest."""
    ends, address = links.ends, links.links.ctypes.data
    for i in range(len(slots)):
        slot = ends[FREE]
        if slot == NONE:
            slot = ends[FRESH]
            ends[FRESH] += 1
        else:
            ends[FREE] = links.links[slot].newer
            prefetch(address + links.links.itemsize * links.links[slot].older)
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
            links.links[slot].older = slots[i - FURTHER] if i >= FURTHER else NONE
            ends[FREE] = slot
            ends[FREE_COUNT] += 1
        else:
            ends[BEYOND] -= 1
    ends[COUNT] -= len(slots)
    if ends[COUNT] == 0:
        ends[FREE], ends[FRESH] = NONE, 0


@kernel
def set_limit(links: Links, limit: int) -> None:
    """From now on use only the slots below `limit`; those beyond leave as they are finished."""
    ends = links.ends
    ends[LIMIT], ends[FRESH] = limit, min(ends[FRESH], limit)
    kept, free, count = NONE, ends[FREE], limit - ends[FRESH]
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
    """The slots start..stop, which come behind all others, are new and free."""
    ends = links.ends
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
