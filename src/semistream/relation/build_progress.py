"""Progress of a build, as it is reported to the caller, and a thread that looks for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["BuildProgress", "Report", "looking"]


@dataclass(frozen=True)
class BuildProgress:
    """What a master build has done so far."""

    step: str
    """The current step: "pages", "locator", "filter" or "done"."""
    files: int
    """Files that exist so far, including those of running tasks."""
    bytes: int


Report: TypeAlias = Callable[[BuildProgress], None]
"""A function that is called now and then while a master is built."""


@contextmanager
def looking(look: Callable[[], None], seconds: float) -> Iterator[None]:
    """While open, call a function in another thread, every so many seconds."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(seconds):
            look()

    thread = threading.Thread(target=watch, name="semistream-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
