"""Numbers in units that people read."""

from __future__ import annotations

__all__ = ["count_text", "memory_text", "time_text"]


def memory_text(size: float) -> str:
    """Bytes, as budgets are given: a MB has 2**20 of them.

    >>> memory_text(64 << 20), memory_text(1536), memory_text(300)
    ('64 MB', '1.5 KB', '300 bytes')
    """
    for unit, factor in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if size >= factor:
            return (
                f"{size / factor:,.3g} {unit}"
                if size < 10 * factor
                else f"{size / factor:,.0f} {unit}"
            )
    return f"{size:,.0f} bytes"


def count_text(number: float) -> str:
    """A number with at most three figures.

    >>> count_text(2_345_678), count_text(12_300), count_text(712)
    ('2.35 M', '12.3 k', '712')
    """
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(number) >= factor:
            return (
                f"{number / factor:.3g} {unit}"
                if abs(number) < 999.5 * factor
                else f"{number / factor:,.0f} {unit}"
            )
    return f"{number:.3g}"


def time_text(seconds: float) -> str:
    """Seconds.

    >>> time_text(0.0123), time_text(75), time_text(5000)
    ('12.3 ms', '75.0 s', '83 min')
    """
    if seconds >= 600:
        return f"{seconds / 60:,.0f} min" if seconds < 36000 else f"{seconds / 3600:,.0f} h"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"
