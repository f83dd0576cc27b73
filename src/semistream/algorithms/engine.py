"""The engine: drives an algorithm over a stream of Arrow batches.

The driver is plumbing and the algorithm is the paper: the engine sizes the parts when the first
batch shows what a stream tuple is, steps the algorithm until the stream has ended and nothing
waits, and hands the output on as it comes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from itertools import chain
from typing import Final, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from semistream.algorithms.assembly import Assembly, Buildable
from semistream.algorithms.chybridjoin import CHYBRIDJOIN
from semistream.algorithms.cinlj import CINLJ
from semistream.algorithms.cmeshjoin import CMESHJOIN
from semistream.algorithms.hybridjoin import HybridJoin
from semistream.algorithms.inlj import IndexNestedLoopJoin
from semistream.algorithms.meshjoin import MeshJoin
from semistream.algorithms.oxhybridjoin import OptimisedXHybridJoin
from semistream.algorithms.rmeshjoin import RMeshJoin
from semistream.algorithms.sizing import Needs, Sizing
from semistream.algorithms.timed_driver import TimedDriver
from semistream.algorithms.xhybridjoin import XHybridJoin
from semistream.budget import MemoryBudget, parse_memory
from semistream.errors import (
    BudgetError,
    InternalError,
    OptionError,
    StreamSchemaError,
    UnknownAlgorithmError,
)
from semistream.metrics import Clock, Metrics, Recorder
from semistream.parts.admission import ADMISSIONS
from semistream.parts.disk_buffer import DiskBuffer
from semistream.parts.join_shape import JoinShape, On, resolve_on
from semistream.parts.shedding import Shedding
from semistream.parts.stream_buffer import TupleSource
from semistream.parts.timed_stream import TimedArrivals
from semistream.plan import JoinPlan
from semistream.relation import IO_MODES, MasterTable

Stream: TypeAlias = "pa.Table | pa.RecordBatchReader | Iterable[pa.RecordBatch]"
"""What `Engine.run` reads: anything that gives record batches of one schema."""


class _Sized(Protocol):
    def __len__(self) -> int: ...


class Algorithm(Protocol):
    """What the engine needs of an algorithm."""

    stream: TupleSource
    disk: DiskBuffer

    @property
    def waiting(self) -> _Sized:
        """The stream tuples that have been read and are not finished."""

    def step(self) -> Iterator[pa.RecordBatch]:
        """One iteration of the paper's loop, yielding output as it comes."""

    def check(self) -> None:
        """Assert the invariants of the parts."""


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
AUTO: Final = "auto"

_Drive: TypeAlias = Callable[[Algorithm, Assembly], Iterator[pa.RecordBatch]]

_BY_NAME: dict[str, Buildable[Algorithm]] = {
    "inlj": IndexNestedLoopJoin,
    "meshjoin": MeshJoin,
    "rmeshjoin": RMeshJoin,
    "hybridjoin": HybridJoin,
    "xhybridjoin": XHybridJoin,
    "oxhybridjoin": OptimisedXHybridJoin,
    "cinlj": CINLJ,
    "cmeshjoin": CMESHJOIN,
    "chybridjoin": CHYBRIDJOIN,
}

ALGORITHMS: tuple[str, ...] = tuple(_BY_NAME)
"""The names that `engine` knows."""


def needs_of(algorithm: str) -> Needs:
    """What an algorithm asks of the budget; raises for a name that is not known."""
    if algorithm not in _BY_NAME:
        raise UnknownAlgorithmError(
            f"algorithm={algorithm!r} is not known. Choose one of: {', '.join(ALGORITHMS)}, or "
            '"auto".'
        )
    return _BY_NAME[algorithm].needs


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
            queued = [name for name, known in _BY_NAME.items() if known.needs.queue]
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
        self.plan = self._sized(shape, first)
        return Assembly(
            self.plan,
            self._master,
            shape,
            batches,
            self._budget,
            self._recorder,
            self._io,
        )

    def _sized(self, shape: JoinShape, first: pa.RecordBatch) -> JoinPlan:
        """The plan, with the master's filter if it is wanted and, unless asked for, fits."""
        memory = self._budget.total
        if self._choose is not None:
            chosen = self._choose(shape, first, memory)
            self._algorithm, self._options = _BY_NAME[chosen.algorithm], chosen.options
            sized = self._plan(shape, first, memory)
            return replace(sized, options=chosen.options, expected=chosen.expected)
        return self._plan(shape, first, memory)

    def _plan(self, shape: JoinShape, first: pa.RecordBatch, memory: int) -> JoinPlan:
        needs = self._algorithm.needs
        if self._use_filter is not False and self._master.filter_bytes:
            sizing = Sizing(needs, self._master, shape, first, self._master.filter_bytes)
            try:
                return sizing.plan(memory, self._options)
            except BudgetError:
                if self._use_filter:
                    raise
        return Sizing(needs, self._master, shape, first).plan(memory, self._options)

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


def engine(
    algorithm: str,
    master: MasterTable,
    *,
    on: On,
    how: str = "inner",
    memory: int | str,
    io: str = "buffered",
    columns: Sequence[str] | None = None,
    clock: Clock = time.perf_counter,
    use_filter: bool | None = None,
    **options: int | str,
) -> Engine:
    """The join operator without Spark.

    `algorithm` is one of `ALGORITHMS`, or "auto": then the cost model chooses it and its sizes
    when the first batch shows the stream, and `Engine.plan` says why. `on` names the stream's key
    columns (a name, a list, or a dict from stream column to master key column); `how` is "inner"
    or "left"; `memory` is the budget for everything, as bytes or "64MB"; `columns` chooses the
    master's columns. Sizes can be fixed with `partition_pages`, `stream_slots`, `chunk_tuples`
    (MESHJOIN's w), `pinned_partitions` (the X-HYBRIDJOINs) and `look_ups` (partitions that
    HYBRIDJOIN reads at a time; 0 for one, decoded as a whole); `admission` chooses the front
    stage's rule, one of "paper", "balance" and "tinylfu", `front_percent` how much of the memory
    it may have or `front_rows` how many rows, and `threshold` holds the paper's threshold where it
    is. The master's membership filter, if it has one, is used when it fits the budget;
    `use_filter` True insists on it, False goes without.
    """
    if not isinstance(master, MasterTable):
        raise OptionError(
            f"master is a {type(master).__name__}; it must be a MasterTable. Open one with "
            "ss.MasterTable.open(path), or build it with ss.MasterTable.from_arrow(…)."
        )
    if master.shard_count > 1 and not master.is_shard:
        raise OptionError(
            f"The master table at {master.path} has {master.shard_count} shards, and an engine "
            "reads one. Make an engine for each, with master.shard(i), or join on Spark with "
            "ss.join."
        )
    choose: Chooser | None = None
    if algorithm == AUTO:
        _check_auto_options(options)
        # The cost model stands above this layer: it is looked up when asked for.
        choose = import_module("semistream.cost.auto").AutoChoice(master, io, options)
        algorithm = "chybridjoin"
    else:
        _check_options(needs_of(algorithm), options)
    if how not in ("inner", "left"):
        raise OptionError(f'how={how!r} is not known. Use "inner" or "left".')
    if io not in IO_MODES:
        raise OptionError(f"io={io!r} is not known. Use one of: {', '.join(IO_MODES)}.")
    resolve_on(on, master.key)
    chosen = _BY_NAME[algorithm]
    _check_filter(use_filter, master)
    size = parse_memory(memory)
    return Engine(chosen, master, on, how, size, io, columns, clock, options, use_filter, choose)


def _check_filter(use_filter: bool | None, master: MasterTable) -> None:
    if use_filter not in (None, True, False):
        raise OptionError(f"use_filter={use_filter!r} must be True, False or None.")
    if use_filter and not master.filter_bytes:
        raise OptionError(
            f"use_filter=True, but the master table at {master.path} has no membership filter. "
            "Build it with MasterTable.from_arrow(…, filter_bits=10), or leave use_filter out."
        )


def _check_auto_options(options: Mapping[str, int | str]) -> None:
    for name, value in options.items():
        users = [known.needs for known in _BY_NAME.values() if name in known.needs.options]
        if not users:
            raise OptionError(f"No algorithm has an option {name!r}, so auto has no use for it.")
        _check_options(users[0], {name: value})


def _check_options(needs: Needs, options: Mapping[str, int | str]) -> None:
    for name, value in options.items():
        if name not in needs.options:
            known = ", ".join(needs.options) or "none"
            raise OptionError(
                f"{needs.algorithm} has no option {name!r}. Its options for sizes are: {known}."
            )
        if name == "admission":
            if value not in ADMISSIONS:
                raise OptionError(
                    f"admission={value!r} is not known. Use one of: {', '.join(ADMISSIONS)}."
                )
            continue
        least = 0 if name in ("pinned_partitions", "look_ups") else 1
        if type(value) is not int or value < least:
            raise OptionError(f"{name}={value!r} must be a whole number of at least {least}.")
        if name == "front_percent" and value > 90:
            raise OptionError(f"{name}={value!r} must be at most 90: tuples that miss must wait.")
