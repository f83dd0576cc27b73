"""The running stream in one line.

On a terminal it is redrawn every second; elsewhere a plain line comes now and then.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.live import Live
from rich.text import Text

from semistream.cli.report import MIB

if TYPE_CHECKING:
    from semistream.spark.pipeline.pipeline import Pipeline
    from semistream.spark.sales import SourceOptions

__all__ = ["Backlog", "LiveLine"]

_PLAIN_SECONDS: Final = 5.0
_WINDOW: Final = 2.0
_CELLS: Final = 4


class Backlog:
    """How many sales have arrived by now, and how many of them wait for a batch to take them.

    A batch takes all that has arrived when it begins, so its number of tuples tells the source's
    clock.
    """

    def __init__(self, arrivals: SourceOptions, clock: Callable[[], float] = time.time) -> None:
        """Nothing has arrived before the first batch that has tuples."""
        self._arrivals, self._clock = arrivals, clock
        self._began: float | None = None
        self._done = 0
        self._ends: deque[tuple[float, int]] = deque()
        """When batches of the last seconds ended, and how many sales were done then."""

    def note(self, began: float, tuples: int) -> None:
        """A batch of so many tuples that began then is done."""
        self._done += tuples
        now = self._clock()
        self._ends.append((now, self._done))
        while len(self._ends) > 2 and now - self._ends[1][0] >= _WINDOW:
            self._ends.popleft()
        # The last batch of a stream that ends does not take all that the clock would give.
        if tuples and self._done < (self._arrivals.rows or 0):
            self._began = began - float(self._arrivals.arrival_seconds(self._done))

    def _arrived(self, at: float) -> int:
        if self._began is None or at < self._began:
            return 0
        return min(self._arrivals.arrived(at - self._began), self._arrivals.rows or 0)

    @property
    def rate(self) -> int:
        """Sales that have arrived in the last second."""
        now = self._clock()
        return self._arrived(now) - self._arrived(now - 1)

    @property
    def done_rate(self) -> float:
        """Sales a second that have gone to the warehouse, in the last seconds."""
        if len(self._ends) < 2:
            return 0.0
        (first, before), (last, done) = self._ends[0], self._ends[-1]
        return (done - before) / max(last - first, 1e-3)

    @property
    def waiting(self) -> int:
        """Sales that have arrived, and are not in the warehouse yet."""
        return max(self._arrived(self._clock()) - self._done, 0)


class LiveLine:
    """Shows rate, hits, memory and queue of a pipeline, and what happens meanwhile above."""

    def __init__(self, console: Console, arrivals: SourceOptions, has_line: bool) -> None:
        """Nothing is shown yet; without a line, only what happens is."""
        self._console, self._backlog = console, Backlog(arrivals)
        self._redraws = has_line and console.is_terminal
        self._prints = has_line and not console.is_terminal
        self._began = time.monotonic()
        self._said_at = self._began
        self._last: Mapping[str, Any] | None = None

    @contextmanager
    def following(self, pipeline: Pipeline, hint: str) -> Iterator[None]:
        """On a terminal, keep the line at the bottom."""
        if not self._redraws:
            yield
            return
        with Live(
            console=self._console, get_renderable=self._line, refresh_per_second=1, transient=True
        ):
            yield

    def show(self, line: Mapping[str, Any]) -> None:
        """A batch is done."""
        self._backlog.note(datetime.fromisoformat(line["at"]).timestamp(), line["source"])
        if line["arrived"]:
            self._last = line
            now = time.monotonic()
            if self._prints and now - self._said_at >= _PLAIN_SECONDS:
                self._said_at = now
                self._console.print(self._line(), soft_wrap=True)

    def say(self, what: str) -> None:
        """Something has happened."""
        self._console.print(Text(f"  {self._passed()}  {what}", style="cyan"), soft_wrap=True)

    def _passed(self) -> str:
        return f"{time.monotonic() - self._began:3.0f} s"

    def _line(self) -> Text:
        start = f"  {self._passed()}  "
        if self._last is None:
            return Text(f"{start}waiting for the first batch", style="dim")
        last, backlog = self._last, self._backlog
        text = Text(start, no_wrap=True, overflow="ellipsis")
        text.append(f"in {backlog.rate:>6,}/s  ")
        text.append(f"out {backlog.done_rate:>6,.0f}/s  ", style="bold green")
        if last["hit_ratio"] is not None:
            text.append(f"hits {100 * last['hit_ratio']:.0f} %  ")
        if last["peak_memory"] is not None:
            share = last["peak_memory"] / last["budget"]
            used = round(_CELLS * share)
            text.append("█" * used + "░" * (_CELLS - used), style="blue")
            text.append(f" {last['peak_memory'] / MIB:.1f}/{last['budget'] / MIB:.1f} MiB  ")
        text.append(f"queue {backlog.waiting:,}", style="yellow")
        return text
