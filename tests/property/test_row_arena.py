"""The row arena against a dict from slot to row: every type it holds, nulls, sweeps, resizing."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from semistream.budget import MemoryBudget
from semistream.parts.row_arena import BYTES_PER_SLOT, RowArena, RowLayout

SCHEMA = pa.schema(
    [
        ("flag", pa.bool_()),
        ("tiny", pa.int8()),
        ("text", pa.string()),
        ("small", pa.uint16()),
        ("word", pa.float32()),
        ("price", pa.decimal128(20, 3)),
        ("day", pa.date32()),
        ("blob", pa.large_binary()),
        ("when", pa.timestamp("us", "UTC")),
        ("code", pa.binary(5)),
        ("long", pa.large_string()),
    ]
)
ROWS = st.fixed_dictionaries(
    {
        "flag": st.none() | st.booleans(),
        "tiny": st.none() | st.integers(-128, 127),
        "text": st.none() | st.text(max_size=12),
        "small": st.none() | st.integers(0, 65535),
        "word": st.none() | st.floats(width=32, allow_nan=False),
        "price": st.none() | st.decimals(-(10**6), 10**6, places=3),
        "day": st.none() | st.dates(dt.date(1900, 1, 1)),
        "blob": st.none() | st.binary(max_size=30),
        "when": st.none() | st.datetimes(dt.datetime(1990, 1, 1), timezones=st.just(dt.UTC)),
        "code": st.none() | st.binary(min_size=5, max_size=5),
        "long": st.none() | st.text("xyz", max_size=40),
    }
)


class ArenaMachine(RuleBasedStateMachine):
    """Rows come and go while the arena grows, shrinks and is swept."""

    @initialize(capacity=st.integers(1, 24), size=st.integers(0, 4000))
    def begin(self, capacity: int, size: int) -> None:
        self.budget = MemoryBudget(1 << 20)
        self.capacity, self.size = capacity, size
        self.arena = RowArena(SCHEMA, capacity, size, self.budget.grant("front stage"))
        self.model: dict[int, Any] = {}

    @rule(rows=st.lists(ROWS, max_size=8), cut=st.integers(0, 3))
    def put(self, rows: list[Any], cut: int) -> None:
        free = [slot for slot in range(self.capacity) if slot not in self.model]
        batch = pa.RecordBatch.from_pylist(rows, SCHEMA).slice(cut)
        batch = batch.slice(0, len(free))
        places = np.arange(batch.num_rows)[::-1].copy()
        chosen = self.arena.layout.chosen(batch, places)
        sizes = self.arena.sizes(chosen)
        places = places[: self.arena.how_many_fit(sizes)]
        sizes = sizes[: len(places)]
        assert sizes.sum() <= max(0, self.arena.free_bytes)
        slots = np.array(free[::-1][: len(places)], np.int32)
        self.arena.put(slots, chosen.first(len(places)), sizes)
        kept = batch.take(pa.array(places)).to_pylist()
        self.model.update(zip(slots.tolist(), kept, strict=True))

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        some = data.draw(st.lists(st.sampled_from(range(self.capacity)), unique=True))
        some = [slot for slot in some if slot in self.model]
        self.arena.release(np.array(some, np.int32))
        for slot in some:
            del self.model[slot]

    @rule(data=st.data())
    def gather(self, data: st.DataObject) -> None:
        some = data.draw(st.lists(st.sampled_from(range(self.capacity)), max_size=40))
        some = [slot for slot in some if slot in self.model]
        found = self.arena.gather(np.array(some, np.int32))
        found.validate(full=True)
        assert found.schema == SCHEMA
        assert found.to_pylist() == [self.model[slot] for slot in some]

    @rule(more=st.integers(0, 8), size=st.integers(0, 1000))
    def grow(self, more: int, size: int) -> None:
        self.capacity, self.size = self.capacity + more, self.size + size
        self.arena.resize(self.capacity, self.size)

    @rule(share=st.floats(0, 1))
    def shrink(self, share: float) -> None:
        """As the kept rows do: first fewer rows, then less room, the rest in the lowest slots."""
        size = int(self.size * share)
        self.arena.set_bytes(size)
        for slot in list(self.model):
            if self.arena.fits:
                break
            self.arena.release(np.array([slot], np.int32))
            del self.model[slot]
        old = np.array(sorted(self.model), np.int32)
        self.arena.move(old, np.arange(len(old), dtype=np.int32))
        self.model = {new: self.model[slot] for new, slot in enumerate(old.tolist())}
        self.capacity, self.size = max(len(self.model), 1), size
        self.arena.resize(self.capacity, size)

    @rule()
    def sweep(self) -> None:
        self.arena.compact()

    @invariant()
    def rows_and_grant_are_right(self) -> None:
        if not hasattr(self, "arena"):
            return
        self.arena.check()
        assert self.budget.used == self.size + self.capacity * BYTES_PER_SLOT
        assert self.arena._block.memory.nbytes <= self.size
        slots = np.array(sorted(self.model), np.int32)
        expected = [self.model[slot] for slot in slots.tolist()]
        assert self.arena.gather(slots).to_pylist() == expected


TestRowArena = ArenaMachine.TestCase
TestRowArena.settings = settings(max_examples=100, stateful_step_count=30)


def test_decimals_keep_their_scale() -> None:
    grant = MemoryBudget(1 << 20).grant("front stage")
    arena = RowArena(SCHEMA, 4, 4096, grant)
    row = dict.fromkeys(SCHEMA.names) | {"price": Decimal("-1.250")}
    batch = pa.RecordBatch.from_pylist([row], SCHEMA)
    places = np.zeros(1, np.int64)
    chosen = arena.layout.chosen(batch, places)
    arena.put(np.array([2], np.int32), chosen, arena.sizes(chosen))
    assert arena.gather(np.array([2, 2], np.int32)).to_pylist() == [row, row]


@pytest.mark.parametrize(
    ("kind", "held"),
    [
        (pa.int64(), True),
        (pa.large_string(), True),
        (pa.decimal256(50, 2), True),
        (pa.list_(pa.int8()), False),
        (pa.struct([("a", pa.int8())]), False),
        (pa.null(), False),
    ],
)
def test_which_columns_it_holds(kind: pa.DataType, held: bool) -> None:
    assert RowLayout.holds(pa.schema([("n", pa.int32()), ("x", kind)])) == held


def test_columns_of_nothing_but_nulls() -> None:
    """Arrow gives such columns no buffer of values at all."""
    arena = RowArena(SCHEMA, 4, 4096, MemoryBudget(1 << 20).grant("front stage"))
    columns = [pa.nulls(2, field.type) for field in SCHEMA]
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    places = np.arange(2)
    chosen = arena.layout.chosen(batch, places)
    arena.put(np.array([1, 3], np.int32), chosen, arena.sizes(chosen))
    expected = [dict.fromkeys(SCHEMA.names)] * 2
    assert arena.gather(np.array([3, 1], np.int32)).to_pylist() == expected
