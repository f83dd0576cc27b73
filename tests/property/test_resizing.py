"""Parts that give memory to each other while tuples wait: nothing is lost, grants are exact.

The queue moves together with its table, as `Rebalancer` does it: first a lower limit, and only
when nothing waits beyond it the memory goes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from semistream.arrow_arrays import no_rows
from semistream.budget import MemoryBudget
from semistream.errors import BudgetError
from semistream.metrics import Recorder
from semistream.parts import arrival_queue
from semistream.parts.arrival_queue import ArrivalQueue
from semistream.parts.disk_buffer import Partition
from semistream.parts.scan_window import ScanWindow
from semistream.parts.stream_buffer import Arrivals
from semistream.parts.stream_table import BYTES_PER_SLOT, StreamTable, table_bytes
from semistream.parts.tuple_heap import BYTES_PER_SLOT as HEAP_BYTES_PER_SLOT
from semistream.parts.tuple_heap import TupleHeap
from semistream.parts.tuple_store import TupleLayout
from semistream.testing import ManualClock

CODES = st.integers(0, 12)
SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int32()), ("s", pa.string())])
HEAP_PER_SLOT = 64
LARGEST = 60


class Shape(NamedTuple):
    """What a tuple layout wants to know of a join."""

    plain_schema: pa.Schema
    stored_key: str | None


LAYOUT = TupleLayout(Shape(SCHEMA, "id"))  # type: ignore[arg-type]


def frozen(codes: list[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    array = np.array(codes, np.int64)
    array.flags.writeable = False
    return array


def tuples(codes: list[int], serial: int) -> list[dict[str, Any]]:
    """Rows that differ, some with nulls, in columns of both kinds."""
    return [
        {
            "id": code,
            "n": None if (serial + i) % 7 == 0 else serial + i,
            "s": None if (serial + i) % 5 == 0 else f"{serial + i}" * (1 + i % 3),
        }
        for i, code in enumerate(codes)
    ]


def grown_bytes(begun: int, fences: int, capacity: int, cycle: int = 0) -> int:
    """A table that began with so many slots and has `capacity` now: its buckets are the first's."""
    per_slot = BYTES_PER_SLOT + LAYOUT.slot_bytes + HEAP_PER_SLOT
    first = table_bytes(begun, fences, LAYOUT, begun * HEAP_PER_SLOT, cycle)
    return first + (capacity - begun) * per_slot


class QueueAndTable(RuleBasedStateMachine):
    """Tuples wait in slots that the queue gives out and the table fills."""

    @initialize(capacity=st.integers(1, 30), fenced=st.booleans())
    def begin(self, capacity: int, fenced: bool) -> None:
        fences = frozen([0, 4, 9] if fenced else [])
        self.budget = MemoryBudget(1 << 20)
        self.recorder = Recorder(ManualClock())
        self.table = StreamTable(
            capacity,
            fences,
            LAYOUT,
            capacity * HEAP_PER_SLOT,
            self.budget.grant("stream table"),
            self.recorder,
        )
        self.queue = ArrivalQueue(capacity, self.budget.grant("arrival queue"))
        self.begun, self.fences = capacity, len(fences)
        self.capacity = self.limit = capacity
        self.waiting: dict[int, Any] = {}
        self.arrived = 0

    @rule(codes=st.lists(CODES, max_size=10))
    def arrive(self, codes: list[int]) -> None:
        codes = codes[: self.queue.free]
        rows = tuples(codes, self.arrived)
        batch = pa.RecordBatch.from_pylist(rows, SCHEMA)
        count = self.table.store.how_many_fit(batch)
        slots = self.queue.append(count)
        assert (slots < self.limit).all(), "a slot beyond the limit was given out"
        self.table.insert(slots, frozen(codes[:count]), batch.slice(0, count))
        self.waiting |= dict(zip(slots.tolist(), rows[:count], strict=True))
        self.arrived += count

    @rule(code=CODES)
    def leave(self, code: int) -> None:
        """All tuples of a code have met their master row."""
        gone = []
        for slots in self.table.remove_codes(frozen([code])):
            gone += slots.tolist()
            self.queue.remove(slots)
            self.table.finish(slots)
            self.table.release(slots)
        assert sorted(gone) == sorted(s for s, row in self.waiting.items() if row["id"] == code)
        for slot in gone:
            del self.waiting[slot]

    @rule(count=st.integers(1, 8))
    def shed_the_oldest(self, count: int) -> None:
        slots = self.queue.oldest_slots(count)
        assert slots.tolist() == list(self.waiting)[:count]
        self.table.remove_expired(slots)
        self.table.release(slots)
        self.queue.remove(slots)
        for slot in slots.tolist():
            del self.waiting[slot]

    @precondition(lambda self: self.limit == self.capacity)
    @rule(data=st.data())
    def ask_for_fewer(self, data: st.DataObject) -> None:
        self.limit = data.draw(st.integers(0, self.capacity))
        self.queue.limit(self.limit)
        assert self.queue.beyond == sum(slot >= self.limit for slot in self.waiting)

    @precondition(lambda self: self.limit < self.capacity)
    @rule()
    def give_memory_away(self) -> None:
        """As soon as nothing waits beyond, and the heap's rows fit into less."""
        heap = self.limit * HEAP_PER_SLOT
        if self.queue.beyond or not self.table.store.lower_heap(heap):
            return
        self.move(self.limit)

    @precondition(lambda self: self.limit == self.capacity)
    @rule(more=st.integers(0, 12))
    def get_memory(self, more: int) -> None:
        if self.capacity + more <= LARGEST:
            free = self.queue.free
            self.move(self.capacity + more)
            assert self.queue.free == free + more

    def move(self, capacity: int) -> None:
        self.table.resize(capacity, capacity * HEAP_PER_SLOT)
        self.queue.resize(capacity)
        self.capacity = self.limit = capacity

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "queue"):
            return
        self.queue.check()
        self.table.check()
        slots = self.queue.waiting()
        assert slots == list(self.waiting), "the order of arrival is another"
        held = sorted(slot for chain in self.table.waiting().values() for slot in chain)
        assert held == sorted(slots)
        assert self.table.gather(np.array(slots, np.int32)).to_pylist() == [*self.waiting.values()]

    @invariant()
    def grants_are_exact(self) -> None:
        if not hasattr(self, "queue"):
            return
        self.budget.check()
        parts = self.budget.by_part()
        assert parts["arrival queue"] == self.capacity * arrival_queue.BYTES_PER_SLOT
        assert parts["stream table"] == grown_bytes(self.begun, self.fences, self.capacity)
        assert self.table.capacity == self.queue.capacity == self.capacity


class Stream:
    """Gives what is to arrive next, and takes back what had no room."""

    def __init__(self) -> None:
        self.rows: deque[Any] = deque()
        self.last: list[Any] = []
        none = pa.RecordBatch.from_pylist([], SCHEMA)
        self.nothing = Arrivals(none, frozen([]), none, 0)
        self.ended = self.paused = False
        self.held = 0

    def read(self, limit: int) -> Iterator[Arrivals]:
        self.last = [self.rows.popleft() for _ in range(min(limit, len(self.rows)))]
        batch = pa.RecordBatch.from_pylist(self.last, SCHEMA)
        codes = frozen([row["id"] for row in self.last])
        yield Arrivals(batch, codes, self.nothing.batch, HEAP_PER_SLOT)

    def put_back(self, count: int) -> None:
        for _ in range(count):
            self.rows.appendleft(self.last.pop())

    def resume(self) -> None:
        """It never pauses."""


class Silent:
    """The prober and the output of a window whose results nobody looks at."""

    def __init__(self, table: StreamTable) -> None:
        self.table = table
        self.finished: list[int] = []

    def arrived(self, arrivals: Arrivals) -> Iterator[pa.RecordBatch]:
        return iter(())

    def probe(self, *_: object) -> Iterator[pa.RecordBatch]:
        return iter(())

    def finish(self, slots: np.ndarray[Any, np.dtype[np.int32]]) -> Iterator[pa.RecordBatch]:
        self.table.finish(slots)
        self.table.release(slots)
        self.finished += slots.tolist()
        return iter(())


class WindowMachine(RuleBasedStateMachine):
    """MESHJOIN's ring, with chunks that enter and expire while its end moves."""

    @initialize(capacity=st.integers(1, 30), cycle=st.integers(1, 6))
    def begin(self, capacity: int, cycle: int) -> None:
        self.budget = MemoryBudget(1 << 20)
        none = frozen([])
        heap = capacity * HEAP_PER_SLOT
        grant = self.budget.grant("stream table")
        recorder = Recorder(ManualClock())
        self.table = StreamTable(capacity, none, LAYOUT, heap, grant, recorder, cycle)
        self.silent, self.stream = Silent(self.table), Stream()
        silent: Any = self.silent
        self.window = ScanWindow(self.table, silent, silent, 1)
        self.begun = self.capacity = self.limit = capacity
        self.position, self.cycle = 0, cycle
        self.chunks: deque[tuple[int, list[Any]]] = deque()
        self.serial = 0

    def waiting(self) -> list[Any]:
        return [row for _, rows in self.chunks for row in rows]

    @rule(codes=st.lists(CODES, max_size=12), w=st.integers(1, 12))
    def enter(self, codes: list[int], w: int) -> None:
        rows = tuples(codes, self.serial)
        self.serial += len(codes)
        self.stream.rows.extend(rows)
        before, free, taken = list(self.stream.rows), self.window.free, self.ring()
        self.window.w = w
        list(self.window.enter(self.stream))
        count = len(before) - len(self.stream.rows)
        slots = self.ring()
        assert slots[: len(taken)] == taken
        assert len(slots) == len(taken) + count
        assert all(slot < self.limit for slot in slots[len(taken) :])
        assert count <= min(w, free)
        assert list(self.stream.rows) == before[count:], "what did not enter is no longer in order"
        if count:
            self.chunks.append((self.position + self.cycle, before[:count]))
        assert len(self.window) == len(self.waiting())

    @rule(steps=st.integers(1, 4))
    def scan(self, steps: int) -> None:
        """Tuples leave after exactly one cycle, in the order they came."""
        for _ in range(steps):
            list(self.window.probe(Partition(0, no_rows(SCHEMA), frozen([]))))
            self.position += 1
            assert self.window.partition == self.position % self.cycle
            gone = 0
            while self.chunks and self.chunks[0][0] <= self.position:
                gone += len(self.chunks.popleft()[1])
            before = len(self.silent.finished)
            list(self.window.expire())
            assert len(self.silent.finished) - before == gone
            waits = bool(self.chunks) and self.chunks[-1][0] > self.position + 1
            assert (self.window.following is not None) == waits

    @precondition(lambda self: self.limit == self.capacity)
    @rule(data=st.data())
    def ask_for_fewer(self, data: st.DataObject) -> None:
        self.limit = data.draw(st.integers(0, self.capacity))
        self.window.limit(self.limit)

    @precondition(lambda self: self.limit < self.capacity)
    @rule()
    def give_memory_away(self) -> None:
        heap = self.limit * HEAP_PER_SLOT
        if self.window.beyond or not self.table.store.lower_heap(heap):
            return
        self.move(self.limit)

    @precondition(lambda self: self.limit == self.capacity)
    @rule(more=st.integers(0, 12))
    def get_memory(self, more: int) -> None:
        if self.capacity + more <= LARGEST:
            self.move(self.capacity + more)

    def move(self, capacity: int) -> None:
        self.table.resize(capacity, capacity * HEAP_PER_SLOT)
        self.window.resize(capacity)
        self.capacity = self.limit = capacity

    def ring(self) -> list[int]:
        return [slot for stretch in self.window._stretches() for slot in range(*stretch)]

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "window"):
            return
        self.window.check()
        slots = self.ring()
        assert self.table.gather(np.array(slots, np.int32)).to_pylist() == self.waiting()
        assert self.window.beyond == sum(slot >= self.limit for slot in slots)
        assert len(slots) == len(set(slots)), "a slot that was taken was given out"
        assert 0 <= self.window.free <= len(set(range(self.limit)) - set(slots))

    @invariant()
    def an_empty_window_has_all_its_slots(self) -> None:
        if hasattr(self, "window") and not self.chunks:
            assert self.window.free == self.limit

    @invariant()
    def grants_are_exact(self) -> None:
        if not hasattr(self, "window"):
            return
        self.budget.check()
        assert self.budget.used == grown_bytes(self.begun, 0, self.capacity, self.cycle)


HEAP_SCHEMA = pa.schema([("text", pa.string()), ("many", pa.list_(pa.int16()))])


class HeapMachine(RuleBasedStateMachine):
    """A heap that gets and gives slots and bytes, as the parts above it do."""

    @initialize(
        capacity=st.integers(0, 30), size=st.integers(0, 3000), segments=st.sampled_from([1, 4, 16])
    )
    def begin(self, capacity: int, size: int, segments: int) -> None:
        # Just what a heap may get: whoever takes before it gives is found out.
        self.budget = MemoryBudget(3000 + 60 * HEAP_BYTES_PER_SLOT)
        self.heap = TupleHeap(HEAP_SCHEMA, capacity, size, self.budget.grant("heap"), segments)
        self.capacity, self.size = capacity, size
        self.rows: dict[int, Any] = {}
        self.serial = 0

    @rule(lengths=st.lists(st.integers(0, 30), max_size=10))
    def put(self, lengths: list[int]) -> None:
        free = [slot for slot in range(self.capacity) if slot not in self.rows]
        rows: list[Any] = []
        for length in lengths[: len(free)]:
            self.serial += 1
            text = None if length == 0 else f"{self.serial}" + "x" * length
            rows.append({"text": text, "many": list(range(length % 4))})
        batch = pa.RecordBatch.from_pylist(rows, HEAP_SCHEMA)
        count = self.heap.how_many_fit(batch)
        self.heap.put(np.array(free[:count], np.int32), batch.slice(0, count))
        self.rows |= dict(zip(free[:count], rows[:count], strict=True))

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        slots = sorted(self.rows)
        some = data.draw(st.lists(st.sampled_from(slots), unique=True)) if slots else []
        self.heap.release(np.array(some, np.int32))
        for slot in some:
            del self.rows[slot]

    @rule(more=st.integers(0, 10), bytes_more=st.integers(0, 800))
    def grow(self, more: int, bytes_more: int) -> None:
        capacity, size = min(60, self.capacity + more), min(3000, self.size + bytes_more)
        self.heap.resize(capacity, size)
        self.capacity, self.size = capacity, size

    @rule(share=st.floats(0, 1))
    def shrink(self, share: float) -> None:
        """First all moves to the lowest slots and the limit falls; then the memory goes."""
        size = int(self.size * share)
        self.heap.set_bytes(size)
        while not self.heap.fits and self.heap.compact():
            pass
        if not self.heap.fits:
            self.heap.set_bytes(self.size)
            return
        old = sorted(self.rows)
        self.heap.move(np.array(old, np.int32), np.arange(len(old), dtype=np.int32))
        self.rows = {new: self.rows[slot] for new, slot in enumerate(old)}
        capacity = max(len(old), int(self.capacity * share))
        self.heap.resize(capacity, size)
        self.capacity, self.size = capacity, size

    @rule(fewer=st.integers(0, 20), bytes_more=st.integers(0, 400))
    def trade_slots_for_bytes(self, fewer: int, bytes_more: int) -> None:
        """One goes up while the other goes down."""
        capacity = max(max(self.rows, default=-1) + 1, self.capacity - fewer)
        size = min(3000, self.size + bytes_more)
        self.heap.resize(capacity, size)
        self.capacity, self.size = capacity, size

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "heap"):
            return
        self.heap.check()
        self.budget.check()
        slots = sorted(self.rows)
        found = self.heap.gather(np.array(slots, np.int32)).to_pylist()
        assert found == [self.rows[slot] for slot in slots]
        assert self.budget.used == self.size + self.capacity * HEAP_BYTES_PER_SLOT
        held = sum(segment.nbytes for segment in self.heap._segments.values())
        assert held <= self.size, "the rows take more than their grant"


TestQueueAndTable = QueueAndTable.TestCase
TestQueueAndTable.settings = settings(max_examples=80, stateful_step_count=40)
TestScanWindow = WindowMachine.TestCase
TestScanWindow.settings = settings(max_examples=100, stateful_step_count=40)
TestTupleHeap = HeapMachine.TestCase
TestTupleHeap.settings = settings(max_examples=80, stateful_step_count=40)


def test_a_heap_that_gets_no_more_memory_stays_as_it_was() -> None:
    budget = MemoryBudget(1000)
    heap = TupleHeap(HEAP_SCHEMA, 10, 100, budget.grant("heap"))
    for _ in range(2):
        with pytest.raises(BudgetError):
            heap.resize(10, 5000)
    assert budget.used == 100 + 10 * HEAP_BYTES_PER_SLOT
    heap.resize(10, 50)
    assert budget.used == 50 + 10 * HEAP_BYTES_PER_SLOT
