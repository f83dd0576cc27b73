"""The scan window's ring: slots in order of arrival, which leave in that order.

    slots  |....[entered at 7][entered at 8][entered at 9]....|
                ^ oldest                                  ^ next

Chunks are told by numbers alone: how many tuples entered at each position of the scan. They are
due a cycle later, so a place for each position of a cycle is enough.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from semistream.kernels.chains import NONE
from semistream.kernels.compiling import kernel

RING_OLDEST, RING_NEXT, RING_END, RING_COUNT, RING_LIMIT, POSITION, LATEST, RING_SCALARS = range(8)
"""The scalars of a ring: the oldest tuple's slot and the next to give out; where the slots end
behind which the newer tuples begin at 0 again, or NONE; tuples; slots from here on are not given
out; the position of the scan, and the one at which the newest tuple is due."""

FLOORED, SPREAD = 0, -1
"""Instead of a number of tuples for each position: an equal share of the slots, rounded down; or
shares that differ by one, so that all slots are used in a cycle."""


class Ring(NamedTuple):
    """The tuples that entered at each position of a cycle, and the scalars."""

    chunks: NDArray[np.int32]
    ends: NDArray[np.int64]


@kernel
def ring_free(ring: Ring) -> int:
    """How many slots can be given out before the oldest tuple leaves."""
    ends = ring.ends
    limit = ends[RING_LIMIT]
    if ends[RING_COUNT] == 0:
        return int(limit)
    below = min(ends[RING_OLDEST], limit)
    if ends[RING_END] != NONE:
        return int(max(0, below - ends[RING_NEXT]))
    return int(max(0, limit - ends[RING_NEXT]) + below)


@kernel
def chunk_room(ring: Ring, w: int, slots: int) -> int:
    """How many tuples may enter at this position: `w`, or a share of all slots; never beyond."""
    cycle = len(ring.chunks)
    share = w
    if w == FLOORED:
        share = max(1, slots // cycle)
    elif w == SPREAD:
        place = ring.ends[POSITION] % cycle
        share = (place + 1) * slots // cycle - place * slots // cycle
        if ring.ends[RING_COUNT] == 0:
            share = max(share, 1)
    return min(share, ring_free(ring))


@kernel
def ring_append(ring: Ring, slots: NDArray[np.int32]) -> None:
    """Fill `slots` with free slots, of which there are so many, as the newest ones."""
    ends = ring.ends
    for i in range(len(slots)):
        if ends[RING_END] == NONE and ends[RING_NEXT] >= ends[RING_LIMIT]:
            ends[RING_END] = ends[RING_NEXT]
            ends[RING_NEXT] = 0
        slots[i] = ends[RING_NEXT]
        ends[RING_NEXT] += 1
    cycle = len(ring.chunks)
    ring.chunks[ends[POSITION] % cycle] += len(slots)
    ends[RING_COUNT] += len(slots)
    ends[LATEST] = ends[POSITION] + cycle


@kernel
def ring_expire(ring: Ring, slots: NDArray[np.int32]) -> int:
    """Take out tuples that entered a cycle ago, oldest first, as many as `slots` has room for.

    At a position this comes before anything enters.
    """
    ends, place = ring.ends, ring.ends[POSITION] % len(ring.chunks)
    count = min(len(slots), ring.chunks[place])
    for i in range(count):
        slots[i] = ends[RING_OLDEST]
        ends[RING_OLDEST] += 1
        if ends[RING_OLDEST] == ends[RING_END]:
            ends[RING_OLDEST], ends[RING_END] = 0, NONE
    ring.chunks[place] -= count
    ends[RING_COUNT] -= count
    if ends[RING_COUNT] == 0:
        ends[RING_OLDEST], ends[RING_NEXT], ends[RING_END] = 0, 0, NONE
    return int(count)
