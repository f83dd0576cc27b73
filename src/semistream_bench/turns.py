"""Turns: ways are measured side by side, so that a busy moment of the machine meets them all."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

__all__ = ["Seconds", "in_turns", "why"]

Seconds = Mapping[str, list[list[float]]]
"""By way: for each round, the seconds of each task, pass or trigger in it."""


def in_turns(
    ways: Mapping[str, Callable[[int], list[float]]],
    rounds: int,
    say: Callable[[str], None],
    failed: dict[str, str] | None = None,
) -> Seconds:
    """Seconds of all ways, which take turns; each is called with the number of the round.

    Round 0 warms up and is not counted. Each round begins with another way. One that fails is left
    out from there on, and why is noted in `failed`; without that, its error is raised.
    """
    seconds: dict[str, list[list[float]]] = {name: [] for name in ways}
    names = list(ways)
    for number in range(rounds + 1):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            if name not in seconds:
                continue
            try:
                taken = ways[name](number)
            except Exception as error:
                if failed is None:
                    raise
                failed[name] = why(error)
                say(f"  {name} failed: {failed[name]}")
                del seconds[name]
                continue
            turn = f"round {number}" if number else "warm-up"
            say(f"  {turn}, {name}: {statistics.median(taken):.3f} s")
            if number:
                seconds[name].append(taken)
    return seconds


def why(error: Exception) -> str:
    """An error in a line. Java's are long, and name their kind in the second one."""
    said = str(error).strip() or type(error).__name__
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    first = lines[1] if len(lines) > 1 and lines[0].startswith("An error occurred") else lines[0]
    return first.lstrip(": ")[:200]
