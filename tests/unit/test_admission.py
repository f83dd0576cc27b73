"""The admission rules on cases small enough to work out by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from semistream.budget import MemoryBudget
from semistream.errors import BudgetError
from semistream.kernels import CANDIDATE, frequent_rows
from semistream.parts.admission import (
    BalanceRule,
    PaperRule,
    TinyLfuRule,
    asked_within,
    per_turn,
)


def floats(*values: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array(values, np.float64)


def codes_of(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    array = np.array(values, np.int64)
    array.flags.writeable = False
    return array


NO_CODES = codes_of()


class TestPaper:
    def test_threshold_falls_by_a_fifth_while_there_is_room(self) -> None:
        rule = PaperRule(threshold=10.0)
        for expected in (8.0, 6.4, 5.12):
            rule.adapt(full=False, evicted=0, kept=100)
            assert rule.threshold == pytest.approx(expected)

    def test_threshold_never_falls_below_one(self) -> None:
        rule = PaperRule(threshold=1.1)
        for _ in range(3):
            rule.adapt(full=False, evicted=0, kept=0)
            assert rule.threshold == 1.0

    @pytest.mark.parametrize(
        ("evicted", "expected"),
        [(0, 4.0), (9, 4.0), (10, 4.0), (11, 5.0), (800, 5.0)],
        ids=["none", "few", "a tenth a turn", "more than that", "all"],
    )
    def test_threshold_rises_on_churn(self, evicted: int, expected: float) -> None:
        """800 keys, an eighth of a turn: a tenth of them within a turn is 10 by now."""
        rule = PaperRule(threshold=4.0)
        rule.adapt(full=True, evicted=evicted, kept=800)
        assert rule.threshold == expected

    def test_churn_counts_for_more_than_room(self) -> None:
        rule = PaperRule(threshold=4.0)
        rule.adapt(full=False, evicted=11, kept=800)
        assert rule.threshold == 5.0

    def test_full_and_calm_leaves_the_threshold(self) -> None:
        rule = PaperRule(threshold=4.0)
        rule.adapt(full=True, evicted=0, kept=800)
        assert rule.threshold == 4.0

    def test_starts_at_the_least_that_shows_a_repetition(self) -> None:
        assert PaperRule().threshold == 2.0

    def test_the_frequency_is_the_worth_whatever_the_size(self) -> None:
        worth = PaperRule().worth(codes_of(1, 2), floats(3, 7), floats(10, 9999))
        assert worth.tolist() == [3, 7]

    def test_the_least_frequent_always_gives_way_and_nobody_leaves_unasked(self) -> None:
        rule = PaperRule()
        assert rule.prefers(floats(2, 2), floats(1, 99)).tolist() == [True, True]
        assert rule.leaving(floats(0, 5), floats(100, 100)).tolist() == [False, False]

    def test_arrivals_alone_change_nothing(self) -> None:
        rule = PaperRule()
        rule.arrived(codes_of(1, 1, 1))
        assert rule.threshold == 2.0


class TestBalance:
    """A waiting tuple takes 50 bytes, so a key of 200 bytes balances at f = 4."""

    @pytest.fixture
    def rule(self) -> BalanceRule:
        return BalanceRule(tuple_bytes=50.0, overhead_bytes=200.0)

    def test_looks_at_no_key_that_cannot_pay(self, rule: BalanceRule) -> None:
        assert rule.threshold == 4.0

    def test_threshold_is_at_least_one(self) -> None:
        assert BalanceRule(tuple_bytes=500.0, overhead_bytes=200.0).threshold == 1.0

    def test_enters_beyond_the_balance(self, rule: BalanceRule) -> None:
        worth = rule.worth(codes_of(1, 2, 3), floats(3, 4, 5), floats(200, 200, 200))
        assert worth.tolist() == [-50, 0, 50]

    def test_a_key_pays_for_all_its_rows(self, rule: BalanceRule) -> None:
        worth = rule.worth(codes_of(1, 2), floats(5, 5), floats(200, 2 * 200))
        assert worth.tolist() == [50, -150]

    def test_leaves_below_the_balance(self, rule: BalanceRule) -> None:
        leaving = rule.leaving(floats(3, 3.99, 4, 5), floats(200, 200, 200, 200))
        assert leaving.tolist() == [True, True, False, False]

    def test_who_leaves_would_not_enter(self, rule: BalanceRule) -> None:
        frequency, size = floats(*np.arange(0, 10, 0.5)), floats(*[200.0] * 20)
        codes = codes_of(*range(20))
        enters = rule.worth(codes, frequency, size) > 0
        assert not (enters & rule.leaving(frequency, size)).any()

    def test_the_one_that_saves_more_may_push_out(self, rule: BalanceRule) -> None:
        """The front stage compares worths: bytes saved by each of the two."""
        size = floats(200)
        new = rule.worth(codes_of(1), floats(9), size)
        old = rule.worth(codes_of(2), floats(5), size)
        assert rule.prefers(new, old).tolist() == [True]

    def test_the_one_that_saves_less_may_not(self, rule: BalanceRule) -> None:
        size = floats(200)
        new = rule.worth(codes_of(1), floats(5), size)
        old = rule.worth(codes_of(2), floats(9), size)
        assert rule.prefers(new, old).tolist() == [False]

    def test_nothing_moves_the_balance(self, rule: BalanceRule) -> None:
        rule.arrived(codes_of(1, 2, 3))
        rule.adapt(full=False, evicted=0, kept=0)
        rule.adapt(full=True, evicted=900, kept=900)
        assert rule.threshold == 4.0


class TestTinyLfu:
    @staticmethod
    def made(keys: int = 16) -> TinyLfuRule:
        return TinyLfuRule(keys, MemoryBudget(1 << 24).grant("front stage"))

    @staticmethod
    def estimates(rule: TinyLfuRule, codes: list[int]) -> list[float]:
        zeros = floats(*[0.0] * len(codes))
        found: list[float] = rule.worth(codes_of(*codes), zeros, zeros).tolist()
        return found

    def test_counts_exactly_when_few_codes_come(self) -> None:
        rule = self.made(1000)
        rule.arrived(codes_of(7, 7, 7, -5, 2**63 - 1, 7))
        assert self.estimates(rule, [7, -5, 2**63 - 1, 8]) == [4, 1, 1, 0]

    def test_never_counts_too_low_before_it_ages(self, seed: int) -> None:
        """A crowded sketch: 1,000 codes for 128 counters a row."""
        rule = self.made(32)
        random = np.random.default_rng(seed)
        codes = (random.zipf(1.3, 2000) % 1000).astype(np.int64)
        for part in np.array_split(codes, 20):
            rule.arrived(codes_of(*part.tolist()))
        true = Counter(codes.tolist())
        found = self.estimates(rule, list(true))
        assert all(
            estimate >= min(count, 255)
            for estimate, count in zip(found, true.values(), strict=True)
        )

    def test_counters_stop_at_their_largest(self) -> None:
        rule = self.made(1000)
        rule.arrived(codes_of(*[3] * 300))
        assert self.estimates(rule, [3]) == [255]

    def test_ages_by_halving(self) -> None:
        """64 counters a row for one key: all counts are halved at 16 times as many arrivals."""
        rule = self.made(1)
        rule.arrived(codes_of(*[5] * 200))
        assert self.estimates(rule, [5]) == [200]
        rule.arrived(codes_of(*[9] * (16 * 64 - 200 - 1)))
        assert self.estimates(rule, [5]) == [200]
        rule.arrived(codes_of(9))
        assert self.estimates(rule, [5]) == [100]
        assert self.estimates(rule, [9]) == [255 // 2]

    def test_ages_again_after_half_as_many(self) -> None:
        rule = self.made(1)
        rule.arrived(codes_of(*[5] * 16 * 64))
        rule.arrived(codes_of(*[9] * (8 * 64 - 1)))
        assert self.estimates(rule, [5]) == [127]
        rule.arrived(codes_of(9))
        assert self.estimates(rule, [5]) == [63]

    @pytest.mark.parametrize("keys", [0, 1, 15, 16, 1000, 123_456])
    def test_fits_its_grant(self, keys: int) -> None:
        budget = MemoryBudget(TinyLfuRule.bytes_for(keys))
        rule = TinyLfuRule(keys, budget.grant("front stage"))
        assert rule._sketch.nbytes == budget.used == budget.total
        assert budget.used >= 4 * 2 * keys, "two counters a row, for each key, at least"
        budget.check()

    def test_does_not_come_without_its_bytes(self) -> None:
        budget = MemoryBudget(TinyLfuRule.bytes_for(100) - 1)
        with pytest.raises(BudgetError):
            TinyLfuRule(100, budget.grant("front stage"))

    def test_only_the_more_frequent_may_push_out(self) -> None:
        assert self.made().prefers(floats(3, 4, 5), floats(4, 4, 4)).tolist() == [
            False,
            False,
            True,
        ]

    def test_nobody_leaves_unasked_and_no_threshold_moves(self) -> None:
        rule = self.made()
        rule.adapt(full=False, evicted=9, kept=9)
        assert rule.threshold == 1.0
        assert rule.leaving(floats(0, 9), floats(1, 1)).tolist() == [False, False]

    def test_no_arrivals_are_no_news(self) -> None:
        rule = self.made()
        rule.arrived(NO_CODES)
        assert self.estimates(rule, [1]) == [0]


class TestPerTurn:
    def test_what_came_in_a_part_of_a_turn_is_what_a_whole_one_would_bring(self) -> None:
        # The first tuple begins the time: of five, four came meanwhile. 0.1 turns are for doubt.
        asked, turns = np.array([0, 1, 5, 5]), np.array([0.3, 0.3, 0.3, 1.9])
        assert per_turn(asked, turns).tolist() == [0.0, 1.0, 11.0, 3.0]

    def test_it_fits_into_four_bytes_after_any_wait(self) -> None:
        assert per_turn(np.array([1 << 30]), 1e-9).astype(np.int32).tolist() == [1 << 30]

    @pytest.mark.parametrize("turns", [0.01, 0.7, 3.0])
    def test_how_often_a_key_is_asked_for_is_the_reverse(self, turns: float) -> None:
        for frequency in (2.0, 30.0):
            asked = np.array([asked_within(turns, frequency)])
            assert per_turn(asked, turns)[0] == pytest.approx(frequency)
        assert asked_within(turns, 0.5) == 1.0


class TestFrequentRows:
    CODES = np.array([3, 3, 5, 6, 6, 6, 9])
    ASKED = np.array([4, 0, 1, 7, 0, 0, 2], np.int32)

    def found(self, start: int, stop: int, least: float, room: int) -> list[tuple[float, int, int]]:
        found = np.zeros(room, CANDIDATE)
        count = frequent_rows(self.ASKED, self.CODES, start, stop, least, found)
        return [(f, first, last) for f, first, last, _ in found[:count].tolist()]

    def test_keys_come_with_all_their_rows(self) -> None:
        assert self.found(0, 7, 2.0, 5) == [(4.0, 0, 2), (7.0, 3, 6), (2.0, 6, 7)]
        assert self.found(2, 6, 1.0, 5) == [(1.0, 2, 3), (7.0, 3, 6)]

    def test_without_room_for_all_the_less_frequent_are_left_out(self) -> None:
        assert self.found(0, 7, 1.0, 2) == [(4.0, 0, 2), (7.0, 3, 6)]
        assert self.found(0, 7, 1.0, 1) == [(7.0, 3, 6)]

    def test_of_too_many_that_are_asked_for_equally_often_the_first_have_room(self) -> None:
        found = np.zeros(2, CANDIDATE)
        asked = np.array([3, 0, 3, 3, 0, 0, 3], np.int32)
        assert frequent_rows(asked, self.CODES, 0, 7, 1.0, found) == 2
        assert found["first"].tolist() == [0, 2]

    def test_nobody_may_be_frequent_enough(self) -> None:
        assert self.found(0, 7, 8.0, 5) == []
        assert self.found(4, 4, 1.0, 5) == []
