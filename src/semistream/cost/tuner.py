"""The tuner: the sizes that give the highest rate for a memory, or need the least for a rate.

The papers set the derivative of μ to zero, for one size at a time and with everything else fixed.
Sizes here are whole pages and partitions, and the budget's minimum cuts some of them off, so the
tuner tries: one size after the other over a geometric row of values, until none gets better.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from semistream.algorithms.registry import needs_of
from semistream.algorithms.sizing import Sizing
from semistream.cost.model import CostModel
from semistream.cost.prediction import Prediction
from semistream.errors import BudgetError, RateError

Options = Mapping[str, Any]

_PINNED_SHARES = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 7 / 8, 1.0)
_FRONT_PERCENTS = (2, 3, 4, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 75, 90)
_LOOK_UPS = (0, 4, 8, 16, 32, 64)
_PROMISING = (
    *("demandjoin", "chybridjoin", "hybridjoin", "oxhybridjoin", "cmeshjoin", "xhybridjoin"),
    *("rmeshjoin", "meshjoin", "cinlj", "inlj"),
)
"""The order in which `cheapest` tries them: after a good plan most others can be skipped."""
_ROUNDS = 3
_MOVING, _MISPLACED = 0.99, 0.25
"""If a front stage will change its size, the plan is worth so much of its rate, since that takes
time. If it will shrink, less the larger it is: what is small has little to give away."""
_PARTS = (1, 2, 4, 8)
"""Of the most memory that can help, these parts are tried for the highest rate."""
_CLOSE = 1.01
"""The search for the least memory stops at a hundredth."""


class Tuner:
    """Finds the best plans of a cost model."""

    def __init__(self, model: CostModel, fixed: Options | None = None) -> None:
        """`fixed` options stay as they are."""
        self.model = model
        self._fixed = dict(fixed or {})
        self._sizings: dict[str, Sizing] = {}
        self._known: dict[tuple[Any, ...], Prediction | None] = {}

    def best(self, algorithm: str, memory: int) -> Prediction:
        """The plan of an algorithm with the highest rate for so much memory."""
        # If there is none, the sizing's error says what the least is.
        return self._tuned(algorithm, memory) or self.model.planned(algorithm, memory, self._fixed)

    def _tuned(self, algorithm: str, memory: int) -> Prediction | None:
        least = {"front_percent": _FRONT_PERCENTS[0]} if needs_of(algorithm).front_share else {}
        starts = [least | self._fixed] + ([dict(self._fixed)] if least else [])
        climbed = [self._climbed(algorithm, memory, options) for options in starts]
        found = [prediction for prediction in climbed if prediction is not None]
        return max(found, key=lambda one: (_has_filter(one), _worth(one)), default=None)

    def _climbed(self, algorithm: str, memory: int, options: dict[str, Any]) -> Prediction | None:
        """The best plan that is reached from some sizes by changing one at a time."""
        found = self.tried(algorithm, memory, options)
        if found is None:
            return None
        for _ in range(_ROUNDS):
            before = found.rate
            for name in self._open(algorithm):
                found, options = self._better(algorithm, memory, name, found, options)
            if found.rate <= before * 1.001:
                break
        return found

    def choose(self, memory: int, algorithms: Iterable[str] | None = None) -> list[Prediction]:
        """The best plans of all algorithms that the memory is enough for, the fastest first."""
        names = self.model.candidates if algorithms is None else list(algorithms)
        # A size that is fixed is not given up for an algorithm that has no such size.
        having = [name for name in names if set(self._fixed) <= set(needs_of(name).options)]
        names = having or names
        tuned = (self._tuned(name, memory) for name in names)
        found = [prediction for prediction in tuned if prediction is not None]
        if not found:
            least = {name: self._sizing(name).least_memory(self._fixed) for name in names}
            algorithm = min(least, key=lambda name: least[name])
            raise BudgetError(
                f"memory={memory:,} bytes is too little for any algorithm on this master"
                f"{' with the sizes that are given' if self._fixed else ''}: the "
                f"least is {least[algorithm]:,} bytes, with {algorithm}. Give more memory.",
                least=least[algorithm],
            )
        return sorted(found, key=_worth, reverse=True)

    def least_memory(self, algorithm: str, rate: float) -> Prediction:
        """The plan of an algorithm that reaches a rate with the least memory."""
        low = self._sizing(algorithm).least_memory(self._fixed)
        found = self._fastest(algorithm)
        if found.rate < rate:
            raise RateError(
                f"No memory lets {algorithm} serve {rate:,.0f} tuples per second: it does "
                f"{found.rate:,.0f} at most. Ask for less, or divide the stream among several "
                "tasks."
            )
        high = found.plan.memory
        while high > low * _CLOSE:
            middle = int((low * high) ** 0.5)
            tried = self._reaching(algorithm, middle, rate)
            if tried is None:
                low = middle + 1
            else:
                found, high = tried, middle
        return found

    def cheapest(self, rate: float, algorithms: Iterable[str] | None = None) -> Prediction:
        """The plan that reaches a rate with the least memory of all."""
        best: Prediction | None = None
        most: dict[str, float] = {}
        names = self.model.candidates if algorithms is None else algorithms
        for algorithm in sorted(names, key=_PROMISING.index):
            # Skip algorithms that do not reach the rate with less memory than the best so far.
            if best and not self._reaching(algorithm, int(best.plan.memory / _CLOSE), rate):
                continue
            try:
                best = self.least_memory(algorithm, rate)
            except RateError:
                most[algorithm] = self._fastest(algorithm).rate
        if best is None:
            algorithm = max(most, key=lambda name: most[name])
            raise RateError(
                f"No memory serves {rate:,.0f} tuples per second: {algorithm} does "
                f"{most[algorithm]:,.0f} at most. Ask for less, or divide the stream among "
                "several tasks."
            )
        return best

    def advice(self, rate: float) -> str:
        """What to do to reach a rate."""
        try:
            least = self.cheapest(rate).plan
        except RateError as error:
            return str(error)
        return f"Give it {least.memory:,} bytes, with {least.algorithm}."

    def curve(self, algorithm: str, memories: Iterable[int]) -> list[tuple[int, float]]:
        """What other budgets would give: pairs of memory and rate."""
        tuned = ((memory, self._tuned(algorithm, memory)) for memory in memories)
        return [(memory, found.rate) for memory, found in tuned if found is not None]

    @property
    def most_memory(self) -> int:
        """More than this does not help: all of R fits, in whatever form it is kept."""
        return 3 * int(self.model.master.pages.length.sum()) + (64 << 20)

    def _fastest(self, algorithm: str) -> Prediction:
        """The plan with the highest rate, whatever it takes.

        With all of R in memory more is beyond the processor's caches, so less may be faster.
        """
        low = self._sizing(algorithm).least_memory(self._fixed)
        memories = {max(low, self.most_memory // part) for part in _PARTS}
        return max((self.best(algorithm, memory) for memory in memories), key=lambda one: one.rate)

    def _reaching(self, algorithm: str, memory: int, rate: float) -> Prediction | None:
        found = self._tuned(algorithm, memory)
        return found if found is not None and found.rate >= rate else None

    def _open(self, algorithm: str) -> list[str]:
        """The sizes that are to be chosen."""
        needs = needs_of(algorithm)
        names = ["front_percent"] if needs.front_share else []
        names += ["pinned_partitions"] if needs.pinned_share else []
        names += ["partition_pages"] if "partition_pages" in needs.options else []
        names += ["look_ups"] if needs.look_ups and self.model.master.layout == "key" else []
        return [name for name in names if name not in self._fixed]

    def _better(
        self, algorithm: str, memory: int, name: str, best: Prediction, options: dict[str, Any]
    ) -> tuple[Prediction, dict[str, Any]]:
        """The best value of one size, with the others as they are."""
        now = best.plan
        for value in self._values(name, memory, best):
            changed = options | {name: value}
            if name == "partition_pages" and now.pinned_partitions and self._pins(algorithm):
                # As many pages stay pinned as before.
                pages = now.pinned_partitions * now.partition_pages
                changed["pinned_partitions"] = max(1, round(pages / value))
            found = self.tried(algorithm, memory, changed)
            if found is not None and _is_better(found, best):
                best, options = found, changed
        return best, options

    def _pins(self, algorithm: str) -> bool:
        return "pinned_partitions" in self._open(algorithm)

    def _values(self, name: str, memory: int, now: Prediction) -> list[int]:
        master, pages = self.model.master, now.plan.partition_pages
        if name == "front_percent":
            return list(_FRONT_PERCENTS)
        if name == "look_ups":
            return list(_LOOK_UPS)
        page = float(master.pages.length.sum()) / max(master.page_count, 1)
        if name == "pinned_partitions":
            whole = -(-master.page_count // pages)
            sizes = [int(memory * share / page / pages) for share in _PINNED_SHARES]
            return sorted({*(min(max(size, 0), whole) for size in sizes), 0, whole})
        values = [1]
        while values[-1] * 2 <= master.page_count and values[-1] * 2 * page <= memory / 3:
            values += [values[-1] * 3 // 2, values[-1] * 2] if values[-1] > 1 else [2]
        return values

    def tried(self, algorithm: str, memory: int, options: Options) -> Prediction | None:
        """What these sizes give; None if they do not fit."""
        known = {k: v for k, v in options.items() if k in needs_of(algorithm).options}
        key = (algorithm, memory, *sorted(known.items()))
        if key not in self._known:
            plan = self._sizing(algorithm).plan_or_none(memory, known)
            self._known[key] = None if plan is None else self.model.predict(plan, known)
        return self._known[key]

    def _sizing(self, algorithm: str) -> Sizing:
        if algorithm not in self._sizings:
            self._sizings[algorithm] = self.model.sizing(algorithm)
        return self._sizings[algorithm]


def _is_better(found: Prediction, best: Prediction) -> bool:
    """Whether a plan is to be taken instead of another."""
    # The model knows what a membership filter takes, but not how many tuples it will settle.
    if _has_filter(best) and not _has_filter(found):
        return False
    # Plans with tiny chunks are slower than their counters show.
    if found.plan.stream_chunk_rows < best.plan.stream_chunk_rows:
        return False
    return _worth(found) > _worth(best)


def _has_filter(found: Prediction) -> bool:
    return "filter" in found.plan.parts


def _worth(found: Prediction) -> float:
    """The rate; less if the front stage has to take memory, or give some, before it is reached."""
    if not (found.shrinks or found.grows):
        return found.rate
    misplaced = found.plan.parts.get("front stage", 0) / found.plan.memory if found.shrinks else 0.0
    return found.rate * (_MOVING - _MISPLACED * misplaced)
