"""Stream buffer: the stream batch now being read, a chunk of it at a time.

Batches are pulled from any iterator. A batch belongs to whoever made it: the buffer refers to
the one it is reading and copies nothing, so only the codes of one chunk are its own memory.
Tuples whose key the membership filter of R excludes are set apart with those that have no key.
An empty batch says "nothing more for now" (an intermittent stream, Naeem et al. 2011, §4.1):
asking again may block, so the join first finishes all that waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.arrow_arrays import no_rows, to_arrow
from semistream.budget import Grant
from semistream.errors import StreamSchemaError
from semistream.metrics import Recorder
from semistream.parts.join_shape import JoinShape
from semistream.relation import MembershipFilter

BYTES_PER_ROW = 64
"""Per row of a chunk: its code, validity, casts of the key, and its first and last page in R."""


_END: Final = object()


class Arrivals(NamedTuple):
    """Stream tuples read at once: those with a key and their codes, and those without.

    A key that is certainly not in R counts as none.
    `widest` is the most bytes that any tuple of their chunk takes.
    """

    batch: pa.RecordBatch
    codes: NDArray[np.int64]
    keyless: pa.RecordBatch
    widest: int

    def between(self, start: int, stop: int) -> Arrivals:
        """Some of the tuples that have a key, and none without."""
        batch = self.batch.slice(start, max(0, min(stop, len(self.codes)) - start))
        return self._replace(batch=batch, codes=self.codes[start:stop])

    def keyed(self) -> Arrivals:
        """The tuples that have a key."""
        return self._replace(keyless=self.keyless.slice(0, 0))

    def only(self, chosen: NDArray[np.bool_]) -> Arrivals:
        """The chosen ones of the tuples that have a key."""
        codes = self.codes[chosen]
        codes.flags.writeable = False
        return self.keyed()._replace(batch=self.batch.filter(to_arrow(chosen)), codes=codes)


def no_arrivals(shape: JoinShape) -> Arrivals:
    """Arrivals without a tuple."""
    nothing = no_rows(shape.plain_schema)
    no_codes: NDArray[np.int64] = np.empty(0, np.int64)
    no_codes.flags.writeable = False
    return Arrivals(nothing, no_codes, nothing, 0)


class TupleSource(Protocol):
    """Where an algorithm reads stream tuples: the stream buffer, or a stage in front of it.

    Whoever reads gives every item, also an empty one, to `Output.arrived` before asking for the
    next. It is the signal to let results out: a stage in front stages its hits in the output and
    then gives an item, which has no tuples when all of them were hits.
    """

    nothing: Arrivals
    """No tuples."""

    @property
    def ended(self) -> bool:
        """Whether no tuple will come any more."""

    @property
    def paused(self) -> bool:
        """Whether no tuple has arrived for now."""

    @property
    def held(self) -> int:
        """Tuples that stages have read and not yet given."""

    def read(self, limit: int) -> Iterator[Arrivals]:
        """At most `limit` tuples with a key, in items that may be empty.

        Ends when so many were given, or the stream pauses or ends.
        """

    def put_back(self, count: int) -> None:
        """The last `count` tuples of the last read had no room after all."""

    def resume(self) -> None:
        """Nothing waits any more: ask again after a pause."""


class StreamBuffer:
    """What has arrived and is not yet read."""

    def __init__(
        self,
        batches: Iterator[pa.RecordBatch],
        shape: JoinShape,
        chunk_rows: int,
        grant: Grant,
        recorder: Recorder,
        members: MembershipFilter | None = None,
        arrived_at: Callable[[], float] | None = None,
    ) -> None:
        """Nothing is pulled until the first `read`. `members` tells which keys R may have.

        A pushed stream checks and counts batches as they arrive; `arrived_at` then says when
        the one pulled last did.
        """
        grant.take(chunk_rows * BYTES_PER_ROW)
        self._batches = batches
        self._shape = shape
        self._chunk_rows = chunk_rows
        self._recorder = recorder
        self._members = members
        self._arrived_at = arrived_at
        self.nothing = no_arrivals(shape)
        """Arrivals without a tuple."""
        self._nothing = self._batch = self.nothing.batch
        self._chunk = self.nothing
        self._batch_at = 0
        self._chunk_at = 0
        self._pulled_at = 0.0
        self._waited = 0.0
        self.ended = False
        self.paused = False

    def read(self, limit: int) -> Iterator[Arrivals]:
        """At most `limit` tuples with a key, chunk by chunk, until the stream pauses or ends."""
        while limit > 0 and not self.paused:
            if self._chunk_at == len(self._chunk.codes) and not self._next_chunk():
                return
            stop = min(self._chunk_at + limit, len(self._chunk.codes))
            arrivals = self._cut(stop)
            limit -= len(arrivals.codes)
            count = len(arrivals.codes)
            if count:
                self._waited = max(0.0, self._recorder.clock() - self._pulled_at)
                self._recorder.waiting.add(self._waited, count)
                self._recorder.stream_reads += count
            yield arrivals

    @property
    def held(self) -> int:
        """It is no stage."""
        return 0

    def put_back(self, count: int) -> None:
        """The last `count` tuples of the last read had no room after all. O(1)."""
        self._chunk_at -= count
        self._recorder.waiting.add(self._waited, -count)
        self._recorder.stream_reads -= count

    def resume(self) -> None:
        """Nothing waits any more: ask again after a pause. O(1)."""
        self.paused = False

    def restart(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Another stream of the same schema, when the last one has ended and all of it is read."""
        self._batches = batches
        self._batch, self._batch_at = self._nothing, 0
        self.ended = self.paused = False

    @property
    def unread(self) -> int:
        """How many tuples were pulled and are not yet read."""
        return int(self._batch.num_rows) - self._batch_at + len(self._chunk.codes) - self._chunk_at

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
        if self._members is not None:
            valid = self._exclude(self._members, codes, valid)
        keyless = self._nothing
        if valid is not None:
            keyless = piece.filter(to_arrow(~valid))
            piece, codes = piece.filter(to_arrow(valid)), codes[valid]
            codes.flags.writeable = False
            self._recorder.unmatched += keyless.num_rows
        self._chunk, self._chunk_at = Arrivals(piece, codes, keyless, widest), 0
        return True

    def _exclude(
        self,
        members: MembershipFilter,
        codes: NDArray[np.int64],
        valid: NDArray[np.bool_] | None,
    ) -> NDArray[np.bool_] | None:
        """Which tuples have a key that R may have (None: all)."""
        keyed, passed = len(codes), members.may_contain(codes)
        if valid is not None:
            keyed = int(np.count_nonzero(valid))
            passed &= valid
        count = int(np.count_nonzero(passed))
        self._recorder.filtered += keyed - count
        return None if count == len(codes) else passed

    def _pull(self) -> bool:
        batch: object = next(self._batches, _END)
        if batch is _END:
            self.ended = True
            return False
        if not isinstance(batch, pa.RecordBatch):
            raise StreamSchemaError(
                f"The stream gave a {type(batch).__name__}; it must give pyarrow.RecordBatch. "
                "A pa.Table gives them with to_batches()."
            )
        self._batch, self._batch_at = batch, 0
        if self._arrived_at is None:
            self._shape.check_batch(batch)
            self._pulled_at = self._recorder.clock()
            self._recorder.arrived += batch.num_rows
        else:
            self._pulled_at = self._arrived_at()
        self.paused = not batch.num_rows
        return not self.paused
