"""The tuple heap against a dict from slot to row."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from semistream.budget import MemoryBudget
from semistream.parts.tuple_heap import BYTES_PER_SLOT, TupleHeap

CAPACITY = 40
_VALIDITIES = 6
"""Bitmaps that a batch of SCHEMA can have."""
SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("many", pa.list_(pa.int16())),
        ("pair", pa.struct([("a", pa.large_binary()), ("b", pa.bool_())])),
    ]
)
ROWS = st.fixed_dictionaries(
    {
        "text": st.none() | st.text(max_size=12),
        "many": st.none() | st.lists(st.none() | st.integers(-9, 9), max_size=5),
        "pair": st.none()
        | st.fixed_dictionaries(
            {"a": st.none() | st.binary(max_size=20), "b": st.none() | st.booleans()}
        ),
    }
)


class HeapMachine(RuleBasedStateMachine):
    """Rows put under any free slots, let go in any order, gathered in any order."""

    @initialize(size=st.integers(0, 4000), segments=st.sampled_from([1, 2, 4, 16]))
    def begin(self, size: int, segments: int) -> None:
        self.budget = MemoryBudget(1 << 20)
        self.size = size
        self.lowered = False
        self.heap = TupleHeap(SCHEMA, CAPACITY, size, self.budget.grant("heap"), segments)
        self.rows: dict[int, Any] = {}
        self.capacity = CAPACITY
        self.segments = segments

    @rule(rows=st.lists(ROWS, max_size=12), sliced=st.booleans(), order=st.randoms())
    def put(self, rows: list[Any], sliced: bool, order: Random) -> None:
        free = sorted(set(range(self.capacity)) - self.rows.keys())
        rows = rows[: len(free)]
        batch = pa.RecordBatch.from_pylist([{}] * 3 + rows if sliced else rows, SCHEMA)
        batch = batch.slice(3) if sliced else batch
        count = self.heap.how_many_fit(batch)
        assert 0 <= count <= len(rows)
        if rows and not self.rows and batch.slice(0, 1).nbytes <= self.heap.limit:
            assert count, "an empty heap must take a row that is smaller than its limit"
        slots = order.sample(free, count)
        self.heap.put(np.array(slots, np.int32), batch.slice(0, count))
        self.rows.update(zip(slots, batch.slice(0, count).to_pylist(), strict=True))
        if count and not self.lowered:
            # A copy may have validity bitmaps that the batch did not need: a bit for each value, in
            # whole bytes for each of the segments that the rows are put into.
            values = count + sum(len(row["many"] or ()) for row in rows[:count])
            bitmaps = _VALIDITIES * (values // 8 + min(count, self.segments))
            assert self.heap.free_bytes >= -bitmaps, "what `how_many_fit` allowed does not fit"

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        some = (
            data.draw(st.lists(st.sampled_from(sorted(self.rows)), unique=True))
            if (self.rows)
            else []
        )
        self.heap.release(np.array(some, np.int32))
        for slot in some:
            del self.rows[slot]

    @rule(data=st.data())
    def gather(self, data: st.DataObject) -> None:
        """In any order, the same row several times if need be."""
        some = data.draw(st.lists(st.sampled_from(sorted(self.rows)))) if self.rows else []
        found = self.heap.gather(np.array(some, np.int32))
        assert found.schema.equals(SCHEMA)
        assert found.to_pylist() == [self.rows[slot] for slot in some]

    @rule(data=st.data())
    def pieces(self, data: st.DataObject) -> None:
        some = data.draw(st.lists(st.sampled_from(sorted(self.rows)))) if self.rows else []
        found: dict[int, Any] = {}
        for places, rows in self.heap.pieces(np.array(some, np.int32)):
            where = range(len(some)) if places is None else places.tolist()
            found.update(zip(where, rows.to_pylist(), strict=True))
        assert [found[i] for i in range(len(some))] == [self.rows[slot] for slot in some]

    @rule()
    def compact(self) -> None:
        self.heap.compact()

    @rule(size=st.integers(0, 4000))
    def set_bytes(self, size: int) -> None:
        """A lower limit may be passed by what is held already; it is only told."""
        size = min(size, self.size)
        self.lowered = True
        self.heap.set_bytes(size)

    @precondition(lambda self: self.heap.fits)
    @rule(more=st.integers(-20, 20), size=st.integers(0, 4000))
    def resize(self, more: int, size: int) -> None:
        used = max(self.rows, default=-1) + 1
        self.capacity = max(used, self.capacity + more)
        self.size = size
        self.heap.resize(self.capacity, size)
        self.lowered = self.lowered or not self.heap.fits

    @rule()
    def move_to_the_lowest_slots(self) -> None:
        old = sorted(self.rows)
        self.heap.move(np.array(old, np.int32), np.arange(len(old), dtype=np.int32))
        self.rows = {new: self.rows[slot] for new, slot in enumerate(old)}

    @invariant()
    def the_heap_is_the_model(self) -> None:
        if not hasattr(self, "heap"):
            return
        self.heap.check()
        self.budget.check()
        slots = sorted(self.rows)
        found = self.heap.gather(np.array(slots, np.int32)).to_pylist()
        assert found == [self.rows[slot] for slot in slots]
        assert self.budget.used == self.size + self.capacity * BYTES_PER_SLOT


TestTupleHeap = HeapMachine.TestCase
TestTupleHeap.settings = settings(max_examples=100, stateful_step_count=30)
