"""Temporal locality: for a while the stream asks for one part of the master data only.

Naeem et al. 2017, §5.2.1: each key has N rows in R, so the domain is R / N. The stream has 25
intervals of equal length; the I-th draws Zipf ranks over the I-th 25th of the domain.
"""

from __future__ import annotations

import numpy as np

from semistream.errors import OptionError
from semistream.workload.zipf import Ints, ZipfKeys

__all__ = ["LocalKeys"]


class LocalKeys:
    """Keys of a stream of `tuples` tuples; after the last interval the first comes again.

    Example:
        >>> keys = LocalKeys(domain=1_000, tuples=100, intervals=4, seed=1)
        >>> (keys.ranks(100) // 250).tolist()[::25]
        [0, 1, 2, 3]
    """

    def __init__(
        self, domain: int, tuples: int, seed: int, intervals: int = 25, exponent: float = 1.0
    ) -> None:
        if not 1 <= intervals <= min(domain, tuples):
            raise OptionError(
                f"intervals is {intervals}; give from 1 to {min(domain, tuples)}: each needs a key "
                "and a tuple."
            )
        self._part = domain // intervals
        self._length = tuples // intervals
        self._intervals = intervals
        self._keys = ZipfKeys(self._part, exponent, seed)
        self._given = 0

    def ranks(self, n: int) -> Ints:
        """The next n keys. O(n log domain)."""
        numbers = np.arange(self._given, self._given + n)
        self._given += n
        interval = numbers // self._length % self._intervals
        return interval * self._part + self._keys.ranks(n)
