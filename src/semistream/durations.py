"""Durations as users write them: "30s", "10m"."""

from __future__ import annotations

import re
from typing import Final

from semistream.errors import OptionError

__all__ = ["parse_duration"]

_DURATION: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)\s*")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(given: object, argument: str) -> float:
    """Seconds from a number, or from a string such as "30s", "5m" or "1.5h".

    >>> parse_duration("1.5h", "deadline"), parse_duration(2, "backoff")
    (5400.0, 2.0)
    """
    found = _DURATION.fullmatch(given) if isinstance(given, str) else None
    if found is not None:
        seconds = float(found[1]) * _SECONDS[found[2]]
    else:
        is_truth = isinstance(given, bool)
        seconds = float(given) if isinstance(given, int | float) and not is_truth else 0.0
    if not 0.0 < seconds < float("inf"):
        raise OptionError(
            f"{argument}={given!r} is not a duration. Give seconds as a positive number, or a "
            'string such as "500ms", "30s", "5m", "1h" or "2d".'
        )
    return seconds
