"""The engine: drives an algorithm over a stream of Arrow batches.

The driver is plumbing and the algorithm is the paper: when the first batch shows what a stream
tuple is, the engine asks its planner for an algorithm and sizes, makes the parts, lets the feed
step the algorithm until the stream has ended and nothing waits, and hands the output on as it
comes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock
from typing import NamedTuple, NoReturn, TypeAlias, TypeVar

import pyarrow as pa

from semistream.algorithms.assembly import Assembly
from semistream.algorithms.feeds import Feed, PulledFeed, TimedFeed
from semistream.algorithms.options import check_engine
from semistream.algorithms.planner import (
    Occasion,
    OneAlgorithm,
    Planner,
    Retuner,
    Sizer,
    check_queue,
)
from semistream.algorithms.registry import AUTO, BY_NAME, Algorithm
from semistream.algorithms.sections import Sections
from semistream.arrow_arrays import no_rows
from semistream.budget import MemoryBudget, parse_memory
from semistream.errors import BudgetError, InternalError, OptionError, StreamSchemaError
from semistream.metrics import Clock, Metrics, Recorder
from semistream.parts.join_shape import JoinShape, On
from semistream.parts.learned import Learned, Legacy
from semistream.parts.shedding import Shedding
from semistream.plan import JoinPlan
from semistream.relation import MasterTable
from semistream.sampling import Sample, sampled

Stream: TypeAlias = pa.Table | pa.RecordBatchReader | Iterable[pa.RecordBatch]
"""What `Engine.run` reads: anything that gives record batches of one schema."""

_Item = TypeVar("_Item")


def batches_of(stream: Stream) -> Iterable[pa.RecordBatch]:
    """The record batches of a stream, whatever it is given as."""
    if isinstance(stream, pa.RecordBatch):
        return [stream]
    if isinstance(stream, pa.Table):
        return list(stream.to_batches())
    if not isinstance(stream, Iterable):
        raise OptionError(
            f"The stream is a {type(stream).__name__}; it must be an iterable of record "
            "batches, a pa.Table or a pa.RecordBatchReader."
        )
    return stream


class _Built(NamedTuple):
    """The parts of a run, and how wide the tuples were that they were sized by."""

    assembly: Assembly
    algorithm: Algorithm
    widest_tuple: int
    moment: int
    """The master's: of another one, rows that are kept may be others."""

    def suits(self, first: pa.RecordBatch) -> bool:
        """Whether a stream that begins so can be joined with these parts."""
        shape = self.assembly.shape
        if not first.schema.equals(shape.stream_schema):
            return False
        return not first.num_rows or shape.tuple_bytes(shape.plain(first)) <= self.widest_tuple


class Engine:
    """A semi-stream join without Spark. Made by `semistream.engine`.

    `plan` is the plan in use and `plans` are all so far: several if the engine retunes itself.

    It is a context manager: at the end of a `with` block its files are closed and its memory is
    given back; if a run is not at its end by then, when that run is closed.
    """

    def __init__(
        self,
        master: MasterTable,
        planner: Planner,
        *,
        on: On,
        memory: int,
        how: str,
        columns: Sequence[str] | None,
        io: str,
        clock: Clock,
        retuner: Retuner | None = None,
    ) -> None:
        """Nothing is opened or allocated until `run`; a `retuner` is the planner and goes on."""
        self._master = master
        self._planner = planner
        self._retuner = retuner
        self._on = on
        self._how = how
        self._io = io
        self._columns = columns
        self._clock = clock
        self._memory = memory
        self._budget = MemoryBudget(memory)
        self._peak_before = 0
        self._recorder = Recorder(clock)
        self._in_use = Lock()
        self._running: tuple[Algorithm, Feed] | None = None
        self._idle: _Built | None = None
        self._legacy: Legacy | None = None
        self._sample: Sample | None = None
        self._expected: pa.RecordBatch | None = None
        self.plans: list[JoinPlan] = []
        """The plans so far, the one in use last; one unless the engine retunes itself."""

    def __repr__(self) -> str:
        """The algorithm, the master and the budget."""
        return f"Engine({self._planner.name!r}, {self._master!r}, memory={self._memory})"

    def _repr_html_(self) -> str:
        """Its memory, metrics and plan, for notebooks."""
        from semistream.metrics_picture import engine_html

        return engine_html(repr(self), self.plan, self.metrics(), self.memory())

    def __enter__(self) -> Engine:
        """The engine itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files and give back the memory; a run that goes on does so at its end."""
        if not self._in_use.locked():
            self.close()

    @property
    def plan(self) -> JoinPlan | None:
        """The plan in use, or last used; None before the first run."""
        return self.plans[-1] if self.plans else None

    def run(self, batches: Stream) -> Generator[pa.RecordBatch, None, None]:
        """Join a stream of record batches, yielding result batches as they come.

        The iterator may be endless. An empty batch says that nothing more has arrived for
        now: the join goes on with what waits and hands out all results before it asks again.
        Result rows come in no particular order. A second run counts anew but keeps the parts of
        the first and, above all, what its front stage has learned; `close` lets go of them.
        """
        self._refuse_second_run()
        return self._run(self._sampled(iter(batches_of(batches))))

    def run_timed(
        self,
        arrivals: Iterable[tuple[float, pa.RecordBatch]],
        *,
        shedding: Shedding | None = None,
    ) -> Generator[pa.RecordBatch, None, None]:
        """Join a pushed stream: pairs of an arrival time and a batch that arrives at once.

        Times are in seconds of the engine's clock and never go back. While nothing has arrived
        the join goes on with what waits; when nothing waits either, time passes until the next
        arrival: by `clock.advance_to(seconds)` if the clock has that, else by sleeping. With
        `shedding`, load that is too much goes to disk and comes back. Otherwise as `run`.
        """
        self._refuse_second_run()
        if self._sample is not None:
            raise OptionError("A timed stream has no sample: shedding is what it has.")
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
        if _considers(shedding) and self._planner.name != AUTO:
            check_queue(self._planner.name)
        return self._run_timed(iter(arrivals), shedding)

    def shape(self, schema: pa.Schema) -> JoinShape:
        """What joining a stream of this schema gives; raises what a run of it would at once.

        Only a stream's tuples show how wide they are, so a budget may still prove too small.
        """
        if not isinstance(schema, pa.Schema):
            raise StreamSchemaError(
                f"A {type(schema).__name__} is no schema of a stream. Give a pyarrow.Schema."
            )
        self.planned(no_rows(schema))
        return self._shape_of(schema)

    def planned(self, first: pa.RecordBatch) -> JoinPlan:
        """The sizes with which a stream that begins so would be joined; nothing is opened."""
        if not isinstance(first, pa.RecordBatch):
            raise StreamSchemaError(
                f"A stream does not begin with a {type(first).__name__}. Give its first "
                "pyarrow.RecordBatch, which may be empty."
            )
        return self._planner.plan(Occasion(self._shape_of(first.schema), first, self._memory))

    def metrics(self) -> Metrics:
        """Counters and times of the current or last run, as a frozen snapshot."""
        name = self._planner.name if self.plan is None else self.plan.algorithm
        return self._recorder.snapshot(name, self._peak, self._memory)

    def memory(self) -> dict[str, int]:
        """Bytes by part, with "peak" and "budget".

        The budget is that of the plan in use: an engine that retunes itself may need less than
        it was given.
        """
        return self._budget.by_part() | {"peak": self._peak}

    @property
    def _peak(self) -> int:
        return max(self._peak_before, self._budget.peak)

    def check(self) -> None:
        """Assert the invariants of a run that goes on. O(waiting tuples), for tests."""
        self._budget.check()
        if self._running is not None:
            algorithm, feed = self._running
            algorithm.check()
            feed.check()

    def close(self) -> None:
        """Close the files and give back the memory that are kept for another run."""
        with self._alone():
            self._let_go()
            self._legacy = None

    def learned(self, most: int | None = None) -> Learned:
        """The keys that the front stage holds between two runs, the most frequent first."""
        front = None if self._idle is None else self._idle.assembly.front
        return Learned.nothing() if front is None else Learned.of(front.kept, most=most)

    def leave(self) -> Legacy | None:
        """Close the engine; what its front stage holds is for `inherit` of another."""
        with self._alone():
            self._let_go(keep_learned=True)
            legacy, self._legacy = self._legacy, None
            return legacy

    def inherit(self, legacy: Legacy) -> None:
        """Begin the next run with what an engine of the same join has learned.

        Its master may be another version: rows that may have changed are read anew. It changes
        what is fast, never what comes out.
        """
        if self._idle is None:
            self._legacy = legacy

    def expect(self, first: pa.RecordBatch) -> None:
        """Be content with the sizes for a stream that begins so.

        They are used if the memory is too little for those that a run's own first batch asks for.
        """
        self._expected = first

    def use_sample(self, sample: Sample) -> None:
        """Join a sample of each stream from now on; the others are counted as left out."""
        self._sample = sample

    def _sampled(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if self._sample is None:
            return batches

        def note(count: int) -> None:
            self._recorder.arrived += count
            self._recorder.left_out += count

        return sampled(batches, self._sample, note)

    def _run(self, batches: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
        with self._alone(), self._master.held():
            self._start(timed=False)
            yield from self._join(PulledFeed(self._sections(batches, _itself)))

    def _run_timed(
        self, pairs: Iterator[tuple[float, pa.RecordBatch]], shedding: Shedding | None
    ) -> Generator[pa.RecordBatch, None, None]:
        with self._alone(), self._master.held():
            self._let_go()
            self._start(timed=True)
            sections = self._sections(pairs, _batch_of, True, _considers(shedding))
            yield from self._join(TimedFeed(sections, shedding, self._clock()))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep others, in this thread or another, from using the engine meanwhile."""
        if not self._in_use.acquire(blocking=False):
            self._refuse()
        try:
            yield
        finally:
            self._in_use.release()

    def _refuse_second_run(self) -> None:
        if self._in_use.locked():
            self._refuse()

    def _refuse(self) -> NoReturn:
        raise OptionError(
            "This engine is running already. Finish or close the first run, or make another engine."
        )

    def _sections(
        self,
        items: Iterator[_Item],
        batch_of: Callable[[_Item], object],
        timed: bool = False,
        queued: bool = False,
    ) -> Sections[_Item]:
        """The stream, cut where the retuner wants another plan."""
        retuner = self._retuner
        if retuner is None:
            return Sections(items, next, lambda _: False)

        def cuts(item: _Item) -> bool:
            batch = batch_of(item)
            if not isinstance(batch, pa.RecordBatch):
                return False  # The stream buffer says what is wrong with it.
            shape = self._shape_of(batch.schema)
            occasion = Occasion(shape, batch, self._memory, timed, queued)
            return retuner.wants_another(occasion, self._recorder)

        return Sections(items, retuner.pull, cuts)

    def _start(self, timed: bool) -> None:
        self._budget.restart()
        self._peak_before = 0
        self._recorder.restart()
        if self._retuner is not None:
            self._retuner.start(timed)
        bind = getattr(self._clock, "bind", None)
        if bind is not None:
            bind(self._recorder)

    def _let_go(self, keep_learned: bool = False) -> None:
        """Forget the parts of the last run; what it has learned may stay for the next."""
        if self._idle is not None:
            self._legacy = self._idle.assembly.legacy() if keep_learned else None
            self._idle.assembly.close()
            self._idle = None
            self._replace_budget(self._memory)

    def _replace_budget(self, memory: int) -> None:
        """Begin with an empty budget; only the peak of the old one is remembered."""
        self._peak_before = max(self._peak_before, self._budget.peak)
        self._budget = MemoryBudget(memory)

    def _join(self, feed: Feed) -> Generator[pa.RecordBatch, None, None]:
        """Join all sections of a stream, each with a plan of its own."""
        try:
            first = feed.next_section()
            while first is not None:
                yield from self._join_section(first, feed)
                first = feed.next_section()
                if first is not None:
                    self._let_go(keep_learned=True)
        finally:
            self._recorder.stop()
            feed.close()
        self._check_conserved()

    def _join_section(
        self, first: pa.RecordBatch, feed: Feed
    ) -> Generator[pa.RecordBatch, None, None]:
        built, self._idle = self._resumed(first, feed) or self._built(first, feed), None
        ended = False
        try:
            self._running = built.algorithm, feed
            yield from feed.drive(built.algorithm, built.assembly)
            ended = True
        finally:
            self._running = None
            if ended and not feed.timed:
                self._idle = built
            else:
                built.assembly.close()
                self._replace_budget(self._memory)

    def _resumed(self, first: pa.RecordBatch, feed: Feed) -> _Built | None:
        """The parts of the last run, if they suit this stream."""
        idle = self._idle
        if idle is None:
            return None
        is_current = idle.moment == self._master.moment
        if is_current and idle.suits(first) and feed.resume(idle.assembly):
            return idle
        self._let_go(keep_learned=True)
        return None

    def _built(self, first: pa.RecordBatch, feed: Feed) -> _Built:
        shape = self._shape_of(first.schema)
        occasion = Occasion(shape, first, self._memory, feed.timed, feed.queued)
        plan = self._plan_for(occasion)
        self.plans.append(plan)
        if self._retuner is not None:
            self._retuner.use(plan)
        if plan.memory != self._budget.total:
            self._replace_budget(plan.memory)
        legacy, self._legacy = self._legacy if plan.front_rows else None, None
        algorithm = BY_NAME[plan.algorithm]
        parts = shape, feed.buffer, self._budget, self._recorder, self._io, legacy
        assembly = Assembly(plan, algorithm.needs, self._master, *parts)
        widest = shape.tuple_bytes(shape.plain(first)) if first.num_rows else 0
        try:
            built = _Built(assembly, algorithm.assemble(assembly), widest, self._master.moment)
            if legacy is not None:
                assembly.recall(legacy.learned)
            return built
        except BaseException as error:
            assembly.close()
            if isinstance(error, MemoryError):
                raise BudgetError(
                    f"This machine does not have the {plan.memory:,} bytes that the join may use: "
                    f"{error}. Give the join less memory."
                ) from error
            raise

    def _plan_for(self, occasion: Occasion) -> JoinPlan:
        try:
            return self._planner.plan(occasion)
        except BudgetError:
            if self._expected is None:
                raise
            return self._planner.plan(replace(occasion, first=self._expected))

    def _shape_of(self, schema: pa.Schema) -> JoinShape:
        return JoinShape(schema, self._master, self._on, self._how, self._columns)

    def _check_conserved(self) -> None:
        recorder = self._recorder
        if recorder.arrived != recorder.joined + recorder.unmatched + recorder.left_out:
            raise InternalError(
                f"{recorder.arrived} stream tuples arrived, but {recorder.joined} joined and "
                f"{recorder.unmatched} unmatched have left. This is a defect of semistream; "
                "the output is not to be trusted."
            )


def _considers(shedding: Shedding | None) -> bool:
    """Whether load is shed from an arrival queue."""
    return shedding is not None and shedding.considers


def _itself(item: _Item) -> _Item:
    return item


def _batch_of(pair: object) -> object:
    """The batch of an arrival, if it is one."""
    return pair[1] if isinstance(pair, tuple) and len(pair) == 2 else None


def fixed_engine(
    master: MasterTable,
    *,
    on: On,
    memory: int | str,
    algorithm: str,
    how: str = "inner",
    columns: Sequence[str] | None = None,
    io: str = "buffered",
    clock: Clock = time.perf_counter,
    use_filter: bool | None = None,
    **options: int | str,
) -> Engine:
    """An engine of a named algorithm, as `semistream.engine` makes it."""
    check_engine(master, on, how, algorithm, io, use_filter, options)
    return Engine(
        master,
        OneAlgorithm(algorithm, options, Sizer(master, io, use_filter)),
        on=on,
        memory=parse_memory(memory),
        how=how,
        columns=columns,
        io=io,
        clock=clock,
    )
