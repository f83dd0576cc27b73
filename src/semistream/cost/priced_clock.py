"""Priced clock: time as the sum of what was done, each operation at its price.

With it overload and waiting times can be studied on any machine and come out the same every
time. Time in which nothing is done is moved by hand.
"""

from __future__ import annotations

from semistream.cost.factors import CostFactors
from semistream.cost.pricing import priced_seconds
from semistream.metrics import Recorder


class PricedClock:
    """A clock that the operations of a run move; `clock=` of an engine takes it.

    >>> clock = PricedClock(CostFactors(page_read=0.01))
    >>> recorder = Recorder(clock)
    >>> clock.bind(recorder)
    >>> recorder.pages_read += 3
    >>> clock()
    0.03
    """

    def __init__(self, factors: CostFactors, now: float = 0.0) -> None:
        """At `now` seconds; nothing is counted before `bind`."""
        self.factors = factors
        self._before = now
        self._counted: Recorder | None = None

    def __call__(self) -> float:
        """The time now."""
        if self._counted is None:
            return self._before
        return self._before + priced_seconds(self._counted, self.factors)

    def bind(self, recorder: Recorder) -> None:
        """From now on the operations of this run move the clock; what it shows stays as it is."""
        self._before = self() - priced_seconds(recorder, self.factors)
        self._counted = recorder

    def advance_to(self, seconds: float) -> None:
        """Let idle time pass until then; a time that has passed changes nothing."""
        self._before += max(0.0, seconds - self())
