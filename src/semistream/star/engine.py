"""The star engine: several look-ups on Arrow batches, without Spark."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from semistream.algorithms.engine import Engine, Stream, fixed_engine
from semistream.algorithms.registry import AUTO
from semistream.arrow_arrays import no_rows
from semistream.budget import parse_memory
from semistream.cost.auto import IN_MEMORY, in_memory
from semistream.cost.micro_batches import micro_batch_engine
from semistream.errors import OptionError, StreamSchemaError
from semistream.metrics import Clock
from semistream.plan import JoinPlan
from semistream.star.division import divided
from semistream.star.lookup import Lookup, check_lookups, named
from semistream.star.plan import StarPlan
from semistream.star.rounds import Rounds, StarMetrics
from semistream.star.shape import LookupShape, StarShape
from semistream.star.term_engine import term_engine

__all__ = ["StarEngine", "star_engine"]


class _Built:
    """The engines of a star, for streams of one schema."""

    def __init__(self, shape: StarShape, plan: StarPlan, clock: Clock, ordered: bool) -> None:
        self.shape, self.plan = shape, plan
        self.engines = [
            _engine(one, share.memory, clock)
            for one, share in zip(shape.lookups, plan.shares, strict=True)
        ]
        self.rounds = Rounds(shape, self.engines, plan.held, plan.memory, clock, ordered)

    def close(self) -> None:
        for engine in self.engines:
            engine.close()


class StarEngine:
    """Joins a stream with several masters, without Spark. Made by `semistream.star_engine`.

    It is a context manager: at the end of a `with` block files are closed and memory is given back.
    """

    def __init__(
        self, lookups: Sequence[Lookup], memory: int, clock: Clock, preserve_order: bool = False
    ) -> None:
        """Nothing is opened or allocated until `run`."""
        if type(preserve_order) is not bool:
            raise OptionError(f"preserve_order={preserve_order!r} must be True or False.")
        self._ordered = preserve_order
        self._lookups = check_lookups(lookups)
        self._memory = memory
        self._clock = clock
        self._built: _Built | None = None
        self._is_running = False

    def __repr__(self) -> str:
        """The look-ups and the budget."""
        names = ", ".join(lookup.name for lookup in self._lookups)
        return f"StarEngine([{names}], memory={self._memory})"

    def __enter__(self) -> StarEngine:
        """The engine itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files and give back the memory."""
        self.close()

    @property
    def plan(self) -> StarPlan | None:
        """How the memory is divided; None before the first run."""
        return None if self._built is None else self._built.plan

    @property
    def plans(self) -> dict[str, JoinPlan]:
        """What each look-up does with its share, by name; those that have run."""
        engines = [] if self._built is None else self._built.engines
        named_plans = zip((one.name for one in self._lookups), engines, strict=False)
        return {name: engine.plan for name, engine in named_plans if engine.plan is not None}

    def planned(self, first: pa.RecordBatch | pa.Schema) -> StarPlan:
        """How the memory would be divided for a stream that begins so; nothing is opened."""
        batch = no_rows(first) if isinstance(first, pa.Schema) else first
        shape = StarShape(_batch(batch).schema, self._lookups)
        return divided(shape, shape.plain(batch), self._memory)

    def run(self, batches: Stream) -> Generator[pa.RecordBatch, None, None]:
        """Join a stream of record batches, yielding result batches as they come.

        Columns are the stream's, then those of each look-up in the order they were given in. The
        iterator may be endless. An empty batch says that nothing more has arrived for now: then
        all results so far are handed out before it is asked again. Rows come in no particular
        order, unless it is to be preserved. A second run counts anew, but keeps what engines have
        learned; `close` lets go of it.
        """
        if self._is_running:
            raise OptionError(
                "This engine is running already. Finish or close the first run, or make another "
                "engine."
            )
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

    def metrics(self) -> StarMetrics:
        """Counters of the current or last run, together and by look-up."""
        if self._built is None:
            return StarMetrics(0, 0, 0, 0, 0.0, {}, 0, self._memory)
        return self._built.rounds.metrics()

    def memory(self) -> dict[str, int]:
        """Bytes by look-up, those of a round as "rounds", "peak" and "budget"."""
        if self._built is None:
            return {"peak": 0, "budget": self._memory}
        plan = self._built.plan
        shares = {share.name: share.memory for share in plan.shares}
        peak = plan.held + sum(engine.memory()["peak"] for engine in self._built.engines)
        return {"rounds": plan.held, **shares, "peak": peak, "budget": self._memory}

    def close(self) -> None:
        """Close the files and give back the memory that are kept for another run."""
        if self._built is not None and not self._is_running:
            self._built.close()

    def _run(self, batches: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
        self._is_running = True
        try:
            first = next(batches, None)
            if first is not None:
                rest = map(_batch, chain([first], batches))
                yield from self._suited(_batch(first)).rounds.run(rest)
        finally:
            self._is_running = False

    def _suited(self, first: pa.RecordBatch) -> _Built:
        """The engines of the last run, if they are for such a stream, or new ones."""
        if self._built is None or not first.schema.equals(self._built.shape.stream):
            self.close()
            shape = StarShape(first.schema, self._lookups)
            plain = shape.plain(first)
            plan = divided(shape, plain, self._memory)
            self._built = _Built(shape, plan, self._clock, self._ordered)
            for one, engine in zip(shape.lookups, self._built.engines, strict=True):
                engine.expect(one.sample(plain))
        return self._built


def star_engine(
    lookups: Sequence[Lookup],
    *,
    memory: int | str,
    preserve_order: bool = False,
    clock: Clock = time.perf_counter,
) -> StarEngine:
    """Several look-ups as one operator, without Spark.

    Args:
        lookups: the masters and how to look up in each. Their columns come in this order.
        memory: the budget for all of them together, as bytes or "128MB". The cost model divides
            it when the first batch shows the stream; `StarEngine.plan` says how.
        preserve_order: whether results come in the order of the stream; rows of one tuple come in
            any order.
        clock: seconds, from any origin; by default real time.
    """
    return StarEngine(lookups, parse_memory(memory), clock, preserve_order)


def _engine(one: LookupShape, memory: int, clock: Clock) -> Engine:
    """The engine of a look-up, with its share of the memory."""
    lookup = one.lookup
    if not one.asked.is_plain:
        return term_engine(one, memory, clock)
    terms: dict[str, Any] = lookup.terms() | {"on": one.on, "memory": memory, "clock": clock}
    algorithm = terms.pop("algorithm")
    with named(lookup):
        if algorithm != AUTO:
            return fixed_engine(lookup.master, algorithm=algorithm, **terms)
        # Half stays free: tuples may be wider than their schema lets one guess.
        nothing = no_rows(one.schema)
        whole = in_memory(lookup.master, one.shape, nothing, memory // 2)
        if whole is None or lookup.options:
            return micro_batch_engine(lookup.master, **terms)
        return fixed_engine(lookup.master, algorithm=IN_MEMORY, **terms | whole)


def _batch(given: object) -> pa.RecordBatch:
    if not isinstance(given, pa.RecordBatch):
        raise StreamSchemaError(
            f"The stream gave a {type(given).__name__}; it must give pyarrow.RecordBatch."
        )
    return given
