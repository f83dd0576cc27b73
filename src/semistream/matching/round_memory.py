"""How a join divides its memory between the engine and the tuples and results of a round."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["RoundMemory"]

_SHARE: Final = 4
"""A round has a quarter of the memory, unless the engine needs it."""
_LEAST_ROWS: Final = 128
"""A round has at least memory for so many of the widest results."""
_LEAST_HELD: Final = 256
"""The same if results wait: pieces of what is sorted would be too small to be worth a call."""
_ROW_BYTES: Final = 64
"""Beside its columns: numbers, marks, places in an order."""
_MARKS_SHARE: Final = 32
_LEAST_MARKS: Final = 4096
"""If nothing but marks is held, they have 1 / 32 of the memory, or at least so many bytes."""


class RoundMemory(NamedTuple):
    """Bytes of each part."""

    engine: int
    tuples: int
    """For the tuples of a round, and for a copy of a column while they are put together."""
    results: int
    """For results that wait for the round's end."""
    piece: int
    """For the result batch that is put together."""

    @property
    def round(self) -> int:
        """All but the engine's."""
        return self.tuples + self.results + self.piece

    @classmethod
    def divided(cls, memory: int, share: int, tuple_bytes: float, row_bytes: float) -> RoundMemory:
        """With `share` bytes for the round, of tuples and held rows of these widths."""
        piece = share // 4
        rest = share - piece
        results = 0
        if row_bytes:
            # Rows are held in half of their share; the other half is to sort them.
            weight = 2 * (row_bytes + _ROW_BYTES) / (2 * row_bytes + tuple_bytes + 3 * _ROW_BYTES)
            results = int(rest * min(max(weight, 0.25), 0.75))
        return cls(memory - share, rest - results, results, piece)

    @staticmethod
    def least_share(widest_tuple: int, widest_row: int, holds_results: bool) -> int:
        """The least bytes of a round of tuples and rows that may be so wide."""
        rows = _LEAST_HELD if holds_results else _LEAST_ROWS
        return rows * (widest_tuple + widest_row + _ROW_BYTES)

    @classmethod
    def usual(cls, memory: int, holds_tuples: bool) -> int:
        """The bytes of a round of either kind if there is enough for all."""
        return cls.usual_share(memory) if holds_tuples else cls.usual_marks(memory)

    @staticmethod
    def least_marks() -> int:
        """The least bytes of a round of which only marks are held."""
        return _LEAST_MARKS

    @staticmethod
    def usual_marks(memory: int) -> int:
        """The bytes of such a round if there is enough for all."""
        return memory // _MARKS_SHARE

    @staticmethod
    def usual_share(memory: int) -> int:
        """The bytes of a round if there is enough for all."""
        return memory // _SHARE
