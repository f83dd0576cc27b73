"""What whoever waits for a build is told of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["BuildProgress", "Report"]


@dataclass(frozen=True)
class BuildProgress:
    """What a master build has done so far."""

    step: str
    """What it does now: "pages", "locator", "filter" or "done"."""
    files: int
    """Files that are there, those of tasks under way included."""
    bytes: int


Report: TypeAlias = Callable[[BuildProgress], None]
"""A function that is called now and then while a master is built."""
