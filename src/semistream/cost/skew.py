"""Skew: how unevenly a stream asks for the keys of R, and where these lie."""

from __future__ import annotations

from dataclasses import dataclass

from semistream.cost.zipf_sums import check_exponent
from semistream.errors import OptionError

ORDERS = ("scattered", "frequency")
"""Where frequent keys lie in R: anywhere, or in front, the most frequent first."""


@dataclass(frozen=True)
class Skew:
    """A stream after Zipf's law: the key of rank x comes in proportion to 1 / x^`exponent`.

    >>> Skew(1.0).order is None
    True
    """

    exponent: float
    """0 for a uniform stream."""
    order: str | None = None
    """One of `ORDERS`; None to go by the master: layout "given" is meant to be by frequency."""
    keys: int | None = None
    """How many keys the stream asks for; None for all that the master has."""

    def __post_init__(self) -> None:
        """Refuse values that no stream can have."""
        check_exponent(self.exponent)
        if self.order not in (None, *ORDERS):
            raise OptionError(f"order={self.order!r} is not known. Use one of {ORDERS}, or None.")
        if self.keys is not None and self.keys < 1:
            raise OptionError(f"keys={self.keys!r} must be at least 1, or None.")
