"""Zipf keys as the papers draw them: the inverse of the law's integral, rounded down.

Naeem et al. 2011, appendix, Figure 9. Nothing corrects for the rounding, so rank 0 gets a little
less than its share and the ranks behind it a little more. `semistream.workload.ZipfKeys` is exact.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from semistream.errors import OptionError
from semistream.workload.zipf import Floats, Ints, check_law, hull_area, hull_position

__all__ = ["IntegralZipfKeys", "zipf_rows"]


class IntegralZipfKeys:
    """Seeded ranks in 0..domain-1, rank 0 the most frequent. O(n) per call."""

    def __init__(self, domain: int, exponent: float, seed: int) -> None:
        self._rank_at = _inverse_integral(domain, exponent)
        self._random = np.random.default_rng(seed)

    def ranks(self, n: int) -> Ints:
        """The next n ranks."""
        return self._rank_at(self._random.random(n))


def zipf_rows(rows: int, domain: int, exponent: float) -> Callable[[Ints], Ints]:
    """A relation whose key column follows the law: from row numbers to keys that never fall.

    Row i has the key at share (i + 1/2) / rows of the law, so that R needs no table and no key is
    drawn at random. Key 0 has the most rows.

    Example:
        >>> zipf_rows(10, domain=10, exponent=1.0)(np.arange(10)).tolist()
        [0, 0, 0, 1, 1, 2, 3, 5, 6, 8]
    """
    if rows < 1:
        raise OptionError(f"rows is {rows}; give at least 1.")
    key_at = _inverse_integral(domain, exponent)
    return lambda numbers: key_at((numbers + 0.5) / rows)


def _inverse_integral(domain: int, exponent: float) -> Callable[[Floats], Ints]:
    """From shares of the integral of x^-exponent over 1..domain+1 to ranks."""
    check_law(domain, exponent)
    whole = float(hull_area(np.array(domain + 1.0), exponent))

    def rank_at(share: Floats) -> Ints:
        place = hull_position(share * whole, exponent)
        return np.clip(place, 1.0, float(domain)).astype(np.int64) - 1

    return rank_at
