"""A plan as a picture: where the memory goes, and what more or less of it would give."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from semistream.display.html import block, fact_table, note, table
from semistream.display.sizes import memory_text, time_text
from semistream.display.svg import bar
from semistream.rate_curve import RateCurve

if TYPE_CHECKING:
    from semistream.plan import Expectation, JoinPlan

__all__ = ["plan_html"]


def plan_html(plan: JoinPlan) -> str:
    """The parts, what is expected and, if it is known, the curve of rate against memory."""
    title = f"{plan.algorithm} in {memory_text(plan.memory)}"
    pieces = [
        bar("Memory by part", plan.parts, plan.memory, memory_text),
        f"<p>{escape(', '.join([*plan.sizes(), *plan.notes]))}</p>",
    ]
    if plan.expected is not None:
        pieces.append(_expected(plan.expected))
        curve = RateCurve.of(plan.expected.curve, plan.memory)
        pieces += [curve._repr_html_()] if len(curve.points) > 1 else []
    rows = [(name, f"{size:,}", f"{size / plan.memory:.1%}") for name, size in plan.parts.items()]
    parts = table(["part", "bytes", "share"], rows)
    pieces.append(f"<details><summary>Bytes of each part</summary>{parts}</details>")
    return block(title, *pieces)


def _expected(expected: Expectation) -> str:
    rivals = ", ".join(f"{name} {rate:,.0f}" for name, rate in expected.rivals[:3])
    facts = fact_table(
        {
            "tuples/s, expected": f"{expected.rate:,.0f}",
            "answered in front": f"{expected.hit_share:.0%}",
            "pages per 1,000 tuples": f"{1000 * expected.io_per_tuple:,.2f}",
            "wait": time_text(expected.wait_seconds),
        }
    )
    told = [f"instead of {rivals}"] if rivals else []
    return facts + "".join(map(note, [*told, *expected.basis]))
