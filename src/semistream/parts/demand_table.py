"""Demand table: waiting stream tuples, grouped by the partition of R that they need.

DEMANDJOIN asks two things of its waiting tuples: for which partition is the demand greatest, and
which tuples does this partition settle. So a slot needs a code and a link to the next tuple of its
group, 16 bytes with its time of entry, where a hash table with an arrival queue needs 36. In the
same memory more tuples wait, and share each read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.budget import Grant
from semistream.kernels import NONE
from semistream.kernels import demand as kernels
from semistream.kernels.demand import (
    BEYOND,
    ENTERED,
    FREE,
    FREE_COUNT,
    FRESH,
    GROUP,
    LIMIT,
    SCALARS,
    TUPLE,
    WAITING,
    WRAP,
)
from semistream.metrics import Recorder
from semistream.parts.look_up_set import LookUpSet
from semistream.parts.output import Pairs
from semistream.parts.tuple_store import TupleLayout, TupleStore
from semistream.parts.tuple_table import TupleTable

Numbers = NDArray[np.int32]
Codes = NDArray[np.int64]
Places = Callable[[Codes], Numbers]
"""Tells the group of each code."""

BYTES_PER_SLOT = TUPLE.itemsize
"""Code, link, and the time of entry with the matched flag."""
_SCRATCH = 1024
LONGEST_WAIT = 2.5
"""A tuple waits until about so many times as many as there are slots have entered, at most."""
_TURN = 2.0
"""In a turn of the front stage, about so many times as many tuples enter as there are slots."""


def demand_bytes(
    capacity: int, groups: int, fences: int, layout: TupleLayout, heap_bytes: int
) -> int:
    """What a demand table with these sizes takes from its grant, with `fences` between groups."""
    scratch = min(_SCRATCH, max(capacity, 1)) * 4
    per_slot = BYTES_PER_SLOT + layout.slot_bytes
    return capacity * per_slot + groups * GROUP.itemsize + fences * 8 + heap_bytes + scratch


class DemandTable(TupleTable):
    """Tuples by slot and by group; it gives out the slots itself."""

    slot_bytes = BYTES_PER_SLOT

    def __init__(
        self,
        capacity: int,
        groups: int,
        fences: int,
        places: Places,
        layout: TupleLayout,
        heap_bytes: int,
        grant: Grant,
        recorder: Recorder,
    ) -> None:
        """An empty table; `places` tells the group of a code, by means of so many fences."""
        own = demand_bytes(capacity, groups, fences, layout, heap_bytes)
        grant.take(own - capacity * layout.slot_bytes - heap_bytes)
        store = TupleStore(layout, capacity, heap_bytes, grant)
        super().__init__(store, capacity, min(_SCRATCH, max(capacity, 1)), grant, recorder)
        self._places = places
        ends = np.zeros(SCALARS, np.int64)
        ends[FREE], ends[FREE_COUNT], ends[LIMIT] = NONE, capacity, capacity
        self._demand = kernels.Demand(np.zeros(capacity, TUPLE), np.zeros(groups, GROUP), ends)
        self._demand.groups["head"] = NONE

    def __len__(self) -> int:
        """How many tuples wait."""
        return int(self._demand.ends[WAITING])

    @property
    def nodes(self) -> NDArray[Any]:
        """The nodes, by slot."""
        nodes: NDArray[Any] = self._demand.tuples
        return nodes

    @property
    def free(self) -> int:
        """How many slots can be given out."""
        return int(self._demand.ends[FREE_COUNT])

    def enter(self, codes: Codes, batch: pa.RecordBatch) -> None:
        """Put arriving tuples into their groups; O(1) per tuple, and a search for its group."""
        slots = np.empty(len(codes), np.int32)
        kernels.enter(self._demand, codes, self._places(codes), slots, self._recorder.micros())
        self.store.put(slots, batch)
        self.count_appends(len(slots))
        self._recorder.grouped += len(slots)

    def most_demanded(self, marked: NDArray[np.uint8], most: int, most_tuples: int) -> Codes:
        """The groups for which the demand is greatest, in ascending order. O(groups).

        Passes over groups that are marked, and marks those it returns.
        """
        regions, bound = np.empty(most, np.int64), int(LONGEST_WAIT * self.capacity)
        count = kernels.most_demanded(self._demand, marked, most_tuples, bound, regions)
        marked[regions[:count]] = 1
        return regions[:count]

    def codes_in(self, regions: Codes, low: Codes, high: Codes, codes: Codes, ends: Codes) -> int:
        """See `CodesByRegion`; the codes of a region are ascending."""
        return kernels.codes_of_groups(self._demand, regions, low, high, codes, ends)

    def take_found(self, look_ups: LookUpSet, pairs: Pairs) -> Iterator[tuple[Numbers, Numbers]]:
        """Take out the tuples whose codes were looked up, an array-full of `pairs` at a time.

        Yields their slots, and the place of each one's code in the set.
        """
        cursor, ends = np.zeros(1, np.int64), look_ups.wanted.ends
        regions, codes = look_ups.partitions, look_ups.codes
        while count := kernels.take_found(
            self._demand, regions, codes, ends, cursor, pairs.tuples, pairs.rows
        ):
            yield pairs.tuples[:count], pairs.rows[:count]

    def take_codes(
        self, region: int, codes: list[int], pairs: Pairs, *, among: bool
    ) -> Iterator[Numbers]:
        """Take out the tuples of a group whose code is, or is not, `among` a few codes."""
        few = np.array(codes, np.int64)
        while count := kernels.take_codes(self._demand, region, few, among, pairs.tuples):
            yield pairs.tuples[:count]

    def unmarked(self) -> NDArray[np.uint8]:
        """A mark per group, none of which is set."""
        return np.zeros(len(self._demand.groups), np.uint8)

    def turns_waited(self, regions: Codes) -> NDArray[np.float64]:
        """For how many turns of a front stage the first tuple of each group has waited."""
        since = self._demand.groups["since"][regions].astype(np.int64)
        ages: NDArray[np.float64] = np.maximum((self._demand.ends[ENTERED] - since) & WRAP, 1.0)
        return ages / (_TURN * self.capacity)

    def waits_for(self, region: int) -> bool:
        """Whether some tuple waits in a group."""
        return bool(self._demand.groups[region]["count"])

    def release(self, slots: Numbers) -> None:
        """Finished tuples, which are in no group any more, leave their slots free."""
        super().release(slots)
        kernels.release(self._demand, slots)

    def longest_waiting(self) -> int:
        """The slot of the tuple that entered first; there must be one. O(n)."""
        return kernels.longest_waiting(self._demand, self._recorder.micros())

    def limit(self, capacity: int) -> None:
        """Give out only slots below `capacity` from now on. O(n)."""
        kernels.set_limit(self._demand, capacity)

    @property
    def beyond(self) -> int:
        """How many tuples still wait in slots beyond the limit."""
        return int(self._demand.ends[BEYOND])

    def resize(self, capacity: int, heap_bytes: int) -> None:
        """Have more or fewer slots; those beyond must be free, and given out no more."""
        more = capacity - self.capacity
        super().resize(capacity, heap_bytes)
        self._demand.ends[FREE_COUNT] += max(more, 0)
        self._demand.ends[LIMIT] = capacity

    def waiting(self) -> dict[int, list[int]]:
        """Group → slots, newest first. O(n), for checks."""
        following, heads = self.nodes["next"].tolist(), self._demand.groups["head"].tolist()
        return {group: self._followed(slot, following) for group, slot in enumerate(heads)}

    def check(self) -> None:
        """Assert that groups are whole, and that each slot waits, is on its way out, or is free."""
        waiting, ends, groups = self.waiting(), self._demand.ends, self._demand.groups
        slots = [slot for chain in waiting.values() for slot in chain]
        assert [len(chain) for chain in waiting.values()] == groups["count"].tolist()
        leaving, limit = len(self) - len(slots), int(ends[LIMIT])
        below = [slot for slot in slots if slot < limit]
        beyond = len(slots) - len(below)
        free = self._followed(int(ends[FREE]), self.nodes["next"].tolist())
        free += range(int(ends[FRESH]), limit)
        assert len(free) == self.free
        assert beyond <= self.beyond <= beyond + leaving
        held = below + free
        assert len(set(held)) == len(held)
        assert set(held) <= set(range(limit))
        assert limit - len(held) == leaving - (self.beyond - beyond)
        self.store.check()

    def _followed(self, slot: int, following: list[int]) -> list[int]:
        chain: list[int] = []
        while slot != NONE:
            assert len(chain) < self.capacity, "a chain has a cycle"
            chain.append(slot)
            slot = following[slot]
        return chain
