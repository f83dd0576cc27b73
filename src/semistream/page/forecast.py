"""What other budgets would give a running pipeline, by the cost model.

It takes some tenths of a second, so it is worked out in a thread of its own, and only again when
something has changed that matters.
"""

from __future__ import annotations

import math
import threading
from typing import NamedTuple

import pyarrow as pa

from semistream.cost.planning import plan
from semistream.errors import SemistreamError
from semistream.rate_curve import RateCurve
from semistream.relation import MasterTable

__all__ = ["Forecast", "Question", "rate_curve"]


class Question(NamedTuple):
    """What the answer depends on."""

    place: str
    version: int
    memory: int
    io: str
    exponent: float
    tuples: int
    """Of a task."""

    @classmethod
    def of(
        cls, place: str, version: int, memory: int, io: str, exponent: float, tuples: float
    ) -> Question:
        """With numbers rounded, so that small changes ask nothing new."""
        power = 2 ** round(math.log2(max(tuples, 1.0)))
        return cls(place, version, memory, io, round(exponent, 1), power)


class Forecast:
    """Answers with a curve when there is one."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._asked: Question | None = None
        self._curve: RateCurve | None = None
        self._thread: threading.Thread | None = None

    def curve(self, question: Question, wait: bool = False) -> RateCurve | None:
        """The curve, as of the last question that was answered; None before the first is."""
        idle = self._thread is None or not self._thread.is_alive()
        if question != self._asked and idle:
            self._asked = question
            self._thread = threading.Thread(target=self._answer, args=(question,), daemon=True)
            self._thread.start()
        if wait and self._thread is not None:
            self._thread.join()
        return self._curve

    def _answer(self, question: Question) -> None:
        try:
            self._curve = rate_curve(question)
        except (SemistreamError, OSError):
            # The master cannot be opened from here, or is empty: the page says so elsewhere.
            self._curve = None


def rate_curve(question: Question) -> RateCurve:
    """Ask the cost model of tasks on Spark."""
    master = MasterTable.open(question.place, question.version)
    return plan(
        master,
        memory=question.memory,
        skew=question.exponent,
        stream=_one_tuple(master),
        io=question.io,
        task_tuples=question.tuples,
    ).chart()


def _one_tuple(master: MasterTable) -> pa.RecordBatch:
    """A tuple of the usual width; with a tuple, the model looks which pages are in memory."""
    key = [pa.field(name, master.schema.field(name).type) for name in master.key]
    schema = pa.schema([*key, pa.field("__tuple", pa.binary(12))])
    return pa.RecordBatch.from_pylist([{"__tuple": bytes(12)}], schema)
