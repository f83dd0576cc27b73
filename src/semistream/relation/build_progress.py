"""Progress of a build, as it is reported to the caller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["BuildProgress", "Report"]


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
