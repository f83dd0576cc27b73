"""The arrival queue against a list of slots, oldest first."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from semistream.budget import MemoryBudget
from semistream.kernels import NONE
from semistream.parts.arrival_queue import BYTES_PER_SLOT, ArrivalQueue


class QueueMachine(RuleBasedStateMachine):
    """Appends, removals from anywhere, and slots that come and go."""

    @initialize(capacity=st.integers(0, 40))
    def begin(self, capacity: int) -> None:
        self.budget = MemoryBudget(1 << 20)
        self.queue = ArrivalQueue(capacity, self.budget.grant("arrival queue"))
        self.waiting: list[int] = []
        self.capacity = self.limit = capacity

    @property
    def free(self) -> int:
        return self.limit - sum(slot < self.limit for slot in self.waiting)

    @rule(count=st.integers(0, 12))
    def append(self, count: int) -> None:
        if count > self.free:
            with pytest.raises(ValueError, match="slots are free"):
                self.queue.append(count)
            return
        slots = self.queue.append(count).tolist()
        assert len(set(slots)) == count
        assert not set(slots) & set(self.waiting)
        assert all(0 <= slot < self.limit for slot in slots)
        self.waiting += slots

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        some = (
            data.draw(st.lists(st.sampled_from(self.waiting), unique=True))
            if (self.waiting)
            else []
        )
        self.queue.remove(np.array(some, np.int32))
        self.waiting = [slot for slot in self.waiting if slot not in some]

    @rule(count=st.integers(0, 50))
    def the_oldest_ones(self, count: int) -> None:
        assert self.queue.oldest_slots(count).tolist() == self.waiting[:count]

    @rule(position=st.sampled_from([0.0, 0.15, 0.5, 0.99, 1.0]))
    def near(self, position: float) -> None:
        slot = self.queue.near(position)
        if not self.waiting:
            assert slot == NONE
            return
        newer = len(self.waiting) - 1 - self.waiting.index(slot)
        wanted = min(int(position * len(self.waiting)), len(self.waiting) - 1)
        assert abs(newer - wanted) <= len(self.waiting) / 16 + 1

    @precondition(lambda self: self.limit == self.capacity)
    @rule(data=st.data())
    def use_fewer(self, data: st.DataObject) -> None:
        self.limit = data.draw(st.integers(0, self.capacity))
        self.queue.limit(self.limit)

    @precondition(lambda self: all(slot < self.limit for slot in self.waiting))
    @rule()
    def give_the_unused_slots_back(self) -> None:
        self.queue.resize(self.limit)
        self.capacity = self.limit

    @precondition(lambda self: self.limit == self.capacity)
    @rule(more=st.integers(0, 10))
    def have_more(self, more: int) -> None:
        self.capacity = self.limit = self.capacity + more
        self.queue.resize(self.capacity)

    @invariant()
    def the_queue_is_the_model(self) -> None:
        if not hasattr(self, "queue"):
            return
        self.queue.check()
        self.budget.check()
        assert self.queue.waiting() == self.waiting
        assert len(self.queue) == len(self.waiting)
        assert self.queue.oldest() == (self.waiting[0] if self.waiting else NONE)
        assert self.queue.free == self.free
        assert self.queue.beyond == sum(slot >= self.limit for slot in self.waiting)
        assert self.budget.used == self.capacity * BYTES_PER_SLOT


TestArrivalQueue = QueueMachine.TestCase
TestArrivalQueue.settings = settings(max_examples=120, stateful_step_count=40)


def test_slots_are_given_out_in_order_again_when_nothing_waits() -> None:
    """So that what is kept by slot lies together in memory, however the last tuples left."""
    queue = ArrivalQueue(6, MemoryBudget(1 << 10).grant("arrival queue"))
    slots = queue.append(6)
    queue.remove(slots[[4, 0, 5, 2, 3, 1]])
    assert queue.append(6).tolist() == [0, 1, 2, 3, 4, 5]
