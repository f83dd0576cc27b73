"""Rate against memory: what more of it would give, and from where on it gives little.

chart = plan.chart()
print(chart)          # in a terminal
chart                 # in a notebook
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from semistream.display.dots import dot_chart
from semistream.display.sizes import count_text, memory_text
from semistream.display.svg import Mark, line_chart

__all__ = ["RateCurve"]

_WORTH: Final = 1.1
"""A doubling of the memory that gives less than a tenth more is not worth it."""
_WIDTH, _HEIGHT = 60, 10


@dataclass(frozen=True)
class RateCurve:
    """The rates that some budgets would give, by the cost model."""

    points: tuple[tuple[int, float], ...]
    """Budgets and rates, by budget."""
    memory: int
    """Today's budget."""

    @classmethod
    def of(cls, points: Iterable[tuple[int, float]], memory: int) -> RateCurve:
        """In order of memory."""
        return cls(tuple(sorted(points)), memory)

    def rate(self, memory: float) -> float | None:
        """The rate with so much memory, between the points; None beyond them."""
        for (low, slow), (high, fast) in pairwise(self.points):
            if low <= memory <= high:
                return slow + (fast - slow) * math.log(memory / low) / math.log(high / low)
        return None

    @property
    def knee(self) -> int | None:
        """The budget from which on no doubling gives a tenth more; None if it is beyond."""
        found = None
        for memory, rate in reversed(self.points):
            double = self.rate(2 * memory)
            if double is None:
                continue
            if double >= _WORTH * rate:
                break
            found = memory
        return found

    def sentence(self) -> str:
        """Whether memory is the limit, in words."""
        now = self.rate(self.memory)
        if not now:
            return "What other budgets would give is not known."
        for size, rate in self.points:
            if size > self.memory and rate >= _WORTH * now:
                return (
                    f"Memory is the limit: {memory_text(size - self.memory)} more would give "
                    f"{rate / now - 1:+.0%}."
                )
        spare = [p for p in self.points if p[0] < self.memory and p[1] >= 0.98 * now]
        if spare:
            return (
                f"Memory is not the limit: {memory_text(spare[0][0])} would do, at "
                f"{min(spare[0][1] / now, 1.0):.0%} of the rate."
            )
        return "Memory is not the limit: more would give less than a tenth."

    def knee_text(self) -> str:
        """The knee in words."""
        if self.knee is None:
            return "knee: beyond the chart, each doubling still gives a tenth or more"
        least = "at most " if self.knee == self.points[0][0] else ""
        return (
            f"knee: {least}{memory_text(self.knee)}, from where a doubling gives less than a tenth"
        )

    def __str__(self) -> str:
        """For a terminal."""
        if len(self.points) < 2:
            return self.sentence()
        low, high = self.points[0][0], self.points[-1][0]
        most = max(rate for _, rate in self.points)
        shares = [(_share(size, low, high), rate / most) for size, rate in self.points]
        chart = dot_chart(shares, _WIDTH, _HEIGHT)
        labels = {0: count_text(most), _HEIGHT - 1: "0"}
        lines = ["tuples/s, expected"]
        lines += [f"{labels.get(i, ''):>8} ┤{line}" for i, line in enumerate(chart)]
        lines.append(" " * 9 + "└" + self._axis(low, high))
        ends = memory_text(low), memory_text(high)
        lines.append(" " * 10 + ends[0] + ends[1].rjust(_WIDTH - len(ends[0])))
        legend = f"▲ today: {memory_text(self.memory)}"
        lines.append(" " * 10 + f"{legend}; {'' if self.knee is None else '◆ '}{self.knee_text()}")
        return "\n".join([*lines, self.sentence()])

    def _axis(self, low: int, high: int) -> str:
        """The line below the chart, with marks."""
        axis = ["─"] * _WIDTH
        for size, sign in ((self.knee, "◆"), (self.memory, "▲")):
            if size is not None and low <= size <= high:
                axis[round(_share(size, low, high) * (_WIDTH - 1))] = sign
        return "".join(axis)

    def svg(self) -> str:
        """As a picture."""
        marks = [Mark(self.memory, "today " + memory_text(self.memory))]
        if self.knee is not None:
            marks.append(Mark(self.knee, "knee " + memory_text(self.knee), quiet=True))
        return line_chart(
            "Rate against memory",
            self.points,
            marks=marks,
            x_text=memory_text,
            y_text=count_text,
            unit="tuples/s, expected",
            log_x=True,
        )

    def _repr_html_(self) -> str:
        """For a notebook."""
        if len(self.points) < 2:
            return f"<p>{self.sentence()}</p>"
        return f"{self.svg()}<p>{self.sentence()} {self.knee_text().capitalize()}.</p>"


def _share(size: float, low: float, high: float) -> float:
    """Where between the ends it is, each doubling as wide as the next."""
    return math.log(size / low) / math.log(high / low) if high > low else 0.0
