"""How far long work is, and how long it will still take: on standard error.

On a terminal it is one line, redrawn in place and gone in the end. Elsewhere a plain line comes now
and then, and none for work that is soon done. With `--quiet` there is nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final, Self

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from semistream.cli.report import MIB, side

if TYPE_CHECKING:
    from semistream.relation.storage import Location

__all__ = ["AsJson", "Progress", "Quiet", "growing"]

_CELLS: Final = 20
_PLAIN_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.5
_LEAST_SHARE: Final = 0.02
"""Below this share of the work, its speed says nothing of the rest."""

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show results only, no progress.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


class Progress:
    """Done of total, time passed and time left, while open."""

    def __init__(
        self,
        what: str,
        total: float | None = None,
        quiet: bool = False,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Of unknown total, only the time passed is shown, until `to` gives one."""
        self._what, self._total, self._done = what, total, 0.0
        self._console, self._clock, self._quiet = console or side(), clock, quiet
        self._began = self._said = self._since = clock()
        self._live: Live | None = None

    def __enter__(self) -> Self:
        """Show it."""
        if self._console.is_terminal and not self._quiet:
            self._live = Live(
                console=self._console,
                get_renderable=self.line,
                refresh_per_second=4,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take it away."""
        if self._live is not None:
            self._live.stop()

    def to(self, done: float, what: str | None = None, total: float | None = None) -> None:
        """So much is done, of the total."""
        now = self._clock()
        if total and not self._total:
            # What went before took its time too, but says nothing of the speed from here on.
            self._since = now
        self._done = done
        self._what = what or self._what
        self._total = total or self._total
        if self._live is None and not self._quiet and now - self._said >= _PLAIN_SECONDS:
            self._said = now
            self._console.print(self.line(), soft_wrap=True)

    def advance(self, steps: float = 1, what: str | None = None) -> None:
        """So much more is done."""
        self.to(self._done + steps, what)

    def say(self, text: str) -> None:
        """A line that stays."""
        if not self._quiet:
            self._console.print(text, soft_wrap=True)

    def line(self) -> Text:
        """What is shown now."""
        now = self._clock()
        passed = now - self._began
        text = Text(f"{self._what}  ")
        if not self._total:
            return text.append(f"{_time(passed)}", style="dim")
        share = min(self._done / self._total, 1.0)
        if self._live is not None:
            full = int(_CELLS * share)
            text.append("█" * full + "░" * (_CELLS - full) + " ", style="blue")
        text.append(f"{100 * share:.0f} %")
        rest = (now - self._since) * (1 / share - 1) if share >= _LEAST_SHARE else None
        left = "" if rest is None else f", {_time(rest)} left"
        return text.append(f"  {_time(passed)}{left}", style="dim")


def _time(seconds: float) -> str:
    """A duration for people.

    >>> _time(7.2), _time(75), _time(7300)
    ('7 s', '1 min 15 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


@contextmanager
def growing(what: str, path: Location, expected: int | None, quiet: bool) -> Iterator[None]:
    """Show how far a new version of the master at `path` is, by the bytes of its files.

    `expected` says about how many there will be, if that is known.
    """
    from semistream.relation.build_progress import looking
    from semistream.relation.storage import is_database, storage_at

    if is_database(path):
        yield
        return
    storage = storage_at(path)
    before = {entry.name for entry in storage.entries("data")}
    with Progress(what, None, quiet) as progress:

        def look() -> None:
            new = [e.bytes for e in storage.entries("data") if e.name not in before]
            size = sum(new)
            said = f"{what}: {size / MIB:,.0f} MiB written" if size else what
            # Nothing is written while rows are sorted, and that takes its time too.
            progress.to(size, said, expected if size else None)

        with looking(look, _LOOK_SECONDS):
            yield
