"""Timed driver: steps an algorithm over a stream that arrives at its own pace.

It differs from the engine's plain loop in three things: a pause lasts only until the next step,
since time passes meanwhile; when there is nothing to do, time is let pass until the next
arrival; and load may be shed before each step. After each step it counts: every tuple that has
arrived is finished, waits, is in the stream buffer, or is shed and not yet back.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from semistream.algorithms.assembly import Assembly
from semistream.algorithms.inlj import IndexNestedLoopJoin
from semistream.algorithms.registry import Algorithm
from semistream.errors import InternalError
from semistream.parts.demand import DemandedTuples
from semistream.parts.scan_window import ScanWindow
from semistream.parts.shed_file import ShedFile
from semistream.parts.shedding import Shedder, Shedding
from semistream.parts.timed_stream import TimedStream
from semistream.parts.waiting import WaitingTuples


class TimedDriver:
    """Runs one algorithm from the first arrival until all is joined."""

    def __init__(
        self,
        algorithm: Algorithm,
        assembly: Assembly,
        shedding: Shedding | None,
        file: ShedFile | None,
    ) -> None:
        """With a shed file when load is to be shed."""
        assert isinstance(assembly.buffer, TimedStream)
        self._algorithm = algorithm
        self._buffer = assembly.buffer
        self._assembly = assembly
        self._recorder = assembly.recorder
        self._shedder: Shedder | None = None
        if shedding is not None and file is not None:
            file.expect(assembly.shape.plain_schema)
            if isinstance(algorithm, IndexNestedLoopJoin):
                # A step is when load can be shed: it must not go on for all that arrives in it.
                algorithm.tuples_per_step = assembly.plan.stream_chunk_rows
            waiting = algorithm.waiting if isinstance(algorithm.waiting, WaitingTuples) else None
            self._shedder = Shedder(
                shedding, file, self._buffer, self._recorder, waiting, self._room, self._held
            )

    def run(self) -> Iterator[pa.RecordBatch]:
        """All results, as they come."""
        algorithm, stream, shedder = self._algorithm, self._algorithm.stream, self._shedder
        while True:
            self._check_conserved()
            if shedder is not None:
                shedder.adjust()
            stream.resume()
            yield from algorithm.step()
            self._recorder.iterations += 1
            if not len(algorithm.waiting) and (stream.ended or stream.paused):
                yield from self._assembly.output.flush()
                if stream.ended:
                    if shedder is not None:
                        shedder.end()
                    return
                if not self._buffer.coming_back():
                    if shedder is not None:
                        shedder.sync()
                    self._buffer.await_next()
            if shedder is not None and (joined := shedder.joined(self._oldest())):
                yield from self._assembly.output.flush()
                shedder.let_go(joined)

    def check(self) -> None:
        """Assert the invariants of the parts."""
        self._buffer.check()
        if self._shedder is not None:
            self._shedder.check()

    def _room(self) -> int:
        """Tuples that the algorithm can take in now; without a stream table, a chunk."""
        waiting = self._algorithm.waiting
        if isinstance(waiting, (WaitingTuples, ScanWindow, DemandedTuples)):
            return waiting.free
        return self._assembly.plan.stream_chunk_rows

    def _oldest(self) -> int | None:
        """When the longest-waiting tuple entered, in the recorder's microseconds."""
        waiting = self._algorithm.waiting
        if len(waiting) and isinstance(waiting, (WaitingTuples, ScanWindow, DemandedTuples)):
            return waiting.table.entered(waiting.oldest())
        return None

    def _held(self) -> int:
        return self._assembly.stream.held

    def _check_conserved(self) -> None:
        recorder = self._recorder
        buffered = self._buffer.size + self._held()
        waiting = len(self._algorithm.waiting)
        deferred = recorder.shed - recorder.returned
        if recorder.arrived != (
            recorder.joined + recorder.unmatched + waiting + buffered + deferred
        ):
            raise InternalError(
                f"{recorder.arrived} stream tuples arrived, but {recorder.joined} joined, "
                f"{recorder.unmatched} unmatched, {waiting} waiting, {buffered} in the stream "
                f"buffer and {deferred} shed do not add up. This is a defect of semistream; the "
                "output is not to be trusted."
            )
