"""Routes: the rules by which each stream tuple of a batch goes somewhere.

    before the join     verdict     0: join, −1: defer, k: rejected for reason k
    after the join      route       joined, unmatched, rejected, expired,
                                    deferred-<chunk>, retry-<attempt>-<since>

A verdict is an SQL expression, since checks are the user's own. Everything else is decided by the
task that joins the tuple, see `stage_task`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from semistream.durations import parse_duration
from semistream.errors import OptionError
from semistream.spark.columns import quoted
from semistream.spark.pipeline.sinks import SinkLike, sink_of
from semistream.spark.pipeline.stage_task import RetryRule
from semistream.spark.records import CORRUPT

__all__ = ["Checks", "Retry", "parse_duration", "retry_rule"]

_THEN: Final = ("emit", "drop", "dead_letter")
_COHORTS: Final = 64
"""Tuples that were first looked for within the same 1 / 64 of the deadline wait together."""


@dataclass(frozen=True)
class Retry:
    """Unmatched tuples wait, and are looked for again, since their master row may come late.

    They are looked for when the master has a newer version. Without one, they are looked for after
    `backoff`, then after `factor` times as long, and so on; for the last time at the deadline.
    """

    backoff: float | str = "30s"
    factor: float = 2.0
    deadline: float | str = "1h"
    """How long a tuple may wait; kept to within 1/64 of it."""
    then: str = "emit"
    """What becomes of a tuple after that: "emit" to the sink with nulls, "drop", "dead_letter"."""
    dead_letters: SinkLike | None = None
    """Where tuples go with then="dead_letter"."""

    def __repr__(self) -> str:
        # A path is shown as the sink that it stands for, without secrets.
        letters = None if self.dead_letters is None else sink_of(self.dead_letters, "dead_letters")
        return (
            f"Retry(backoff={self.backoff!r}, factor={self.factor!r}, deadline={self.deadline!r}, "
            f"then={self.then!r}, dead_letters={letters!r})"
        )

    def __post_init__(self) -> None:
        """Check every field."""
        if self.backoff_seconds > self.deadline_seconds:
            raise OptionError(
                f"backoff={self.backoff!r} is longer than deadline={self.deadline!r}: no tuple "
                "would be looked for again. Shorten the backoff."
            )
        factor: object = self.factor
        if not isinstance(factor, (int, float)) or not 1 <= factor < float("inf"):
            raise OptionError(f"factor={self.factor!r} must be a number of at least 1.")
        if self.then not in _THEN:
            raise OptionError(f"then={self.then!r} is not known. Use one of: {', '.join(_THEN)}.")
        if (self.then == "dead_letter") != (self.dead_letters is not None):
            raise OptionError(
                f"then={self.then!r} with{'' if self.dead_letters else 'out'} dead_letters: "
                'then="dead_letter" needs dead_letters=<path or sink>, and nothing else takes it.'
            )

    @property
    def backoff_seconds(self) -> float:
        """`backoff` in seconds."""
        return parse_duration(self.backoff, "backoff")

    @property
    def deadline_seconds(self) -> float:
        """`deadline` in seconds."""
        return parse_duration(self.deadline, "deadline")

    def due(self, attempt: int, since: int, at: float) -> int:
        """When to look again for tuples after `attempt` times, in milliseconds since 1970."""
        # The limit keeps the power finite; a delay that long is past any deadline.
        delay = self.backoff_seconds * self.factor ** min(attempt - 1, 200)
        return min(int(at * 1000 + min(delay, self.deadline_seconds) * 1000), self._end(since))

    def _end(self, since: int) -> int:
        return since + int(self.deadline_seconds * 1000)


def retry_rule(retry: Retry, at: float) -> RetryRule:
    """Where unmatched tuples go, in a batch that began at this time."""
    now = int(at * 1000)
    width = max(int(retry.deadline_seconds * 1000 / _COHORTS), 1)
    return RetryRule(now - now % width, now - int(retry.deadline_seconds * 1000))


@dataclass(frozen=True)
class Checks:
    """Why tuples are rejected: each reason, and the predicate that finds its tuples."""

    reasons: tuple[str, ...]
    faults: tuple[str, ...]
    """SQL predicates, one for each reason."""

    @classmethod
    def of(cls, key: Sequence[str], columns: Sequence[str], checks: Mapping[str, str]) -> Checks:
        """Records that could not be parsed, null keys, and the user's own checks, in this order."""
        faults: dict[str, str] = {}
        if CORRUPT in columns:
            faults["corrupt record"] = f"{quoted(CORRUPT)} IS NOT NULL"
        for name in key:
            faults[f"{name} is null"] = f"{quoted(name)} IS NULL"
        for reason, predicate in checks.items():
            faults[reason] = f"NOT coalesce(({predicate}), false)"
        return cls(tuple(faults), tuple(faults.values()))

    def cases(self) -> list[str]:
        """Cases of SQL that give the number of the first reason that a tuple is rejected for."""
        return [f"WHEN {fault} THEN {number}" for number, fault in enumerate(self.faults, 1)]
