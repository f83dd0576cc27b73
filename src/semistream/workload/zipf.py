"""Zipf keys: the key of rank k comes with a probability in proportion to 1 / (k + 1)^exponent.

Up to ten million keys, the law is inverted with a table of cumulative probabilities. Beyond that
the table would be too large, so keys are drawn by rejection-inversion: invert the integral of a
continuous hull of the law, and accept a draw with the ratio of law to hull. That needs no table and
accepts most draws for every exponent.

W. Hörmann and G. Derflinger: Rejection-inversion to generate variates from monotone
discrete distributions. ACM TOMACS 6(3), 1996.
"""

import math
from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from semistream.errors import OptionError

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]

_TABLE_LIMIT: Final = 10_000_000
# Ranks pass through float64, which represents every integer up to here.
_LARGEST_DOMAIN: Final = 2**53
_SCATTER_ROUNDS: Final = 3


class ZipfKeys:
    """Seeded ranks in 0..domain-1, rank 0 the most frequent; exponent 0 is uniform.

    The sequence depends on the seed alone, not on how many ranks each call asks for.

    Example:
        >>> ZipfKeys(domain=1_000, exponent=1.0, seed=7).ranks(8).tolist()
        [59, 463, 186, 2, 4, 387, 0, 261]
    """

    def __init__(self, domain: int, exponent: float, seed: int) -> None:
        check_law(domain, exponent)
        _check_seed(seed)
        self.domain = domain
        self.exponent = exponent
        self.seed = seed
        self._random = np.random.default_rng(seed)
        law = _Table if domain <= _TABLE_LIMIT else _Hull
        self._law: _Law = law(domain, exponent)

    def ranks(self, n: int) -> Ints:
        """The next n ranks. O(n log domain) with the table, O(n) without."""
        if n < 0:
            raise OptionError(f"n is {n}; ask for 0 ranks or more.")
        ranks = np.empty(n, np.int64)
        filled = 0
        # Draw only as many numbers as ranks are missing, so that none is left over at the end: the
        # sequence must not depend on how many ranks a call asks for.
        while filled < n:
            accepted = self._law.ranks(self._random.random(n - filled))
            ranks[filled : filled + accepted.size] = accepted
            filled += accepted.size
        return ranks


class _Law(Protocol):
    def ranks(self, uniform: Floats) -> Ints:
        """The ranks of those uniform numbers that are accepted, in order."""


class _Table:
    """A table of the law's cumulative probabilities; every draw is accepted."""

    def __init__(self, domain: int, exponent: float) -> None:
        cumulated: Floats = np.arange(1, domain + 1, dtype=np.float64)
        np.power(cumulated, -exponent, out=cumulated)
        np.cumsum(cumulated, out=cumulated)
        # The last value becomes exactly 1, so that every draw below 1 has a rank.
        cumulated /= cumulated[-1]
        self._cumulated = cumulated

    def ranks(self, uniform: Floats) -> Ints:
        """The rank that each uniform number stands for."""
        return self._cumulated.searchsorted(uniform, side="right").astype(np.int64, copy=False)


class _Hull:
    """The continuous hull x^-exponent over 0.5..domain+0.5, and draws under it.

    | paper | here |
    | --- | --- |
    | h, H, H^-1 | `_height`, `_area`, `_position` |
    | n, q | domain, exponent |
    | s | `_sure`: a draw this near its integer needs no test |
    """

    def __init__(self, domain: int, exponent: float) -> None:
        self._domain = domain
        self._exponent = exponent
        self._low = float(self._area(np.array(1.5))) - 1.0
        self._high = float(self._area(np.array(domain + 0.5)))
        second = self._area(np.array(2.5)) - self._height(np.array(2.0))
        self._sure = 2.0 - float(self._position(second))

    def ranks(self, uniform: Floats) -> Ints:
        """The ranks of the draws that are accepted, in the order of the uniform numbers."""
        area = self._high + uniform * (self._low - self._high)
        position = self._position(area)
        number = np.clip(np.floor(position + 0.5), 1.0, float(self._domain))
        keep = number - position <= self._sure
        keep |= area >= self._area(number + 0.5) - self._height(number)
        return number[keep].astype(np.int64) - 1

    def _height(self, x: Floats) -> Floats:
        return np.exp(-self._exponent * np.log(x))

    def _area(self, x: Floats) -> Floats:
        return hull_area(x, self._exponent)

    def _position(self, area: Floats) -> Floats:
        return hull_position(area, self._exponent)


def hull_area(x: Floats, exponent: float) -> Floats:
    """The integral of the hull from 1 to x: (x^(1-q) - 1) / (1-q), or log x for q = 1."""
    log = np.log(x)
    return log * _ratio(np.expm1, (1.0 - exponent) * log)


def hull_position(area: Floats, exponent: float) -> Floats:
    """The inverse of `hull_area`."""
    # Rounding may bring the product to -1 or below, where the logarithm is not defined. Such a
    # draw is at an end of the domain, and the caller clips it.
    scaled = np.maximum(area * (1.0 - exponent), -1.0)
    with np.errstate(divide="ignore", over="ignore"):
        return np.exp(area * _ratio(np.log1p, scaled))


def scattered(ranks: Ints, domain: int, seed: int) -> Ints:
    """Each rank's place in a seeded permutation of 0..domain-1, computed without a table.

    Multiplying by an odd number, adding, and folding the high bits down are bijections of the
    next power of two. A result outside the domain is mixed again until it is inside (cycle
    walking), so the whole is a bijection of the domain. O(len(ranks)); fewer than two rounds per
    rank are expected.

    Example:
        >>> scattered(np.arange(8), domain=8, seed=1).tolist()
        [3, 4, 1, 7, 2, 5, 0, 6]
    """
    _check_domain(domain)
    _check_seed(seed)
    ranks = np.asarray(ranks, dtype=np.int64)
    if ranks.size and not (ranks.min() >= 0 and ranks.max() < domain):
        found = f"{ranks.min()}..{ranks.max()}"
        raise OptionError(f"ranks are {found}; give ranks in 0..{domain - 1}, or a larger domain.")
    bits = int(domain - 1).bit_length()
    state = np.random.SeedSequence(seed).generate_state(2 * _SCATTER_ROUNDS, np.uint64)
    constants = state.astype(np.uint64, copy=False)
    places = _mixed(ranks.astype(np.uint64), bits, constants)
    outside = np.flatnonzero(places >= domain)
    while outside.size:
        places[outside] = _mixed(places[outside], bits, constants)
        outside = outside[places[outside] >= domain]
    return places.view(np.int64)


def _mixed(
    values: npt.NDArray[np.uint64], bits: int, constants: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """A bijection of 0..2^bits-1."""
    mask = np.uint64((1 << bits) - 1)
    fold = np.uint64((bits + 1) // 2 or 1)
    for odd, offset in constants.reshape(-1, 2):
        values = (values * (odd | np.uint64(1)) + offset) & mask
        values ^= values >> fold
    return values


def _ratio(function: np.ufunc, x: Floats) -> Floats:
    """function(x) / x for expm1 and log1p, which are both 1 at 0."""
    near = np.abs(x) < 1e-300
    safe = np.where(near, 1.0, x)
    ratio: Floats = np.where(near, 1.0, function(safe) / safe)
    return ratio


def check_law(domain: int, exponent: float) -> None:
    """Refuse a domain or an exponent that no Zipf law here has."""
    _check_domain(domain)
    if not (math.isfinite(exponent) and exponent >= 0):
        raise OptionError(f"exponent is {exponent}; give a finite number of at least 0.")


def _check_domain(domain: int) -> None:
    if not 1 <= domain <= _LARGEST_DOMAIN:
        raise OptionError(f"domain is {domain}; give a number of keys from 1 to 2^53.")


def _check_seed(seed: int) -> None:
    if seed < 0:
        raise OptionError(f"seed is {seed}; give a whole number of at least 0.")
