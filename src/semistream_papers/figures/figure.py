"""What a figure is: a frozen record of what varies, what is fixed and which quantity is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from semistream.algorithms.registry import needs_of
from semistream_papers.runs.setting import Setting, scaled

__all__ = ["Figure", "Point", "Variant"]

_LABELS = {
    "inlj": "INLJ",
    "meshjoin": "MESHJOIN",
    "rmeshjoin": "R-MESHJOIN",
    "hybridjoin": "HYBRIDJOIN",
    "xhybridjoin": "X-HYBRIDJOIN",
    "oxhybridjoin": "Optimised X-HYBRIDJOIN",
    "cinlj": "CINLJ",
    "cmeshjoin": "CMESHJOIN",
    "chybridjoin": "CHYBRIDJOIN",
}

_WHOLE_NUMBERS = frozenset(
    {"rows", "partition_rows", "pinned_rows", "front_percent", "threshold", "rows_per_key"}
)
"""Parameters that are counts; a figure's values are floats."""


@dataclass(frozen=True)
class Variant:
    """A series: an algorithm, and the parameters in which it differs from the figure's base."""

    algorithm: str
    label: str = ""
    changes: tuple[tuple[str, Any], ...] = ()
    quantity: str = ""
    """What is drawn of it, where that is not the figure's quantity."""

    @property
    def name(self) -> str:
        """As it stands in the legend."""
        return self.label or _LABELS[self.algorithm]


class Point(NamedTuple):
    """A point of a figure before it is run."""

    series: str
    x: float
    setting: Setting
    quantity: str


@dataclass(frozen=True)
class Figure:
    """One figure of a paper.

    A figure of runs has `base`, `varies`, `values` and `series`; one that needs no run has the
    name of a drawing instead.
    """

    name: str
    """ "hybridjoin-7c": the algorithm that the paper introduces, and the figure's number."""
    paper: str
    title: str
    claim: str
    """What the paper says of it, in our words."""
    x: str
    y: str
    base: Setting | None = None
    varies: str = ""
    values: tuple[float, ...] = ()
    smoke: tuple[float, ...] = ()
    """The values at scale "smoke"; all of them if none are given."""
    series: tuple[Variant, ...] = ()
    quantity: str = "rate"
    """Which of a result's numbers is drawn; see `quantities`."""
    predicted: bool = False
    """Whether the paper's own equations are drawn beside each series."""
    drawing: str = ""
    log_x: bool = False
    log_y: bool = False
    x_unit: float = 1.0
    """What the varied value is divided by on the axis."""
    notes: tuple[str, ...] = field(default=())
    """How this differs from the paper's experiment."""

    @property
    def number(self) -> str:
        """The figure's number in its paper."""
        return self.name.rsplit("-", 1)[1]

    @property
    def only_priced(self) -> bool:
        """Whether it is about arrival rates, which are an overload only on a paper's machine."""
        return self.varies == "arrival_rate" or bool(self.base and self.base.arrival_rate)

    def points(self, scale: str) -> Iterator[Point]:
        """All points at a scale, series by series."""
        if self.base is None:
            return
        values = self.smoke if scale == "smoke" and self.smoke else self.values
        for variant in self.series:
            for value in values:
                setting = self._setting(variant, value, scale)
                quantity = variant.quantity or self.quantity
                yield Point(variant.name, value / self.x_unit, setting, quantity)

    def _setting(self, variant: Variant, value: float, scale: str) -> Setting:
        assert self.base is not None
        changes = dict(variant.changes) | {self.varies: value, "algorithm": variant.algorithm}
        changes |= {name: int(changes[name]) for name in _WHOLE_NUMBERS & changes.keys()}
        needs = needs_of(variant.algorithm)
        scans = needs.waiting and not needs.queue
        if scans and "partition_rows" not in changes:
            changes["partition_rows"] = self.base.scan_rows
        return scaled(self.base.with_(**changes), scale)
