"""Sections: a stream, cut where the join should go on with another plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Sections(Generic[_T]):
    """An iterator that ends at each cut; iterated again, it goes on behind the cut.

    >>> stream = Sections(iter([1, 2, 30, 4]), next, lambda number: number > 9)
    >>> list(stream), stream.cut, list(stream), stream.cut
    ([1, 2], True, [30, 4], False)
    """

    def __init__(
        self,
        items: Iterator[_T],
        pull: Callable[[Iterator[_T]], _T],
        cuts: Callable[[_T], bool],
    ) -> None:
        """`pull` is `next`, or does the same; `cuts` says whether a section begins with an item."""
        self._items = items
        self._pull = pull
        self._cuts = cuts
        self._held: list[_T] = []

    @property
    def cut(self) -> bool:
        """Whether an item is held back for the next section."""
        return bool(self._held)

    def __iter__(self) -> Iterator[_T]:
        return self

    def __next__(self) -> _T:
        if self._held:
            return self._held.pop()
        item = self._pull(self._items)
        if self._cuts(item):
            self._held.append(item)
            raise StopIteration
        return item
