"""Stream table: the hash table of waiting stream tuples (H, H_S in the papers).

A multi-hash-map: a bucket chains distinct codes, a code chains its tuples, oldest first, so
that a key with a hundred thousand waiting tuples costs its neighbours nothing. Everything is
an array indexed by slot.

With a master in key order the buckets are *clustered*: those of one partition's key range lie
together ("region"), between fences that are the partitions' first codes. A region in which many
codes wait gets more of them. A loaded partition
then probes a few kilobytes of buckets instead of all of them, and every tuple waiting in its
range can be found, also the ones whose key turns out not to exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream import kernels
from semistream.budget import Grant
from semistream.errors import InternalError
from semistream.kernels import NODE, NONE, Chains, Links
from semistream.kernels.ring import Ring, ring_expire
from semistream.kernels.step_state import Waiting, Window
from semistream.metrics import Recorder
from semistream.parts.output import Pairs
from semistream.parts.tuple_store import TupleLayout, TupleStore
from semistream.parts.tuple_table import TupleTable

BYTES_PER_SLOT = NODE.itemsize
"""Code, three links, and the time of entry with the matched flag."""
BYTES_PER_BUCKET = 4
_SCRATCH = 8192
_CROWDED = 3.0
"""With more codes to a bucket than this, buckets are spread anew."""
_SELDOM = 32
"""After so many fillings of the table at most it is looked at again."""


def bucket_count(capacity: int, regions: int) -> int:
    """How many buckets there are: one for two slots, and at least one for each region.

    Without regions, rows look for tuples, and most find none: then up to one for each slot.
    """
    return max(capacity // 2, regions) if regions > 1 else 1 << max(1, capacity.bit_length() - 1)


def table_bytes(
    capacity: int, fences: int, layout: TupleLayout, heap_bytes: int, cycle: int = 0
) -> int:
    """What a stream table with these sizes takes from its grant."""
    regions = max(fences, 1)
    buckets = bucket_count(capacity, regions)
    per_slot = BYTES_PER_SLOT + layout.slot_bytes
    scratch = min(_SCRATCH, max(capacity, 1))
    scratch = (scratch + max(scratch, cycle)) * 4
    links = (buckets + regions + 1) * BYTES_PER_BUCKET
    return capacity * per_slot + links + fences * 8 + heap_bytes + scratch


class StreamTable(TupleTable):
    """Tuples by slot and by code. The slots are chosen by whoever keeps their order."""

    slot_bytes = BYTES_PER_SLOT

    def __init__(
        self,
        capacity: int,
        fences: NDArray[np.int64],
        layout: TupleLayout,
        heap_bytes: int,
        grant: Grant,
        recorder: Recorder,
        cycle: int = 0,
    ) -> None:
        """An empty table; `fences` is empty unless the master is in key order.

        Tuples of a scan over `cycle` partitions leave in order, so nothing has to collect them. In
        place of that, the table has the numbers of tuples that entered at each partition.
        """
        regions = max(len(fences), 1)
        buckets = bucket_count(capacity, regions)
        own = table_bytes(capacity, len(fences), layout, heap_bytes, cycle)
        grant.take(own - capacity * layout.slot_bytes - heap_bytes)
        scratch = min(_SCRATCH, max(capacity, 1))
        store = TupleStore(layout, capacity, heap_bytes, grant)
        super().__init__(store, capacity, scratch, grant, recorder)
        self._fences = fences
        starts = (np.arange(regions + 1) * buckets // regions).astype(np.int32)
        self.chains = Chains(np.full(buckets, NONE, np.int32), np.zeros(capacity, NODE), starts)
        self._removed = np.empty(0 if cycle else scratch, np.int32)
        self.entered_at = np.zeros(cycle, np.int32)
        self._until_spread = self._spread_every = capacity

    def for_kernels(self, queue: Links) -> Waiting:
        """The table with its queue, for kernels that do a whole step."""
        return Waiting(self.chains, self._fences, queue, self._removed, self._lonely)

    def window(self, ring: Ring, w: int) -> Window:
        """The table with a scan's ring, for the same."""
        # Those that leave without a match can be written over those that leave.
        return Window(self.chains, self._fences, ring, self._lonely, self._lonely, w)

    @property
    def nodes(self) -> NDArray[Any]:
        """The nodes, by slot."""
        nodes: NDArray[Any] = self.chains.nodes
        return nodes

    @property
    def clustered(self) -> bool:
        """Whether buckets follow the master's key order."""
        return len(self._fences) > 0

    def spread(self) -> None:
        """Now and then: more buckets for regions where many codes wait, if some are crowded.

        Where frequent keys are neighbours, most tuples wait in a few regions. Nothing may go on
        that knows a bucket.
        """
        if not self.clustered or self._until_spread > 0:
            return
        if kernels.codes_to_pass(self.chains) > _CROWDED:
            kernels.spread_buckets(self.chains, self._fences)
        self._spread_every = min(2 * self._spread_every, _SELDOM * self.capacity)
        self._until_spread = self._spread_every

    def count_appends(self, count: int) -> None:
        """So many tuples have begun to wait."""
        super().count_appends(count)
        self._until_spread -= count

    def insert(
        self, slots: NDArray[np.int32], codes: NDArray[np.int64], batch: pa.RecordBatch
    ) -> None:
        """Put arriving tuples under their slots. O(1) per tuple on average."""
        self.spread()
        now = self._recorder.micros()
        kernels.insert(self.chains, self._fences, codes, slots, now)
        self.store.put(slots, batch)
        self.count_appends(len(slots))

    def pairs(
        self,
        region: int,
        codes: NDArray[np.int64],
        start: int,
        stop: int,
        pairs: Pairs,
        mark: bool,
    ) -> Iterator[int]:
        """Probe with master rows start..stop, writing (slot, row) pairs an array-full at a time.

        Yields how many `pairs` holds; they must be used before the next ones are asked for.
        With `mark` the tuples count as matched: codes are keys.
        """
        if self.clustered:
            yield from self._region_pairs(region, codes, start, stop, pairs, mark)
            return
        cursor = np.array([start, NONE], np.int64)
        self._recorder.probes += stop - start
        self._recorder.hash_probes += stop - start
        while cursor[0] < stop:
            found = kernels.probe(self.chains, 0, codes, stop, cursor, *pairs, mark)
            if found:
                yield found

    def _region_pairs(
        self,
        region: int,
        codes: NDArray[np.int64],
        start: int,
        stop: int,
        pairs: Pairs,
        mark: bool,
    ) -> Iterator[int]:
        """The same pairs, found from the side of the tuples that wait in the region."""
        begin, behind = self.chains.starts[region : region + 2].tolist()
        cursor = np.array([start, begin, NONE, start, NONE], np.int64)
        self._recorder.probes += stop - start
        while start < stop and cursor[1] < behind:
            found = kernels.probe_region(self.chains, region, codes, stop, cursor, *pairs, mark)
            if found:
                yield found

    def found_pairs(
        self,
        codes: NDArray[np.int64],
        counts: NDArray[np.int32],
        waits: NDArray[np.int32],
        pairs: Pairs,
        mark: bool,
    ) -> Iterator[int]:
        """Pair waiting tuples with rows that are numbered code by code, `counts` of each code.

        Writes to `waits` how many tuples wait for each code that has rows; otherwise as `pairs`.
        """
        cursor = np.array([0, 0, 0, NONE], np.int64)
        while cursor[0] < len(codes):
            found = kernels.pair_codes(
                self.chains, self._fences, codes, counts, waits, cursor, *pairs, mark
            )
            if found:
                yield found

    def regions_from(
        self, links: Links, slot: int, marked: NDArray[np.uint8], most: int, most_steps: int
    ) -> NDArray[np.int64]:
        """The regions of the tuple in `slot` and of newer ones, at most `most`, each once.

        Passes over regions that are marked, marks those it returns, and looks at `most_steps`
        tuples at most.
        """
        regions = np.empty(most, np.int64)
        nodes, fences = self.chains.nodes, self._fences
        count = kernels.regions_from(links, slot, nodes, fences, marked, regions, most_steps)
        return regions[:count]

    def codes_in(
        self,
        regions: NDArray[np.int64],
        low: NDArray[np.int64],
        high: NDArray[np.int64],
        codes: NDArray[np.int64],
        ends: NDArray[np.int64],
    ) -> int:
        """See `CodesByRegion`."""
        return kernels.codes_in_regions(self.chains, regions, low, high, codes, ends)

    def region(self, code: int) -> int:
        """The region whose buckets hold `code`. O(log regions)."""
        return int(kernels.region_of(self._fences, code))

    def remove_ranges(
        self, regions: NDArray[np.int64], lows: NDArray[np.int64], highs: NDArray[np.int64]
    ) -> Iterator[NDArray[np.int32]]:
        """Unlink every tuple of a region with low <= code <= high; yields their slots."""
        cursor = np.zeros(1, np.int64)
        while count := kernels.remove_ranges(
            self.chains, regions, lows, highs, cursor, self._removed
        ):
            yield self._removed[:count]

    def remove_codes(self, codes: NDArray[np.int64]) -> Iterator[NDArray[np.int32]]:
        """Unlink every tuple with one of these codes; yields their slots."""
        while count := kernels.remove_codes(self.chains, self._fences, codes, self._removed):
            yield self._removed[:count]

    def remove_expired_of(self, ring: Ring) -> Iterator[NDArray[np.int32]]:
        """Unlink the tuples that have waited in a scan's window for a cycle; yields their slots."""
        slots: NDArray[np.int32] = np.empty(len(self._lonely), np.int32)
        while count := ring_expire(ring, slots):
            self.remove_expired(slots[:count])
            yield slots[:count]

    def remove_expired(self, slots: NDArray[np.int32]) -> None:
        """Unlink the longest-waiting tuples, given oldest first."""
        if not kernels.remove_oldest_of_code(self.chains, self._fences, slots):
            raise InternalError("A tuple expired before an older one of its key.")

    def waiting(self) -> dict[int, list[int]]:
        """Code → slots in the order of the chain. O(n), for checks."""
        nodes = self.chains.nodes
        codes, next_key = nodes["code"].tolist(), nodes["next_key"].tolist()
        next_same, last_same = nodes["next_same"].tolist(), nodes["last_same"].tolist()
        found: dict[int, list[int]] = {}
        for bucket, first in enumerate(self.chains.heads.tolist()):
            while first != NONE:
                code = codes[first]
                assert code not in found, "a code stands in two chains"
                assert self._bucket(code) == bucket, "a code stands in another's bucket"
                found[code] = chain = self._followed(first, next_same)
                assert all(codes[slot] == code for slot in chain), "a chain has two codes"
                assert chain[-1] == last_same[first]
                first = next_key[first]
        return found

    def held(self) -> list[int]:
        """The slots of all waiting tuples, sorted, once the chains are known to be whole."""
        slots = sorted(slot for chain in self.waiting().values() for slot in chain)
        assert len(slots) == len(set(slots)) <= self.capacity
        return slots

    def check(self) -> None:
        """Assert that chains are whole: every code once, in its bucket, tail where it should be."""
        self.held()
        self.store.check()

    def _bucket(self, code: int) -> int:
        return int(kernels.bucket_of(self.chains.starts, self.region(code), code))

    def _followed(self, slot: int, following: list[int]) -> list[int]:
        chain: list[int] = []
        while slot != NONE:
            assert len(chain) < self.capacity, "a chain has a cycle"
            chain.append(slot)
            slot = following[slot]
        return chain
