"""Estimating the skew of a stream from a sample of it.

A sample shows keys, not their ranks, and which keys are the most frequent in a small one is luck.
What can be trusted is how many different keys there are among n tuples: the more skew, the fewer.
Zipf's law expects Σ (1 − (1 − p)^n) of them, which falls as the exponent rises. The estimate is the
exponent for which this is the number seen. If a sample is too small to have repeated keys, the
estimated error is large.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from semistream.cost.skew import Skew
from semistream.cost.zipf_sums import rank_classes, zipf_share, zipf_shares
from semistream.display.dots import dot_chart
from semistream.display.html import block, table
from semistream.display.svg import line_chart
from semistream.errors import OptionError

_HIGHEST = 4.0
_HALVINGS = 40
_CLASSES = 2048
_NOT_ZIPF = 0.15
_CHART_WIDTH, _CHART_HEIGHT = 60, 8
_SEEN_OFTEN = 20
"""Keys seen so often have about the share that the sample shows."""


@dataclass(frozen=True)
class SkewEstimate:
    """An exponent, how sure it is, and the keys that came most."""

    skew: Skew
    exponent_error: float
    """By how much it would be higher if the sample had one standard deviation fewer keys."""
    fit_error: float
    """How far the share of the most frequent keys is from Zipf's law, at most."""
    top_codes: NDArray[np.int64]
    """Codes of the most frequent keys, the most frequent first."""
    tuples: int
    top_counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """How often each of them came."""

    def shares(self) -> list[tuple[int, float, float]]:
        """What the 1, 10, 100 and 1,000 most frequent keys have: in the sample, and by the law."""
        keys = self.skew.keys or 1
        most = len(self.top_counts)
        sizes = [size for size in (1, 10, 100, 1000) if size <= most]
        return [
            (
                size,
                float(self.top_counts[:size].sum() / self.tuples),
                zipf_share(size, keys, self.skew.exponent),
            )
            for size in sizes
        ]

    def explain(self) -> str:
        """The estimate, a chart and a table of how much the most frequent keys have."""
        lines = [f"skew: {self}"]
        if len(self.top_counts) > 1:
            lines += ["share of the tuples that the most frequent keys have, in the sample"]
            chart = dot_chart(self._curve(), _CHART_WIDTH, _CHART_HEIGHT)
            labels = {0: f"{self._top_share:.0%}", _CHART_HEIGHT - 1: "0%"}
            lines += [f"{labels.get(i, ''):>5} ┤{line}" for i, line in enumerate(chart)]
            last = f"{len(self.top_counts):,} keys"
            lines.append(" " * 7 + "1 key" + last.rjust(_CHART_WIDTH - 5))
        lines += [
            f"  {size:>5,} {'key: ' if size == 1 else 'keys:'} {seen:>6.1%} of the sample, "
            f"{law:>6.1%} by Zipf's law"
            for size, seen, law in self.shares()
        ]
        return "\n".join(lines)

    @property
    def _top_share(self) -> float:
        """Of all keys whose counts are known."""
        return float(self.top_counts.sum() / self.tuples)

    def _curve(self) -> list[tuple[float, float]]:
        """The share of the most frequent keys by their number, each tenfold as wide as the next."""
        ranks = np.arange(1, len(self.top_counts) + 1)
        shares = np.cumsum(self.top_counts) / self.tuples / self._top_share
        return list(zip(np.log(ranks) / np.log(ranks[-1]), shares, strict=True))

    def _repr_html_(self) -> str:
        """The same for notebooks."""
        rows = [(f"{size:,}", f"{seen:.1%}", f"{law:.1%}") for size, seen, law in self.shares()]
        ranks = np.unique(np.geomspace(1, max(len(self.top_counts), 1), 30, dtype=int))
        total = np.cumsum(self.top_counts) / self.tuples
        points = [(float(rank), float(total[rank - 1])) for rank in ranks if rank <= len(total)]
        chart = ""
        if len(points) > 1:
            chart = line_chart(
                "Share of the tuples, by how many of the most frequent keys",
                points,
                y_text=lambda share: f"{share:.0%}",
                log_x=True,
            )
        head = ["most frequent keys", "of the sample", "by Zipf's law"]
        return block(f"Skew: {self}", chart, table(head, rows))

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
    error = _exponent(len(found) - deviation, len(codes), keys) - exponent
    shares = counts[by_count[:1000]] / len(codes)
    misfit = _fit_error(shares, len(codes), keys, exponent)
    if misfit > _NOT_ZIPF:
        # There are few keys, but none is frequent. The share of frequent keys matters: go by that.
        often = _often(shares, len(codes), keys, exponent)
        exponent = min(exponent, _exponent_of_top(shares[often], keys))
        misfit = _fit_error(shares, len(codes), keys, exponent)
    return SkewEstimate(
        Skew(exponent, order, keys),
        error,
        misfit,
        found[by_count[:1000]],
        len(codes),
        counts[by_count[:1000]],
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
    edges = rank_classes(0, keys, _CLASSES)
    number = np.diff(edges)
    each = np.diff(zipf_shares(edges.astype(np.float64), keys, exponent)) / number
    missing = np.exp(-tuples * each)
    return float(number @ (1 - missing)), float(number @ (missing * (1 - missing)))


def _exponent_of_top(shares: NDArray[np.float64], keys: int) -> float:
    """The exponent at which this many of the most frequent keys have the share seen."""
    top, low, high = float(shares.sum()), 0.0, _HIGHEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if zipf_share(len(shares), keys, middle) < top else (low, middle)
    return low


def _fit_error(shares: NDArray[np.float64], tuples: int, keys: int, exponent: float) -> float:
    """How far the share of the most frequent keys is from Zipf's law, at most."""
    often = _often(shares, tuples, keys, exponent)
    if not often.any():
        return 0.0
    expected = zipf_shares(np.arange(1.0, len(shares) + 1), keys, exponent)
    return float(np.abs(np.cumsum(shares) - expected)[often].max())


def _often(
    shares: NDArray[np.float64], tuples: int, keys: int, exponent: float
) -> NDArray[np.bool_]:
    """Which of the most frequent keys come often in the sample, or should."""
    expected = zipf_shares(np.arange(0.0, len(shares) + 1), keys, exponent)
    often: NDArray[np.bool_] = np.maximum(shares, np.diff(expected)) * tuples >= _SEEN_OFTEN
    return often
