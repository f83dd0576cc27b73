"""Row finder: finds the rows of a look-up set by asking a database for their keys.

    wanted codes ─► one query ─► rows by code, laid out in the set

What a frame finder does with pages, in one round trip and without the rows that nobody wants.
"""

from __future__ import annotations

from threading import Lock

import numpy as np
from numpy.typing import NDArray

from semistream.errors import RowRoomError
from semistream.kernels import rows as kernels
from semistream.kernels.pages import DONE, GRANULES, ROWS
from semistream.parts.disk_buffer import row_ranges
from semistream.parts.frame_finder import ReadCounts
from semistream.parts.look_up_set import LookUpSet
from semistream.parts.row_arena import RowLayout
from semistream.relation import MasterTable

__all__ = ["RowFinder", "row_finder_bytes"]

_ROOM = 4
"""Bytes for an answer, for each byte of rows that a set can hold: rows differ in width."""
_SPARE = 2
"""Granules behind the last row that copying may touch."""


def row_finder_bytes(found_bytes: int) -> int:
    """What a finder takes: one answer of the database."""
    return _ROOM * found_bytes


class RowFinder:
    """Asks for the rows of all wanted codes; several threads take turns."""

    def __init__(
        self, master: MasterTable, code_column: str, rows: RowLayout, found_bytes: int, io: str
    ) -> None:
        """Rows are laid out as `rows` says; whoever makes it has been granted its bytes."""
        self._reader = master.reader(io)
        self._layout = rows
        self._code_column = code_column
        self._codes_of = master.codec.codes
        self._most_bytes = _ROOM * found_bytes
        self._one_asks = Lock()

    def find(self, look_ups: LookUpSet) -> ReadCounts:
        """Lay out all rows of the wanted codes in the set, or of as many as have room."""
        with self._one_asks:
            return self._find(look_ups)

    def _find(self, look_ups: LookUpSet) -> ReadCounts:
        found, layout = look_ups.found, self._layout
        wanted = look_ups.wanted.codes[: found.used[DONE]]
        batch = None
        while batch is None:
            try:
                batch = self._reader.rows_of(wanted, self._most_bytes)
            except RowRoomError:
                # These rows are far wider than others. Without any, keys are looked up alone.
                wanted = wanted[: len(wanted) // 2]
        codes, _ = self._codes_of([batch.column(self._code_column)])
        first = np.searchsorted(codes, wanted, side="left")
        counts = np.searchsorted(codes, wanted, side="right") - first
        chosen = layout.chosen(batch.select(layout.schema.names), _rows(first, counts))
        lengths = np.empty(len(chosen.rows), np.int32)
        kernels.measure_rows(chosen.fields, chosen.columns, layout.head, chosen.rows, lengths)
        ends = np.cumsum(lengths, dtype=np.int64)
        fitting = int(np.searchsorted(ends, len(found.memory) - _SPARE, side="right"))
        until = np.cumsum(counts)
        done = int(np.searchsorted(until, min(fitting, len(found.starts)), side="right"))
        taken = int(until[done - 1]) if done else 0
        starts = ends[:taken] - lengths[:taken]
        kernels.put_rows(
            found.memory,
            chosen.fields,
            chosen.columns,
            layout.head,
            layout.flags,
            chosen.rows[:taken],
            starts,
            lengths[:taken],
            np.zeros(taken, np.int32),
            found.nulls,
        )
        found.starts[:taken], found.counts[:done] = starts, counts[:done]
        found.used[GRANULES] = ends[taken - 1] if taken else 0
        found.used[ROWS], found.used[DONE] = taken, done
        return ReadCounts(1, 0, batch.nbytes)

    def close(self) -> None:
        """Let go of the reader."""
        self._reader.close()


def _rows(first: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows of each code, one code after the other."""
    some = counts > 0
    if not some.any():
        return np.empty(0, np.int64)
    return row_ranges(first[some].astype(np.int32), counts[some].astype(np.int32))
