"""What a claim is: a number that a paper gives, how ours is found, and the verdict on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from semistream_papers.figures.reproduction import Drawn

__all__ = ["AGREES", "DIFFERS", "DIRECTION", "FITTED", "Claim", "Figures", "Verdict", "verdict"]

AGREES: Final = "agrees"
DIRECTION: Final = "direction agrees"
DIFFERS: Final = "differs"
FITTED: Final = "fitted"
"""The prices were derived from this number, so that it agrees proves nothing."""

Figures = dict[str, Drawn]
"""Drawn figures by name."""


@dataclass(frozen=True)
class Claim:
    """A quantitative statement of a paper.

    `ours` finds our number in the figures. It agrees if it is within `tolerance` of the paper's.
    Otherwise the direction agrees if both numbers are on the same side of `neutral`.
    """

    name: str
    figures: tuple[str, ...]
    where: str
    says: str
    paper: float | None
    """The paper's number; None for a statement that only has a direction."""
    ours: Callable[[Figures], float]
    neutral: float | None = 1.0
    """The number that favours neither side, such as a ratio of 1; None if there is no side."""
    above: bool = True
    """Whether the paper's number lies above `neutral`."""
    tolerance: float = 0.25
    """As a share of the paper's number."""
    unit: str = "×"
    reason: str = ""
    """Why ours differs, as tested by a run or a calculation; or that it is not known."""
    fitted: bool = False
    """Whether the prices of the platform were derived from the paper's number."""
    in_smoke: bool = True
    """Whether its direction holds at scale "smoke" too, and is tested there."""


@dataclass(frozen=True)
class Verdict:
    """A claim, our number and whether they agree."""

    claim: Claim
    ours: float
    says: str


def verdict(claim: Claim, figures: Figures) -> Verdict:
    """Judge a claim; the figures that it needs must be there."""
    ours = claim.ours(figures)
    right_side = False
    if claim.neutral is not None:
        right_side = ours > claim.neutral if claim.above else ours < claim.neutral
    if claim.fitted:
        return Verdict(claim, ours, FITTED)
    if claim.paper is None:
        return Verdict(claim, ours, AGREES if right_side else DIFFERS)
    if abs(ours - claim.paper) <= claim.tolerance * abs(claim.paper):
        return Verdict(claim, ours, AGREES)
    return Verdict(claim, ours, DIRECTION if right_side else DIFFERS)
