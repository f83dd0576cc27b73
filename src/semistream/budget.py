"""The memory budget: M bytes for the whole operator, handed out as named grants.

A part takes its bytes *before* it allocates, so the sum can never pass the budget, and the
highest sum ever reached is on record. Giving and taking back is cheap: grants are counters,
not memory.
"""

from __future__ import annotations

import re
from typing import SupportsIndex

from semistream.errors import BudgetError, OptionError

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_TOO_MUCH = 1 << 60
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE)


def parse_memory(memory: SupportsIndex | str, name: str = "memory") -> int:
    """Bytes from an int or a string such as ``"64MB"``; units are powers of 1,024, as in Spark.

    >>> parse_memory("64MB"), parse_memory("1.5 GiB"), parse_memory(4096)
    (67108864, 1610612736, 4096)
    """
    size = 0.0
    if isinstance(memory, SupportsIndex) and not isinstance(memory, bool):
        size = int(memory)
    elif isinstance(memory, str) and (found := _SIZE.fullmatch(memory)):
        size = float(found[1]) * _UNITS[found[2].lower()]
    if size >= _TOO_MUCH:
        raise OptionError(f"{name} is more bytes than any machine has. Give what the join may use.")
    if size < 1:
        raise OptionError(
            f"{name}={memory!r} is not a size. Give bytes as a positive int, "
            'or a string such as "64MB" or "1.5GB".'
        )
    return int(size)


class Grant:
    """The bytes one part holds out of a budget."""

    def __init__(self, budget: MemoryBudget, name: str) -> None:
        """Made by `MemoryBudget.grant`."""
        self._budget = budget
        self.name = name
        self.bytes = 0

    @property
    def budget_bytes(self) -> int:
        """Bytes of the whole budget."""
        return self._budget.total

    def take(self, size: int) -> None:
        """Reserve `size` more bytes, or raise `BudgetError` and change nothing. O(1)."""
        self._budget._reserve(self.name, size)
        self.bytes += size

    def give(self, size: int) -> None:
        """Hand `size` bytes back. O(1)."""
        if not 0 <= size <= self.bytes:
            raise ValueError(f"{self.name} gives back {size} bytes but holds {self.bytes}")
        self._budget._release(size)
        self.bytes -= size


class MemoryBudget:
    """A total, the grants taken from it, and the peak of their sum.

    >>> budget = MemoryBudget(1000)
    >>> table = budget.grant("stream table")
    >>> table.take(600)
    >>> table.give(200)
    >>> budget.used, budget.peak
    (400, 600)
    """

    def __init__(self, total: int) -> None:
        """A budget of `total` bytes, none of it taken."""
        self.total = total
        self.used = 0
        self.peak = 0
        self._grants: dict[str, Grant] = {}

    def grant(self, name: str) -> Grant:
        """The grant called `name`, empty when it is new. One name, one grant."""
        return self._grants.setdefault(name, Grant(self, name))

    def restart(self) -> None:
        """Another run begins with what is held now: the peak is counted from there."""
        self.peak = self.used

    def by_part(self) -> dict[str, int]:
        """Bytes held now, by grant, with ``"peak"`` and ``"budget"``."""
        held = {name: grant.bytes for name, grant in self._grants.items()}
        return held | {"peak": self.peak, "budget": self.total}

    def _reserve(self, name: str, size: int) -> None:
        if size < 0:
            raise ValueError(f"{name} asks for {size} bytes")
        if self.used + size > self.total:
            raise BudgetError(
                f"The {name} needs {size:,} bytes more, but {self.used:,} of the "
                f"{self.total:,} bytes are taken. Give the join more memory."
            )
        self.used += size
        self.peak = max(self.peak, self.used)

    def _release(self, size: int) -> None:
        self.used -= size

    def check(self) -> None:
        """Assert that the grants add up and that the promise was kept."""
        assert self.used == sum(grant.bytes for grant in self._grants.values())
        assert 0 <= self.used <= self.peak <= self.total
