"""A target, what was measured for it, and the turns in which ways are measured side by side."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any

from semistream_bench.turns import Seconds

LEAST_MEMORY = 1 << 20
"""Bytes of a budget at least, so that a small R, given to try things out, leaves a join enough."""


@dataclass(frozen=True)
class Finding:
    """One line of the table: a ratio of rates, or milliseconds, beside its target."""

    row: int
    measure: str
    bound: float
    """The target: the least ratio, or the most if `at_most`."""
    seconds: Seconds
    ours: str
    other: str | None
    """The way that ours is compared with; None for milliseconds of ours alone."""
    tuples: int
    """How many stream tuples each of `seconds` is for."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    inverse: bool = False
    """Whether the ratio is our time over the other's, which is to be small."""

    @property
    def at_most(self) -> bool:
        """Whether less is better."""
        return self.inverse or self.other is None

    @property
    def measured(self) -> float:
        """From the medians of all rounds."""
        return self._value(*(list(chain(*self.seconds[way])) for way in self._ways()))

    @property
    def by_round(self) -> tuple[float, float]:
        """The lowest and the highest when each round stands alone."""
        rounds = zip(*(self.seconds[way] for way in self._ways()), strict=True)
        values = [self._value(*taken) for taken in rounds]
        return min(values), max(values)

    @property
    def met(self) -> bool:
        """Whether the target is reached."""
        return self.measured <= self.bound if self.at_most else self.measured >= self.bound

    def rate(self, way: str) -> float:
        """Tuples per second."""
        return self.tuples / statistics.median(chain(*self.seconds[way]))

    def line(self) -> dict[str, Any]:
        """As a result to be written."""
        found = asdict(self) | {"measured": self.measured, "by_round": self.by_round}
        return found | {"met": self.met, "at_most": self.at_most}

    def _ways(self) -> list[str]:
        return [self.ours] if self.other is None else [self.ours, self.other]

    def _value(self, ours: list[float], other: list[float] | None = None) -> float:
        own = statistics.median(ours)
        if other is None:
            return own * 1e3
        against = statistics.median(other)
        return own / against if self.inverse else against / own


_UNIT = {True: " ms", False: ""}
_COLUMNS = ("row", "measure", "ours", "other", "target", "measured", "by round", "")


def print_table(findings: Iterable[Finding]) -> None:
    """All findings in the order of their rows."""
    in_order = sorted(findings, key=lambda finding: finding.row)
    lines = [_COLUMNS, *map(_cells, in_order)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_COLUMNS))]
    for line in lines:
        cells = [
            cell.ljust(width) if name in ("measure", "") else cell.rjust(width)
            for name, cell, width in zip(_COLUMNS, line, widths, strict=True)
        ]
        print("  ".join(cells).rstrip())
    print("ours, other: thousand tuples/s; by round: the lowest and the highest of single rounds")
    print(f"{sum(finding.met for finding in in_order)} of {len(in_order)} met")


def _cells(finding: Finding) -> tuple[str, ...]:
    alone = finding.other is None
    digits = 0 if finding.bound >= 10 and not alone else 1 if alone else 2
    low, high = finding.by_round
    return (
        str(finding.row),
        finding.measure,
        f"{finding.rate(finding.ours) / 1e3:,.0f}",
        "" if finding.other is None else f"{finding.rate(finding.other) / 1e3:,.0f}",
        f"{'≤' if finding.at_most else '≥'} {finding.bound:g}{_UNIT[alone]}",
        f"{finding.measured:.{digits}f}{_UNIT[alone]}",
        f"{low:.{digits}f}–{high:.{digits}f}",
        "met" if finding.met else "missed",
    )


def say(text: str) -> None:
    """Tell what goes on, apart from the table."""
    print(text, file=sys.stderr, flush=True)
