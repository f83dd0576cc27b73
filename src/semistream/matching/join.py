"""The join on terms: runs an engine over the stream, round by round.

Where results need no more than a pair, those of an inner join with a condition, whole tuples go
through the engine and nothing is held but a mark for each. Otherwise a round's tuples are held.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from semistream.budget import Grant, MemoryBudget
from semistream.errors import BudgetError, InternalError, StreamSchemaError
from semistream.matching.resolved import Resolved
from semistream.matching.round_memory import RoundMemory
from semistream.matching.rounds import MARK_BYTES, TUPLE_BYTES, Numbered, Round
from semistream.matching.terms import Terms
from semistream.metrics import Metrics
from semistream.parts.join_shape import On
from semistream.parts.learned import Learned, Legacy
from semistream.relation import MasterTable

__all__ = ["Maker", "Matching", "PairFinder"]

_Batches: TypeAlias = Iterator[pa.RecordBatch]
_DECODED_ROWS: Final = 4096
"""Rows at a time where dictionaries and views are decoded."""


_HELD_ROW: Final = 24
"""Bytes of a result that waits, beside its columns."""
_GUESSED: Final = 1.25
"""Before a round has shown it, results may be so much wider than master rows on disk."""
_FILLED: Final = 0.9
_FEWEST: Final = 256
"""A round has so many tuples, even if their results do not fit the memory."""
_ANY: Final = 1 << 31
_NO_COLUMNS: Final = np.zeros(1, np.int64)


class PairFinder(Protocol):
    """What finds pairs with equal keys: an engine, or something that runs engines."""

    def run(self, batches: _Batches) -> _Batches:
        """The inner join of a stream, yielding pairs as they come."""

    def metrics(self) -> Metrics:
        """Of the last run."""

    def memory(self) -> dict[str, int]:
        """Bytes by part."""

    def learned(self, most: int | None = None) -> Learned:
        """The keys that the stream keeps asking for, the most frequent first."""

    def leave(self) -> Legacy | None:
        """Close it, and hand on what it has learned."""

    def inherit(self, legacy: Legacy) -> None:
        """Begin with what another has learned."""

    def close(self) -> None:
        """Give back what is kept for another run."""


class Maker(Protocol):
    """Makes what finds pairs."""

    def make(
        self, on: dict[str, str], columns: list[str], memory: int, first: pa.RecordBatch
    ) -> PairFinder:
        """For an inner join on these columns, with these columns of the master.

        The memory must be enough for a stream that begins so, and so must any other be joined.
        """

    def check(
        self, on: dict[str, str], columns: list[str], memory: int, first: pa.RecordBatch
    ) -> None:
        """Raise `BudgetError` if that is too little memory for a stream that begins so."""


class _Sized(NamedTuple):
    """The memory of a join, and the tuples that it was divided for."""

    shares: RoundMemory
    widest: int


class Matching:
    """A join on terms. It looks like an engine to whoever runs it."""

    def __init__(
        self,
        terms: Terms,
        master: MasterTable,
        maker: Maker,
        *,
        on: On,
        memory: int,
        columns: Sequence[str] | None,
        passed_on: int = 0,
    ) -> None:
        """Nothing is opened or allocated until `run`.

        `passed_on`: so many columns at the end of the stream are for the engine only.
        """
        self._terms = terms
        self._master = master
        self._maker = maker
        self._on = on
        self._memory = memory
        self._columns = columns
        self._passed_on = passed_on
        self._resolved: Resolved | None = None
        self._sized: _Sized | None = None
        self.finder: PairFinder | None = None
        """What finds the pairs; None before the first run."""
        self._legacy: Legacy | None = None
        self._expected: pa.RecordBatch | None = None
        self._held_per_tuple = 0.0
        self._budget = MemoryBudget(memory)
        self._begin()

    def resolve(self, schema: pa.Schema) -> Resolved:
        """The join for a stream of this schema; raises what a run of it would."""
        known = self._resolved
        if known is None or not known.given_schema.equals(schema):
            known = Resolved(
                schema, self._master, self._on, self._columns, self._terms, self._passed_on
            )
        return known

    def sized(self, resolved: Resolved, first: pa.RecordBatch) -> tuple[RoundMemory, PairFinder]:
        """How the memory is divided for a stream that begins so, and what finds its pairs."""
        widest = resolved.widest(first)
        least = RoundMemory.least_marks()
        share = RoundMemory.usual(self._memory, resolved.holds_tuples)
        if resolved.holds_tuples:
            row = self._master.widest_row if resolved.engine_columns else 0
            least = RoundMemory.least_share(widest + TUPLE_BYTES, row, resolved.holds_results)
        sample = resolved.engine_batch(first, pa.nulls(first.num_rows, pa.int32()))
        share = self._affordable(resolved, sample, max(share, least), least)
        held = self._average_row(resolved) if resolved.holds_results else 0
        average = first.nbytes / first.num_rows if first.num_rows else widest
        shares = RoundMemory.divided(self._memory, share, average + TUPLE_BYTES, held)
        on, columns = resolved.engine_on, resolved.engine_columns
        return shares, self._maker.make(on, columns, shares.engine, sample)

    def run(self, batches: Iterable[pa.RecordBatch]) -> _Batches:
        """Join a stream of record batches, yielding result batches as they come."""
        with self._master.held():
            yield from self._run(batches)

    def _run(self, batches: Iterable[pa.RecordBatch]) -> _Batches:
        self._begin()
        stream = iter(batches)
        first = next(_batches_of(stream), None)
        # Nothing waits yet, and only tuples show how wide they are.
        while isinstance(first, pa.RecordBatch) and not first.num_rows:
            resolved, empty = self.resolve(first.schema), first
            first = next(self._checked(resolved, stream), None)
            if first is None:
                self._prepared(empty)
        if first is None:
            return
        resolved = self._prepared(first)
        checked = self._checked(resolved, chain([first], stream))
        run = self._in_rounds if resolved.holds_tuples else self._in_marked_rounds
        for result in run(resolved, checked):
            self._outputs += result.num_rows
            yield result

    @property
    def has_run(self) -> bool:
        """Whether there are metrics of a run."""
        return self._joint is not None or self._is_finding

    def metrics(self) -> Metrics:
        """Of the last run; there must be one."""
        runs = [] if self._joint is None else [self._joint]
        if self._is_finding and self.finder is not None:
            runs.append(self.finder.metrics())
        if not runs:
            raise InternalError("No engine has run, so there are no metrics. Run the join first.")
        found = Metrics.merge(runs)
        return replace(
            found,
            joined=self._joined,
            unmatched=self._unmatched,
            outputs=self._outputs,
            peak_memory=found.peak_memory + self._budget.peak,
            budget=self._memory,
        )

    def memory(self) -> dict[str, int]:
        """Bytes by part, with "peak" and "budget"."""
        parts = {} if self.finder is None else dict(self.finder.memory())
        own = self._budget.by_part()
        peak = parts.pop("peak", 0) + own.pop("peak")
        return parts | own | {"peak": peak, "budget": self._memory}

    def learned(self, most: int | None = None) -> Learned:
        """The keys that the stream keeps asking for, the most frequent first."""
        return Learned.nothing() if self.finder is None else self.finder.learned(most)

    def leave(self) -> Legacy | None:
        """Close it, and hand on what it has learned."""
        legacy, self._legacy = self._legacy, None
        if self.finder is None:
            return legacy
        finder, self.finder, self._sized = self.finder, None, None
        return finder.leave()

    def inherit(self, legacy: Legacy) -> None:
        """Begin with what another has learned."""
        if self.finder is None:
            self._legacy = legacy
        else:
            self.finder.inherit(legacy)

    def expect(self, first: pa.RecordBatch) -> None:
        """Be content with the sizes for a stream that begins so, as `Engine.expect`."""
        self._expected = first

    def close(self) -> None:
        """Give back what is kept for another run."""
        if self.finder is not None:
            self.finder.close()
        self.finder = self._sized = self._legacy = None

    def check(self) -> None:
        """Assert that the round is inside its memory."""
        self._budget.check()

    @property
    def shares(self) -> RoundMemory | None:
        """How the memory is divided; None before the first run."""
        return None if self._sized is None else self._sized.shares

    def _begin(self) -> None:
        """Count from nothing."""
        self._joint: Metrics | None = None
        self._is_finding = False
        self._joined = self._unmatched = self._outputs = 0
        self._budget.restart()

    def _average_row(self, resolved: Resolved) -> float:
        """Bytes of an average master row, as far as its columns are needed."""
        rows = max(self._master.row_count, 1)
        whole = float(self._master.pages.length.sum()) / rows
        return whole * len(resolved.engine_columns) / len(self._master.schema)

    def _affordable(
        self, resolved: Resolved, sample: pa.RecordBatch, wanted: int, least: int
    ) -> int:
        """The bytes of a round: those wanted, or the least if the engine needs the others."""
        on, columns = resolved.engine_on, resolved.engine_columns
        for share in (wanted, least):
            try:
                self._maker.check(on, columns, max(self._memory - share, 1), sample)
            except BudgetError as error:
                refused = error
            else:
                return share
        if refused.least is None:
            raise refused
        raise self._too_little(refused, least) from refused

    def _too_little(self, refused: BudgetError, share: int) -> BudgetError:
        """What the engine has said of its part of the memory, said of the whole."""
        told = f"memory={self._memory:,} bytes is too little for a join {self._terms.told()}: "
        if refused.least is None:
            share = 0 if self.shares is None else self.shares.round
            told += f"{share:,} of them are for a round of tuples, and of the rest: {refused}"
            return BudgetError(told)
        total = refused.least + share
        told += f"the least is {total:,} bytes, {share:,} of them for a round of tuples."
        return BudgetError(f"{told} Give more memory.", least=total)

    def _prepared(self, first: pa.RecordBatch) -> Resolved:
        """The join for a stream that begins so; an engine that suits it is kept."""
        if not isinstance(first, pa.RecordBatch):
            raise StreamSchemaError(
                f"The stream gave a {type(first).__name__}; it must give pyarrow.RecordBatch. "
                "A pa.Table gives them with to_batches()."
            )
        resolved = self.resolve(first.schema)
        widest, sized = resolved.widest(first), self._sized
        is_ready = self.finder is not None and resolved is self._resolved
        if is_ready and sized is not None and widest <= sized.widest:
            return resolved
        shares, finder = self._sized_for(resolved, first)
        legacy = self.leave()
        if legacy is not None:
            finder.inherit(legacy)
        self._resolved, self.finder, self._sized = resolved, finder, _Sized(shares, widest)
        self._held_per_tuple = _GUESSED * (self._average_row(resolved) + _HELD_ROW)
        self._budget = MemoryBudget(shares.round)
        self._budget.grant("round output").take(shares.piece)
        return resolved

    def _sized_for(
        self, resolved: Resolved, first: pa.RecordBatch
    ) -> tuple[RoundMemory, PairFinder]:
        try:
            return self.sized(resolved, first)
        except BudgetError:
            if self._expected is None:
                raise
            return self.sized(resolved, self._expected)

    def _checked(self, resolved: Resolved, stream: _Batches) -> _Batches:
        for batch in _batches_of(stream):
            if not batch.schema.equals(resolved.given_schema):
                raise StreamSchemaError(
                    f"A stream batch has the schema\n{batch.schema}\nbut the first one had\n"
                    f"{resolved.given_schema}\nCast the batches to one schema before the join."
                )
            yield batch

    def _in_marked_rounds(self, resolved: Resolved, stream: _Batches) -> _Batches:
        """Pairs leave as they come; a round only ends so that the marks do not grow."""
        assert self.shares is not None
        grant = self._budget.grant("round marks")
        most = self.shares.tuples // MARK_BYTES
        grant.take(most * MARK_BYTES)
        try:
            rest: list[pa.RecordBatch] = []
            while rest or (rest := list(_first(stream))):
                numbered = Numbered(resolved, chain(rest, stream), most)
                rest = []
                joining = Round(resolved, most)
                yield from self._found(joining, numbered)
                self._settle(joining, numbered.count)
                rest = numbered.rest
        finally:
            grant.give(grant.bytes)

    def _in_rounds(self, resolved: Resolved, stream: _Batches) -> _Batches:
        """Tuples are held until all their pairs are known."""
        grant = self._budget.grant("round tuples")
        assert self.shares is not None
        held: list[pa.RecordBatch] = []
        rows, columns = 0, _NO_COLUMNS
        try:
            for piece in self._pieces(resolved, stream):
                size, rows = _bytes(piece), rows + piece.num_rows
                own = np.array([column.nbytes for column in piece.columns])
                columns = columns + own
                # While tuples are put together, a column of them is there twice.
                copied = int(columns.max()) if resolved.emits_pairs else 0
                is_full = grant.bytes + size + copied > self.shares.tuples
                if held and (is_full or not piece.num_rows or rows > self._most(resolved)):
                    yield from self._round(resolved, held, grant)
                    held, rows, columns = [], piece.num_rows, own
                if piece.num_rows:
                    grant.take(size)
                    held.append(piece)
                del piece
            if held:
                yield from self._round(resolved, held, grant)
        finally:
            grant.give(grant.bytes)

    def _round(self, resolved: Resolved, tuples: list[pa.RecordBatch], grant: Grant) -> _Batches:
        """Join the tuples of a round, and give all their results."""
        assert self.shares is not None
        row = self._master.widest_row if resolved.engine_columns else 0
        widest = max(resolved.widest(batch) for batch in tuples) + row
        piece_rows = max(1, self.shares.piece // max(widest, 1))
        joining = Round.holding(resolved, tuples, piece_rows, self._budget.grant("round copy"))
        if resolved.holds_results:
            room = self._budget.grant("round results"), self.shares.results
            joining.hold(*room)
        try:
            yield from self._found(joining, joining.tuples())
            yield from joining.end()
        finally:
            joining.close()
        self._settle(joining, joining.count)
        seen = joining.held_bytes / joining.count
        self._held_per_tuple = max(seen, self._held_per_tuple / 2)
        grant.give(grant.bytes)

    def _found(self, joining: Round, tuples: _Batches) -> _Batches:
        """Let the engine find all pairs of some tuples; the results that leave at once."""
        finder = self.finder
        assert finder is not None
        self._is_finding = True
        run = finder.run(tuples)
        try:
            for pairs in run:
                yield from joining.results(pairs)
        except BudgetError as error:
            raise self._too_little(
                error, 0 if self.shares is None else self.shares.round
            ) from error
        finally:
            close = getattr(run, "close", None)
            if close is not None:
                close()
        metrics = finder.metrics()
        self._is_finding = False
        self._joint = metrics if self._joint is None else Metrics.merge([self._joint, metrics])

    def _settle(self, joining: Round, count: int) -> None:
        joined = joining.joined
        self._joined += joined
        self._unmatched += count - joined

    def _room(self, resolved: Resolved) -> int:
        """The most bytes of a piece: with the copy of a column, if there is one, it fits."""
        assert self.shares is not None
        return self.shares.tuples // 2 if resolved.emits_pairs else self.shares.tuples

    def _most(self, resolved: Resolved) -> int:
        """The most tuples of a round whose results are to wait in memory, going by those before.

        As of a time, results that are of no use are dropped.
        """
        assert self.shares is not None
        if not resolved.holds_results or resolved.terms.as_of is not None:
            return _ANY
        most = int(_FILLED * (self.shares.results // 2) / max(self._held_per_tuple, 1.0))
        return max(most, _FEWEST)

    def _pieces(self, resolved: Resolved, stream: _Batches) -> _Batches:
        """The stream, decoded, in pieces that fit a round; an empty one is a pause."""
        room = self._room(resolved)
        for batch in stream:
            step = _DECODED_ROWS if resolved.is_encoded else max(batch.num_rows, 1)
            if not batch.num_rows:
                yield batch
            for start in range(0, batch.num_rows, step):
                part, most = resolved.plain(batch.slice(start, step)), self._most(resolved)
                for first in range(0, part.num_rows, most):
                    yield from _fitting(part.slice(first, most), room, self._memory)


def _batches_of(stream: Iterator[Any]) -> _Batches:
    """What a stream gives, if it is batches."""
    for batch in stream:
        if not isinstance(batch, pa.RecordBatch):
            raise StreamSchemaError(
                f"The stream gave a {type(batch).__name__}; it must give pyarrow.RecordBatch. A "
                "pa.Table gives them with to_batches()."
            )
        yield batch


def _first(stream: _Batches) -> _Batches:
    """The next batch, if there is one."""
    for batch in stream:
        yield batch
        return


def _bytes(tuples: pa.RecordBatch) -> int:
    return int(tuples.nbytes) + int(tuples.num_rows) * TUPLE_BYTES


def _fitting(batch: pa.RecordBatch, room: int, memory: int) -> _Batches:
    """A batch cut into pieces of at most `room` bytes."""
    size, rows = _bytes(batch), batch.num_rows
    if size <= room:
        yield batch
        return
    if rows == 1:
        raise BudgetError(
            f"memory={memory:,} bytes is too little for a stream tuple of {size:,} bytes: the "
            f"tuples of a round may take {room:,}, for parts are sized by the first batch. Give "
            f"the join {memory * size // room * 2:,} bytes, or let the first batch have a tuple as "
            "wide as any."
        )
    step = -(-rows // -(-size // room))
    if step == rows:
        step = rows - rows // 2
    for start in range(0, rows, step):
        yield from _fitting(batch.slice(start, step), room, memory)
