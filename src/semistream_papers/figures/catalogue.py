"""The catalogue: one record for each figure of the papers."""

from __future__ import annotations

from typing import Final

from semistream.errors import OptionError
from semistream_papers.figures.cached import CACHED
from semistream_papers.figures.figure import Figure
from semistream_papers.figures.hybrid import HYBRID
from semistream_papers.figures.mesh import MESH
from semistream_papers.figures.pinned import OPTIMISED, PINNED

__all__ = ["FIGURES", "chosen"]

FIGURES: Final[dict[str, Figure]] = {
    figure.name: figure for figure in (*MESH, *HYBRID, *PINNED, *OPTIMISED, *CACHED)
}
"""By name, paper by paper."""


def chosen(names: list[str]) -> list[Figure]:
    """The figures of these names; "all", or the name of a paper's algorithm, for all of them."""
    found: dict[str, Figure] = {}
    for name in names:
        some = {n: f for n, f in FIGURES.items() if name in ("all", n, n.rsplit("-", 1)[0])}
        if not some:
            raise OptionError(
                f"There is no figure {name!r}. Say all, or one or more of: {', '.join(FIGURES)}."
            )
        found |= some
    return list(found.values())
