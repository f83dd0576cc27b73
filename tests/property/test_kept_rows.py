"""The kept rows of the front stage against a dict from key to rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from semistream.budget import MemoryBudget
from semistream.kernels import NONE
from semistream.parts.kept_rows import BYTES_PER_ROW, KeptRows, front_stage_bytes
from semistream.parts.output import Pairs
from semistream.parts.row_arena import RowArena
from semistream.row_bytes import row_bytes

FLAT = pa.schema([("n", pa.int64()), ("text", pa.string())])
NESTED = pa.schema([("n", pa.int64()), ("text", pa.list_(pa.string()))])
CODES = st.integers(-3, 20) | st.sampled_from([-(2**63), 2**63 - 1])
TEXTS = st.text("ab", max_size=40)
MOST_ROWS = 48


def frozen(codes: list[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    array = np.array(codes, np.int64)
    array.flags.writeable = False
    return array


def arena_bytes(rows: list[Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Header of 8, the number, the end of the text, a byte of flags, the text; in eights."""
    return np.array([-(-(8 + 8 + 4 + 1 + len(row["text"])) // 8) * 8 for row in rows], np.float64)


class Key:
    """What the model knows of a kept key."""

    def __init__(self, rows: list[Any], frequency: float, taken: float) -> None:
        self.rows = rows
        self.last_turn = frequency
        self.hits = 0
        self.new = True
        self.taken = taken

    @property
    def frequency(self) -> float:
        return max(self.last_turn, self.hits)


class KeptMachine(RuleBasedStateMachine):
    """Keys of one to four rows come, are asked for, and go, while the place for them changes."""

    @initialize(capacity=st.integers(1, 40), heap=st.integers(0, 3000), nested=st.booleans())
    def begin(self, capacity: int, heap: int, nested: bool) -> None:
        self.budget = MemoryBudget(1 << 20)
        self.heap_bytes = heap
        self.nested = nested
        self.schema = NESTED if nested else FLAT
        self.kept = KeptRows(
            self.schema,
            capacity,
            heap,
            self.budget.grant("front stage"),
            MOST_ROWS,
        )
        self.capacity = capacity
        self.model: dict[int, Key] = {}
        self.serial = 0

    def rows_kept(self) -> int:
        return sum(len(key.rows) for key in self.model.values())

    def firsts_by_code(self) -> dict[int, int]:
        firsts = self.kept.keys()
        return dict(zip(self.kept.codes(firsts).tolist(), firsts.tolist(), strict=True))

    @rule(
        wanted=st.dictionaries(
            CODES, st.tuples(st.lists(TEXTS, min_size=1, max_size=4), st.integers(1, 9)), max_size=6
        )
    )
    def insert(self, wanted: dict[int, tuple[list[str], int]]) -> None:
        """As the front stage does it: as many whole keys as slots and heap have room for."""
        new = {code: what for code, what in wanted.items() if code not in self.model}
        while sum(len(texts) for texts, _ in new.values()) > self.capacity - self.rows_kept():
            new.popitem()
        rows: list[Any] = []
        for texts, _ in new.values():
            for text in texts:
                self.serial += 1
                rows.append({"n": self.serial, "text": [text] if self.nested else text})
        batch = pa.RecordBatch.from_pylist(rows, self.schema)
        counts = np.array([len(texts) for texts, _ in new.values()], np.int32)
        frequency = np.array([often for _, often in new.values()], np.float64)
        places = np.arange(len(rows))
        chosen = self.kept.chosen(batch, places)
        keys = self.kept.insert(frozen(list(new)), counts, frequency, chosen)
        sizes = row_bytes(batch) if self.nested else arena_bytes(rows)
        at = 0
        for code, (texts, often) in list(new.items())[:keys]:
            here = slice(at, at + len(texts))
            taken = float(sizes[here].sum()) + len(texts) * BYTES_PER_ROW
            self.model[code] = Key(rows[here], often, taken)
            at += len(texts)

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        some = (
            data.draw(st.lists(st.sampled_from(sorted(self.model)), unique=True, max_size=5))
            if (self.model)
            else []
        )
        where = self.firsts_by_code()
        self.kept.evict(np.array([where[code] for code in some], np.int32))
        for code in some:
            del self.model[code]

    @rule(codes=st.lists(CODES, max_size=150), room=st.integers(4, 40))
    def probe(self, codes: list[int], room: int) -> None:
        """Every arriving code meets all rows of its key, in their order, or none."""
        array, cursor = frozen(codes), np.zeros(1, np.int64)
        missed = np.ones(len(codes), np.bool_)
        pairs = Pairs(np.empty(room, np.int32), np.empty(room, np.int32))
        found: list[list[Any]] = [[] for _ in codes]
        while cursor[0] < len(codes):
            count = self.kept.probe(array, cursor, missed, pairs)
            rows = self.kept.heap.gather(pairs.rows[:count]).to_pylist()
            for number, row in zip(pairs.tuples[:count].tolist(), rows, strict=True):
                found[number].append(row)
        expected = [self.model[code].rows if code in self.model else [] for code in codes]
        assert found == expected
        assert missed.tolist() == [code not in self.model for code in codes]
        for code in codes:
            if code in self.model:
                self.model[code].hits += 1

    @rule(codes=st.lists(CODES, max_size=10))
    def lacks(self, codes: list[int]) -> None:
        expected = [code not in self.model for code in codes]
        assert self.kept.lacks(frozen(codes)).tolist() == expected

    @rule()
    def turn(self) -> None:
        self.kept.turn()
        for key in self.model.values():
            key.last_turn = max(key.hits, key.last_turn if key.new else 0)
            key.hits, key.new = 0, False

    @rule(more=st.integers(0, 12), heap=st.integers(0, 1500))
    def grow(self, more: int, heap: int) -> None:
        """Everything stays: keys, rows, frequencies."""
        if self.capacity + more > MOST_ROWS:
            return
        self.capacity += more
        self.heap_bytes += heap
        self.kept.resize(self.capacity, self.heap_bytes)

    @precondition(lambda self: self.capacity > 0)
    @rule(data=st.data(), heap_share=st.floats(0, 1))
    def shrink(self, data: st.DataObject, heap_share: float) -> None:
        """Only keys at the infrequent end go, and those that stay are as they were."""
        self.capacity = data.draw(st.integers(0, self.capacity - 1))
        self.heap_bytes = int(self.heap_bytes * heap_share)
        self.kept.resize(self.capacity, self.heap_bytes)
        stay = self.firsts_by_code()
        gone = {code: key for code, key in self.model.items() if code not in stay}
        self.model = {code: key for code, key in self.model.items() if code in stay}
        assert self.kept.heap.fits, "more rows than the smaller heap may hold"
        if gone and self.model:
            most = max(key.frequency for key in gone.values())
            assert most <= min(key.frequency for key in self.model.values())

    @invariant()
    def the_kept_rows_are_the_model(self) -> None:
        if not hasattr(self, "kept"):
            return
        kept = self.kept
        kept.check()
        self.budget.check()
        assert len(kept) == self.rows_kept() <= self.capacity == kept.capacity
        assert kept.free == self.capacity - len(kept)
        firsts = kept.keys()
        codes = kept.codes(firsts).tolist()
        assert sorted(codes) == sorted(self.model)
        frequency = [self.model[code].frequency for code in codes]
        assert kept.frequency(firsts).tolist() == frequency
        taken = np.array([self.model[code].taken for code in codes], np.float32)
        assert kept.key_bytes(firsts).tolist() == taken.tolist()
        self.rows_are_whole(dict(zip(codes, firsts.tolist(), strict=True)))

    def rows_are_whole(self, where: dict[int, int]) -> None:
        """Each key has exactly its rows, in order; counted without `probe`, which counts hits."""
        for code, first in where.items():
            slots = []
            slot = first
            while slot != NONE:
                slots.append(slot)
                slot = int(self.kept.chains.nodes[slot]["next_same"])
            rows = self.kept.heap.gather(np.array(slots, np.int32)).to_pylist()
            assert rows == self.model[code].rows, "a key is kept with some of its rows"

    @invariant()
    def the_grant_is_what_is_held(self) -> None:
        if not hasattr(self, "kept"):
            return
        expected = front_stage_bytes(self.capacity, MOST_ROWS, self.heap_bytes)
        assert self.budget.used == expected
        heap = self.kept.heap
        if isinstance(heap, RowArena):
            held = heap._block.memory.nbytes
        else:
            held = sum(segment.nbytes for segment in heap._segments.values())
        assert held <= self.heap_bytes, "the rows take more than their grant"


TestKeptRows = KeptMachine.TestCase
TestKeptRows.settings = settings(max_examples=150, stateful_step_count=40)
