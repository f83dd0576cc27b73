"""A running pipeline in the terminal: one line per batch, and a line of totals below them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from semistream.cli.report import MIB

if TYPE_CHECKING:
    from semistream.spark.pipeline.pipeline import Pipeline, Status

__all__ = ["BatchView", "MetricsTail", "View", "totals"]

_UNKNOWN: Final = "–"
_COLUMNS: Final = {
    "batch": 5,
    "tuples": 10,
    "arrival/s": 10,
    "service/s": 10,
    "hits": 6,
    "memory MiB": 14,
    "version": 8,
    "seconds": 8,
}
"""Titles and widths. With the blanks between them they fit a terminal of 80 characters."""


@dataclass
class MetricsTail:
    """The lines that a pipeline adds to its file of metrics."""

    path: Path
    _read: int = field(init=False)

    def __post_init__(self) -> None:
        """Start at the end of the file, so that lines of an earlier run are not shown again."""
        self._read = self.path.stat().st_size if self.path.exists() else 0

    def new(self) -> list[dict[str, Any]]:
        """The complete lines added since the last call."""
        if not self.path.exists():
            return []
        with open(self.path, "rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read += len(whole + newline)
        return [json.loads(line) for line in whole.splitlines() if line.strip()]


class View(Protocol):
    """Shows batches as they end."""

    def following(self, pipeline: Pipeline, hint: str) -> AbstractContextManager[None]:
        """While open, what is shown is kept up to date."""
        ...

    def show(self, line: Mapping[str, Any]) -> None:
        """A batch has ended, with this line of metrics."""
        ...


class BatchView:
    """Prints batches as they end."""

    def __init__(self, console: Console) -> None:
        """Print nothing before the first batch."""
        self._console = console
        self._last: Mapping[str, Any] | None = None
        self._has_header = False

    @contextmanager
    def following(self, pipeline: Pipeline, hint: str) -> Iterator[None]:
        """On a terminal, keep a line with totals and `hint` at the bottom."""
        if not self._console.is_terminal:
            yield
            return

        def footer() -> Text:
            return Text(f"{totals(pipeline.status())} {hint}", style="dim")

        with Live(console=self._console, get_renderable=footer, transient=True):
            yield

    def show(self, line: Mapping[str, Any]) -> None:
        """Print a batch, given as its line of metrics. A batch without tuples is not printed."""
        if not line["arrived"]:
            self._last = line
            return
        if not self._has_header:
            self._has_header = True
            titles = (title.rjust(width) for title, width in _COLUMNS.items())
            self._print(" ".join(titles), "bold")
        cells = self._cells(line)
        widths = _COLUMNS.values()
        self._print(" ".join(c.rjust(w) for c, w in zip(cells, widths, strict=True)), "")
        self._last = line

    def _print(self, text: str, style: str) -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)

    def _cells(self, line: Mapping[str, Any]) -> list[str]:
        hits, peak, rate = line["hit_ratio"], line["peak_memory"], line["service_rate"]
        arrival = self._arrival_rate(line)
        memory = f"{_mib(peak)} of {_mib(line['budget'])}" if peak is not None else _UNKNOWN
        return [
            f"{line['batch']:,}",
            f"{line['arrived']:,}",
            _UNKNOWN if arrival is None else f"{arrival:,.0f}",
            _UNKNOWN if rate is None else f"{rate:,.0f}",
            _UNKNOWN if hits is None else f"{100 * hits:.0f} %",
            memory,
            f"{line['master_version']:,}",
            f"{line['batch_seconds']:.2f}",
        ]

    def _arrival_rate(self, line: Mapping[str, Any]) -> float | None:
        """Tuples per second since the previous batch began; None for the first batch."""
        if self._last is None:
            return None
        passed = datetime.fromisoformat(line["at"]) - datetime.fromisoformat(self._last["at"])
        seconds = passed.total_seconds()
        return float(line["source"]) / seconds if seconds > 0 else None


def totals(status: Status) -> str:
    """All batches of a pipeline in one line, without the ends that no tuple has found.

    Each tuple counts where it has ended, or among those that wait.
    """
    if status.batch is None:
        return "No batch yet."
    counts = status.totals
    # Not a count of batches: one without tuples is counted by the pipeline, but not shown above.
    parts = [f"{counts.source:,} tuples up to batch {status.batch:,}", f"{counts.joined:,} joined"]
    ends = {"unmatched": status.ended_unmatched, "rejected": counts.rejected}
    parts += [f"{tuples:,} {name}" for name, tuples in ends.items() if tuples]
    waiting = status.waiting_retry + status.waiting_deferred
    more = {"wait": waiting, "were looked for again": counts.retried, "put off": counts.deferred}
    ways = [f"{tuples:,} {name}" for name, tuples in more.items() if tuples]
    return "; ".join([", ".join(parts), *ways]) + "."


def _mib(size: int) -> str:
    return f"{size / MIB:,.1f}"
