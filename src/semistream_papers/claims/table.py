"""The claims table: the papers' numbers as data, each with how ours is found and why it differs."""

from __future__ import annotations

from math import isnan
from typing import Final

from semistream_papers.claims.cached import CACHED_CLAIMS
from semistream_papers.claims.claim import Claim, Figures, Verdict, verdict
from semistream_papers.claims.hybrid import HYBRID_CLAIMS
from semistream_papers.claims.mesh import MESH_CLAIMS

__all__ = ["CLAIMS", "our_numbers", "verdicts"]

CLAIMS: Final[tuple[Claim, ...]] = (*MESH_CLAIMS, *HYBRID_CLAIMS, *CACHED_CLAIMS)
"""In the order of the papers."""


def verdicts(figures: Figures, smoke: bool = False) -> list[Verdict]:
    """The verdicts on all claims whose figures are there and give a number."""
    known = [claim for claim in CLAIMS if all(name in figures for name in claim.figures)]
    found = [verdict(claim, figures) for claim in known if claim.in_smoke or not smoke]
    return [one for one in found if not isnan(one.ours)]


def our_numbers(figures: Figures) -> dict[str, float]:
    """Our number for each claim whose figures are there, by the claim's name."""
    return {one.claim.name: one.ours for one in verdicts(figures)}
