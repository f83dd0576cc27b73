"""Turns: ways are measured side by side, so that a busy moment of the machine meets them all."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

__all__ = ["Seconds", "in_turns"]

Seconds = Mapping[str, list[list[float]]]
"""By way: for each round, the seconds of each task, pass or trigger in it."""


def in_turns(
    ways: Mapping[str, Callable[[int], list[float]]], rounds: int, say: Callable[[str], None]
) -> Seconds:
    """Seconds of all ways, which take turns; each is called with the number of the round.

    Round 0 warms up and is not counted. Each round begins with another way.
    """
    seconds: dict[str, list[list[float]]] = {name: [] for name in ways}
    names = list(ways)
    for number in range(rounds + 1):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            taken = ways[name](number)
            say(f"  round {number}, {name}: {statistics.median(taken):.3f} s")
            if number:
                seconds[name].append(taken)
    return seconds
