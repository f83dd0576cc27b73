"""Result rows of a round that must wait for its end: in memory, then in temporary files.

Rows are in batches with a column of tuple numbers. In stream order they come as an external merge
sort gives them: what fills the memory is sorted and written as a run, and runs are merged. The
files have no name, so nothing is left of them however the process ends.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import IO, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.arrow_arrays import to_arrow, to_numpy
from semistream.budget import Grant

__all__ = ["HeldResults", "gathered"]

_ROW_BYTES: Final = 24
"""Per row while it is held: its number, and its place in the order."""
_MOST_RUNS: Final = 8
"""Runs that are merged at once: of each a piece is in memory."""
_PIECES: Final = 64
"""A piece of a run is at most 1 / 64 of the memory."""

_Batches = Iterator[pa.RecordBatch]


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
        self._runs: list[IO[bytes]] = []
        self.spilled = 0
        """Bytes that were written to files."""
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
        """Write what is in memory as a run."""
        if not self._batches:
            return
        if len(self._runs) == _MOST_RUNS:
            runs, self._runs = self._runs, []
            self._runs.append(self._written(self._merged(runs)))
        self._runs.append(self._written(self._in_memory()))

    def _written(self, batches: _Batches) -> IO[bytes]:
        file = tempfile.TemporaryFile(prefix="semistream-")  # noqa: SIM115 (kept open)
        writer = None
        for batch in batches:
            step = max(1, batch.num_rows * self._piece_bytes // max(_bytes(batch), 1))
            if writer is None:
                writer = pa.ipc.new_stream(pa.PythonFile(file, "w"), batch.schema)
            for start in range(0, batch.num_rows, step):
                writer.write_batch(batch.slice(start, step))
        if writer is not None:
            writer.close()
        self.spilled += file.tell()
        return file

    def _merged(self, runs: list[IO[bytes]]) -> _Batches:
        if not self._ordered:
            for run in runs:
                yield from _read(run)
            return
        readers = [_read(run) for run in runs]
        heads = [(next(reader, None), reader) for reader in readers]
        while heads := [(head, reader) for head, reader in heads if head is not None]:
            last = min(int(self._numbers(head)[-1]) for head, _ in heads)
            parts, later = [], []
            for head, reader in heads:
                cut = int(np.searchsorted(self._numbers(head), last, side="right"))
                if cut:
                    parts.append(head.slice(0, cut))
                rest = head.slice(cut)
                later.append((rest if rest.num_rows else next(reader, None), reader))
            from_several = len(parts) > 1
            piece = gathered(parts)
            if from_several:
                piece = piece.take(to_arrow(np.argsort(self._numbers(piece), kind="stable")))
            heads = later
            yield piece

    def _numbers(self, batch: pa.RecordBatch) -> NDArray[Any]:
        return to_numpy(batch.column(self._number))


def _bytes(batch: pa.RecordBatch) -> int:
    return int(batch.nbytes) + int(batch.num_rows) * _ROW_BYTES


def _read(run: IO[bytes]) -> _Batches:
    """The batches of a run; the file is closed at its end."""
    if run.tell():
        run.seek(0)
        with pa.ipc.open_stream(pa.PythonFile(run, "r")) as reader:
            yield from reader
    run.close()


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
