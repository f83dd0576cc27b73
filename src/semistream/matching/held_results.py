"""Result rows of a round that must wait for its end: in memory, then in temporary files.

Rows are in batches with a column of tuple numbers. In stream order they come as an external merge
sort gives them: what fills the memory is sorted and written to a run, and a few runs of one level
are merged into one of the next. So a row is written once for each level: O(n log n). A run goes on
as long as its numbers ascend, and one run needs no merging. The files have no name, so nothing is
left of them however the process ends.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.arrow_arrays import to_arrow, to_numpy
from semistream.budget import Grant

__all__ = ["HeldResults", "gathered"]

_ROW_BYTES: Final = 24
"""Per row while it is held: its number, and its place in the order."""
_MERGED_RUNS: Final = 4
"""Runs that are merged at once: few, so that pieces of them are not too small."""
_PIECES: Final = 16
"""A piece of a run is 1 / 16 of the memory. In a merge there are pieces of 4, and two copies."""

_Batches = Iterator[pa.RecordBatch]
_Head = tuple[NDArray[Any], pa.RecordBatch, _Batches]
"""The tuple numbers of a run's next piece, the piece, and what gives the pieces after it."""


class _Run:
    """Rows in a file, in order if they are to be; written first, then read."""

    def __init__(self, level: int) -> None:
        """An empty run; `level` is how often its rows were merged."""
        self.level = level
        self.last = -1
        """The tuple number with which it ends."""
        self._file = tempfile.TemporaryFile(prefix="semistream-")  # noqa: SIM115 (kept open)
        self._writer: pa.ipc.RecordBatchStreamWriter | None = None

    def write(self, batch: pa.RecordBatch, piece_bytes: int) -> None:
        """Add rows, in pieces of about so many bytes."""
        if self._writer is None:
            self._writer = pa.ipc.new_stream(pa.PythonFile(self._file, "w"), batch.schema)
        step = max(1, batch.num_rows * piece_bytes // max(_bytes(batch), 1))
        for start in range(0, batch.num_rows, step):
            self._writer.write_batch(batch.slice(start, step))

    def read(self) -> _Batches:
        """All rows, once; the file is closed at the end."""
        if self._writer is not None:
            self._writer.close()
            self._file.seek(0)
            with pa.ipc.open_stream(pa.PythonFile(self._file, "r")) as reader:
                yield from reader
        self._file.close()

    def close(self) -> None:
        """Let go of the rows."""
        self._file.close()


class HeldResults:
    """Rows that wait; `add` them, then read them once with `rows`."""

    def __init__(
        self,
        grant: Grant,
        limit: int,
        number: str,
        ordered: bool,
        still_wanted: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None,
    ) -> None:
        """At most `limit` bytes are in memory. `still_wanted` leaves out rows that are of no use.

        It is asked before anything is written.
        """
        self._grant = grant
        # Half, since rows are copied while they are sorted.
        self._limit = limit // 2
        self._piece_bytes = max(limit // _PIECES, 1)
        self._number = number
        self._ordered = ordered
        self._still_wanted = still_wanted
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._is_sorted = True
        self._last = -1
        self._runs: list[_Run] = []
        self.spilled = 0
        """Bytes that were written to files, each time that they were."""
        self.added = 0
        """Bytes that were added."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Hold these rows."""
        size = _bytes(batch)
        if size > self._limit and batch.num_rows > 1:
            half = batch.num_rows // 2
            self.add(batch.slice(0, half))
            self.add(batch.slice(half))
            return
        self.added += size
        if self._bytes + size > self._limit and self._batches:
            self._make_room(size)
        self._take(batch, size)

    def rows(self) -> _Batches:
        """All rows, in stream order if they are to be; it lets go of them as it goes on."""
        if self._runs:
            self._spill()
            while len(self._runs) > _MERGED_RUNS:
                self._merge_last()
            yield from self._merged(self._runs)
        else:
            yield from self._in_memory()

    def close(self) -> None:
        """Let go of all rows and files."""
        self._drop()
        while self._runs:
            self._runs.pop().close()

    def _take(self, batch: pa.RecordBatch, size: int) -> None:
        self._grant.take(size)
        self._bytes += size
        self._batches.append(batch)
        if self._ordered and self._is_sorted and batch.num_rows:
            # Where nothing had to wait, pairs come as their tuples did.
            numbers = self._numbers(batch)
            ascend = bool((numbers[1:] >= numbers[:-1]).all())
            self._is_sorted = ascend and int(numbers[0]) >= self._last
            self._last = int(numbers[-1])

    def _make_room(self, size: int) -> None:
        """Room for so many bytes; what is left must be worth another look at it."""
        if self._still_wanted is not None:
            batches = self._batches
            self._drop()
            for batch in batches:
                wanted = self._still_wanted(batch)
                if wanted.num_rows:
                    self._take(wanted, _bytes(wanted))
        if self._bytes + max(size, self._limit // 2) > self._limit:
            self._spill()

    def _drop(self) -> None:
        self._batches = []
        self._grant.give(self._bytes)
        self._bytes = 0
        self._is_sorted, self._last = True, -1

    def _in_memory(self) -> _Batches:
        """What is in memory, in pieces."""
        if not self._ordered or self._is_sorted or not self._batches:
            yield from self._batches
        else:
            copied = self._bytes if len(self._batches) > 1 else 0
            self._grant.take(copied)
            batch = gathered(self._batches)
            self._grant.give(copied)
            order = np.argsort(to_numpy(batch.column(self._number)), kind="stable")
            # The memory of the copy is free again, and half of it does for a piece.
            step = max(1, batch.num_rows * self._limit // max(2 * self._bytes, 1))
            for start in range(0, batch.num_rows, step):
                yield batch.take(to_arrow(order[start : start + step]))
        self._drop()

    def _spill(self) -> None:
        """Write what is in memory to a run: to the last one, if that goes on so."""
        if not self._batches:
            return
        for batch in self._in_memory():
            first = int(self._numbers(batch)[0]) if self._ordered else 0
            if not self._runs or self._runs[-1].level or first < self._runs[-1].last:
                self._runs.append(_Run(0))
            self._write(self._runs[-1], batch)
        while self._is_level_full():
            self._merge_last()

    def _is_level_full(self) -> bool:
        """Whether there are enough last runs of one level to be merged."""
        some = self._runs[-_MERGED_RUNS:]
        return len(some) == _MERGED_RUNS and some[0].level == some[-1].level

    def _merge_last(self) -> None:
        """Merge the last runs, the shortest, into one of the next level."""
        some = self._runs[-_MERGED_RUNS:]
        merged = _Run(some[0].level + 1)
        # Where it can be closed, whatever happens.
        self._runs.append(merged)
        for batch in self._merged(some):
            self._write(merged, batch)
        del self._runs[-_MERGED_RUNS - 1 : -1]

    def _write(self, run: _Run, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            run.write(batch, self._piece_bytes)
            run.last = int(self._numbers(batch)[-1]) if self._ordered else 0
            self.spilled += int(batch.nbytes)

    def _merged(self, runs: list[_Run]) -> _Batches:
        """The rows of several runs, in order."""
        if len(runs) == 1:
            yield from runs[0].read()
            return
        heads = [head for run in runs for head in self._next(run.read())]
        while heads:
            last = min(int(numbers[-1]) for numbers, _, _ in heads)
            parts, later = [], []
            for numbers, batch, reader in heads:
                cut = int(np.searchsorted(numbers, last, side="right"))
                if cut:
                    parts.append(batch.slice(0, cut))
                if cut < len(numbers):
                    later.append((numbers[cut:], batch.slice(cut), reader))
                else:
                    later += self._next(reader)
            heads = later
            from_several = len(parts) > 1
            piece = gathered(parts)
            if from_several:
                piece = piece.take(to_arrow(np.argsort(self._numbers(piece), kind="stable")))
            yield piece

    def _next(self, reader: _Batches) -> list[_Head]:
        """The next piece of a run that has rows which are still wanted; none at its end."""
        for batch in reader:
            wanted = batch if self._still_wanted is None else self._still_wanted(batch)
            if wanted.num_rows:
                return [(self._numbers(wanted), wanted, reader)]
        return []

    def _numbers(self, batch: pa.RecordBatch) -> NDArray[Any]:
        return to_numpy(batch.column(self._number))


def _bytes(batch: pa.RecordBatch) -> int:
    return int(batch.nbytes) + int(batch.num_rows) * _ROW_BYTES


def gathered(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The batches as one; the list is emptied, so that not all is there twice."""
    if len(batches) == 1:
        return batches.pop()
    columns = [list(parts) for parts in zip(*(batch.columns for batch in batches), strict=True)]
    schema = batches[0].schema
    batches.clear()
    for i, parts in enumerate(columns):
        columns[i] = pa.concat_arrays(parts)
        parts.clear()
    return pa.RecordBatch.from_arrays(columns, schema=schema)
