"""Estimating the skew of a stream from a sample of it.

Ranks are not seen, only keys, and the most frequent keys of a small sample are so by luck. What can
be trusted is how many different keys there are among n tuples: the more skew, the fewer. Under
Zipf's law the number expected is Σ (1 − (1 − p)^n), which falls with the exponent, so the exponent
that expects the number seen is the estimate. Where a sample is too short to show a repetition, the
error says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semistream.cost.skew import Skew
from semistream.cost.zipf_sums import zipf_shares
from semistream.errors import OptionError

_HIGHEST = 4.0
_HALVINGS = 40
_CLASSES = 2048
_SEEN_OFTEN = 20
"""Keys seen so often have about the share that the sample shows."""


@dataclass(frozen=True)
class SkewEstimate:
    """An exponent, how sure it is, and the keys that came most."""

    skew: Skew
    exponent_error: float
    """By how much it would be higher if the sample had one standard deviation fewer keys."""
    fit_error: float
    """How far the shares of the most frequent keys are from Zipf's law, at most."""
    top_codes: NDArray[np.int64]
    """Codes of the most frequent keys, the most frequent first."""
    top_shares: NDArray[np.float64]
    """Their shares of the sample."""
    tuples: int

    def __str__(self) -> str:
        """In one line."""
        return (
            f"exponent {self.skew.exponent:.2f} ± {self.exponent_error:.2f} from {self.tuples:,} "
            f"tuples, off Zipf's law by {self.fit_error:.1%} at most"
        )


def estimate_skew(codes: NDArray[np.int64], keys: int, order: str | None = None) -> SkewEstimate:
    """The skew of a stream with these codes among `keys` possible ones. O(n log n)."""
    if not len(codes):
        raise OptionError(
            "A sample without tuples tells no skew. Give one with at least some hundreds of them, "
            "or the exponent itself."
        )
    found, counts = np.unique(codes, return_counts=True)
    by_count = np.argsort(-counts, kind="stable")
    keys = max(keys, len(found))
    exponent = _exponent(len(found), len(codes), keys)
    deviation = _distinct(exponent, len(codes), keys)[1] ** 0.5
    shares = counts[by_count[:1000]] / len(codes)
    return SkewEstimate(
        Skew(exponent, order, keys),
        _exponent(len(found) - deviation, len(codes), keys) - exponent,
        _fit_error(shares[shares * len(codes) >= _SEEN_OFTEN], keys, exponent),
        found[by_count[:1000]],
        shares,
        len(codes),
    )


def _exponent(distinct: float, tuples: int, keys: int) -> float:
    low, high = 0.0, _HIGHEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _distinct(middle, tuples, keys)[0] > distinct:
            low = middle
        else:
            high = middle
    return 0.0 if low == 0.0 else (low + high) / 2


def _distinct(exponent: float, tuples: int, keys: int) -> tuple[float, float]:
    """How many different keys are expected, and the variance of their number."""
    edges = np.unique(np.append(np.geomspace(1, keys, _CLASSES).astype(np.int64) - 1, keys))
    number = np.diff(edges)
    each = np.diff(zipf_shares(edges.astype(np.float64), keys, exponent)) / number
    missing = np.exp(-tuples * each)
    return float(number @ (1 - missing)), float(number @ (missing * (1 - missing)))


def _fit_error(shares: NDArray[np.float64], keys: int, exponent: float) -> float:
    if not len(shares):
        return 0.0
    expected = zipf_shares(np.arange(1.0, len(shares) + 1), keys, exponent)
    return float(np.abs(np.cumsum(shares) - expected).max())
