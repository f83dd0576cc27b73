"""Batches in groups, so that a chart of ten thousand of them has a few hundred points.

A group is a run of batches. Tuples, pages and seconds are added up before they are divided, so a
point is the true rate of its batches, and no slow batch is lost: of their seconds, the longest is
a series too.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from semistream.page.batches import Batches, Numbers

__all__ = ["MOST_POINTS", "arrival_rate", "lag", "median", "ratio", "series"]

MOST_POINTS: Final = 300
_ROUTES: Final = ("joined", "unmatched", "deferred", "rejected")
_STATES: Final = ("waiting_retry", "waiting_deferred", "master_version", "budget", "batch")


def series(
    batches: Batches, most: int = MOST_POINTS, last: int | None = None
) -> dict[str, list[float | None]]:
    """Columns of equal length, a number for each group; None where nothing is known.

    Of all batches, or of the `last` so many.
    """
    count = min(len(batches), last or len(batches))
    if not count:
        return {}

    def column(name: str) -> Numbers:
        return batches.column(name, count)

    starts = np.unique(np.linspace(0, count, min(count, most), endpoint=False).astype(int))
    ends = np.append(starts[1:], count) - 1

    def total(name: str) -> Numbers:
        return np.add.reduceat(np.nan_to_num(column(name)), starts)

    number = np.diff(np.append(starts, count))
    seconds, done = total("batch_seconds"), total("joined") + total("unmatched")
    span = spans(batches, count)
    source = np.where(np.isnan(span), 0.0, column("source"))
    found = {
        "at": column("at")[ends],
        "arrival_rate": ratio(
            np.add.reduceat(source, starts), np.add.reduceat(np.nan_to_num(span), starts)
        ),
        "service_rate": ratio(total("arrived"), seconds),
        "seconds": seconds / number,
        "lag_seconds": np.fmax.reduceat(lag(batches, count), starts),
        "longest_seconds": np.maximum.reduceat(column("batch_seconds"), starts),
        **{name: total(name) / number for name in _ROUTES},
        "hit_ratio": ratio(
            _weighed_hits(column("hit_ratio"), column("joined") + column("unmatched"), starts), done
        ),
        "pages_per_1000": ratio(1000 * total("pages_read"), done),
        "peak_memory": np.fmax.reduceat(column("peak_memory"), starts),
        **{name: column(name)[ends] for name in _STATES},
    }
    return {name: _listed(column) for name, column in found.items()}


def arrival_rate(batches: Batches, last: int) -> float | None:
    """Tuples of the source per second, over the last batches; None before the second one."""
    span = spans(batches, last)
    source = np.where(np.isnan(span), 0.0, batches.column("source", last))
    passed = float(np.nansum(span))
    return float(source.sum()) / passed if passed > 0 else None


def lag(batches: Batches, last: int) -> Numbers:
    """How long the oldest tuple of each batch waited to be written; NaN where that is not known.

    It came when the batch before had just begun, unless the source had a backlog.
    """
    waited: Numbers = spans(batches, last) + batches.column("batch_seconds", last)
    return waited


def spans(batches: Batches, last: int) -> Numbers:
    """Seconds since the batch before began; NaN for the first.

    Only batches with tuples of the source count: between two of them, there may be one of tuples
    that have waited, for which this is NaN.
    """
    at, with_source = batches.column("at"), batches.column("source") > 0
    found = np.full(len(at), np.nan)
    found[with_source] = np.append(np.nan, np.diff(at[with_source]))[: with_source.sum()]
    return found[-last:]


def median(numbers: Numbers) -> float | None:
    """Of those that are known; None if none is."""
    known = numbers[~np.isnan(numbers)]
    return float(np.median(known)) if len(known) else None


def ratio(above: Any, below: Any) -> Numbers:
    """Quotients; NaN where the divisor is not more than 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(np.asarray(below) > 0, np.asarray(above) / np.asarray(below), np.nan)


def _weighed_hits(share: Numbers, done: Numbers, starts: np.ndarray[Any, Any]) -> Numbers:
    """How many tuples of each group were answered from memory; NaN if that is not known."""
    hits = share * done
    return np.where(
        np.logical_and.reduceat(np.isnan(hits), starts),
        np.nan,
        np.add.reduceat(np.nan_to_num(hits), starts),
    )


def _listed(column: Numbers) -> list[float | None]:
    rounded = [float(f"{value:.6g}") if abs(value) < 1e6 else float(value) for value in column]
    return [None if np.isnan(value) else value for value in rounded]
