"""How far a master build is, by the files in its folder, which the driver can see.

Spark's own progress is not available under Spark Connect; the files that the tasks write are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console

from semistream.errors import OptionError
from semistream.relation.build_progress import BuildProgress, Report, looking
from semistream.relation.versions.draft import Draft

__all__ = ["reporter", "watched"]

_SECONDS: Final = 1.0


def reporter(progress: bool | Report | None) -> Report | None:
    """The function to call with the progress; None for none."""
    if progress is None:
        progress = sys.stderr.isatty()
    if progress is False:
        return None
    if progress is True:
        console = Console(stderr=True)
        return lambda now: console.print(
            f"building {now.step}: {now.files:,} files, {now.bytes / 1e6:,.1f} MB",
            highlight=False,
            end="\r" if console.is_terminal and now.step != "done" else "\n",
        )
    if not callable(progress):
        raise OptionError(
            f"progress={progress!r} must be True, False, or a function of one BuildProgress."
        )
    return progress


@contextmanager
def watched(step: str, draft: Draft, report: Report | None) -> Iterator[None]:
    """Report the files at the beginning of a step, every second, and at its end."""
    if report is None:
        yield
        return
    report(_now(step, draft))
    with looking(lambda: report(_now(step, draft)), _SECONDS):
        yield
    report(_now(step, draft))


def _now(step: str, draft: Draft) -> BuildProgress:
    mine = [e.bytes for e in draft.storage.entries("data") if e.name.startswith(draft.stem)]
    return BuildProgress(step, len(mine), sum(mine))
