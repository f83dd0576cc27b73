"""Output: joined rows on their way out.

A fragment is what one probe gives. Large ones are sent as they are, small ones are staged until
they make a batch worth sending and are then copied together. The grant holds one fragment, the
staged ones and their copy. Batches that were sent belong to whoever takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.budget import Grant
from semistream.errors import BudgetError
from semistream.metrics import Recorder
from semistream.parts.join_shape import JoinShape
from semistream.parts.spare_memory import SpareMemory
from semistream.parts.stream_buffer import Arrivals
from semistream.row_bytes import Sizes

PAIR_BYTES = 28
"""A tuple and a row, and the codes and sizes that hand them on, per pair found at once."""
_ENOUGH_ROWS = 1024
_NARROW_TUPLE = 64
_STAGED_SHARE = 8
_LONGEST_STAGED = 16384
"""Staged rows leave after so many further arrivals, however few they are."""


def staging_bytes(
    fragment_bytes: int, pairs: int, widest_master_row: int, large: bool = False
) -> int:
    """What staging takes for fragments of that size and so many pairs at a time.

    `large`: most fragments are, so they are not staged.
    """
    staged = fragment_bytes // _STAGED_SHARE if large else fragment_bytes
    staged = min(staged, _ENOUGH_ROWS * 2 * (widest_master_row + _NARROW_TUPLE))
    return fragment_bytes + 2 * staged + pairs * PAIR_BYTES


class Pairs(NamedTuple):
    """Arrays for the pairs that one probe finds: a stream tuple and a master row each.

    Whoever probes says what the numbers are. A tuple is a slot of the stream table, or its place
    among arrivals; a row is its place on a page or in a look-up set, or its slot in the front
    stage.
    """

    tuples: NDArray[np.int32]
    rows: NDArray[np.int32]


class Output:
    """Staging of result rows; `matched` and `unmatched` yield batches when enough is staged."""

    def __init__(
        self,
        shape: JoinShape,
        widest_master_row: int,
        fragment_bytes: int,
        pairs: int,
        grant: Grant,
        recorder: Recorder,
        large: bool = False,
    ) -> None:
        """Room for fragments of `fragment_bytes`, made of at most `pairs` pairs."""
        size = staging_bytes(fragment_bytes, pairs, widest_master_row, large)
        grant.take(size)
        self._advised = 2 * grant.budget_bytes
        self._staged_limit = (size - fragment_bytes - pairs * PAIR_BYTES) // 2
        self.pairs = Pairs(np.empty(pairs, np.int32), np.empty(pairs, np.int32))
        """Lent to one probe at a time: what it finds is joined before the next begins."""
        self._shape = shape
        self._recorder = recorder
        self.fragment_bytes = fragment_bytes
        self._widest_master_row = widest_master_row
        self._widest_tuple = 0
        self._staged: list[pa.RecordBatch] = []
        self._staged_rows = 0
        self._staged_until = 0
        self._spare = SpareMemory()

    def arrived(self, arrivals: Arrivals) -> Iterator[pa.RecordBatch]:
        """Refuse tuples that no fragment could hold; send on those that have no key.

        Also sends what was staged by `put`, so it is called for empty arrivals as well.
        """
        self._widest_tuple = max(self._widest_tuple, arrivals.widest)
        widest = self._widest_tuple + self._widest_master_row
        if widest > self.fragment_bytes:
            advised = max(32 * widest, self._advised)
            raise BudgetError(
                f"A stream tuple and a master row together may take {widest:,} bytes, but a "
                f"piece of output may take {self.fragment_bytes:,}: parts are sized by the "
                f"first batch. Give the join {advised:,} bytes, or let the first batch have "
                "a tuple as wide as any."
            )
        yield from self._send()
        if self._staged and self._recorder.arrived >= self._staged_until:
            yield from self.flush()
        yield from self.unmatched(arrivals.keyless)

    @property
    def most_rows(self) -> int:
        """Rows that fit a fragment however wide they are."""
        widest = self._widest_tuple + self._widest_master_row
        return max(1, self.fragment_bytes // max(widest, 1))

    def cuts(self, count: int, sizes: Callable[[], Sizes]) -> Iterator[tuple[int, int]]:
        """Cut pairs into runs that fit a fragment; `sizes` tells how wide their rows are."""
        if count <= self.most_rows:
            yield 0, count
            return
        ends = np.cumsum(sizes() + self._widest_tuple)
        start = 0
        while start < count:
            base = int(ends[start - 1]) if start else 0
            fits = int(np.searchsorted(ends, base + self.fragment_bytes, side="right"))
            stop = max(start + 1, fits)
            yield start, stop
            start = stop

    def put(self, stream: pa.RecordBatch, master: pa.RecordBatch) -> None:
        """Stage result rows without sending: at most one fragment before `arrived` is called."""
        self.put_columns([*stream.columns, *master.columns], stream.num_rows)

    def put_columns(self, columns: list[pa.Array], rows: int) -> None:
        """The same, from the columns of both; the payload comes first among the master's."""
        self._recorder.pieces += 1
        self._add(columns[: len(self._shape.output_schema)], rows)

    def matched(self, stream: pa.RecordBatch, master: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Result rows: the i-th stream tuple with the i-th master row, whose payload is first."""
        self.put(stream, master)
        yield from self._send()

    def written(self, stream: pa.RecordBatch, master: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The same, of what compiled code has written."""
        width = len(self._shape.output_schema)
        self._recorder.compiled_columns += width
        self._add([*stream.columns, *master.columns][:width], stream.num_rows)
        yield from self._send()

    def unmatched(self, stream: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Stream tuples without a master row: with nulls in a left join, else nothing."""
        if self._shape.how != "left":
            return
        for start in range(0, stream.num_rows, self.most_rows):
            part = stream.slice(start, self.most_rows)
            nulls = [pa.nulls(part.num_rows, kind) for kind in self._shape.payload_types]
            self._add([*part.columns, *nulls], part.num_rows)
            yield from self._send()

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Send what is staged."""
        if self._staged:
            batch = self._staged[0] if len(self._staged) == 1 else pa.concat_batches(self._staged)
            self._staged.clear()
            self._staged_rows = 0
            yield batch

    def _add(self, columns: list[pa.Array], rows: int) -> None:
        schema = self._shape.output_schema
        if not self._staged:
            self._staged_until = self._recorder.arrived + _LONGEST_STAGED
        self._staged.append(pa.RecordBatch.from_arrays(columns, schema=schema))
        self._recorder.outputs += rows
        self._recorder.columns += len(columns)
        self._staged_rows += rows

    def _send(self) -> Iterator[pa.RecordBatch]:
        """Send what is enough; a large fragment goes alone, so that it is not copied."""
        newest = self._staged[-1].num_rows if self._staged else 0
        widest = self._widest_tuple + self._widest_master_row
        enough = min(_ENOUGH_ROWS, max(1, self._staged_limit // max(widest, 1)))
        if self._staged_rows >= enough:
            self._spare.give_back()
            large = self._staged.pop() if 2 * newest >= enough else None
            self._staged_rows -= newest if large is not None else 0
            yield from self.flush()
            if large is not None:
                yield large
