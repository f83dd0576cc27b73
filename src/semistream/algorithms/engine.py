"""The engine: drives an algorithm over a stream of Arrow batches.

The driver is plumbing and the algorithm is the paper: the engine sizes the parts when the first
batch shows what a stream tuple is, steps the algorithm until the stream has ended and nothing
waits, and hands the output on as it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from semistream.algorithms.assembly import Assembly, Buildable
from semistream.algorithms.registry import AUTO, BY_NAME, Algorithm
from semistream.algorithms.sizing import Sizing
from semistream.algorithms.timed_driver import TimedDriver
from semistream.budget import MemoryBudget
from semistream.errors import (
    InternalError,
    OptionError,
    StreamSchemaError,
)
from semistream.metrics import Clock, Metrics, Recorder
from semistream.parts.join_shape import JoinShape, On
from semistream.parts.shedding import Shedding
from semistream.parts.timed_stream import TimedArrivals
from semistream.plan import JoinPlan
from semistream.relation import MasterTable

Stream: TypeAlias = "pa.Table | pa.RecordBatchReader | Iterable[pa.RecordBatch]"
"""What `Engine.run` reads: anything that gives record batches of one schema."""


class _Built(NamedTuple):
    """The parts of a run, and how wide the tuples were that they were sized by."""

    assembly: Assembly
    algorithm: Algorithm
    widest_tuple: int

    def suits(self, first: pa.RecordBatch) -> bool:
        """Whether a stream that begins so can be joined with these parts."""
        shape = self.assembly.shape
        if not isinstance(first, pa.RecordBatch) or not first.schema.equals(shape.stream_schema):
            return False
        return not first.num_rows or shape.tuple_bytes(shape.plain(first)) <= self.widest_tuple


Chooser: TypeAlias = Callable[[JoinShape, pa.RecordBatch, int], JoinPlan]
"""Chooses an algorithm and its options, from the first batch and the memory."""

_Drive: TypeAlias = Callable[[Algorithm, Assembly], Iterator[pa.RecordBatch]]


class Engine:
    """A semi-stream join without Spark. Made by `engine`."""

    def __init__(
        self,
        algorithm: Buildable[Algorithm],
        master: MasterTable,
        on: On,
        how: str,
        memory: int,
        io: str,
        columns: Sequence[str] | None,
        clock: Clock,
        options: Mapping[str, int | str],
        use_filter: bool | None = None,
        choose: Chooser | None = None,
    ) -> None:
        """Nothing is opened or allocated until `run`; `choose` then decides on the algorithm."""
        self._choose = choose
        self._algorithm = algorithm
        self._master = master
        self._on = on
        self._how = how
        self._io = io
        self._columns = columns
        self._clock = clock
        self._options = options
        self._use_filter = use_filter
        self._budget = MemoryBudget(memory)
        self._recorder = Recorder(clock)
        self._running: Algorithm | None = None
        self._idle: _Built | None = None
        self._timed: TimedDriver | None = None
        self.plan: JoinPlan | None = None

    def __repr__(self) -> str:
        """The algorithm, the master and the budget."""
        name = AUTO if self._choose is not None else self._algorithm.needs.algorithm
        return f"Engine({name!r}, {self._master!r}, memory={self._budget.total})"

    def run(self, batches: Stream) -> Iterator[pa.RecordBatch]:
        """Join a stream of record batches, yielding result batches as they come.

        The iterator may be endless. An empty batch says that nothing more has arrived for
        now: the join goes on with what waits and hands out all results before it asks again.
        Result rows come in no particular order. A second run counts anew but keeps the parts of
        the first and, above all, what its front stage has learned; `close` lets go of them.
        """
        self._refuse_second_run()
        if isinstance(batches, pa.RecordBatch):
            batches = [batches]
        if isinstance(batches, pa.Table):
            batches = batches.to_batches()
        if not isinstance(batches, Iterable):
            raise OptionError(
                f"The stream is a {type(batches).__name__}; it must be an iterable of record "
                "batches, a pa.Table or a pa.RecordBatchReader."
            )
        return self._run(iter(batches))

    def run_timed(
        self,
        arrivals: Iterable[tuple[float, pa.RecordBatch]],
        *,
        shedding: Shedding | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Join a pushed stream: pairs of an arrival time and a batch that arrives at once.

        Times are in seconds of the engine's clock and never go back. While nothing has arrived
        the join goes on with what waits; when nothing waits either, time passes until the next
        arrival: by `clock.advance_to(seconds)` if the clock has that, else by sleeping. With
        `shedding`, load that is too much goes to disk and comes back. Otherwise as `run`.
        """
        self._refuse_second_run()
        if shedding is not None and not isinstance(shedding, Shedding):
            raise OptionError(
                f"shedding={shedding!r} must be a Shedding: say where to shed to as well, as in "
                'ss.Shedding("considering", folder).'
            )
        if not isinstance(arrivals, Iterable):
            raise OptionError(
                f"The arrivals are a {type(arrivals).__name__}; they must be an iterable of pairs "
                "of a time in seconds and a pyarrow.RecordBatch."
            )
        if shedding is not None and shedding.strategy == "considering":
            self._check_considering()
        return self._run_timed(arrivals, shedding)

    def shape(self, schema: pa.Schema) -> JoinShape:
        """What joining a stream of this schema gives; raises what a run of it would at once.

        Only a stream's tuples show how wide they are, so a budget may still prove too small.
        """
        shape = JoinShape(schema, self._master, self._on, self._how, self._columns)
        self._sized(shape, pa.RecordBatch.from_pylist([], schema))
        return shape

    def planned(self, first: pa.RecordBatch) -> JoinPlan:
        """The sizes with which a stream that begins so would be joined; nothing is opened."""
        shape = JoinShape(first.schema, self._master, self._on, self._how, self._columns)
        return self._sized(shape, first)

    def metrics(self) -> Metrics:
        """Counters and times of the current or last run, as a frozen snapshot."""
        name = self._algorithm.needs.algorithm
        return self._recorder.snapshot(name, self._budget.peak, self._budget.total)

    def memory(self) -> dict[str, int]:
        """Bytes by part, with "peak" and "budget"."""
        return self._budget.by_part()

    def check(self) -> None:
        """Assert the invariants of a run that goes on. O(waiting tuples), for tests."""
        self._budget.check()
        if self._running is not None:
            self._running.check()
        if self._timed is not None:
            self._timed.check()

    def close(self) -> None:
        """Close the files and give back the memory that are kept for another run."""
        self._refuse_second_run()
        self._let_go()

    def _run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        self._start()
        first = next(batches, None)
        if first is None:
            self._recorder.stop()
            return
        yield from self._join(first, chain([first], batches), self._drive)

    def _run_timed(
        self, pairs: Iterable[tuple[float, pa.RecordBatch]], shedding: Shedding | None
    ) -> Iterator[pa.RecordBatch]:
        self._let_go()
        self._start()
        arrivals = TimedArrivals(pairs)
        file = None if shedding is None else shedding.open(self._clock())

        def drive(algorithm: Algorithm, assembly: Assembly) -> Iterator[pa.RecordBatch]:
            self._timed = TimedDriver(algorithm, assembly, shedding, file)
            yield from self._timed.run()

        try:
            first = None if arrivals.next is None else arrivals.next.batch
            if first is None and file is not None and len(file):
                first = pa.RecordBatch.from_pylist([], file.schema)
            if first is not None:
                yield from self._join(first, arrivals, drive)
        finally:
            self._timed = None
            self._recorder.stop()
            if file is not None:
                file.close()

    def _start(self) -> None:
        self._refuse_second_run()
        self._budget.restart()
        self._recorder.restart()
        bind = getattr(self._clock, "bind", None)
        if bind is not None:
            bind(self._recorder)

    def _let_go(self) -> None:
        """Forget the parts of the last run."""
        if self._idle is not None:
            self._idle.assembly.close()
            self._idle = None
            self._budget = MemoryBudget(self._budget.total)

    def _join(
        self,
        first: pa.RecordBatch,
        batches: Iterator[pa.RecordBatch] | TimedArrivals,
        drive: _Drive,
    ) -> Iterator[pa.RecordBatch]:
        built, self._idle = self._resumed(first, batches) or self._built(first, batches), None
        ended = False
        try:
            self._running = built.algorithm
            yield from drive(built.algorithm, built.assembly)
            ended = True
        finally:
            self._running = None
            self._recorder.stop()
            if ended and not isinstance(batches, TimedArrivals):
                self._idle = built
            else:
                built.assembly.close()
                self._budget = self._budget.emptied()
        self._check_conserved()

    def _resumed(
        self, first: pa.RecordBatch, batches: Iterator[pa.RecordBatch] | TimedArrivals
    ) -> _Built | None:
        """The parts of the last run, if they suit this stream."""
        idle = self._idle
        if idle is None or isinstance(batches, TimedArrivals):
            return None
        if not idle.suits(first):
            self._let_go()
            return None
        idle.assembly.restart(batches)
        return idle

    def _built(
        self, first: pa.RecordBatch, batches: Iterator[pa.RecordBatch] | TimedArrivals
    ) -> _Built:
        assembly = self._assemble(first, batches)
        widest = assembly.shape.tuple_bytes(assembly.shape.plain(first)) if first.num_rows else 0
        try:
            return _Built(assembly, self._algorithm.assemble(assembly), widest)
        except BaseException:
            assembly.close()
            raise

    def _check_considering(self) -> None:
        if not self._algorithm.needs.queue:
            queued = [name for name, known in BY_NAME.items() if known.needs.queue]
            raise OptionError(
                f"{self._algorithm.needs.algorithm} has no arrival queue to shed from, so "
                f'"considering" is not for it. Use "keep" or "random", or one of the algorithms '
                f"that have one: {', '.join(queued)}."
            )

    def _refuse_second_run(self) -> None:
        if self._running is not None:
            raise OptionError(
                "This engine is running already. Finish or close the first run, "
                "or make another engine."
            )

    def _assemble(
        self, first: pa.RecordBatch, batches: Iterator[pa.RecordBatch] | TimedArrivals
    ) -> Assembly:
        if not isinstance(first, pa.RecordBatch):
            raise StreamSchemaError(
                f"The stream gave a {type(first).__name__}; it must give pyarrow.RecordBatch."
            )
        shape = JoinShape(first.schema, self._master, self._on, self._how, self._columns)
        self.plan = self._sized(shape, first, isinstance(batches, TimedArrivals))
        return Assembly(
            self.plan,
            self._master,
            shape,
            batches,
            self._budget,
            self._recorder,
            self._io,
        )

    def _sized(self, shape: JoinShape, first: pa.RecordBatch, timed: bool = False) -> JoinPlan:
        """The plan, with the master's filter if it is wanted and, unless asked for, fits."""
        memory = self._budget.total
        if self._choose is not None:
            chosen = self._choose(shape, first, memory)
            self._algorithm, self._options = BY_NAME[chosen.algorithm], chosen.options
            sized = self._plan(shape, first, memory, timed)
            return replace(sized, options=chosen.options, expected=chosen.expected)
        return self._plan(shape, first, memory, timed)

    def _plan(self, shape: JoinShape, first: pa.RecordBatch, memory: int, timed: bool) -> JoinPlan:
        needs, options = self._algorithm.needs, self._options
        if timed and "look_ups" in needs.options:
            # Whose turn it is depends on the time: one tuple is looked up, then time passes.
            options = {**options, "look_ups": 0}
        return Sizing(needs, self._master, shape, first, self._use_filter).plan(memory, options)

    def _drive(self, algorithm: Algorithm, assembly: Assembly) -> Iterator[pa.RecordBatch]:
        stream = algorithm.stream
        while True:
            yield from algorithm.step()
            self._recorder.iterations += 1
            if not len(algorithm.waiting):
                if stream.ended or stream.paused:
                    yield from assembly.output.flush()
                if stream.ended:
                    return
                stream.resume()

    def _check_conserved(self) -> None:
        recorder = self._recorder
        if recorder.arrived != recorder.joined + recorder.unmatched:
            raise InternalError(
                f"{recorder.arrived} stream tuples arrived, but {recorder.joined} joined and "
                f"{recorder.unmatched} unmatched have left. This is a defect of semistream; "
                "the output is not to be trusted."
            )
