"""The demand table against lists: any sequence of arrivals, reads, limits and sizes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from semistream.budget import MemoryBudget
from semistream.kernels.demand import partitions_of
from semistream.metrics import Recorder
from semistream.parts.demand_table import DemandTable, demand_bytes
from semistream.parts.output import Pairs
from semistream.parts.tuple_store import TupleLayout
from semistream.testing import ManualClock

GROUPS = 7
CODES = 5
"""Codes per group: code c waits in group c // 5."""


class _Shape:
    """Tuples of a key and a number; the key is its code."""

    plain_schema = pa.schema([("id", pa.int64()), ("n", pa.int32())])


def table_of(capacity: int) -> DemandTable:
    """An empty table for codes 0 to 34."""
    layout = TupleLayout.__new__(TupleLayout)
    layout.schema, layout.key = _Shape.plain_schema, "id"
    layout.fixed, layout.varying = {"n": np.dtype(np.int32)}, pa.schema([])
    budget = MemoryBudget(1 << 20)
    table = DemandTable(
        capacity,
        GROUPS,
        0,
        lambda codes: (codes // CODES).astype(np.int32),
        layout,
        0,
        budget.grant("stream table"),
        Recorder(ManualClock()),
    )
    assert budget.used == demand_bytes(capacity, GROUPS, 0, layout, 0)
    return table


def enter(table: DemandTable, codes: list[int]) -> None:
    """Let tuples of these codes come."""
    array = np.array(codes, np.int64)
    array.flags.writeable = False
    numbers = pa.array(range(len(codes)), pa.int32())
    table.enter(array, pa.record_batch({"id": pa.array(codes, pa.int64()), "n": numbers}))


def waiting_codes(table: DemandTable) -> dict[int, list[int]]:
    """Group → codes, sorted, of those that have any."""
    found = {
        group: sorted(table.codes(np.array(chain, np.int32)).tolist())
        for group, chain in table.waiting().items()
    }
    return {group: codes for group, codes in found.items() if codes}


def demanded(table: DemandTable, most: int = 1, most_tuples: int = 1000) -> list[int]:
    """The groups of greatest demand."""
    found: list[int] = table.most_demanded(table.unmarked(), most, most_tuples).tolist()
    return found


@pytest.mark.parametrize("seed", range(12))
def test_any_sequence_keeps_every_tuple_once(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = table_of(40)
    model: dict[int, list[int]] = {group: [] for group in range(GROUPS)}
    pairs = Pairs(np.empty(6, np.int32), np.empty(6, np.int32))
    size = table.capacity
    for _ in range(60):
        action = rng.integers(0, 4)
        if action <= 1:
            codes = rng.integers(
                0, GROUPS * CODES, min(table.free, int(rng.integers(1, 12)))
            ).tolist()
            enter(table, codes)
            for code in codes:
                model[code // CODES].append(code)
        elif action == 2 and len(table):
            (group,) = demanded(table)
            few = rng.integers(group * CODES, (group + 1) * CODES, 2).tolist()
            among = bool(rng.integers(0, 2))
            for slots in table.take_codes(group, few, pairs, among=among):
                table.check()
                table.release(slots.copy())
            model[group] = [code for code in model[group] if (code in few) != among]
        elif action == 3:
            if size == table.capacity:
                size = int(rng.integers(10, 60))
                if size < table.capacity:
                    table.limit(size)
            if size > table.capacity or not table.beyond:
                table.resize(size, 0)
        table.check()
        expected = {group: sorted(codes) for group, codes in model.items() if codes}
        assert waiting_codes(table) == expected
        assert len(table) == sum(map(len, model.values()))


def test_demand_is_how_many_wait_times_how_long_the_first_has_waited() -> None:
    table = table_of(40)
    # Group 0 has one tuple of age 9, group 1 three of age 8 at most, group 2 five of age 5.
    enter(table, [0, 5, 6, 7, 10, 11, 12, 13, 14])
    assert demanded(table) == [2]  # 9 × 1, 8 × 3 = 24, 5 × 5 = 25
    enter(table, [30])
    assert demanded(table) == [2]  # 10, 27, 30
    assert demanded(table, most=2) == [1, 2]
    assert demanded(table, most=7) == [0, 1, 2, 6]
    # As many as have room together, by demand; the first has room however many wait.
    assert demanded(table, most=7, most_tuples=8) == [1, 2]
    assert demanded(table, most=7, most_tuples=1) == [2]
    marked = table.unmarked()
    marked[2] = 1
    assert table.most_demanded(marked, 1, 9).tolist() == [1]
    assert marked.tolist() == [0, 1, 1, 0, 0, 0, 0]


def test_a_tuple_that_has_waited_for_long_comes_first() -> None:
    table = table_of(8)
    pairs = Pairs(np.empty(8, np.int32), np.empty(8, np.int32))
    enter(table, [0])
    for _ in range(3):
        enter(table, [5, 6, 7, 8, 9])
        assert demanded(table) == [1]  # 5 × 5 = 25, and 6, 11, 16 of the one that waits alone
        for slots in table.take_codes(1, [], pairs, among=False):
            table.release(slots.copy())
    enter(table, [5, 6, 7, 8, 9])
    # Only 21, but that is more than 2.5 times as many tuples as there are slots.
    assert demanded(table) == [0]


def test_a_large_group_without_room_goes_before_smaller_ones_for_a_time() -> None:
    table = table_of(40)
    pairs = Pairs(np.empty(40, np.int32), np.empty(40, np.int32))
    marked = table.unmarked()
    marked[0] = 1

    def others_come_and_go(count: int) -> None:
        enter(table, [0] * count)
        for slots in table.take_codes(0, [], pairs, among=False):
            table.release(slots.copy())

    enter(table, [5])
    others_come_and_go(30)
    enter(table, [10, 11, 12, 13, 14])
    assert demanded(table) == [1]  # 36 × 1, and 5 × 5
    assert table.most_demanded(marked.copy(), 7, 6).tolist() == [1, 2]
    assert table.most_demanded(marked.copy(), 7, 5).tolist() == [2]
    for age in (66, 96, 126, 156, 186):
        others_come_and_go(30)
        assert table.most_demanded(marked.copy(), 7, 5).tolist() == [2], age
    # Of 40 slots, the bound is 100 tuples.
    others_come_and_go(14)
    assert table.most_demanded(marked.copy(), 7, 5).tolist() == [2]
    others_come_and_go(1)
    assert table.most_demanded(marked.copy(), 7, 5).tolist() == [1]


def test_codes_of_a_group_are_ascending_and_come_once() -> None:
    table = table_of(40)
    enter(table, [7, 5, 7, 9, 5, 30, 31])
    regions, low, high = (np.array(x, np.int64) for x in ([1, 6], [5, 30], [8, 34]))
    codes, ends = np.zeros(10, np.int64), np.zeros(2, np.int64)
    assert table.codes_in(regions, low, high, codes, ends) == 2
    assert codes[: ends[-1]].tolist() == [5, 7, 30, 31]
    assert ends.tolist() == [2, 4]
    # No room for both groups; of a group that alone has no room, the oldest are taken.
    few = np.zeros(3, np.int64)
    assert table.codes_in(regions, low, high, few, ends) == 1
    fewer = np.zeros(2, np.int64)
    assert table.codes_in(regions, low, high, fewer, ends) == 1
    assert fewer[: ends[0]].tolist() == [5, 7]


def test_many_tuples_of_few_codes_need_room_for_the_codes_only() -> None:
    table = table_of(200)
    enter(table, [5, 6, 7] * 40 + [30])
    regions, low, high = (np.array(x, np.int64) for x in ([1, 6], [5, 30], [8, 34]))
    codes, ends = np.zeros(8, np.int64), np.zeros(2, np.int64)
    assert table.codes_in(regions, low, high, codes, ends) == 2
    assert codes[: ends[-1]].tolist() == [5, 6, 7, 30]
    # With no room left for the second group it is left out, and nothing is written behind.
    full = np.full(6, -1, np.int64)
    assert table.codes_in(regions, low, high, full[:3], ends) == 1
    assert full[3:].tolist() == [-1] * 3


def test_the_longest_waiting_is_the_first_that_entered() -> None:
    clock = ManualClock()
    table = table_of(10)
    table._recorder.clock = clock
    enter(table, [33])
    clock.advance(0.001)
    enter(table, [1, 33])
    assert table.code(table.longest_waiting()) == 33
    assert table.entered(table.longest_waiting()) == 0


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("per_partition", [1, 3])
def test_the_partition_of_a_code_is_where_its_first_row_can_be(
    seed: int, per_partition: int
) -> None:
    """Keys may be spread unevenly, cross several pages, or lie between two of them."""
    rng = np.random.default_rng(seed)
    exponent = rng.integers(1, 40)
    rows = np.sort(rng.integers(-(2**exponent), 2**exponent, 200)).repeat(rng.integers(1, 5, 200))
    starts = np.unique(np.append(0, rng.integers(0, len(rows), 40)))
    firsts, lasts = rows[starts], rows[np.append(starts[1:], len(rows)) - 1]
    codes = np.concatenate([rows, rows - 1, rows + 1, [-(2**62), 2**62]])
    codes.flags.writeable = False
    regions = np.zeros(len(codes), np.int32)
    partitions_of(firsts, lasts, per_partition, codes, 99, regions)
    for code, region in zip(codes.tolist(), regions.tolist(), strict=True):
        pages = np.flatnonzero((firsts <= code) & (code <= lasts))
        assert region == (pages[0] // per_partition if len(pages) else 99)


def test_no_pages_have_no_partitions() -> None:
    none, regions = np.zeros(0, np.int64), np.zeros(2, np.int32)
    partitions_of(none, none, 1, np.array([1, 2]), 7, regions)
    assert regions.tolist() == [7, 7]
