"""Arrival queue: the order in which waiting stream tuples came.

HYBRIDJOIN asks it for the oldest and deletes from anywhere, so it is a list linked both ways,
through two arrays indexed by stream-table slot (Naeem et al. 2011, §4.1: Q). It also knows
which slots are free: those that were used are chained through the array that a waiting slot uses
for its newer neighbour.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semistream.budget import Grant
from semistream.kernels import (
    BEYOND,
    COUNT,
    FINGER,
    FREE,
    FREE_COUNT,
    FRESH,
    LIMIT,
    LINK,
    NEWEST,
    NONE,
    OLDEST,
    Links,
    add_free,
    append,
    oldest_slots,
    place_finger,
    set_limit,
    unlink,
)

BYTES_PER_SLOT = LINK.itemsize
"""Two int32 links."""
_CHANGES_PER_WALK = 1 / 32
"""The finger is placed anew once this share of the queue has changed; it is off by no more."""


class ArrivalQueue:
    """Slots in arrival order; append, remove and oldest in O(1) per slot."""

    def __init__(self, capacity: int, grant: Grant) -> None:
        """All `capacity` slots are free."""
        grant.take(capacity * BYTES_PER_SLOT)
        self.capacity = capacity
        links = np.zeros(capacity, LINK)
        ends = np.array([NONE, NONE, NONE, 0, capacity, capacity, 0, NONE, 0], np.int64)
        self._changes = 0
        self._position = 0.0
        self._grant = grant
        self.links = Links(links, ends)
        self.least = 1
        self.was_full = False
        """Whether there was no free slot at some time; whoever reads it may reset it."""

    def __len__(self) -> int:
        """How many slots wait."""
        return int(self.links.ends[COUNT])

    @property
    def free(self) -> int:
        """How many slots can be given out."""
        return int(self.links.ends[FREE_COUNT])

    def oldest(self) -> int:
        """The slot that has waited longest, or NONE."""
        return int(self.links.ends[OLDEST])

    def append(self, count: int) -> NDArray[np.int32]:
        """Queue `count` free slots as the newest and return them."""
        if count > self.free:
            raise ValueError(f"{count} tuples arrive, {self.free} slots are free")
        slots = np.empty(count, np.int32)
        append(self.links, slots)
        self._changes += count
        self.was_full = self.was_full or not self.free
        return slots

    def remove(self, slots: NDArray[np.int32]) -> None:
        """Take waiting slots out, wherever they stand; they are free again."""
        unlink(self.links, slots)
        self._changes += len(slots)

    def oldest_slots(self, count: int) -> NDArray[np.int32]:
        """The `count` slots that have waited longest, or all, oldest first. O(count)."""
        slots = np.empty(min(count, len(self)), np.int32)
        oldest_slots(self.links, slots)
        return slots

    def near(self, position: float) -> int:
        """The slot at a share of the queue from its newest side, or NONE.

        Off by at most about 3 % of the queue. Walking there is paid for by the appends and
        removals since the last walk: O(1) amortised, about 5 links each for a share of 0.15.
        """
        if position >= 1.0:
            return self.oldest()
        ends, most = self.links.ends, len(self) * _CHANGES_PER_WALK
        if ends[FINGER] == NONE or self._changes > most or position != self._position:
            place_finger(self.links, int(position * len(self)))
            self._changes, self._position = 0, position
        return int(ends[FINGER])

    def limit(self, capacity: int) -> None:
        """Give out only slots below `capacity` from now on. O(n)."""
        set_limit(self.links, capacity)

    @property
    def beyond(self) -> int:
        """How many tuples still wait in slots beyond the limit."""
        return int(self.links.ends[BEYOND])

    def resize(self, capacity: int) -> None:
        """Have `capacity` slots; a smaller number must be the limit, with nothing beyond it."""
        if capacity > self.capacity:
            self._grant.take((capacity - self.capacity) * BYTES_PER_SLOT)
        self.links.links.resize(capacity, refcheck=False)
        if capacity > self.capacity:
            add_free(self.links, self.capacity, capacity)
        else:
            self._grant.give((self.capacity - capacity) * BYTES_PER_SLOT)
        self.capacity = capacity

    def waiting(self) -> list[int]:
        """The waiting slots, oldest first. O(n), for checks."""
        return self._walk("newer", int(self.links.ends[OLDEST]))

    def check(self) -> None:
        """Assert that both directions tell the same story and that no slot is lost."""
        forward = self.waiting()
        backward = self._walk("older", int(self.links.ends[NEWEST]))
        free = self._walk("newer", int(self.links.ends[FREE]))
        free += range(int(self.links.ends[FRESH]), int(self.links.ends[LIMIT]))
        assert forward == backward[::-1]
        assert len(forward) == len(self)
        limit = int(self.links.ends[LIMIT])
        assert len(free) == self.free
        assert self.beyond == sum(slot >= limit for slot in forward)
        below = [slot for slot in forward if slot < limit]
        assert sorted(below + free) == list(range(limit))

    def _walk(self, towards: str, slot: int) -> list[int]:
        seen: list[int] = []
        following = self.links.links[towards].tolist()
        while slot != NONE:
            assert len(seen) < self.capacity, "the queue has a cycle"
            seen.append(slot)
            slot = following[slot]
        return seen
