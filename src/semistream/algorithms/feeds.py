"""Feeds: how a stream comes to an engine, and how the engine steps an algorithm over it.

A stream is pulled (`PulledFeed`: batches when they are asked for) or pushed (`TimedFeed`: batches
with arrival times, of which some may be shed). A feed may come in sections, each joined with a
plan of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Protocol

import pyarrow as pa

from semistream.algorithms.assembly import Assembly
from semistream.algorithms.registry import Algorithm
from semistream.algorithms.sections import Sections
from semistream.algorithms.timed_driver import TimedDriver
from semistream.arrow_arrays import no_rows
from semistream.budget import Grant
from semistream.errors import StreamSchemaError
from semistream.metrics import Recorder
from semistream.parts.join_shape import JoinShape
from semistream.parts.shedding import Shedding
from semistream.parts.stream_buffer import StreamBuffer
from semistream.parts.timed_stream import TimedArrivals, TimedStream
from semistream.relation import MembershipFilter

_NOTHING = object()


class Feed(Protocol):
    """What an engine needs of a stream."""

    timed: bool
    """Whether tuples have arrival times."""
    queued: bool
    """Whether load is shed from an arrival queue."""

    def next_section(self) -> pa.RecordBatch | None:
        """The batch that the next section begins with; None when all is joined."""

    def buffer(
        self,
        shape: JoinShape,
        rows: int,
        grant: Grant,
        recorder: Recorder,
        members: MembershipFilter | None,
    ) -> StreamBuffer | TimedStream:
        """The stream buffer that reads this section."""

    def resume(self, assembly: Assembly) -> bool:
        """Read this section with the parts of an earlier run; False if that cannot be."""

    def drive(self, algorithm: Algorithm, assembly: Assembly) -> Iterator[pa.RecordBatch]:
        """Step the algorithm until the section has ended and nothing waits."""

    def check(self) -> None:
        """Assert the invariants."""

    def close(self) -> None:
        """The run is over."""


class PulledFeed:
    """A stream of batches that come when they are asked for."""

    timed = queued = False

    def __init__(self, sections: Sections[pa.RecordBatch]) -> None:
        """Nothing has been asked for yet."""
        self._sections = sections
        self._batches: Iterator[pa.RecordBatch] = sections
        self._begun = False

    def next_section(self) -> pa.RecordBatch | None:
        """The first batch, or the one that was held back."""
        if self._begun and not self._sections.cut:
            return None
        self._begun = True
        first: object = next(self._sections, _NOTHING)
        if first is _NOTHING:
            return None
        if not isinstance(first, pa.RecordBatch):
            raise StreamSchemaError(
                f"The stream gave a {type(first).__name__}; it must give pyarrow.RecordBatch."
            )
        self._batches = chain([first], self._sections)
        return first

    def buffer(
        self,
        shape: JoinShape,
        rows: int,
        grant: Grant,
        recorder: Recorder,
        members: MembershipFilter | None,
    ) -> StreamBuffer:
        """A buffer that asks for batches."""
        return StreamBuffer(self._batches, shape, rows, grant, recorder, members)

    def resume(self, assembly: Assembly) -> bool:
        """Its stream buffer reads this stream from now on."""
        assembly.restart(self._batches)
        return True

    def drive(self, algorithm: Algorithm, assembly: Assembly) -> Iterator[pa.RecordBatch]:
        """Step by step; at a pause, what is staged goes out before more is asked for."""
        stream = algorithm.stream
        while True:
            yield from algorithm.step()
            assembly.recorder.iterations += 1
            if not len(algorithm.waiting):
                if stream.ended or stream.paused:
                    yield from assembly.output.flush()
                if stream.ended:
                    return
                stream.resume()

    def check(self) -> None:
        """There is nothing to check."""

    def close(self) -> None:
        """There is nothing to close."""


class TimedFeed:
    """A stream of batches that arrive at their own times."""

    timed = True

    def __init__(
        self,
        sections: Sections[tuple[float, pa.RecordBatch]],
        shedding: Shedding | None,
        now: float,
    ) -> None:
        """With `shedding`, what an earlier run left in its folder is joined too."""
        self.queued = shedding is not None and shedding.considers
        self._sections = sections
        self._arrivals: TimedArrivals | None = None
        self._shedding = shedding
        self._file = None if shedding is None else shedding.open(now)
        self._driver: TimedDriver | None = None

    def next_section(self) -> pa.RecordBatch | None:
        """The first batch, or the one that was held back; if none arrives, what was shed before."""
        if self._arrivals is None:
            self._arrivals = TimedArrivals(self._sections)
        elif self._sections.cut:
            self._arrivals.go_on()
        else:
            return None
        if self._arrivals.next is not None:
            return self._arrivals.next.batch
        if self._file is not None and len(self._file):
            return no_rows(self._file.schema)
        return None

    def buffer(
        self,
        shape: JoinShape,
        rows: int,
        grant: Grant,
        recorder: Recorder,
        members: MembershipFilter | None,
    ) -> TimedStream:
        """A buffer that takes arrivals in when their time has come."""
        assert self._arrivals is not None
        return TimedStream(self._arrivals, shape, rows, grant, recorder, members)

    def resume(self, assembly: Assembly) -> bool:
        """A timed run has parts of its own."""
        return False

    def drive(self, algorithm: Algorithm, assembly: Assembly) -> Iterator[pa.RecordBatch]:
        """As the timed driver does."""
        self._driver = TimedDriver(algorithm, assembly, self._shedding, self._file)
        yield from self._driver.run()
        self._driver = None

    def check(self) -> None:
        """Assert the invariants of the driver."""
        if self._driver is not None:
            self._driver.check()

    def close(self) -> None:
        """Close the shed file."""
        if self._file is not None:
            self._file.close()
