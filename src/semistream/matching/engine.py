"""An engine for joins on terms: what `semistream.engine` gives if an engine alone cannot do it."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from threading import Lock

import pyarrow as pa

from semistream.algorithms.engine import Engine, Stream, batches_of
from semistream.algorithms.registry import ALGORITHMS, AUTO
from semistream.arrow_arrays import no_rows
from semistream.errors import BudgetError, OptionError, StreamSchemaError
from semistream.matching.join import Matching
from semistream.matching.terms import Terms
from semistream.metrics import Clock, Metrics, Recorder
from semistream.parts.join_shape import JoinShape, On
from semistream.parts.learned import Learned, Legacy
from semistream.parts.shedding import Shedding
from semistream.plan import JoinPlan
from semistream.relation import MasterTable
from semistream.sampling import sampled

__all__ = ["EngineMaker", "MakeEngine", "MatchingEngine"]

MakeEngine = Callable[[str, dict[str, str], list[str], int], Engine]
"""Makes an engine for an inner join: its algorithm, key columns, master columns and memory."""


class EngineMaker:
    """Makes engines that find pairs."""

    def __init__(
        self, algorithm: str, make: MakeEngine, chosen_from: Sequence[str] = ALGORITHMS
    ) -> None:
        """`make` makes one of any algorithm; `chosen_from` are those that "auto" may come to."""
        self._algorithm = algorithm
        self._names = chosen_from if algorithm == AUTO else (algorithm,)
        self._make = make

    def make(
        self, on: dict[str, str], columns: list[str], memory: int, first: pa.RecordBatch
    ) -> Engine:
        """An engine for an inner join; `check` has found the memory enough."""
        made = self._make(self._algorithm, on, columns, memory)
        made.expect(first)
        return made

    def check(
        self, on: dict[str, str], columns: list[str], memory: int, first: pa.RecordBatch
    ) -> None:
        """Raise `BudgetError` if that is too little memory for a stream that begins so.

        "auto" takes any algorithm that fits; to ask it would be to choose one.
        """
        refused: list[BudgetError] = []
        for name in self._names:
            try:
                self._make(name, on, columns, memory).planned(first)
            except BudgetError as error:
                refused.append(error)
            except OptionError:
                if len(self._names) == 1:
                    raise
            else:
                return
        raise min(refused, key=lambda error: error.least or 1 << 60)


class MatchingEngine(Engine):
    """An engine of the same kind as any other, which runs another engine inside.

    It is an `Engine` by what it does, and takes nothing over from it.
    """

    def __init__(
        self,
        master: MasterTable,
        terms: Terms,
        make: MakeEngine,
        *,
        algorithm: str,
        on: On,
        memory: int,
        columns: Sequence[str] | None,
        clock: Clock = time.perf_counter,
        chosen_from: Sequence[str] = ALGORITHMS,
    ) -> None:
        """Nothing is opened or allocated until `run`.

        `chosen_from`: the algorithms that "auto" may come to when memory is scarce.
        """
        self._about = f"MatchingEngine({algorithm!r}, {master!r}, {terms.told()}, memory={memory})"
        self._terms = terms
        self._algorithm = algorithm
        self._memory = memory
        self._nothing = Recorder(clock)
        maker = EngineMaker(algorithm, make, chosen_from)
        self._matching = Matching(terms, master, maker, on=on, memory=memory, columns=columns)
        self._in_use = Lock()
        self._sample = None
        self._left_out = 0

    def __repr__(self) -> str:
        """The algorithm, the master, the terms and the budget."""
        return self._about

    def __enter__(self) -> MatchingEngine:
        """The engine itself."""
        return self

    # An attribute of `Engine`; here the plans are those of the engine inside.
    @property
    def plans(self) -> list[JoinPlan]:  # type: ignore[override]
        """The plans so far, the one in use last; one unless the engine retunes itself."""
        shares = self._matching.shares
        if self._inner is None or shares is None:
            return []
        return [self._told(plan, shares.round) for plan in self._inner.plans]

    def run(self, batches: Stream) -> Generator[pa.RecordBatch, None, None]:
        """As `Engine.run`; in rounds, so that all rows of a tuple are known when it leaves."""
        self._refuse_second_run()
        return self._run(self._sampled(iter(batches_of(batches))))

    def run_timed(
        self,
        arrivals: Iterable[tuple[float, pa.RecordBatch]],
        *,
        shedding: Shedding | None = None,
    ) -> Generator[pa.RecordBatch, None, None]:
        """Not for joins on terms."""
        raise OptionError(
            f"A pushed stream cannot be joined {self._terms.told()}: tuples would wait for the end "
            'of their round. Use run, or how="inner" or "left" without conditions and order.'
        )

    def shape(self, schema: pa.Schema) -> JoinShape:
        """What joining a stream of this schema gives; raises what a run of it would at once."""
        self.planned(no_rows(schema))
        return self._matching.resolve(schema).shape

    def planned(self, first: pa.RecordBatch) -> JoinPlan:
        """The sizes with which a stream that begins so would be joined; nothing is opened."""
        if not isinstance(first, pa.RecordBatch):
            raise StreamSchemaError(
                f"A stream does not begin with a {type(first).__name__}. Give its first "
                "pyarrow.RecordBatch, which may be empty."
            )
        resolved = self._matching.resolve(first.schema)
        shares, finder = self._matching.sized(resolved, first)
        assert isinstance(finder, Engine)
        sample = resolved.engine_batch(first, pa.nulls(first.num_rows, pa.int32()))
        return self._told(finder.planned(sample), shares.round)

    def metrics(self) -> Metrics:
        """Counters and times of the current or last run, as a frozen snapshot."""
        if self._matching.has_run:
            found = self._matching.metrics()
            arrived = found.arrived + self._left_out
            return replace(found, arrived=arrived, left_out=self._left_out)
        return self._nothing.snapshot(self._algorithm, 0, self._memory)

    def memory(self) -> dict[str, int]:
        """Bytes by part, with "peak" and "budget"."""
        return self._matching.memory()

    def check(self) -> None:
        """Assert the invariants of a run that goes on. O(waiting tuples), for tests."""
        self._matching.check()
        if self._inner is not None:
            self._inner.check()

    def close(self) -> None:
        """Close the files and give back the memory that are kept for another run."""
        with self._alone():
            self._matching.close()

    def learned(self, most: int | None = None) -> Learned:
        """The keys that the front stage holds between two runs, the most frequent first."""
        return self._matching.learned(most)

    def leave(self) -> Legacy | None:
        """Close the engine; what its front stage holds is for `inherit` of another."""
        with self._alone():
            return self._matching.leave()

    def inherit(self, legacy: Legacy) -> None:
        """Begin the next run with what an engine of the same join has learned."""
        self._matching.inherit(legacy)

    def expect(self, first: pa.RecordBatch) -> None:
        """Be content with the sizes for a stream that begins so."""
        self._matching.expect(first)

    @property
    def _inner(self) -> Engine | None:
        finder = self._matching.finder
        assert finder is None or isinstance(finder, Engine)
        return finder

    def _sampled(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        self._left_out = 0
        if self._sample is None:
            return batches

        def note(count: int) -> None:
            self._left_out += count

        return sampled(batches, self._sample, note)

    def _run(self, batches: Iterable[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
        with self._alone():
            yield from self._matching.run(batches)

    def _told(self, plan: JoinPlan, held: int) -> JoinPlan:
        """The plan of the engine inside as that of the whole."""
        parts = plan.parts | {"round": held}
        notes = (f"joins {self._terms.told()}", *plan.notes)
        return replace(plan, memory=plan.memory + held, parts=parts, notes=notes)
