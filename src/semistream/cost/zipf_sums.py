"""Sums of Zipf's law: how much of a stream falls on the keys of some ranks.

The key of rank x comes in proportion to 1 / x^e. The papers have e = 1, whose sums they take as
logarithms; here any e >= 0 is summed, the first terms one by one and the rest by the formula of
Euler and Maclaurin, which is exact to more digits than any use of it needs.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from semistream.errors import OptionError

EULER = 0.5772156649015329
"""The limit of 1 + 1/2 + … + 1/n − ln n."""

_ONE_BY_ONE = 64


def zipf_sum(n: float, exponent: float = 1.0) -> float:
    """1 + 1/2^e + … + 1/n^e. O(1).

    >>> zipf_sum(3, 1.0), zipf_sum(5, 0.0)
    (1.8333333333333333, 5.0)
    """
    check_exponent(exponent)
    few = int(min(n, _ONE_BY_ONE))
    total = float((np.arange(1, few + 1, dtype=np.float64) ** -exponent).sum())
    return total if n <= few else total + float(_tail(np.array([n]), exponent)[0])


def zipf_shares(ranks: NDArray[np.float64], keys: int, exponent: float) -> NDArray[np.float64]:
    """The share of the stream on the first so many of `keys` ranks, for several at once.

    >>> zipf_shares(np.array([0.0, 1.0, 2.0]), 2, 1.0).round(3).tolist()
    [0.0, 0.667, 1.0]
    """
    check_exponent(exponent)
    first = np.arange(1, _ONE_BY_ONE + 1, dtype=np.float64) ** -exponent
    cumulated = np.concatenate([[0.0], np.cumsum(first)])
    ranks = np.minimum(ranks, keys)
    # Between two of the first ranks the sum is taken as a straight line.
    few = np.interp(ranks, np.arange(_ONE_BY_ONE + 1), cumulated)
    many = cumulated[-1] + _tail(np.maximum(ranks, _ONE_BY_ONE), exponent)
    shares: NDArray[np.float64] = np.where(ranks <= _ONE_BY_ONE, few, many)
    # The last digits of two sums may differ, and nobody has more than all of the stream.
    return np.minimum(shares / zipf_sum(keys, exponent), 1.0)


def zipf_share(ranks: float, keys: int, exponent: float = 1.0) -> float:
    """The share of the stream on the `ranks` most frequent of `keys` keys."""
    return float(zipf_shares(np.array([float(ranks)]), keys, exponent)[0])


@lru_cache(maxsize=64)
def rank_classes(first: int, last: int, classes: int) -> NDArray[np.int64]:
    """Ranks from `first` to `last` that divide those in between into classes, ever larger ones.

    >>> rank_classes(0, 10, 4).tolist()
    [0, 1, 4, 10]
    """
    ranks = np.geomspace(first + 1, last + 1, classes).round().astype(np.int64) - 1
    ranks = np.append(ranks[:-1][np.diff(ranks) > 0], last)
    ranks.flags.writeable = False
    return ranks


def check_exponent(exponent: float) -> None:
    """Raise what a user should see for an exponent that no stream has."""
    if not (math.isfinite(exponent) and exponent >= 0):
        raise OptionError(
            f"A Zipf exponent of {exponent} is not possible. Give a number of at least 0: 0 for a "
            "uniform stream, about 1 for sales by product."
        )


def _tail(n: NDArray[np.float64], exponent: float) -> NDArray[np.float64]:
    """The sum from the rank behind the first ones to n."""
    n, a, e = n.astype(np.float64), float(_ONE_BY_ONE), float(exponent)
    # Written so that exponents next to 1 lose no digits.
    longer = np.log(n / a)
    integral = longer if e == 1 else a ** (1 - e) * np.expm1((1 - e) * longer) / (1 - e)
    ends = (n**-e - a**-e) / 2
    slopes = e * (a ** (-e - 1) - n ** (-e - 1)) / 12
    tail: NDArray[np.float64] = integral + ends + slopes
    return tail
