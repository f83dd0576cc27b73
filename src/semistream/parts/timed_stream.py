"""Timed stream: a stream buffer for tuples that are pushed and not pulled.

Arrival times are known and the clock says which have passed, so that what has arrived and is
not yet read (SB_1 in Naeem et al. 2017), how long it waits, pauses and overload are the same
in every run. Chunks, codes and tuples without a key are the stream buffer's work, which stands
behind and pulls only what has arrived.

    arrivals ──time has come──► pending ──┐
                                  │ shed  ├─► stream buffer ─► algorithm
    shed tuples ──come back──► returned ──┘   (returned first)

As with the stream buffer, batches belong to whoever made them: those that have arrived and
wait are the producer's memory. Only so many are taken in that an overload can be seen: with more
pending, an arrival that is due stays with the producer for now.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from numbers import Real
from typing import Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.arrow_arrays import to_arrow
from semistream.budget import Grant
from semistream.errors import ArrivalOrderError, OptionError, StreamSchemaError
from semistream.metrics import LATEST, Recorder
from semistream.parts.join_shape import JoinShape
from semistream.parts.stream_buffer import Arrivals, StreamBuffer
from semistream.relation import MembershipFilter

MOST_PENDING = 65536
"""Tuples that are taken in beyond what the join can take soon, so that they can be shed."""


_END: Final = object()


class Timed(NamedTuple):
    """A batch, and the time in seconds since which its tuples wait."""

    since: float
    batch: pa.RecordBatch


@runtime_checkable
class MovableClock(Protocol):
    """A clock that need not be waited for."""

    def __call__(self) -> float:
        """The time now."""

    def advance_to(self, seconds: float) -> None:
        """Let time pass until then."""


class TimedArrivals:
    """Arrivals in order, one ahead: the time of the next one is always known."""

    def __init__(self, arrivals: Iterable[tuple[float, pa.RecordBatch]]) -> None:
        """Ask for the first; an arrival that is asked for should not keep the caller waiting."""
        self._arrivals = iter(arrivals)
        self._last = -float("inf")
        self.next = self._ask()

    def take(self) -> Timed:
        """The next arrival, which there must be."""
        taken = self.next
        assert taken is not None
        self.next = self._ask()
        return taken

    def go_on(self) -> None:
        """The arrivals had come to an end for a while: ask for the next."""
        self.next = self._ask()

    def _ask(self) -> Timed | None:
        found: object = next(self._arrivals, _END)
        if found is _END:
            return None
        if not (isinstance(found, tuple) and len(found) == 2):
            raise StreamSchemaError(
                f"A timed stream gave a {type(found).__name__}; it must give pairs of an arrival "
                "time in seconds and a pyarrow.RecordBatch."
            )
        seconds, batch = found
        if not isinstance(batch, pa.RecordBatch):
            raise StreamSchemaError(
                f"A timed stream gave a pair of {type(seconds).__name__} and "
                f"{type(batch).__name__}; it must give pairs of an arrival time in seconds and a "
                "pyarrow.RecordBatch. A pa.Table gives them with to_batches()."
            )
        at = math.nan
        if isinstance(seconds, Real):
            with contextlib.suppress(OverflowError):
                at = float(seconds)
        if not abs(at) <= LATEST:
            raise ArrivalOrderError(
                f"An arrival has the time {seconds!r}; it must be a finite number of at most "
                f"{LATEST:.0e}, in seconds of the engine's clock."
            )
        if at < self._last:
            raise ArrivalOrderError(
                f"An arrival at {seconds} s follows one at {self._last} s. Times must not go "
                "back: sort the arrivals by time."
            )
        self._last = at
        return Timed(at, batch)


class TimedStream:
    """What has arrived by now and is not yet read; a `TupleSource`."""

    def __init__(
        self,
        arrivals: TimedArrivals,
        shape: JoinShape,
        chunk_rows: int,
        grant: Grant,
        recorder: Recorder,
        members: MembershipFilter | None = None,
    ) -> None:
        """Nothing has arrived yet; times are those of the recorder's clock."""
        self._arrivals = arrivals
        self._shape = shape
        self._recorder = recorder
        self._buffer = StreamBuffer(
            self._feed(), shape, chunk_rows, grant, recorder, members, self._since
        )
        self.nothing = self._buffer.nothing
        self.most_rows = chunk_rows
        """The most tuples that go to the stream buffer at once; those can be shed no more."""
        self.most_pending = MOST_PENDING
        """No more is taken in once so many tuples are pending."""
        self.coming_back: Callable[[], bool] = lambda: False
        """Whether shed tuples are still to come back: the stream does not end before."""
        self._pending: deque[Timed] = deque()
        self._returned: deque[Timed] = deque()
        self.pending = 0
        self.returned = 0
        self.fresh = 0
        self._pulled_since = 0.0
        self._reached = -float("inf")

    @property
    def ended(self) -> bool:
        """Whether no tuple will come any more."""
        return self._buffer.ended

    @property
    def held(self) -> int:
        """It is no stage."""
        return 0

    @property
    def paused(self) -> bool:
        """Whether no tuple has arrived for now."""
        return self._buffer.paused

    @property
    def size(self) -> int:
        """How many tuples have arrived, or come back, and are not yet read (SB_1)."""
        return self.pending + self.returned + self._buffer.unread

    @property
    def next_arrival(self) -> float | None:
        """When the next tuples are due; None when no more will arrive."""
        return None if self._arrivals.next is None else self._arrivals.next.since

    def read(self, limit: int) -> Iterator[Arrivals]:
        """At most `limit` tuples with a key that have arrived, chunk by chunk."""
        return self._buffer.read(limit)

    def put_back(self, count: int) -> None:
        """The last `count` tuples of the last read had no room after all. O(1)."""
        self._buffer.put_back(count)

    def resume(self) -> None:
        """Time has passed: ask again after a pause. O(1)."""
        self._buffer.resume()

    def arrive(self) -> None:
        """Let in what is due by now, until enough is pending. O(batches that arrive)."""
        now = max(self._recorder.clock(), self._reached)
        while self.pending < self.most_pending:
            due = self.next_arrival
            if due is None or due > now:
                return
            arrival = self._arrivals.take()
            self._shape.check_batch(arrival.batch)
            rows = arrival.batch.num_rows
            self._recorder.arrived += rows
            self.pending += rows
            self.fresh += rows
            if rows:
                self._pending.append(arrival)

    def await_next(self) -> None:
        """Nothing is to be done before the next arrival: let time pass until then."""
        due = self.next_arrival
        if due is None:
            return
        clock = self._recorder.clock
        if isinstance(clock, MovableClock):
            clock.advance_to(due)
        else:
            _sleep_until(clock, due)
        # A clock that adds up may end a rounding error before the time it was moved to.
        self._reached = due

    def come_back(self, shed: Iterable[Timed]) -> None:
        """Shed tuples are back; they go before new arrivals, in the order given."""
        for piece in shed:
            self._returned.append(piece)
            self.returned += piece.batch.num_rows

    def shed_newest(
        self, chosen: NDArray[np.bool_], keep: Callable[[float, pa.RecordBatch], bool]
    ) -> int:
        """Let go of the chosen ones of the newest `len(chosen)` pending tuples; returns how many.

        `keep` gets them before they go, oldest first, in plain columns, and says whether it
        has them; when it has not, the rest stays.
        """
        gone, blocked = 0, False
        for piece in self._newest(len(chosen)):
            mask, chosen = chosen[: piece.batch.num_rows], chosen[piece.batch.num_rows :]
            count = int(np.count_nonzero(mask))
            if count and not blocked:
                # Not every type can be filtered as it came.
                plain = self._shape.plain(piece.batch)
                shed = plain if count == len(mask) else plain.filter(to_arrow(mask))
                blocked = not keep(piece.since, shed)
                if not blocked:
                    gone += count
                    if count < len(mask):
                        rest = plain.filter(to_arrow(~mask))
                        self._pending.append(Timed(piece.since, rest))
                    continue
            self._pending.append(piece)
        self.pending -= gone
        return gone

    def check(self) -> None:
        """Assert that the counts are those of the batches."""
        assert self.pending == sum(piece.batch.num_rows for piece in self._pending)
        assert self.returned == sum(piece.batch.num_rows for piece in self._returned)
        assert self._buffer.unread >= 0

    def _newest(self, count: int) -> list[Timed]:
        """Take the newest `count` pending tuples out, as batches in order of arrival."""
        pieces: list[Timed] = []
        while count:
            since, batch = self._pending.pop()
            if batch.num_rows > count:
                self._pending.append(Timed(since, batch.slice(0, batch.num_rows - count)))
                batch = batch.slice(batch.num_rows - count)
            pieces.append(Timed(since, batch))
            count -= batch.num_rows
        return pieces[::-1]

    def _feed(self) -> Iterator[pa.RecordBatch]:
        """What the stream buffer pulls: a piece that has arrived, or nothing for now."""
        while True:
            self.arrive()
            if self._returned:
                batch = self._give(self._returned)
                self.returned -= batch.num_rows
                yield batch
            elif self._pending:
                batch = self._give(self._pending)
                self.pending -= batch.num_rows
                yield batch
            elif self._arrivals.next is None and not self.coming_back():
                return
            else:
                yield self.nothing.batch

    def _give(self, pieces: deque[Timed]) -> pa.RecordBatch:
        since, batch = pieces.popleft()
        if batch.num_rows > self.most_rows:
            pieces.appendleft(Timed(since, batch.slice(self.most_rows)))
            batch = batch.slice(0, self.most_rows)
        self._pulled_since = since
        return batch

    def _since(self) -> float:
        return self._pulled_since


def _sleep_until(clock: Callable[[], float], due: float) -> None:
    """Sleep by real time; a clock that does not follow it would never get there."""
    while (now := clock()) < due:
        time.sleep(due - now)
        if clock() <= now:
            raise OptionError(
                "The clock did not move while the join slept until the next arrival. Give a clock "
                "that follows real time, or one with advance_to(seconds)."
            )
