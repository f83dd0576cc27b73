"""Windows: the stream cut into pieces that wait together while R goes by.

If R is kept in memory nothing is gained by waiting: a window is the next piece of a batch, and is
not copied. If R must be read, tuples gather over several batches, until the window is full or the
stream pauses or ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from semistream.arrow_arrays import no_rows, to_arrow
from semistream.errors import StreamSchemaError
from semistream.metrics import Recorder
from semistream.row_bytes import row_bytes
from semistream.scanning.matcher import Matcher
from semistream.scanning.shape import ScanShape
from semistream.scanning.sizing import ScanPlan

__all__ = ["Window", "windows"]

_MOST_TUPLES: Final = 1 << 17
"""Of a window while R is kept: more would not stay in the processor's cache."""
_MOST_WAITING: Final = 1 << 26
"""Of any window: places are counted in 32 bits."""
_LOOK: Final = 1 << 16
"""Tuples that are measured at a time."""


class Window(NamedTuple):
    """Tuples that wait together; none at all for a pause of the stream."""

    batch: pa.RecordBatch
    widest: int
    """The most bytes that a tuple takes."""
    since: tuple[tuple[float, int], ...]
    """When they began to wait, and how many each time."""


def windows(
    batches: Iterator[pa.RecordBatch],
    shape: ScanShape,
    matcher: Matcher,
    plan: ScanPlan,
    recorder: Recorder,
) -> Iterator[Window]:
    """The stream in windows."""
    gathering = _Gathering(shape, matcher, plan, recorder)
    for batch in batches:
        if not isinstance(batch, pa.RecordBatch):
            raise StreamSchemaError(
                f"The stream gave a {type(batch).__name__}; it must give pyarrow.RecordBatch. "
                "A pa.Table gives them with to_batches()."
            )
        shape.check_batch(batch)
        recorder.arrived += batch.num_rows
        yield from gathering.add(batch)
        if not batch.num_rows:
            yield from gathering.rest()
            yield Window(no_rows(shape.plain_schema), 0, ())
    yield from gathering.rest()


class _Gathering:
    """The window that is being filled."""

    def __init__(
        self, shape: ScanShape, matcher: Matcher, plan: ScanPlan, recorder: Recorder
    ) -> None:
        self._shape = shape
        self._matcher = matcher
        self._recorder = recorder
        self._waits = not plan.kept
        self._copies = 2 if self._waits else int(shape.plain_schema != shape.stream_schema)
        self._most = _MOST_WAITING if self._waits else _MOST_TUPLES
        self._size = plan.window_bytes
        self._empty()

    def _empty(self) -> None:
        self._pieces: list[pa.RecordBatch] = []
        self._since: list[tuple[float, int]] = []
        self._room, self._places, self._widest = float(self._size), self._most, 0

    def add(self, batch: pa.RecordBatch) -> Iterator[Window]:
        """Take in a batch; yields the windows that are full."""
        pulled = self._recorder.clock()
        at = 0
        while at < batch.num_rows:
            rows = min(_LOOK if self._waits else _MOST_TUPLES, self._places, batch.num_rows - at)
            piece = self._shape.plain(batch.slice(at, rows))
            fits, size, widest = self._fitting(piece)
            if fits:
                self._take(piece.slice(0, fits), size, widest, pulled)
                at += fits
            if fits < rows or not self._waits or not self._places:
                yield from self.rest()
        if self._pieces:
            # The batch will be its owner's again.
            last = self._pieces[-1]
            self._pieces[-1] = last.take(to_arrow(np.arange(last.num_rows)))

    def rest(self) -> Iterator[Window]:
        """What has gathered, if anything."""
        if self._pieces:
            pieces, since, widest = self._pieces, tuple(self._since), self._widest
            batch = pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)
            pieces.clear()
            self._empty()
            yield Window(batch, widest, since)

    def _take(self, piece: pa.RecordBatch, size: float, widest: int, pulled: float) -> None:
        recorder, count, now = self._recorder, piece.num_rows, self._recorder.clock()
        self._pieces.append(piece)
        self._since.append((now, count))
        self._room -= size
        self._places -= count
        self._widest = max(self._widest, widest)
        recorder.waiting.add(max(0.0, now - pulled), count)
        recorder.stream_reads += count
        recorder.appends += count

    def _fitting(self, piece: pa.RecordBatch) -> tuple[int, float, int]:
        """How many of the first tuples there is room for, their bytes, and those of the widest.

        An empty window has room for one tuple, however wide: if it is too wide, output says so.
        """
        own = self._matcher.tuple_bytes(self._shape.values(piece))
        fixed = self._shape.fixed_tuple_bytes
        if fixed is not None and isinstance(own, int):
            each = own + self._copies * fixed
            fits = min(piece.num_rows, int(self._room // each))
            fits = fits or int(not self._pieces)
            return fits, fits * each, fixed
        wide = row_bytes(piece)
        ends = np.cumsum(self._copies * wide + own)
        fits = int(np.searchsorted(ends, self._room, side="right")) or int(not self._pieces)
        return (
            fits,
            float(ends[fits - 1]) if fits else 0.0,
            int(np.ceil(wide[:fits].max(initial=0))),
        )
