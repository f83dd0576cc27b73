"""Numbers for people to read."""

from __future__ import annotations

__all__ = ["short_number"]


def short_number(value: float) -> str:
    """A number for people to read, with three significant digits.

    >>> short_number(12345.6), short_number(0.51234), short_number(6.5)
    ('12,300', '0.512', '6.5')
    """
    if abs(value) >= 1000:
        digits = len(str(int(abs(value)))) - 3
        return f"{round(value, -digits):,.0f}"
    return f"{value:.3g}"
