"""Rows found in place: stream tuples whose pages the operating system holds need not wait.

The papers' joins wait for tuples that share a read. A page that is in memory already costs no
read, so there is nothing to share: its rows are looked up where they lie, and the tuple leaves
at once, matched or not. Tuples whose pages are not held go on to the algorithm behind, which
reads for many of them at a time.

    arrivals ─► sorted codes ─► pages in memory ──found, or not in R──► output
                                      │ not held
                                      └────────────────────────────────► algorithm

A chunk's codes are looked up in ascending order, each page once; the results are written in the
order of the stream, so that of its columns nothing is copied as long as each tuple has one row.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.budget import Grant
from semistream.errors import BudgetError
from semistream.kernels import in_place as kernels
from semistream.kernels.copying import SPILL
from semistream.kernels.in_place import Target, Whereabouts
from semistream.kernels.rows import FIELD
from semistream.metrics import Recorder
from semistream.parts.columns import array_of, fixed_dtype
from semistream.parts.join_shape import JoinShape
from semistream.parts.output import Output
from semistream.parts.row_arena import column_width, varying_array
from semistream.parts.stream_buffer import Arrivals, StreamBuffer
from semistream.relation.mapped_pages import MappedPages

_ANY = 1 << 40
_BYTES_PER_TUPLE = 8 + 8 + 8 + 12 + 8 + 4
"""Its place in the order, where its rows begin, a copy of both; whereabouts; numbers; marks."""
_BYTES_PER_VARYING = 8 + 4


def in_place_bytes(shape: JoinShape, stored: pa.Schema, tuples: int, rows: int) -> int:
    """What looking up takes, for chunks of so many tuples and so many result rows at a time."""
    columns = len(_wanted(shape))
    varying = sum(fixed_dtype(stored.field(name).type) is None for name in _wanted(shape))
    return tuples * _BYTES_PER_TUPLE + rows * (columns + varying * _BYTES_PER_VARYING)


def _wanted(shape: JoinShape) -> list[str]:
    """The master's columns that a result row, or the comparison of its key, needs."""
    return shape.matched_columns


class InPlace:
    """Answers stream tuples from mapped pages; those that it cannot answer are read behind it."""

    def __init__(
        self,
        stream: StreamBuffer,
        mapped: MappedPages,
        stored: pa.Schema,
        shape: JoinShape,
        output: Output,
        recorder: Recorder,
        tuples: int,
        grant: Grant,
    ) -> None:
        """Reads at most `tuples` at a time from `stream`."""
        grant.take(in_place_bytes(shape, stored, tuples, len(output.slots)))
        self._stream = stream
        self._mapped = mapped
        self._shape = shape
        self._output = output
        self._recorder = recorder
        names = _wanted(shape)
        self._schema = pa.schema([stored.field(name) for name in names])
        self._columns = np.array([stored.get_field_index(name) for name in names], np.int64)
        self._widths = np.array([column_width(field.type) for field in stored], np.int64)
        self._code = stored.get_field_index(shape.code_column)
        self._fields: NDArray[np.void] = np.zeros(len(stored), FIELD)
        self._found = Whereabouts(*(np.zeros(tuples, np.int32) for _ in range(3)))
        self._misses = stream.nothing
        self._misses_at = 0

    def answer(self, arrivals: Arrivals) -> Iterator[Arrivals]:
        self._mapped.check_files()
        codes, count = arrivals.codes, len(arrivals.codes)
        order = np.argsort(codes)
        found = Whereabouts(*(part[:count] for part in self._found))
        broken = kernels.locate(
            codes, order, self._mapped.index, self._widths, self._code, self._fields, found
        )
        if broken >= 0:
            raise RuntimeError(broken)
        rows = np.maximum(found.counts, 0)
        begins = np.cumsum(rows, dtype=np.int64) - rows
        total = int(begins[-1] + rows[-1]) if count else 0
        most = min(self._output.most_rows, len(self._output.slots))
        for start in range(0, total, most):
            stop = min(start + most, total)
            master = self._gather(order, begins, start, stop, found)
            yield master

    def _gather(
        self,
        order: NDArray[np.int64],
        begins: NDArray[np.int64],
        start: int,
        stop: int,
        found: Whereabouts,
    ) -> pa.RecordBatch:
        """Result rows `start` to `stop`, the master's part of them."""
        count, columns = stop - start, self._columns
        widths = self._widths[columns]
        varying = int(np.count_nonzero(widths < 0))
        values = [np.empty(count * max(width, 1) if width >= 0 else 0, np.uint8) for width in widths.tolist()]
        target = Target(
            columns,
            np.array([part.ctypes.data for part in values], np.int64),
            np.empty((varying, count), np.int64),
            np.zeros((varying, count + 1), np.int32),
            np.ones((len(columns), count), np.bool_),
            np.zeros(len(columns), np.bool_),
        )
        kernels.gather(
            order, begins, start, stop, self._mapped.index, self._widths, self._fields, found, target
        )
        return self._batch(values, target, count)

    def _batch(
        self, values: list[NDArray[np.uint8]], target: Target, count: int
    ) -> pa.RecordBatch:
        arrays, varying = [], 0
        for number, field in enumerate(self._schema):
            valid = target.valid[number] if target.has_nulls[number] else None
            dtype = fixed_dtype(field.type)
            if dtype is not None:
                arrays.append(array_of(values[number].view(dtype), field.type, valid))
                continue
            ends = target.ends[varying]
            size = kernels.add_up(ends, count)
            if size < 0:
                raise BudgetError("too wide")
            data = np.empty(size + SPILL, np.uint8)
            kernels.copy_varying(target.sources[varying], ends, count, data.ctypes.data)
            arrays.append(varying_array(field.type, ends, data, valid))
            varying += 1
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
