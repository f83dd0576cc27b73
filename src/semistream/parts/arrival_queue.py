"""Arrival queue: the order in which waiting stream tuples came.

HYBRIDJOIN asks it for the oldest and deletes from anywhere, so it is a list linked both ways,
through two arrays indexed by stream-table slot (Naeem et al. 2011, §4.1: Q). It also knows
which slots are free: they are chained through the array that a waiting slot uses for its
newer neighbour.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semistream.budget import Grant
from semistream.kernels import COUNT, FREE, LINK, NEWEST, NONE, OLDEST, Links, append, unlink

BYTES_PER_SLOT = LINK.itemsize
"""Two int32 links."""


class ArrivalQueue:
    """Slots in arrival order; append, remove and oldest in O(1) per slot."""

    def __init__(self, capacity: int, grant: Grant) -> None:
        """All `capacity` slots are free."""
        grant.take(capacity * BYTES_PER_SLOT)
        self.capacity = capacity
        links = np.zeros(capacity, LINK)
        links["older"] = NONE
        links["newer"] = np.arange(1, capacity + 1)
        links["newer"][-1:] = NONE
        ends = np.array([NONE, NONE, 0 if capacity else NONE, 0], np.int64)
        self.links = Links(links, ends)

    def __len__(self) -> int:
        """How many slots wait."""
        return int(self.links.ends[COUNT])

    @property
    def free(self) -> int:
        """How many slots do not."""
        return self.capacity - len(self)

    def oldest(self) -> int:
        """The slot that has waited longest, or NONE."""
        return int(self.links.ends[OLDEST])

    def append(self, count: int) -> NDArray[np.int32]:
        """Queue `count` free slots as the newest and return them."""
        if count > self.free:
            raise ValueError(f"{count} tuples arrive, {self.free} slots are free")
        slots = np.empty(count, np.int32)
        append(self.links, slots)
        return slots

    def remove(self, slots: NDArray[np.int32]) -> None:
        """Take waiting slots out, wherever they stand; they are free again."""
        unlink(self.links, slots)

    def waiting(self) -> list[int]:
        """The waiting slots, oldest first. O(n), for checks."""
        return self._walk("newer", int(self.links.ends[OLDEST]))

    def check(self) -> None:
        """Assert that both directions tell the same story and that no slot is lost."""
        forward = self.waiting()
        backward = self._walk("older", int(self.links.ends[NEWEST]))
        free = self._walk("newer", int(self.links.ends[FREE]))
        assert forward == backward[::-1]
        assert len(forward) == len(self)
        assert sorted(forward + free) == list(range(self.capacity))

    def _walk(self, towards: str, slot: int) -> list[int]:
        seen: list[int] = []
        while slot != NONE:
            assert len(seen) < self.capacity, "the queue has a cycle"
            seen.append(slot)
            slot = int(self.links.links[slot][towards])
        return seen
