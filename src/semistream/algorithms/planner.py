"""Planners: who decides with which algorithm and sizes a stream is joined.

An engine asks its planner when the first batch shows the stream. A planner for one algorithm
stands here; those that ask the cost model stand above this layer and are handed to the engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

import pyarrow as pa

from semistream.algorithms.options import Options
from semistream.algorithms.registry import BY_NAME, needs_of
from semistream.algorithms.sizing import Sizing
from semistream.errors import OptionError
from semistream.metrics import Recorder
from semistream.parts.join_shape import JoinShape
from semistream.plan import JoinPlan
from semistream.relation import MasterTable

_T = TypeVar("_T")


@dataclass(frozen=True)
class Occasion:
    """What a plan is made for: a join, the first batch of its stream, and the memory."""

    shape: JoinShape
    first: pa.RecordBatch
    memory: int
    """What there is; a plan may be content with less."""
    timed: bool = False
    """Whether tuples have arrival times."""
    queued: bool = False
    """Whether the algorithm must have an arrival queue, to shed load from."""


class Planner(Protocol):
    """Decides with which plan a stream is joined. Asking changes nothing."""

    @property
    def name(self) -> str:
        """The algorithm, or "auto"."""

    def plan(self, occasion: Occasion) -> JoinPlan:
        """The plan for a stream that begins so."""


class Retuner(Planner, Protocol):
    """A planner that goes on watching the stream, and may want another plan for the rest."""

    def start(self, timed: bool) -> None:
        """A run begins; nothing of it has been seen."""

    def pull(self, items: Iterator[_T]) -> _T:
        """What `next` gives; how long it takes is noted."""

    def wants_another(self, occasion: Occasion, counted: Recorder) -> bool:
        """Look at the next batch; whether the stream should be joined with another plan from it on.

        `counted` is what the run has done so far.
        """

    def use(self, plan: JoinPlan) -> None:
        """The join goes on with this plan."""


@dataclass(frozen=True)
class Sizer:
    """From an algorithm and its options to the sizes of a plan."""

    master: MasterTable
    io: str
    use_filter: bool | None
    """True to insist on the master's membership filter, None to use it if it fits."""

    def sized(self, algorithm: str, options: Options, occasion: Occasion) -> JoinPlan:
        """The plan for so much memory."""
        needs = needs_of(algorithm)
        if occasion.timed and "look_ups" in needs.options:
            # Whose turn it is depends on the time: one tuple is looked up, then time passes.
            options = {**options, "look_ups": 0}
        return self.sizing(algorithm, occasion).plan(occasion.memory, options)

    def sizing(self, algorithm: str, occasion: Occasion) -> Sizing:
        """What divides a budget among the parts of an algorithm."""
        shape, first = occasion.shape, occasion.first
        needs = needs_of(algorithm)
        return Sizing(needs, self.master, shape, first, self.use_filter, self.io)


@dataclass(frozen=True)
class OneAlgorithm:
    """The planner of an engine whose algorithm is named."""

    name: str
    options: Options
    sizer: Sizer

    def plan(self, occasion: Occasion) -> JoinPlan:
        """The sizes that the options leave open."""
        if occasion.queued:
            check_queue(self.name)
        return self.sizer.sized(self.name, self.options, occasion)


def check_queue(algorithm: str) -> None:
    """Refuse an algorithm without an arrival queue."""
    if not needs_of(algorithm).queue:
        queued = [name for name, known in BY_NAME.items() if known.needs.queue]
        raise OptionError(
            f"{algorithm} has no arrival queue to shed from, so "
            f'"considering" is not for it. Use "keep" or "random", or one of the algorithms '
            f"that have one: {', '.join(queued)}."
        )
