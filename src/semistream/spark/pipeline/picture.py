"""A pipeline as a table and small charts, for notebooks."""

from __future__ import annotations

from collections import deque
from typing import Final

from semistream.display.html import block, fact_table
from semistream.display.sizes import count_text, memory_text, time_text
from semistream.display.svg import bar, sparkline
from semistream.spark.pipeline.batch_log import Outcome
from semistream.spark.pipeline.status import Status

__all__ = ["RecentBatches", "pipeline_html"]

_KEPT: Final = 120


class RecentBatches:
    """The last batches, for charts."""

    def __init__(self) -> None:
        """None yet."""
        self._batches: deque[Outcome] = deque(maxlen=_KEPT)

    def add(self, outcome: Outcome) -> None:
        """One more is done."""
        self._batches.append(outcome)

    @property
    def last(self) -> Outcome | None:
        """The newest."""
        return self._batches[-1] if self._batches else None

    def rates(self) -> list[float]:
        """Tuples per second of each batch."""
        return [b.counts.arrived / b.seconds for b in self._batches if b.seconds > 0]

    def seconds(self) -> list[float]:
        """How long each took."""
        return [one.seconds for one in self._batches]


def pipeline_html(status: Status, recent: RecentBatches) -> str:
    """Its state, where all tuples went, and how the last batches were."""
    title = f"Pipeline {status.name}: {status.state}"
    if status.batch is None:
        return block(title, f"<p>{status.error or 'No batch yet.'}</p>")
    ends = {
        "joined": status.totals.joined,
        "unmatched": status.ended_unmatched,
        "rejected": status.totals.rejected,
        "wait for a master row": status.waiting_retry,
        "wait, deferred": status.waiting_deferred,
    }
    engine = {} if recent.last is None else recent.last.engine
    peak, hits = engine.get("peak_memory"), engine.get("hit_ratio")
    facts = {
        "error": status.error,
        "last batch": f"{status.batch:,}, {time_text(status.seconds)}",
        "master version": f"{status.version:,}",
        "tuples of the source": f"{status.totals.source:,}",
        **{name: f"{number:,}" for name, number in ends.items() if number or name == "joined"},
        "answered from memory": None if hits is None else f"{hits:.0%}",
        "most memory of a task": None
        if peak is None
        else f"{memory_text(peak)} of {memory_text(engine['budget'])}",
    }
    charts = [
        f"<div>{sparkline(name, numbers)} {name}, {text(numbers[-1])} at the end</div>"
        for name, numbers, text in (
            ("tuples/s of a batch", recent.rates(), count_text),
            ("batch time", recent.seconds(), time_text),
        )
        if len(numbers) > 1
    ]
    shown = {name: number for name, number in ends.items() if number}
    return block(
        title,
        bar("Where tuples went", shown, status.totals.source, count_text),
        fact_table(facts),
        *charts,
    )
