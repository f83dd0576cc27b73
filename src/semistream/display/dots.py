"""A line chart of characters: each has two by four dots, as Braille does."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

__all__ = ["dot_chart"]

_BRAILLE: Final = 0x2800
_BITS: Final = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bit of each dot of a character, by row and column."""


def dot_chart(
    points: Sequence[tuple[float, float]], width: int = 60, height: int = 10
) -> list[str]:
    """Lines of text with the line through the points, whose x and y are between 0 and 1.

    >>> dot_chart([(0, 0), (1, 1)], width=4, height=2)
    ['⠀⠀⡠⠊', '⡠⠊⠀⠀']
    """
    columns, rows = 2 * width, 4 * height
    cells = [[0] * width for _ in range(height)]
    ordered = sorted(points)
    for column in range(columns):
        share = _at(ordered, column / (columns - 1))
        if share is not None:
            row = rows - 1 - round(share * (rows - 1))
            cells[row // 4][column // 2] |= _BITS[row % 4][column % 2]
    return ["".join(chr(_BRAILLE + cell) for cell in line) for line in cells]


def _at(points: Sequence[tuple[float, float]], x: float) -> float | None:
    """The height of the line at x; None beside it."""
    for (x0, y0), (x1, y1) in pairwise(points):
        if x0 <= x <= x1:
            return y0 if x1 == x0 else y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return None
