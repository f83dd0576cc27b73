"""The stream table, clustered and plain, against dicts."""

from __future__ import annotations

from itertools import groupby
from random import Random
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from semistream import kernels
from semistream.budget import MemoryBudget
from semistream.errors import InternalError
from semistream.metrics import Recorder
from semistream.parts import stream_table
from semistream.parts.output import Pairs
from semistream.parts.stream_table import StreamTable, table_bytes
from semistream.parts.tuple_store import TupleLayout
from semistream.testing import ManualClock

LOWEST, HIGHEST = -(2**63), 2**63 - 1
CODES = st.integers(-4, 12) | st.sampled_from([LOWEST, LOWEST + 1, HIGHEST - 1, HIGHEST])
FENCES = st.lists(st.sampled_from([LOWEST, -2, 0, 3, 3, 7, 12, HIGHEST]), max_size=6).map(sorted)
SCHEMA = pa.schema(
    [("id", pa.int64()), ("n", pa.int32()), ("flag", pa.bool_()), ("s", pa.string())]
)
HEAP = 1 << 16


class Shape(NamedTuple):
    """What a tuple layout wants to know of a join."""

    plain_schema: pa.Schema
    stored_key: str | None


class TableMachine(RuleBasedStateMachine):
    """Tuples come, are probed, and leave by range, by code or by age."""

    @initialize(
        capacity=st.integers(1, 30),
        fences=st.just([]) | FENCES,
        key_is_code=st.booleans(),
        scratch=st.sampled_from([1, 2, 3, 8192]),
    )
    def begin(self, capacity: int, fences: list[int], key_is_code: bool, scratch: int) -> None:
        self.fences = fences
        self.budget = MemoryBudget(1 << 24)
        self.recorder = Recorder(ManualClock())
        layout = TupleLayout(Shape(SCHEMA, "id" if key_is_code else None))  # type: ignore[arg-type]
        # With a small scratch array removals come in several pieces.
        with mock.patch.object(stream_table, "_SCRATCH", scratch):
            self.table = StreamTable(
                capacity,
                np.array(fences, np.int64),
                layout,
                HEAP,
                self.budget.grant("stream table"),
                self.recorder,
            )
            assert self.budget.used == table_bytes(capacity, len(fences), layout, HEAP)
        self.tuples: dict[int, Any] = {}
        self.arrived: list[int] = []
        self.matched: set[int] = set()
        self.gone = {"joined": 0, "unmatched": 0}

    def region(self, code: int) -> int:
        return max(sum(fence <= code for fence in self.fences) - 1, 0)

    def chains(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for slot in self.arrived:
            found.setdefault(self.tuples[slot]["id"], []).append(slot)
        return found

    @rule(codes=st.lists(CODES, max_size=8), order=st.randoms(), data=st.data())
    def insert(self, codes: list[int], order: Random, data: st.DataObject) -> None:
        free = sorted(set(range(self.table.capacity)) - self.tuples.keys())
        slots = order.sample(free, min(len(codes), len(free)))
        rows = [
            {
                "id": code,
                "n": data.draw(st.none() | st.integers(0, 9)),
                "flag": data.draw(st.none() | st.booleans()),
                "s": data.draw(st.none() | st.text(max_size=3)),
            }
            for code in codes[: len(slots)]
        ]
        batch = pa.RecordBatch.from_pylist(rows, SCHEMA)
        array = np.array(codes[: len(slots)], np.int64)
        array.flags.writeable = False
        self.table.insert(np.array(slots, np.int32), array, batch)
        self.tuples.update(zip(slots, rows, strict=True))
        self.arrived += slots

    @rule(
        codes=st.lists(CODES, max_size=8).map(sorted),
        room=st.integers(1, 5),
        mark=st.booleans(),
        data=st.data(),
    )
    def probe(self, codes: list[int], room: int, mark: bool, data: st.DataObject) -> None:
        """Rows of one region meet its tuples, each pair once, oldest tuple first."""
        region = self.region(codes[0]) if codes else 0
        codes = [code for code in codes if self.region(code) == region]
        start = data.draw(st.integers(0, len(codes)))
        stop = data.draw(st.integers(start, len(codes)))
        chains = self.chains()
        expected = [
            (slot, row) for row in range(start, stop) for slot in chains.get(codes[row], [])
        ]
        pairs = Pairs(np.empty(room, np.int32), np.empty(room, np.int32))
        array = np.array(codes, np.int64)
        array.flags.writeable = False
        found: list[tuple[int, int]] = []
        for count in self.table.pairs(region, array, start, stop, pairs, mark):
            found += zip(pairs.tuples[:count].tolist(), pairs.rows[:count].tolist(), strict=True)
        # Codes come in any order, and the pairs of a code together.
        runs = [code for code, _ in groupby(found, lambda pair: codes[pair[1]])]
        assert len(set(runs)) == len(runs)
        assert sorted(found) == sorted(expected)
        if mark:
            self.matched |= {slot for slot, _ in expected}

    @rule(
        some=st.dictionaries(CODES, st.integers(0, 3), max_size=6),
        room=st.integers(1, 5),
        mark=st.booleans(),
    )
    def pair_found_rows(self, some: dict[int, int], room: int, mark: bool) -> None:
        """Rows found code by code meet the tuples that wait for them, and these are counted."""
        codes = np.array(list(some), np.int64)
        codes.flags.writeable = False
        counts = np.array(list(some.values()), np.int32)
        waits = np.zeros(len(some), np.int32)
        pairs = Pairs(np.empty(room, np.int32), np.empty(room, np.int32))
        chains, expected, begin = self.chains(), [], 0
        for code, count in some.items():
            rows = range(begin, begin + count)
            expected += [(slot, row) for row in rows for slot in chains.get(code, [])]
            begin += count
        found: list[tuple[int, int]] = []
        for count in self.table.found_pairs(codes, counts, waits, pairs, mark):
            found += zip(pairs.tuples[:count].tolist(), pairs.rows[:count].tolist(), strict=True)
        assert found == expected
        assert waits.tolist() == [
            len(chains.get(code, [])) if count else 0 for code, count in some.items()
        ]
        if mark:
            self.matched |= {slot for slot, _ in expected}

    @rule(low=CODES, high=CODES, room=st.integers(1, 12), order=st.randoms())
    def waiting_codes(self, low: int, high: int, room: int, order: Random) -> None:
        """Of each region the waiting codes in a range; a region that has no room is left out."""
        regions = list(range(max(len(self.fences), 1)))
        order.shuffle(regions)
        codes, ends = np.zeros(room, np.int64), np.zeros(len(regions), np.int64)
        lows, highs = (np.full(len(regions), bound) for bound in (low, high))
        taken = self.table.codes_in(np.array(regions), lows, highs, codes, ends)
        waiting = [
            {code for code in self.chains() if self.region(code) == region and low <= code <= high}
            for region in regions
        ]
        found = [set(part.tolist()) for part in np.split(codes, ends[:taken])[:-1]]
        assert taken >= 1
        if found != waiting[:taken]:
            assert (taken, ends[0]) == (1, room)
            assert found[0] < waiting[0]
        if taken < len(regions):
            assert sum(map(len, waiting[: taken + 1])) > room or not ends[taken - 1]

    @rule(data=st.data())
    def mark(self, data: st.DataObject) -> None:
        some = data.draw(st.lists(st.sampled_from(self.arrived))) if self.arrived else []
        self.table.mark_matched(np.array(some, np.int32))
        self.matched |= set(some)

    @rule(low=CODES, high=CODES, data=st.data())
    def remove_range(self, low: int, high: int, data: st.DataObject) -> None:
        region = data.draw(st.integers(0, max(len(self.fences) - 1, 0)))
        expected = {
            slot
            for slot in self.arrived
            if low <= self.tuples[slot]["id"] <= high
            and self.region(self.tuples[slot]["id"]) == region
        }
        span = (np.array([at], np.int64) for at in (region, low, high))
        self.leave(self.table.remove_ranges(*span), expected)

    @rule(codes=st.lists(CODES, max_size=8).map(sorted))
    def remove_codes(self, codes: list[int]) -> None:
        array = np.array(codes, np.int64)
        array.flags.writeable = False
        expected = {slot for slot in self.arrived if self.tuples[slot]["id"] in codes}
        self.leave(self.table.remove_codes(array), expected)

    @rule(count=st.integers(0, 8))
    def expire(self, count: int) -> None:
        slots = np.array(self.arrived[:count], np.int32)
        self.table.remove_expired(slots)
        self.leave([slots], set(slots.tolist()))

    @rule()
    def a_newer_tuple_cannot_expire_first(self) -> None:
        newer = next((chain[1] for chain in self.chains().values() if len(chain) > 1), None)
        if newer is not None:
            with pytest.raises(InternalError, match="before an older one"):
                self.table.remove_expired(np.array([newer], np.int32))

    def leave(self, removed: Any, expected: set[int]) -> None:
        """As the engine does it: unlinked, counted, read once more, let go."""
        seen: set[int] = set()
        for view in removed:
            slots = view.copy()
            assert not seen & set(slots.tolist())
            seen |= set(slots.tolist())
            lonely = self.table.finish(slots).tolist()
            assert lonely == [slot for slot in slots.tolist() if slot not in self.matched]
            rows = self.table.gather(slots).to_pylist()
            assert rows == [self.tuples[slot] for slot in slots.tolist()]
            self.table.release(slots)
            self.gone["unmatched"] += len(lonely)
            self.gone["joined"] += len(slots) - len(lonely)
        assert seen == expected
        self.arrived = [slot for slot in self.arrived if slot not in seen]
        self.matched -= seen
        for slot in seen:
            del self.tuples[slot]

    @rule()
    def spread_buckets(self) -> None:
        """At any time between two steps: no tuple is lost, and all are in their buckets."""
        starts = self.table.chains.starts
        kernels.spread_buckets(self.table.chains, np.array(self.fences, np.int64))
        assert (np.diff(starts) > 0).all()
        assert (starts[0], starts[-1]) == (0, len(self.table.chains.heads))

    @rule(more=st.integers(-10, 10))
    def resize(self, more: int) -> None:
        used = max(self.tuples, default=0) + 1
        self.table.resize(max(used, self.table.capacity + more), HEAP)

    @invariant()
    def the_table_is_the_model(self) -> None:
        if not hasattr(self, "table"):
            return
        self.table.check()
        self.budget.check()
        assert self.table.clustered == bool(self.fences)
        assert self.table.waiting() == self.chains()
        assert all(self.table.code(slot) == row["id"] for slot, row in self.tuples.items())
        rows = self.table.gather(np.array(self.arrived, np.int32))
        assert rows.schema.equals(SCHEMA)
        assert rows.to_pylist() == [self.tuples[slot] for slot in self.arrived]
        counted = {"joined": self.recorder.joined, "unmatched": self.recorder.unmatched}
        assert counted == self.gone
        assert self.recorder.appends - self.recorder.deletes == len(self.tuples)


TestStreamTable = TableMachine.TestCase
TestStreamTable.settings = settings(max_examples=120, stateful_step_count=30)


def test_a_region_where_many_codes_wait_gets_more_buckets() -> None:
    """Half of the codes in one of a hundred regions: none passes more than a few others."""
    fences = np.arange(100) * 1_000_000
    layout = TupleLayout(Shape(SCHEMA, None))  # type: ignore[arg-type]
    table = StreamTable(
        4_000,
        fences,
        layout,
        HEAP,
        MemoryBudget(10_000_000).grant("stream table"),
        Recorder(lambda: 0.0),
    )
    rng = np.random.default_rng(20)
    codes = np.where(rng.random(4_000) < 0.5, rng.integers(0, 900_000, 4_000), 0)
    codes = np.where(codes == 0, rng.integers(1_000_000, 99_000_000, 4_000), codes)
    codes.flags.writeable = False
    batch = pa.RecordBatch.from_pylist([{"id": code} for code in codes.tolist()], SCHEMA)
    table.insert(np.arange(4_000, dtype=np.int32), codes, batch)
    assert kernels.codes_to_pass(table.chains) > 20
    table.spread()
    assert kernels.codes_to_pass(table.chains) < 4
    assert table.waiting().keys() == set(codes.tolist())
    table.check()
