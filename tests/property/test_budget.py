"""The memory budget against a dict of numbers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from semistream.budget import MemoryBudget, parse_memory
from semistream.errors import BudgetError, OptionError

NAMES = st.sampled_from(["stream table", "disk buffer", "output"])
SIZES = st.integers(0, 1000)


class BudgetMachine(RuleBasedStateMachine):
    """Takes and gives back under several names, within the total and past it."""

    @initialize(total=st.integers(1, 2000))
    def begin(self, total: int) -> None:
        self.budget = MemoryBudget(total)
        self.held: dict[str, int] = {}
        self.peak = 0

    @rule(name=NAMES, size=SIZES)
    def take(self, name: str, size: int) -> None:
        grant, used = self.budget.grant(name), sum(self.held.values())
        self.held.setdefault(name, 0)
        if used + size > self.budget.total:
            with pytest.raises(BudgetError, match=f"The {name} needs {size:,} bytes more"):
                grant.take(size)
            return
        grant.take(size)
        self.held[name] += size
        self.peak = max(self.peak, used + size)

    @rule(name=NAMES, size=SIZES)
    def give(self, name: str, size: int) -> None:
        grant = self.budget.grant(name)
        if size > self.held.setdefault(name, 0):
            with pytest.raises(ValueError, match="gives back"):
                grant.give(size)
            return
        grant.give(size)
        self.held[name] -= size

    @rule(name=NAMES, size=st.integers(-1000, -1))
    def a_negative_size_is_refused(self, name: str, size: int) -> None:
        grant = self.budget.grant(name)
        self.held.setdefault(name, 0)
        with pytest.raises(ValueError, match="asks for"):
            grant.take(size)

    @rule(name=NAMES, size=st.integers(-1000, -1))
    def nothing_can_be_taken_by_giving_a_negative_size(self, name: str, size: int) -> None:
        grant = self.budget.grant(name)
        self.held.setdefault(name, 0)
        with pytest.raises(ValueError, match="gives back"):
            grant.give(size)

    @invariant()
    def the_budget_is_the_model(self) -> None:
        if hasattr(self, "budget"):
            self.budget.check()
            assert self.budget.by_part() == self.held | {
                "peak": self.peak,
                "budget": self.budget.total,
            }
            assert self.budget.used == sum(self.held.values())


TestBudget = BudgetMachine.TestCase
TestBudget.settings = settings(max_examples=100, stateful_step_count=30)


@given(st.integers(1, 2**50))
def test_bytes_are_taken_as_they_are(size: int) -> None:
    assert parse_memory(size) == parse_memory(str(size)) == parse_memory(f" {size} B ") == size


@given(st.integers(1, 4000), st.sampled_from(["k", "K", "m", "M", "g", "G", "t"]))
def test_units_are_powers_of_1024(number: int, unit: str) -> None:
    expected = number * 1024 ** (" kmgt".index(unit.lower()))
    for text in (f"{number}{unit}", f"{number} {unit}B", f"{number}{unit}iB", f"{number}.0{unit}b"):
        assert parse_memory(text) == expected


@pytest.mark.parametrize(
    "memory", [0, -1, True, 1.5, None, "", "MB", "-1MB", "64 parsecs", "1e6", "0", "0.0000001KB"]
)
def test_what_is_not_a_size_is_refused(memory: object) -> None:
    with pytest.raises(OptionError, match=r'is not a size\. Give bytes .* "64MB"'):
        parse_memory(memory)  # type: ignore[arg-type]
