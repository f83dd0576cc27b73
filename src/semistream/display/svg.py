"""Small charts as SVG, for notebooks, light or dark: lines take the colour of the text around them.

Each has a title and, as text that screen readers tell, the numbers behind it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Final, NamedTuple

from semistream.display.sizes import count_text

__all__ = ["ACCENT", "Mark", "bar", "line_chart", "sparkline"]

ACCENT: Final = "#2a78b8"
_SHADES: Final = (1.0, 0.8, 0.62, 0.48, 0.36, 0.26, 0.18, 0.12)
"""How strong the accent is in the parts of a bar, the first being the largest."""
_FONT: Final = 'font-family="system-ui, sans-serif" font-size="11" fill="currentColor"'
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 26, 30
_APART: Final = 110
"""So far from a mark the end of an axis has room for a label."""


class Mark(NamedTuple):
    """A place on the x axis with a name."""

    x: float
    text: str
    quiet: bool = False


def line_chart(
    title: str,
    points: Sequence[tuple[float, float]],
    *,
    marks: Sequence[Mark] = (),
    x_text: Callable[[float], str] = count_text,
    y_text: Callable[[float], str] = count_text,
    unit: str = "",
    log_x: bool = False,
    width: int = 560,
    height: int = 200,
) -> str:
    """A line from 0 up, with two or three labels on each axis."""
    scale = math.log if log_x else float
    xs, ys = [scale(x) for x, _ in points], [y for _, y in points]
    low, high, most = min(xs), max(xs), max([*ys, 0.0]) or 1.0
    across, down = width - _LEFT - _RIGHT, height - _TOP - _BOTTOM

    def x_at(x: float) -> float:
        return _LEFT + across * ((scale(x) - low) / (high - low) if high > low else 0.5)

    def y_at(y: float) -> float:
        return _TOP + down * (1 - y / most)

    pieces = [
        f'<line x1="{_LEFT}" x2="{width - _RIGHT}" y1="{y_at(y):.1f}" y2="{y_at(y):.1f}" '
        f'stroke="currentColor" stroke-opacity="{0.35 if not y else 0.12}"/>'
        f'<text x="{_LEFT - 6}" y="{y_at(y) + 4:.1f}" text-anchor="end" {_FONT} '
        f'fill-opacity="0.7">{escape(y_text(y))}</text>'
        for y in (0.0, most / 2, most)
    ]
    for mark in marks:
        x, strength = x_at(mark.x), 0.5 if mark.quiet else 1.0
        y = height - _BOTTOM + (26 if mark.quiet else 14)
        anchor = "start" if x < width / 4 else "end" if x > width * 0.75 else "middle"
        pieces.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{height - _BOTTOM}" '
            f'stroke="currentColor" stroke-dasharray="3 3" stroke-opacity="{strength * 0.6}"/>'
            f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}" {_FONT} '
            f'fill-opacity="{0.5 + strength / 2}">{escape(mark.text)}</text>'
        )
    for (x, _), anchor in ((min(points), "start"), (max(points), "end")):
        if all(abs(x_at(mark.x) - x_at(x)) > _APART for mark in marks):
            pieces.append(
                f'<text x="{x_at(x):.1f}" y="{height - _BOTTOM + 14}" text-anchor="{anchor}" '
                f'{_FONT} fill-opacity="0.7">{escape(x_text(x))}</text>'
            )
    line = " ".join(f"{x_at(x):.1f},{y_at(y):.1f}" for x, y in points)
    pieces.append(f'<polyline points="{line}" fill="none" stroke="{ACCENT}" stroke-width="2"/>')
    pieces += [
        f'<circle cx="{x_at(x):.1f}" cy="{y_at(y):.1f}" r="2.5" fill="{ACCENT}">'
        f"<title>{escape(f'{x_text(x)}: {y_text(y)}')}</title></circle>"
        for x, y in points
    ]
    named = f"{title} ({unit})" if unit else title
    pieces.append(f'<text x="{_LEFT}" y="14" {_FONT} font-weight="600">{escape(named)}</text>')
    told = "; ".join(f"{x_text(x)}: {y_text(y)}" for x, y in points)
    return _svg(width, height, f"{named}: {told}", pieces)


def sparkline(title: str, numbers: Sequence[float], width: int = 160, height: int = 28) -> str:
    """A line without axes."""
    most = max([*numbers, 0.0]) or 1.0
    step = width / max(len(numbers) - 1, 1)
    line = " ".join(
        f"{i * step:.1f},{height - 2 - (height - 4) * number / most:.1f}"
        for i, number in enumerate(numbers)
    )
    piece = f'<polyline points="{line}" fill="none" stroke="{ACCENT}" stroke-width="1.5"/>'
    last = f"{title}: {count_text(numbers[-1])} at the end" if numbers else title
    return _svg(width, height, last, [piece])


def bar(
    title: str,
    parts: Mapping[str, float],
    whole: float,
    text: Callable[[float], str],
    width: int = 560,
) -> str:
    """A bar of parts, the largest first; what is left of the whole stays empty."""
    height, x = 26, 0.0
    pieces = [
        f'<path d="M.5 .5h{width - 1}v{height - 1}h{1 - width}z" fill="none" '
        'stroke="currentColor" stroke-opacity="0.3"/>'
    ]
    ordered = sorted(parts.items(), key=lambda part: -part[1])
    for number, (name, size) in enumerate(ordered):
        wide = width * size / max(whole, sum(parts.values()), 1)
        strength = _SHADES[min(number, len(_SHADES) - 1)]
        pieces.append(
            f'<rect x="{x:.1f}" y="0" width="{wide:.1f}" height="{height}" fill="{ACCENT}" '
            f'fill-opacity="{strength}"><title>{escape(f"{name}: {text(size)}")}</title></rect>'
        )
        if wide > 7 * len(name):
            colour = 'fill="#fff"' if strength > 0.6 else 'fill="currentColor"'
            pieces.append(
                f'<text x="{x + 5:.1f}" y="17" font-family="system-ui, sans-serif" font-size="11" '
                f"{colour}>{escape(name)}</text>"
            )
        x += wide
    told = "; ".join(f"{name} {text(size)}" for name, size in ordered)
    return _svg(width, height, f"{title}: {told}", pieces)


def _svg(width: int, height: int, told: str, pieces: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" style="max-width:100%" role="img" aria-label="{escape(told)}">'
        f"{''.join(pieces)}</svg>"
    )
