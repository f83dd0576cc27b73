"""Priced clock: time as the sum of what was done, each operation at its price.

Counting is timing (DESIGN): with the cost factors of a disk and a CPU the counters of a run
say how long it would take there, so that overload and waiting times can be studied on any
machine and come out the same every time. Time in which nothing is done is moved by hand.
"""

from __future__ import annotations

from dataclasses import dataclass

from semistream.metrics import Recorder


@dataclass(frozen=True)
class CostFactors:
    """Seconds per operation. A partition read is the seek; its pages are priced apart."""

    page_read: float = 0.0
    partition_read: float = 0.0
    index_page_read: float = 0.0
    probe: float = 0.0
    append: float = 0.0
    delete: float = 0.0
    output: float = 0.0
    stream_read: float = 0.0
    iteration: float = 0.0
    shed: float = 0.0
    """Per tuple that goes to disk or comes back."""

    def seconds(self, counted: Recorder) -> float:
        """What has been counted, priced."""
        return (
            self.page_read * counted.pages_read
            + self.partition_read * counted.partitions_read
            + self.index_page_read * counted.index_pages_read
            + self.probe * counted.probes
            + self.append * counted.appends
            + self.delete * counted.deletes
            + self.output * counted.outputs
            + self.stream_read * counted.stream_reads
            + self.iteration * counted.iterations
            + self.shed * (counted.shed + counted.returned)
        )


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
        return self._before + self.factors.seconds(self._counted)

    def bind(self, recorder: Recorder) -> None:
        """Count the operations of this run from now on; those of the last one have passed."""
        self._before = self() - self.factors.seconds(recorder)
        self._counted = recorder

    def advance_to(self, seconds: float) -> None:
        """Let idle time pass until then; a time that has passed changes nothing."""
        self._before += max(0.0, seconds - self())
