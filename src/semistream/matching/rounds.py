"""A round: stream tuples that are joined together, and what is known of them at its end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.arrow_arrays import to_arrow, to_numpy
from semistream.budget import Grant
from semistream.errors import HistoryError
from semistream.matching.condition import PREFIX
from semistream.matching.held_results import HeldResults, gathered
from semistream.matching.resolved import NUMBER, Resolved

__all__ = ["MARK_BYTES", "TUPLE_BYTES", "Numbered", "Round"]

TUPLE_BYTES: Final = 24
"""Per tuple of a round, beside its columns: number, marks, and the time of its latest row."""
MARK_BYTES: Final = 2
"""Per tuple of a round of which only marks are held."""
_NEVER: Final = -(2**63)

_Numbers: TypeAlias = NDArray[np.int32]
_Batches: TypeAlias = Iterator[pa.RecordBatch]


class Numbered:
    """A stream for the engine: at most so many tuples, each with its number."""

    def __init__(self, resolved: Resolved, stream: _Batches, most: int) -> None:
        """Nothing is read yet."""
        self._resolved = resolved
        self._stream = stream
        self._most = most
        self.count = 0
        """Tuples so far."""
        self.rest: list[pa.RecordBatch] = []
        """At the end, what was read and is for the next round."""

    def __iter__(self) -> Numbered:
        """Itself."""
        return self

    def __next__(self) -> pa.RecordBatch:
        """The next batch; an empty one is a pause."""
        if self.count == self._most:
            raise StopIteration
        batch = next(self._stream)
        if batch.num_rows > self._most - self.count:
            self.rest = [batch.slice(self._most - self.count)]
            batch = batch.slice(0, self._most - self.count)
        stop = self.count + batch.num_rows
        numbers = to_arrow(np.arange(self.count, stop, dtype=np.int32))
        self.count = stop
        return self._resolved.engine_batch(batch, numbers)


class Round:
    """Tuples by their numbers, and which of them have a row that counts."""

    def __init__(self, resolved: Resolved, count: int) -> None:
        """A round of `count` tuples, of which nothing is held but marks."""
        self._resolved = resolved
        self.count = count
        self._matched = np.zeros(count, np.bool_)
        self._seen = np.zeros(count if resolved.finds_overlaps else 0, np.bool_)
        is_as_of = resolved.terms.as_of is not None
        self._latest = np.full(count if is_as_of else 0, _NEVER, np.int64)
        self._tied = np.zeros(count if is_as_of else 0, np.bool_)
        self._batches: list[pa.RecordBatch] = []
        self._piece_rows = 0
        self._held: HeldResults | None = None

    @classmethod
    def holding(
        cls, resolved: Resolved, batches: list[pa.RecordBatch], piece_rows: int, copying: Grant
    ) -> Round:
        """A round of these tuples; `piece_rows` results are put together at a time."""
        made = cls(resolved, sum(batch.num_rows for batch in batches))
        made._piece_rows = piece_rows
        if len(batches) > 1 and resolved.emits_pairs:
            # While a column is copied, its parts are there too.
            largest = max(
                sum(batch.column(i).nbytes for batch in batches)
                for i in range(batches[0].num_columns)
            )
            copying.take(largest)
            batches = [gathered(batches)]
            copying.give(largest)
        made._batches = batches
        return made

    def hold(self, grant: Grant, limit: int) -> None:
        """Let results wait for the end, in at most so many bytes of memory."""
        is_as_of = self._resolved.terms.as_of is not None
        wanted = self._still_latest if is_as_of else None
        ordered = self._resolved.terms.preserve_order and self._resolved.emits_pairs
        self._held = HeldResults(grant, limit, NUMBER, ordered, wanted)

    @property
    def joined(self) -> int:
        """Tuples that have a row that counts."""
        return int(np.count_nonzero(self._matched))

    def tuples(self) -> _Batches:
        """The tuples for the engine: the columns that pairs need, and their numbers."""
        return iter(Numbered(self._resolved, iter(self._batches), self.count))

    @property
    def held_bytes(self) -> int:
        """Bytes of results that had to wait."""
        return 0 if self._held is None else self._held.added

    def close(self) -> None:
        """Let go of held results."""
        if self._held is not None:
            self._held.close()

    def results(self, pairs: pa.RecordBatch) -> _Batches:
        """Take pairs from the engine; the results that can leave at once."""
        pairs = self._timely(pairs)
        if not pairs.num_rows:
            return
        if self._held is not None:
            self._held.add(pairs)
            return
        pairs = self._passing(pairs)
        if not self._resolved.holds_tuples:
            yield self._whole(pairs)
        elif self._resolved.emits_pairs:
            yield from self._rows(_numbers(pairs), pairs, None)

    def end(self) -> _Batches:
        """All pairs were given: the results that have waited for that."""
        self._check_ties()
        how = self._resolved.terms.how
        if how in ("semi", "anti"):
            for held in self._waited():
                self._passing(held)
            yield from self._chosen(self._matched if how == "semi" else ~self._matched)
        elif self._resolved.terms.preserve_order:
            yield from self._in_order()
        else:
            for held in self._waited():
                pairs = self._passing(held)
                yield from self._rows(_numbers(pairs), pairs, None)
            if how == "left":
                yield from self._rows(np.flatnonzero(~self._matched), None, None)

    def _still_latest(self, pairs: pa.RecordBatch) -> pa.RecordBatch:
        """Those of the pairs whose row is the latest that is known for its tuple."""
        rule = self._resolved.time
        assert rule is not None
        return _where(pairs, rule.begin(pairs) == self._latest[_numbers(pairs)])

    def _timely(self, pairs: pa.RecordBatch) -> pa.RecordBatch:
        """The pairs whose row may be the one at the tuple's time."""
        rule = self._resolved.time
        if rule is None:
            return pairs
        pairs = _where(pairs, rule.holds(pairs))
        if rule.ends is None:
            return self._note_latest(pairs)
        if self._resolved.finds_overlaps:
            self._note_seen(pairs)
        return pairs

    def _note_seen(self, pairs: pa.RecordBatch) -> None:
        """Raise if a tuple has a second row that is valid."""
        numbers = _numbers(pairs)
        again = np.flatnonzero(self._seen[numbers])
        self._seen[numbers] = True
        order = np.argsort(numbers, kind="stable")
        twice = order[1:][numbers[order[1:]] == numbers[order[:-1]]]
        for place in (*again[:1].tolist(), *twice[:1].tolist()):
            self._refuse_overlap(pairs, place)

    def _note_latest(self, pairs: pa.RecordBatch) -> pa.RecordBatch:
        """Keep the pairs whose row is the latest so far, and mark tuples that have two of those."""
        rule, numbers = self._resolved.time, _numbers(pairs)
        assert rule is not None
        begin, before = rule.begin(pairs), self._latest[numbers]
        np.maximum.at(self._latest, numbers, begin)
        after = self._latest[numbers]
        self._tied[numbers[after > before]] = False
        latest = begin == after
        kept = numbers[latest]
        known = before[latest]
        self._tied[kept[(known == after[latest]) & (known != _NEVER)]] = True
        ordered = np.sort(kept)
        self._tied[ordered[1:][ordered[1:] == ordered[:-1]]] = True
        return _where(pairs, latest)

    def _check_ties(self) -> None:
        """Raise if a tuple has two rows that are the latest."""
        if not self._tied.any():
            return
        number, terms = int(np.flatnonzero(self._tied)[0]), self._resolved.terms
        assert terms.as_of is not None
        batch = next(self._tuples_from(number))
        raise HistoryError(
            f"The master has, for the key {self._key(batch, 0)}, more than one row with the same "
            f"{terms.as_of[1]}, the latest as of {terms.as_of[0]}={self._time(batch, 0)}. Build it "
            "with one row of a key for each time."
        )

    def _tuples_from(self, number: int) -> _Batches:
        """The tuples as the engine gets them, from this number on."""
        for batch in self.tuples():
            if number < batch.num_rows:
                yield batch.slice(number)
            number = max(number - batch.num_rows, 0)

    def _refuse_overlap(self, pairs: pa.RecordBatch, place: int) -> None:
        terms = self._resolved.terms
        assert terms.valid is not None
        raise HistoryError(
            f"The master has, for the key {self._key(pairs, place)}, more than one row that is "
            f"valid at {terms.valid[0]}={self._time(pairs, place)}. Mend its rows: "
            "MasterTable.build(…, valid=(…)) finds such rows before a join does."
        )

    def _key(self, pairs: pa.RecordBatch, place: int) -> str:
        names = self._resolved.shape.stream_key
        return ", ".join(f"{name}={pairs.column(PREFIX + name)[place]}" for name in names)

    def _time(self, pairs: pa.RecordBatch, place: int) -> object:
        rule = self._resolved.time
        assert rule is not None
        return pairs.column(rule.event.inside)[place]

    def _waited(self) -> _Batches:
        """The pairs that were held; of `as_of`, only those whose row was the latest."""
        for pairs in () if self._held is None else self._held.rows():
            yield pairs if self._resolved.terms.as_of is None else self._still_latest(pairs)

    def _passing(self, pairs: pa.RecordBatch) -> pa.RecordBatch:
        """The pairs that pass the condition; their tuples are matched."""
        condition = self._resolved.condition
        if condition is not None and pairs.num_rows:
            pairs = condition.passing(pairs)
        if self._resolved.terms.once:
            pairs = self._first(pairs)
        self._matched[_numbers(pairs)] = True
        return pairs

    def _first(self, pairs: pa.RecordBatch) -> pa.RecordBatch:
        """One pair for each tuple that had none."""
        numbers = _numbers(pairs)
        is_first = np.zeros(len(numbers), np.bool_)
        is_first[np.unique(numbers, return_index=True)[1]] = True
        return _where(pairs, is_first & ~self._matched[numbers])

    def _chosen(self, chosen: NDArray[np.bool_]) -> _Batches:
        """The tuples that are chosen, with the stream's columns only."""
        first, own = 0, self._resolved.shape.plain_schema
        for batch in self._batches:
            mask = chosen[first : first + batch.num_rows]
            first += batch.num_rows
            for start in range(0, batch.num_rows, self._piece_rows):
                piece = batch.slice(start, self._piece_rows)
                found = _where(piece, mask[start : start + self._piece_rows])
                if found.num_rows:
                    columns = found.columns[: len(own)]
                    yield pa.RecordBatch.from_arrays(columns, schema=own)

    def _in_order(self) -> _Batches:
        """Pairs as the order of their tuples is, with unmatched tuples between them."""
        done = 0
        for held in self._waited():
            pairs = self._passing(held)
            numbers = _numbers(pairs)
            # Rows of its last tuple may follow in the next piece.
            last = int(_numbers(held)[-1]) if held.num_rows else done
            yield from self._between(numbers, pairs, done, last)
            done = max(done, last)
        yield from self._between(np.empty(0, np.int32), None, done, self.count)

    def _between(
        self, numbers: _Numbers, pairs: pa.RecordBatch | None, done: int, last: int
    ) -> _Batches:
        """Pairs in order, and the unmatched tuples from `done` to before `last`."""
        if self._resolved.terms.how != "left":
            if pairs is not None:
                yield from self._rows(numbers, pairs, None)
            return
        lonely = np.flatnonzero(~self._matched[done:last]) + done
        if not len(lonely):
            if pairs is not None:
                yield from self._rows(numbers, pairs, None)
            return
        places = np.r_[np.arange(len(numbers)), np.full(len(lonely), -1)]
        both = np.r_[numbers, lonely]
        order = np.argsort(both, kind="stable")
        yield from self._rows(both[order], pairs, places[order])

    def _rows(
        self,
        numbers: NDArray[Any],
        pairs: pa.RecordBatch | None,
        places: NDArray[np.int64] | None,
    ) -> _Batches:
        """Result rows of these tuples with these pairs, one for one or by places (-1 for none)."""
        step = self._piece_rows
        for start in range(0, len(numbers), step):
            some = numbers[start : start + step]
            stream = self._stream(some)
            if pairs is None:
                payload = [pa.nulls(len(some), kind) for kind in self._resolved.shape.payload_types]
            elif places is None:
                payload = self._payload(pairs.slice(start, step))
            else:
                payload = self._payload(pairs, _indices(places[start : start + step]))
            yield self._resolved.result([*stream, *payload])

    def _whole(self, pairs: pa.RecordBatch) -> pa.RecordBatch:
        """Result rows of pairs that have all the stream's columns."""
        names = [PREFIX + name for name in self._resolved.shape.plain_schema.names]
        stream = [pairs.column(name) for name in names]
        return self._resolved.result([*stream, *self._payload(pairs)])

    def _payload(self, pairs: pa.RecordBatch, places: pa.Array | None = None) -> list[pa.Array]:
        columns = [pairs.column(name) for name in self._resolved.shape.payload]
        return columns if places is None else [column.take(places) for column in columns]

    def _stream(self, numbers: NDArray[Any]) -> list[pa.Array]:
        """The stream's columns of these tuples; not copied if they follow one another."""
        (whole,) = self._batches
        own = len(self._resolved.shape.plain_schema)
        first, last = int(numbers[0]), int(numbers[-1])
        if last - first + 1 == len(numbers) and bool((np.diff(numbers) == 1).all()):
            columns = whole.slice(first, len(numbers)).columns
        else:
            columns = whole.take(to_arrow(numbers)).columns
        return list(columns[:own])


def _numbers(pairs: pa.RecordBatch) -> _Numbers:
    numbers: _Numbers = to_numpy(pairs.column(NUMBER))
    return numbers


def _where(rows: pa.RecordBatch, mask: NDArray[np.bool_]) -> pa.RecordBatch:
    return rows if mask.all() else rows.filter(to_arrow(mask))


def _indices(places: NDArray[np.int64]) -> pa.Array:
    """Places as indices, null where there is none."""
    there = np.packbits(places >= 0, bitorder="little")
    data = np.maximum(places, 0)
    return pa.Array.from_buffers(pa.int64(), len(places), [pa.py_buffer(there), pa.py_buffer(data)])
