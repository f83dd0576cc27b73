"""Kept rows: master rows by key, for the front stage.

A key is kept with all its master rows or not at all, so that a hit needs no look at the disk.
The *frequency recorder* of Naeem et al. 2017 is two numbers per key: hits in this turn, which
the probing kernel counts, and the frequency of the last turn.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream import kernels
from semistream.arrow_arrays import to_arrow
from semistream.budget import Grant
from semistream.kernels import NODE, NONE, Chains
from semistream.kernels.rows import GRANULE
from semistream.parts.admission import Floats
from semistream.parts.output import Pairs
from semistream.parts.row_arena import SPARE_FACTOR, Chosen, LaidOut, RowArena, RowLayout
from semistream.parts.stream_table import bucket_count
from semistream.parts.tuple_heap import BYTES_PER_SLOT as HEAP_BYTES_PER_SLOT
from semistream.parts.tuple_heap import TupleHeap
from semistream.parts.tuple_table import uncached_share
from semistream.row_bytes import row_bytes

Slots = NDArray[np.int32]

BYTES_PER_ROW = NODE.itemsize + HEAP_BYTES_PER_SLOT + 4 + 4 + 12 + 2
"""Node, place of the row, bucket, free list, three numbers and two flags, per kept row."""
_OWN_BYTES_PER_ROW = BYTES_PER_ROW - HEAP_BYTES_PER_SLOT - 4
"""Those that are neither the heap's nor buckets."""
_NO_FENCES: NDArray[np.int64] = np.empty(0, np.int64)


def front_stage_bytes(rows: int, most_rows: int, heap_bytes: int) -> int:
    """What a front stage takes for `rows` rows, with buckets for the `most_rows` it may get."""
    return rows * (BYTES_PER_ROW - 4) + bucket_count(most_rows, 1) * 4 + heap_bytes


def kept_bytes(kept: pa.Schema, stored: pa.Schema, rows: float, stored_bytes: float) -> float:
    """About what rows take here, spare room included, that take `stored_bytes` on their pages."""
    if not RowLayout.holds(kept):
        return stored_bytes * 1.5
    all_columns, layout = RowLayout.of_known(stored), RowLayout(kept)
    varying = max(0.0, stored_bytes - rows * all_columns.head)
    share = len(layout.varying) / max(len(all_columns.varying), 1)
    return (rows * (layout.head + GRANULE / 2) + varying * min(share, 1.0)) * SPARE_FACTOR


class KeptRows:
    """Master rows by key: found whole, replaced whole."""

    def __init__(
        self,
        schema: pa.Schema,
        capacity: int,
        heap_bytes: int,
        grant: Grant,
        most_rows: int,
    ) -> None:
        """Room for `capacity` rows in `heap_bytes`; it may grow to `most_rows`."""
        self.capacity = capacity
        buckets = bucket_count(most_rows, 1)
        own = front_stage_bytes(capacity, most_rows, 0)
        grant.take(own - capacity * HEAP_BYTES_PER_SLOT)
        self._grant = grant
        self._schema = schema
        self.columns = schema.names
        self.heap: RowArena | TupleHeap
        if RowLayout.holds(schema):
            self.heap = RowArena(schema, capacity, heap_bytes, grant)
        else:
            self.heap = TupleHeap(schema, capacity, heap_bytes, grant, segments=4)
        heads, starts = np.full(buckets, NONE, np.int32), np.array([0, buckets], np.int32)
        self.chains = Chains(heads, np.zeros(capacity, NODE), starts)
        self._free = np.arange(capacity - 1, -1, -1, dtype=np.int32)
        self.free = capacity
        self._frequency = np.zeros(capacity, np.float32)
        self._key_bytes = np.zeros(capacity, np.float32)
        self.row_bytes = np.zeros(capacity, np.float32)
        self._is_first = np.zeros(capacity, np.bool_)
        self._is_new = np.zeros(capacity, np.bool_)

    def __len__(self) -> int:
        """How many rows are kept."""
        return self.capacity - self.free

    def probe(
        self,
        codes: NDArray[np.int64],
        cursor: NDArray[np.int64],
        missed: NDArray[np.bool_],
        pairs: Pairs,
    ) -> int:
        """Pair arriving codes with kept rows, by slot, and count the hits; O(1) per code."""
        return kernels.probe_front(self.chains, codes, cursor, missed, *pairs)

    @property
    def uncached_share(self) -> float:
        """The share of it that the processor's caches do not hold."""
        return uncached_share(self._grant.bytes)

    def sizes(self, slots: Slots) -> Floats:
        """Bytes of the rows in some slots."""
        return self.row_bytes[slots].astype(np.float64)

    def lacks(self, codes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which codes are not kept."""
        slots = np.empty(len(codes), np.int32)
        kernels.find_codes(self.chains, codes, slots)
        return np.equal(slots, NONE)

    def keys(self) -> Slots:
        """The first slot of each kept key."""
        return np.flatnonzero(self._is_first).astype(np.int32)

    def codes(self, firsts: Slots) -> NDArray[np.int64]:
        """The codes of kept keys."""
        codes = np.empty(len(firsts), np.int64)
        kernels.gather_codes(self.chains.nodes, firsts, codes)
        return codes

    def frequency(self, firsts: Slots) -> Floats:
        """Hits per turn: of the last turn, or of this one where that is already more."""
        hits = self.chains.nodes["stamp"][firsts]
        return np.asarray(np.maximum(self._frequency[firsts], hits), np.float64)

    def share_of_most(self, part: float) -> float:
        """The share of all hits that the most frequent `part` of the keys has."""
        hits = np.sort(self.frequency(self.keys()))[::-1]
        return float(hits[: int(len(hits) * part)].sum() / max(hits.sum(), 1.0))

    def key_bytes(self, firsts: Slots) -> Floats:
        """Bytes that each key takes with all its rows."""
        return self._key_bytes[firsts].astype(np.float64)

    def turn(self) -> None:
        """The hits of this turn are the frequencies from now on.

        A key that came in during the turn keeps the frequency it came with, if that is more.
        """
        hits = self.chains.nodes["stamp"]
        before = np.where(self._is_new, self._frequency, 0)
        np.maximum(before, hits, out=self._frequency, casting="unsafe")
        self._is_new[:] = False
        self.chains.nodes["stamp"] = 0

    def insert(
        self,
        codes: NDArray[np.int64],
        counts: NDArray[np.int32],
        frequency: Floats,
        chosen: Chosen | LaidOut | pa.RecordBatch,
    ) -> int:
        """Keep keys with `counts` of the chosen rows each, as far as their bytes fit; how many did.

        There must be slots for all of them.
        """
        if isinstance(self.heap, TupleHeap):
            sizes, count = row_bytes(chosen), self.heap.how_many_fit(chosen)
        else:
            sizes = self.heap.sizes(chosen)
            count = self.heap.how_many_fit(sizes)
        if count < len(sizes):
            keys = int(np.searchsorted(np.cumsum(counts), count, side="right"))
            codes, counts, frequency = codes[:keys], counts[:keys], frequency[:keys]
            count = int(counts.sum())
        if count:
            slots = self._put(chosen, sizes[:count])
            self._enter(codes, counts, frequency, slots, sizes[:count])
        return len(codes)

    def chosen(self, batch: pa.RecordBatch, rows: NDArray[np.int64]) -> Chosen | pa.RecordBatch:
        """Some rows of a batch that has the kept columns, to be inserted."""
        if isinstance(self.heap, TupleHeap):
            return batch.take(to_arrow(rows))
        return self.heap.layout.chosen(batch, rows)

    def _put(self, chosen: Chosen | LaidOut | pa.RecordBatch, sizes: Floats) -> Slots:
        """Copy the first rows, of these sizes, to free slots, which are returned."""
        count = len(sizes)
        self.free -= count
        slots = self._free[self.free : self.free + count][::-1].copy()
        if isinstance(self.heap, TupleHeap):
            assert isinstance(chosen, pa.RecordBatch)
            self.heap.put(slots, chosen.slice(0, count))
        else:
            self.heap.put(slots, chosen.first(count), sizes)
        return slots

    def _enter(
        self,
        codes: NDArray[np.int64],
        counts: NDArray[np.int32],
        frequency: Floats,
        slots: Slots,
        sizes: Floats,
    ) -> None:
        """Make keys known whose rows have been put."""
        row_codes = np.repeat(codes, counts)
        row_codes.flags.writeable = False
        kernels.insert(self.chains, _NO_FENCES, row_codes, slots, 0)
        starts = np.cumsum(counts) - counts
        firsts = slots[starts]
        self.row_bytes[slots] = sizes
        self._is_first[firsts] = True
        self._is_new[firsts] = True
        self._frequency[firsts] = frequency
        self._key_bytes[firsts] = np.add.reduceat(sizes, starts) + counts * BYTES_PER_ROW

    def evict(self, firsts: Slots) -> None:
        """Let keys go, with all their rows."""
        codes = self.codes(firsts)
        codes.flags.writeable = False
        removed = np.empty(len(self), np.int32)
        count = kernels.remove_codes(self.chains, _NO_FENCES, codes, removed)
        removed = removed[:count]
        self.heap.release(removed)
        self._is_first[firsts] = False
        self._is_new[firsts] = False
        self._frequency[removed] = 0
        self.chains.nodes["stamp"][removed] = 0
        self._free[self.free : self.free + count] = removed
        self.free += count

    def suits(self, schema: pa.Schema, most_rows: int) -> bool:
        """Whether rows of this schema can be kept here, and so many of them."""
        buckets = bucket_count(most_rows, 1)
        return len(self.chains.heads) == buckets and self._schema.equals(schema)

    def move_to(self, grant: Grant, capacity: int, heap_bytes: int) -> None:
        """Belong to another budget, with this much room; the least frequent keys go if need be."""
        fewer, less = min(capacity, self.capacity), min(heap_bytes, self.heap.arena_bytes)
        if fewer < self.capacity or less < self.heap.arena_bytes:
            self._shrink(fewer, less)
            self._fit(fewer, less)
        own = self.chains.heads.nbytes + self.capacity * _OWN_BYTES_PER_ROW
        grant.take(own)
        self._grant.give(own)
        self._grant = grant
        self.heap.belong_to(grant)
        self._fit(capacity, heap_bytes)

    def resize(self, capacity: int, heap_bytes: int) -> None:
        """Have room for more or fewer rows; if fewer, the least frequent keys go."""
        if capacity < self.capacity:
            self._shrink(capacity, heap_bytes)
        self._fit(capacity, heap_bytes)

    def _fit(self, capacity: int, heap_bytes: int) -> None:
        """Have as many slots and bytes as this; those that go must be free."""
        before = self.capacity
        per_row = _OWN_BYTES_PER_ROW
        if capacity > before:
            self._grant.take((capacity - before) * per_row)
        self.chains.nodes.resize(capacity, refcheck=False)
        for numbers in (
            self._free,
            self._frequency,
            self._key_bytes,
            self.row_bytes,
            self._is_first,
            self._is_new,
        ):
            numbers.resize(capacity, refcheck=False)
        self.heap.resize(capacity, heap_bytes)
        if capacity > before:
            self._free[self.free : self.free + capacity - before] = np.arange(before, capacity)
            self.free += capacity - before
        else:
            self._grant.give((before - capacity) * per_row)
        self.capacity = capacity

    def _shrink(self, capacity: int, heap_bytes: int) -> None:
        """Evict until the rest fits, and move it to the lowest slots."""
        firsts = self.keys()
        firsts = firsts[np.argsort(-self.frequency(firsts), kind="stable")]
        self.heap.set_bytes(heap_bytes)
        total = np.cumsum(self._key_bytes[firsts])
        most = np.searchsorted(total, capacity * total[-1] / len(self)) if len(firsts) else 0
        self.evict(firsts[most:])
        while not self.heap.fits and most:
            if not self.heap.compact():
                self.evict(firsts[most // 2 : most])
                most //= 2
        while len(self) > capacity:
            self.evict(firsts[most // 2 : most])
            most //= 2
        firsts = firsts[:most]
        codes = self.codes(firsts)
        codes.flags.writeable = False
        hits = self.chains.nodes["stamp"].copy()
        old = np.empty(len(self) + 1, np.int32)
        old = old[: kernels.remove_codes(self.chains, _NO_FENCES, codes, old)]
        new = np.arange(len(old), dtype=np.int32)
        row_codes = np.empty(len(old), np.int64)
        kernels.gather_codes(self.chains.nodes, old, row_codes)
        row_codes.flags.writeable = False
        self.heap.move(old, new)
        for numbers in (
            self._frequency,
            self._key_bytes,
            self.row_bytes,
            self._is_first,
            self._is_new,
        ):
            numbers[new] = numbers[old]
            numbers[len(old) :] = 0
        kernels.insert(self.chains, _NO_FENCES, row_codes, new, 0)
        self.chains.nodes["stamp"] = 0
        self.chains.nodes["stamp"][new] = hits[old]
        self.free = capacity - len(old)
        self._free[: self.free] = np.arange(len(old), capacity)

    def check(self) -> None:
        """Assert that keys, rows, heap and free list agree."""
        self.heap.check()
        seen: list[int] = []
        for head in self.chains.heads.tolist():
            first = head
            while first != NONE:
                assert self._is_first[first], "a chain begins with a row that is no key's first"
                slot = first
                while slot != NONE:
                    seen.append(slot)
                    slot = int(self.chains.nodes[slot]["next_same"])
                first = int(self.chains.nodes[first]["next_key"])
        free = self._free[: self.free].tolist()
        assert sorted(seen + free) == list(range(self.capacity))
