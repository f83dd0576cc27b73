"""A stage between the stream and a join: it answers the tuples it can, and hands on the others.

It stands where the join expects its stream buffer and reads like one, so that any join can have
it, and several can stand one behind the other.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Protocol

from semistream.parts.stream_buffer import Arrivals, TupleSource

_ANY = 1 << 62


class Answerer(Protocol):
    """Who answers tuples in a stage."""

    def answer(self, arrivals: Arrivals) -> Generator[Arrivals, None, Arrivals]:
        """Stage the results of what it can answer in the output, and return the other tuples.

        Yields arrivals without codes, a fragment of results apart: with them `Output.arrived`
        lets results out. Their `keyless` tuples are unmatched.
        """


class Stage:
    """A `TupleSource` that gives only what is not answered in it."""

    def __init__(self, source: TupleSource, answerer: Answerer) -> None:
        """Reads from `source`; nothing is held yet."""
        self._source = source
        self._answerer = answerer
        self.nothing = source.nothing
        self._missed = source.nothing
        self._given = 0
        self._items: Iterator[Arrivals] | None = None

    @property
    def ended(self) -> bool:
        """Whether the stream has ended and every tuple was given."""
        return self._source.ended and not self._left

    @property
    def paused(self) -> bool:
        """Whether nothing has arrived for now."""
        return self._source.paused and not self._left

    @property
    def held(self) -> int:
        """Tuples that were not answered, here or in a stage before, and are not yet given."""
        return self._left + self._source.held

    @property
    def _left(self) -> int:
        return len(self._missed.codes) - self._given

    def read(self, limit: int) -> Iterator[Arrivals]:
        """At most `limit` tuples that are not answered here, until the stream pauses or ends."""
        while limit > 0:
            if not self._left:
                arrivals = self._next()
                if arrivals is None:
                    return
                if not len(arrivals.codes):
                    yield arrivals
                    continue
                self._missed = yield from self._answerer.answer(arrivals)
                self._given = 0
            given = self._missed.between(self._given, self._given + limit)
            self._given += len(given.codes)
            limit -= len(given.codes)
            yield given

    def _next(self) -> Arrivals | None:
        """The next item of the source; None when it pauses or ends."""
        if self._items is None:
            self._items = self._source.read(_ANY)
        item = next(self._items, None)
        if item is None:
            self._items = None
        return item

    def put_back(self, count: int) -> None:
        """The last `count` tuples of the last read had no room after all."""
        self._given -= count

    def resume(self) -> None:
        """Nothing waits any more: ask again after a pause."""
        self._source.resume()
