"""Result columns: memory for a piece of output that a kernel writes, and the batches made of it.

The kernel copies waiting tuples and master rows straight into the columns of the output. They
are a fragment of it: at most as many rows as fit one however wide they are.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.column_widths import column_width, is_large
from semistream.errors import MasterFormatError
from semistream.kernels.copying import SPILL
from semistream.kernels.results import USED_BYTES, USED_ROWS, Results
from semistream.kernels.row_gather import add_up, copy_varying
from semistream.parts.join_shape import JoinShape
from semistream.parts.output import Output
from semistream.parts.tuple_store import KeptColumn, TupleStore


def piece_rows(most: int, varying: int) -> int:
    """Rows of a piece if a fragment has room for `most`, with so many columns of varying width."""
    # Of several, the values are copied apart at the end: there are two of each then.
    return max(1, most // 2) if varying > 1 else most


class ResultColumns:
    """Columns for one fragment at a time."""

    def __init__(
        self, shape: JoinShape, stored: pa.Schema, store: TupleStore, output: Output
    ) -> None:
        """Of tuples in the store and rows of pages with the schema `stored`."""
        self._store = store
        self._output = output
        self._unmatched = shape.how == "left"
        self._fields = [stored.field(name) for name in shape.payload]
        self._columns = np.array([stored.get_field_index(n) for n in shape.payload], np.int64)
        self._widths = [column_width(field.type) for field in self._fields]
        # A boolean takes a byte until it is packed.
        self._row_widths = [1 if width == 0 else max(width, 0) for width in self._widths]
        varying = [place for place, width in enumerate(self._widths) if width < 0]
        self._numbers = np.full(len(self._fields), -1, np.int64)
        self._numbers[varying] = np.arange(len(varying))
        self._varying = len(varying)
        self._tuples: list[pa.Buffer] = []
        self._values: list[pa.Buffer] = []
        self._pool: pa.Buffer = None

    def open(self, kept: list[KeptColumn], flags: NDArray[np.uint8]) -> Results:
        """Empty columns for as many rows as fit a fragment; tuples are copied from those kept."""
        most = piece_rows(self._output.most_rows, self._varying)
        self._tuples = [_buffer(most * column.width) for column in kept]
        self._values = [_buffer(most * width) for width in self._row_widths]
        fixed = sum(buffer.size for buffer in (*self._tuples, *self._values))
        room = max(0, self._output.fragment_bytes - fixed) if self._varying else 0
        self._pool = _buffer(room + SPILL)
        bitmaps = np.full((len(self._fields), -(-most // 8)), 0xFF, np.uint8)
        self._bitmaps = bitmaps
        self.results = Results(
            most=most,
            used=np.zeros(2, np.int64),
            sources=np.array([column.address for column in kept], np.int64),
            strides=np.array([column.stride for column in kept], np.int64),
            widths=np.array([column.width for column in kept], np.int64),
            targets=_addresses(self._tuples),
            kept_flags=flags,
            flags=np.empty((most if self._store.has_nulls else 0, flags.shape[1]), np.uint8),
            columns=self._columns,
            values=_addresses(self._values),
            numbers=self._numbers,
            pool=self._pool.address,
            room=room,
            starts=np.zeros((self._varying, most), np.int64),
            ends=np.zeros((self._varying, most + 1), np.int32),
            valid=bitmaps.ctypes.data + np.arange(len(bitmaps), dtype=np.int64) * bitmaps.shape[1],
            has_nulls=np.zeros(len(self._fields), np.bool_),
            has_unmatched=self._unmatched,
        )
        return self.results

    def moved(self, kept: list[KeptColumn], flags: NDArray[np.uint8]) -> Results:
        """The same columns when the store's arrays have moved."""
        sources = np.array([column.address for column in kept], np.int64)
        self.results = self.results._replace(sources=sources, kept_flags=flags)
        return self.results

    def __len__(self) -> int:
        """Rows that were written."""
        return int(self.results.used[USED_ROWS])

    def close(self) -> tuple[pa.RecordBatch, pa.RecordBatch] | None:
        """The rows written, as stream tuples and master rows; None if there are none.

        The columns are theirs now, so nothing is held until `open`.
        """
        if self.results.used[USED_BYTES] < 0:
            raise MasterFormatError(
                "Rows of the master are wider than its manifest says. Build the master again."
            )
        found = self._batches() if len(self) else None
        self._tuples, self._values, self._pool = [], [], None
        return found

    def _batches(self) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        count = len(self)
        for buffer, width in zip(self._tuples, self.results.widths.tolist(), strict=True):
            buffer.resize(count * width, shrink_to_fit=True)
        flags = self.results.flags[:count] if self._store.has_nulls else None
        stream = self._store.batch_of(self._tuples, flags, count)
        columns = [self._column(place, count) for place in range(len(self._fields))]
        master = pa.RecordBatch.from_arrays(columns, schema=pa.schema(self._fields))
        return stream, master

    def _column(self, place: int, count: int) -> pa.Array:
        kind, width, values = self._fields[place].type, self._widths[place], self._values[place]
        bitmap = None
        if self.results.has_nulls[place]:
            bitmap = pa.py_buffer(self._bitmaps[place, : -(-count // 8)].copy())
        if width < 0:
            offsets, data = self._varying_values(int(self._numbers[place]), count)
            dtype = np.int64 if is_large(kind) else np.int32
            parts = [bitmap, pa.py_buffer(offsets.astype(dtype)), data]
            return pa.Array.from_buffers(kind, count, parts)
        if width == 0:
            bits = np.packbits(np.frombuffer(values, np.uint8, count), bitorder="little")
            return pa.Array.from_buffers(kind, count, [bitmap, pa.py_buffer(bits)])
        values.resize(count * width, shrink_to_fit=True)
        return pa.Array.from_buffers(kind, count, [bitmap, values])

    def _varying_values(self, number: int, count: int) -> tuple[NDArray[np.int32], pa.Buffer]:
        """Offsets and bytes of a varying column."""
        ends = self.results.ends[number, : count + 1]
        size = add_up(ends.ctypes.data, count)
        if self._varying == 1:
            self._pool.resize(int(self.results.used[USED_BYTES]), shrink_to_fit=True)
            return ends, self._pool
        data = _buffer(size + SPILL)
        starts, offsets = self.results.starts[number : number + 1], np.array([ends.ctypes.data])
        copy_varying(starts, offsets, count, _addresses([data]))
        return ends, data


def _buffer(size: int) -> pa.Buffer:
    # Arrow's allocator keeps memory that was given back; NumPy's asks the system each time.
    return pa.allocate_buffer(size, resizable=True)


def _addresses(buffers: list[pa.Buffer]) -> NDArray[np.int64]:
    return np.array([buffer.address for buffer in buffers], np.int64)
