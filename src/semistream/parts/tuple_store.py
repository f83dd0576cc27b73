"""Tuple store: the columns of waiting stream tuples, by slot.

Columns of fixed width are NumPy arrays as long as the stream table; the rest is in a tuple
heap. The key of an exact codec is not stored: it is the code, which the stream table has.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.budget import Grant
from semistream.column_widths import fixed_dtype
from semistream.parts.columns import Values, array_of, valid_of, values_of
from semistream.parts.join_shape import JoinShape
from semistream.parts.tuple_heap import BYTES_PER_SLOT as HEAP_BYTES_PER_SLOT
from semistream.parts.tuple_heap import TupleHeap


class TupleLayout:
    """Where each stream column is kept, and what a slot costs."""

    def __init__(self, shape: JoinShape) -> None:
        """Sort the columns of the stream into key, fixed and varying ones."""
        self.schema: pa.Schema = shape.plain_schema
        self.key = shape.stored_key
        self.fixed: dict[str, np.dtype[np.generic]] = {}
        varying = []
        for field in self.schema:
            dtype = fixed_dtype(field.type)
            if field.name == self.key:
                continue
            if dtype is None:
                varying.append(field)
            else:
                self.fixed[field.name] = dtype
        self.varying = pa.schema(varying)

    @cached_property
    def slot_bytes(self) -> int:
        """Bytes per slot without the heap's rows."""
        values = sum(dtype.itemsize for dtype in self.fixed.values())
        return values + self.flag_bytes + (HEAP_BYTES_PER_SLOT if len(self.varying) else 0)

    @cached_property
    def flag_bytes(self) -> int:
        """Bytes per slot that say which fixed columns are not null, a bit each."""
        return (len(self.fixed) + 7) // 8

    def varying_bytes(self, sample: pa.RecordBatch) -> float:
        """Average bytes per tuple that go to the heap, judged by a sample."""
        if not len(self.varying) or not sample.num_rows:
            return 64.0 * len(self.varying)
        return float(sample.select(self.varying.names).nbytes) / float(sample.num_rows)


class KeptColumn(NamedTuple):
    """Where a column's values are, by slot: so many bytes each, so many apart."""

    address: int
    stride: int
    width: int


class TupleStore:
    """Columns by slot; put, gather and release in O(tuples)."""

    def __init__(self, layout: TupleLayout, capacity: int, heap_bytes: int, grant: Grant) -> None:
        """Empty slots."""
        self._layout = layout
        self._heap: TupleHeap | None = None
        if len(layout.varying):
            self._heap = TupleHeap(layout.varying, capacity, heap_bytes, grant)
            grant.take(capacity * (layout.slot_bytes - HEAP_BYTES_PER_SLOT))
        else:
            grant.take(capacity * layout.slot_bytes)
        self._values = {name: np.zeros(capacity, dtype) for name, dtype in layout.fixed.items()}
        self.flags = np.full((capacity, layout.flag_bytes), 0xFF, np.uint8)
        """Which fixed columns of a slot are not null, a bit each."""
        self.has_nulls = False
        """Whether there ever was a null in one of them."""
        self._grant = grant
        self._capacity = capacity

    def how_many_fit(self, batch: pa.RecordBatch) -> int:
        """How many of the batch's first rows can be put now."""
        if self._heap is None:
            return int(batch.num_rows)
        return self._heap.how_many_fit(batch.select(self._layout.varying.names))

    @property
    def heap_limit(self) -> int:
        """Bytes of rows that the heap can hold; 0 without one."""
        return self._heap.limit if self._heap else 0

    def put(self, slots: NDArray[np.int32], batch: pa.RecordBatch) -> None:
        """Keep the tuples of `batch` under `slots`."""
        arriving, flags = self.arriving(batch)
        for column, values in zip(arriving, self._values.values(), strict=True):
            values[slots] = column
        if len(flags):
            self.flags[slots] = flags
        if self._heap is not None:
            self._heap.put(slots, batch.select(self._layout.varying.names))

    def arriving(self, batch: pa.RecordBatch) -> tuple[list[Values], NDArray[np.uint8]]:
        """The fixed columns of a batch as they will be kept, and flags if there ever was a null."""
        columns = [batch.column(name) for name in self._values]
        dtypes = [values.dtype for values in self._values.values()]
        found = [values_of(*each) for each in zip(columns, dtypes, strict=True)]
        self.has_nulls = self.has_nulls or any(column.null_count for column in columns)
        if not self.has_nulls:
            return found, self.flags[:0]
        valid = np.stack([valid_of(column) for column in columns], axis=1)
        return found, np.packbits(valid, axis=1, bitorder="little")

    @property
    def is_flat(self) -> bool:
        """Whether all columns are of fixed width."""
        return self._heap is None

    def fixed_columns(self) -> list[KeptColumn]:
        """Where the fixed columns are, in the order of `arriving`; valid until a resize."""
        return [
            KeptColumn(values.ctypes.data, values.itemsize, values.itemsize)
            for values in self._values.values()
        ]

    def all_columns(self, nodes: NDArray[np.void]) -> list[KeptColumn]:
        """The same for all columns of a flat store; `nodes`, by slot, begin with the codes."""
        return self._with_key(self.fixed_columns(), nodes)

    def arrived_columns(self, columns: list[Values], codes: NDArray[np.int64]) -> list[KeptColumn]:
        """The same for tuples that were not put, from what `arriving` gives of them."""
        fixed = [KeptColumn(one.ctypes.data, one.itemsize, one.itemsize) for one in columns]
        return self._with_key(fixed, codes)

    def _with_key(self, columns: list[KeptColumn], codes: NDArray[Any]) -> list[KeptColumn]:
        """All columns in the order of the schema; each item of `codes` begins with its code."""
        fixed = dict(zip(self._values, columns, strict=True))
        key = self._layout.key
        if key is not None:
            width = self._layout.schema.field(key).type.bit_width // 8
            fixed[key] = KeptColumn(codes.ctypes.data, codes.itemsize, width)
        return [fixed[name] for name in self._layout.schema.names]

    def batch_of(
        self, columns: list[pa.Buffer], flags: NDArray[np.uint8] | None, count: int
    ) -> pa.RecordBatch:
        """Tuples of a flat store, from copies of their columns and flags."""
        arrays, places = [], {name: place for place, name in enumerate(self._values)}
        for field, column in zip(self._layout.schema, columns, strict=True):
            place, valid = places.get(field.name), None
            if flags is not None and place is not None:
                valid = _bit(flags[:, place // 8], place)
            dtype = fixed_dtype(field.type)
            arrays.append(array_of(np.frombuffer(column, dtype, count), field.type, valid))
        return pa.RecordBatch.from_arrays(arrays, schema=self._layout.schema)

    def gather(self, slots: NDArray[np.int32], codes: NDArray[np.int64]) -> pa.RecordBatch:
        """The tuples under `slots`, whose codes are `codes`, in that order."""
        varying = self._heap.gather(slots) if self._heap is not None else None
        columns = []
        for field in self._layout.schema:
            if field.name == self._layout.key:
                columns.append(_key_column(codes, field.type))
            elif field.name in self._values:
                columns.append(self._fixed_column(field, slots))
            else:
                assert varying is not None
                columns.append(varying.column(field.name))
        return pa.RecordBatch.from_arrays(columns, schema=self._layout.schema)

    def resize(self, capacity: int, heap_bytes: int) -> None:
        """Have more or fewer slots; those beyond must be free."""
        per_slot = self._layout.slot_bytes - (HEAP_BYTES_PER_SLOT if self._heap else 0)
        more = (capacity - self._capacity) * per_slot
        if more > 0:
            self._grant.take(more)
        for values in self._values.values():
            values.resize(capacity, refcheck=False)
        self.flags.resize((capacity, self.flags.shape[1]), refcheck=False)
        self.flags[self._capacity :] = 0xFF
        if self._heap is not None:
            self._heap.resize(capacity, heap_bytes)
        if more < 0:
            self._grant.give(-more)
        self._capacity = capacity

    def lower_heap(self, heap_bytes: int) -> bool:
        """Hold fewer bytes of rows from now on; False while there are still more."""
        if self._heap is None:
            return True
        self._heap.set_bytes(heap_bytes)
        return self._heap.fits

    def release(self, slots: NDArray[np.int32]) -> None:
        """The tuples under `slots` are finished."""
        if self._heap is not None and len(slots):
            self._heap.release(slots)

    def check(self) -> None:
        """Assert the heap's invariants."""
        if self._heap is not None:
            self._heap.check()

    def _fixed_column(self, field: pa.Field, slots: NDArray[np.int32]) -> pa.Array:
        values: Values = np.take(self._values[field.name], slots)
        valid = None
        if self.has_nulls:
            place = list(self._values).index(field.name)
            valid = _bit(np.take(self.flags[:, place // 8], slots), place)
        return array_of(values, field.type, valid)


def _bit(flags: NDArray[np.uint8], place: int) -> NDArray[np.bool_]:
    valid: NDArray[np.bool_] = (flags >> np.uint8(place % 8)) & np.uint8(1) != 0
    return valid


def _key_column(codes: NDArray[np.int64], kind: pa.DataType) -> pa.Array:
    width = kind.bit_width // 8
    values = codes if width == 8 else codes.astype(np.dtype(f"i{width}"))
    return array_of(values, kind, None)
