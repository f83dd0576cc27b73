"""A plan as a picture: where the memory goes, and what more or less of it would give."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semistream.plan import JoinPlan

_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#9d755d", "#bab0ac")
_WIDTH, _BAR, _CURVE = 640, 28, 140


def plan_html(plan: JoinPlan) -> str:
    """The plan's text under its picture."""
    return f"{plan_svg(plan)}<pre>{escape(plan.explain())}</pre>"


def plan_svg(plan: JoinPlan) -> str:
    """A bar of the memory by part and, if it is known, the curve of rate against memory."""
    curve = () if plan.expected is None else plan.expected.curve
    pieces = [*_bar(plan), *(_curve(plan, curve) if len(curve) > 1 else ())]
    height = _BAR + 28 + (_CURVE + 24 if len(curve) > 1 else 0)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="11">{"".join(pieces)}</svg>'
    )


def _bar(plan: JoinPlan) -> list[str]:
    pieces, x = [], 0.0
    for number, (name, size) in enumerate(plan.parts.items()):
        width = _WIDTH * size / max(plan.memory, 1)
        colour = _COLOURS[number % len(_COLOURS)]
        title = escape(f"{name}: {size:,} bytes, {size / max(plan.memory, 1):.1%}")
        pieces.append(
            f'<rect x="{x:.1f}" y="0" width="{width:.1f}" height="{_BAR}" fill="{colour}">'
            f"<title>{title}</title></rect>"
        )
        if width > 7 * len(name):
            pieces.append(
                f'<text x="{x + 4:.1f}" y="{_BAR / 2 + 4}" fill="#fff">{escape(name)}</text>'
            )
        x += width
    pieces.append(f'<text x="0" y="{_BAR + 16}">{plan.memory:,} bytes: {plan.algorithm}</text>')
    return pieces


def _curve(plan: JoinPlan, curve: tuple[tuple[int, float], ...]) -> list[str]:
    assert plan.expected is not None
    most_memory, most_rate = max(m for m, _ in curve), max(r for _, r in curve)
    top = _BAR + 28

    def at(memory: float, rate: float) -> str:
        x = _WIDTH * memory / most_memory
        return f"{x:.1f},{top + _CURVE * (1 - rate / most_rate):.1f}"

    here = at(plan.memory, plan.expected.rate).split(",")
    points = " ".join(at(memory, rate) for memory, rate in sorted(curve))
    label = f"rate against memory, up to {most_rate:,.0f} tuples/s with {most_memory:,} bytes"
    return [
        f'<polyline points="{points}" fill="none" stroke="{_COLOURS[0]}" stroke-width="2"/>',
        f'<circle cx="{here[0]}" cy="{here[1]}" r="4" fill="{_COLOURS[1]}"/>',
        f'<text x="0" y="{top + _CURVE + 16}">{label}</text>',
    ]
