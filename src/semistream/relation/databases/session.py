"""One connection, and the transaction that shows the table as of one moment.

    hold ──► begin, moment 4 ──► reads ──► end        the connection stays for the next hold
              └─ hold again: the same moment

On Spark the driver may hold one for all tasks of a batch, and tell them its name: then each sees
that moment.

A transaction that stays open keeps a database from clearing away old rows, so it lasts as long as
somebody holds it, which is a run of a join.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import RLock
from typing import TypeVar

from semistream.errors import DatabaseError
from semistream.relation.databases.address import MYSQL, Address
from semistream.relation.databases.faults import lost
from semistream.relation.databases.mysql import MySQL
from semistream.relation.databases.postgresql import PostgreSQL
from semistream.relation.databases.source import LostConnectionError, Source

__all__ = ["Session", "seeing"]

_T = TypeVar("_T")


class Session:
    """A connection that is made when it is first needed; several threads may read in turn."""

    def __init__(self, address: Address) -> None:
        """Nothing is connected yet."""
        self.address = address
        self.moment = 1
        """Counts the transactions; each may see other rows than the one before."""
        self._lock = RLock()
        self._holders = 0
        self._open: list[Source] = []
        """The connection, if there is one."""
        self._finalizer = weakref.finalize(self, _close, self._open)

    @contextmanager
    def held(self, on_new: Callable[[], None]) -> Iterator[None]:
        """Keep to one moment until the block ends; a hold inside another keeps to the same.

        `on_new` is called within each new moment, before anything else is read.
        """
        with self._lock:
            self._holders += 1
            try:
                if self._holders == 1:
                    self._begin()
                    on_new()
            except BaseException:
                self._release()
                raise
        try:
            yield
        finally:
            with self._lock:
                self._release()

    def read(self, query: Callable[[Source], _T]) -> _T:
        """What a query finds at this moment; there must be a hold."""
        with self._lock:
            if not self._open:
                raise lost(self.address, "it was closed")
            try:
                return query(self._open[0])
            except LostConnectionError as error:
                self.close()
                raise lost(self.address, str(error)) from None

    def close(self) -> None:
        """Close the connection; the next hold makes another."""
        with self._lock:
            _close(self._open)

    def _begin(self) -> None:
        self.moment += 1
        moment = _SHARED.get(self.address.location)
        if self._open:
            try:
                self._open[0].begin(moment)
                return
            except (LostConnectionError, DatabaseError):
                # It was lost while nobody held it, so nothing is lost with it.
                self.close()
        source: type[MySQL | PostgreSQL] = MySQL if self.address.system == MYSQL else PostgreSQL
        self._open.append(source(self.address))
        try:
            self._open[0].begin(moment)
        except LostConnectionError as error:
            self.close()
            raise lost(self.address, str(error)) from None

    def _release(self) -> None:
        self._holders -= 1
        if self._holders == 0 and self._open:
            try:
                self._open[0].end()
            except (LostConnectionError, DatabaseError):
                self.close()


_SHARED: dict[str, str] = {}
"""Names of the moments that this process sees, by the location of the master."""


@contextmanager
def seeing(moments: Mapping[str, str]) -> Iterator[None]:
    """Let all new transactions see these moments, which somebody holds, until the block ends."""
    _SHARED.update(moments)
    try:
        yield
    finally:
        for location in moments:
            _SHARED.pop(location, None)


def _close(sources: list[Source]) -> None:
    while sources:
        with suppress(Exception):
            sources.pop().close()
