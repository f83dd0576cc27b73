"""Metrics of a run, and an engine with them, as tables and small pictures for notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from semistream.display.html import block, fact_table, table
from semistream.display.sizes import count_text, memory_text, time_text
from semistream.display.svg import bar
from semistream.plan import JoinPlan

if TYPE_CHECKING:
    from semistream.metrics import Metrics

__all__ = ["engine_html", "metrics_html"]


def metrics_html(metrics: Metrics) -> str:
    """Where tuples went, and the figures that matter; all counters below them."""
    ends = {
        "joined": metrics.joined,
        "unmatched": metrics.unmatched,
        "left out": metrics.left_out,
        "deferred": metrics.deferred,
        "waiting": metrics.waiting,
    }
    title = f"{metrics.arrived:,} tuples in {time_text(metrics.seconds)} with {metrics.algorithm}"
    rows = [(name, f"{value:,}") for name, value in metrics.counts().items() if value]
    return block(
        title,
        bar("Where tuples went", {n: v for n, v in ends.items() if v}, metrics.arrived, count_text),
        fact_table(
            {
                "tuples/s": f"{metrics.service_rate:,.0f}",
                **{name: f"{number:,}" for name, number in ends.items() if number},
                "answered from memory": f"{metrics.hit_ratio:.1%}",
                "pages read": f"{metrics.pages_read:,} ({memory_text(metrics.bytes_read)})",
                "matches per partition": f"{metrics.matches_per_partition:,.1f}",
                "most memory": f"{memory_text(metrics.peak_memory)} of "
                f"{memory_text(metrics.budget)}",
                "processing, median and 99 %": f"{time_text(metrics.processing_time.p50)}, "
                f"{time_text(metrics.processing_time.p99)}",
            }
        ),
        f"<details><summary>All counters</summary>{table(['counter', 'number'], rows)}</details>",
    )


def engine_html(
    title: str, plan: JoinPlan | None, metrics: Metrics, memory: Mapping[str, int]
) -> str:
    """What an engine holds, what it has done, and its plan."""
    if plan is None:
        return block(title, "<p>It has not run yet.</p>")
    parts = {name: size for name, size in memory.items() if name not in ("peak", "budget")}
    held = f"<p>{memory_text(sum(parts.values()))} held of {memory_text(memory['budget'])}</p>"
    return block(
        title,
        bar("Memory held, by part", parts, memory["budget"], memory_text) if parts else "",
        held,
        metrics_html(metrics),
        f"<details><summary>Plan</summary>{plan._repr_html_()}</details>",
    )
