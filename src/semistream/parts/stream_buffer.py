"""Stream buffer: the stream batch now being read, a chunk of it at a time.

Batches are pulled from any iterator. A batch belongs to whoever made it: the buffer refers to
the one it is reading and copies nothing, so only the codes of one chunk are its own memory.
An empty batch says "nothing more for now": the join goes on with what it has (an intermittent
stream, Naeem et al. 2011, §4.1).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.budget import Grant
from semistream.errors import StreamSchemaError
from semistream.metrics import Recorder
from semistream.parts.join_shape import JoinShape

BYTES_PER_ROW = 64
"""Codes, validity, casts of the key and whereabouts in R, per row of a chunk."""


class Arrivals(NamedTuple):
    """Stream tuples read at once: those with a key and their codes, and those without.

    `widest` is the most bytes that any tuple of their chunk takes.
    """

    batch: pa.RecordBatch
    codes: NDArray[np.int64]
    keyless: pa.RecordBatch
    widest: int

    def first(self, count: int) -> Arrivals:
        """The first `count` tuples that have a key."""
        return self._replace(batch=self.batch.slice(0, count), codes=self.codes[:count])

    def only(self, chosen: NDArray[np.bool_]) -> Arrivals:
        """The chosen ones of the tuples that have a key."""
        codes = self.codes[chosen]
        codes.flags.writeable = False
        return self._replace(batch=self.batch.filter(pa.array(chosen)), codes=codes)


class StreamBuffer:
    """What has arrived and is not yet read."""

    def __init__(
        self,
        batches: Iterator[pa.RecordBatch],
        shape: JoinShape,
        chunk_rows: int,
        grant: Grant,
        recorder: Recorder,
    ) -> None:
        """Nothing is pulled until the first `read`."""
        grant.take(chunk_rows * BYTES_PER_ROW)
        self._batches = batches
        self._shape = shape
        self._chunk_rows = chunk_rows
        self._recorder = recorder
        self._nothing = pa.RecordBatch.from_pylist([], shape.plain_schema)
        self._batch = self._nothing
        self._chunk = Arrivals(self._nothing, np.empty(0, np.int64), self._nothing, 0)
        self._batch_at = 0
        self._chunk_at = 0
        self._pulled_at = 0.0
        self.ended = False
        self.paused = False

    def read(self, limit: int) -> Iterator[Arrivals]:
        """At most `limit` tuples with a key, chunk by chunk, until the stream pauses or ends."""
        while limit > 0:
            if self._chunk_at == len(self._chunk.codes) and not self._next_chunk():
                return
            stop = min(self._chunk_at + limit, len(self._chunk.codes))
            arrivals = self._cut(stop)
            limit -= len(arrivals.codes)
            count = len(arrivals.codes)
            if count:
                waited = self._recorder.clock() - self._pulled_at
                self._recorder.waiting.add(max(waited, 0.0), count)
            yield arrivals

    def put_back(self, count: int) -> None:
        """The last `count` tuples of the last read had no room after all. O(1)."""
        self._chunk_at -= count

    def _cut(self, stop: int) -> Arrivals:
        start, self._chunk_at = self._chunk_at, stop
        keyless = self._chunk.keyless if start == 0 else self._nothing
        if start == 0 and keyless.num_rows:
            self._chunk = self._chunk._replace(keyless=self._nothing)
        batch = self._chunk.batch.slice(start, stop - start)
        return Arrivals(batch, self._chunk.codes[start:stop], keyless, self._chunk.widest)

    def _next_chunk(self) -> bool:
        """Move to the next chunk that has rows; False when the stream pauses or has ended."""
        if self._batch_at == self._batch.num_rows and not self._pull():
            return False
        rows = min(self._chunk_rows, self._batch.num_rows - self._batch_at)
        piece = self._shape.plain(self._batch.slice(self._batch_at, rows))
        self._batch_at += rows
        widest = self._shape.tuple_bytes(piece)
        codes, valid = self._shape.key_codes(piece)
        keyless = self._nothing
        if valid is not None:
            keyless = piece.filter(pa.array(~valid))
            piece, codes = piece.filter(pa.array(valid)), codes[valid]
            codes.flags.writeable = False
            self._recorder.unmatched += keyless.num_rows
        self._chunk, self._chunk_at = Arrivals(piece, codes, keyless, widest), 0
        return True

    def _pull(self) -> bool:
        batch = next(self._batches, None)
        if batch is None:
            self.ended = True
            return False
        if not isinstance(batch, pa.RecordBatch):
            raise StreamSchemaError(
                f"The stream gave a {type(batch).__name__}; it must give pyarrow.RecordBatch. "
                "A pa.Table gives them with to_batches()."
            )
        self._shape.check_batch(batch)
        self._batch, self._batch_at = batch, 0
        self._pulled_at = self._recorder.clock()
        self._recorder.arrived += batch.num_rows
        self.paused = not batch.num_rows
        return not self.paused
