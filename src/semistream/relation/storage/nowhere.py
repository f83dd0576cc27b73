"""Nowhere: the storage of a master without files, whose reader makes its pages by itself."""

from __future__ import annotations

from semistream.relation.storage.files import PageSource
from semistream.relation.storage.local import LocalStorage

__all__ = ["Nowhere"]


class Nowhere(LocalStorage):
    """A folder that is never there: what opens a page file in it gets one that is empty."""

    def open_pages(self, name: str, direct: bool) -> PageSource:
        """An empty source; nothing is opened."""
        return _EmptySource()


class _EmptySource:
    """A page file without bytes."""

    descriptor = -1

    def read_into(self, memory: memoryview, position: int) -> int:
        """Nothing comes."""
        return 0

    def close(self) -> None:
        """Nothing is open."""
