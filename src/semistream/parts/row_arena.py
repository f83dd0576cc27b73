"""Row arena: master rows kept by slot, each in one piece.

The rows of a front stage are asked for in any order. In Arrow's columns each value lies
somewhere else, and fetching it waits for memory; here a row's values lie together, a cache
line or two, and are turned into columns as they leave. Rows are appended; dead ones are swept
out in place when the end is reached, and some of the space is spare so that this is seldom.

Nested columns cannot be laid out so: for them there is the tuple heap, used in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.budget import Grant
from semistream.column_widths import column_width, fixed_dtype, is_flat, is_large
from semistream.kernels import rows as kernels
from semistream.kernels.copying import SPILL
from semistream.kernels.rows import FIELD, GRANULE
from semistream.parts.columns import array_of

Slots = NDArray[np.int32]
Rows = NDArray[np.int64]

BYTES_PER_SLOT = 8
"""Where the row begins, in granules; free slots have -1."""
_SPARE = 8
"""One byte in so many is spare, so that dead rows are swept out seldom, not for each new one."""
SPARE_FACTOR = _SPARE / (_SPARE - 1)
"""Bytes of memory for each byte of rows."""
_HEADER = 8
_WORDS = (8, 4, 2, 1)


class Field(NamedTuple):
    """A column and where it stands in a row."""

    number: int
    place: int
    dtype: np.dtype[Any]


class RowLayout:
    """Where each column stands in a row's bytes."""

    def __init__(self, schema: pa.Schema) -> None:
        """Columns of the widest words first, so that all are aligned."""
        self.schema = schema
        dtypes = [fixed_dtype(field.type) for field in schema]
        self.words: dict[int, list[Field]] = {}
        at = _HEADER
        for width in _WORDS:
            fields = []
            for number, dtype in enumerate(dtypes):
                if dtype is not None and dtype.kind != "V" and dtype.itemsize == width:
                    fields.append(Field(number, at // width, dtype))
                    at += width
            if fields:
                self.words[width] = fields
        at = -(-at // 4) * 4
        self.varying = [number for number, dtype in enumerate(dtypes) if dtype is None]
        self.ends = at // 4
        at += 4 * len(self.varying)
        self.blobs = []
        for number, dtype in enumerate(dtypes):
            if dtype is not None and dtype.kind == "V":
                self.blobs.append(Field(number, at, dtype))
                at += dtype.itemsize
        self.flags = at
        self.head = at + -(-len(schema) // 8)
        """Bytes before those of the varying columns."""
        self.columns: NDArray[np.int64] = np.arange(len(schema))
        self._widths = [column_width(field.type) for field in schema]
        self.places = [0] * len(schema)
        for width, fields in self.words.items():
            for field in fields:
                self.places[field.number] = field.place * width
        for field in self.blobs:
            self.places[field.number] = field.place
        for order, number in enumerate(self.varying):
            self.places[number] = (self.ends + order) * 4

    def chosen(self, batch: pa.RecordBatch, rows: Rows) -> Chosen:
        """Some rows of a batch; valid as long as the batch is."""
        return Chosen(self._fields(batch), self.columns, rows)

    def _fields(self, batch: pa.RecordBatch) -> NDArray[np.void]:
        fields = np.zeros(batch.num_columns, FIELD)
        for number, column in enumerate(batch.columns):
            addresses = [0 if part is None else part.address for part in column.buffers()]
            values = addresses[-1]
            offsets = addresses[1] if len(addresses) == 3 else 0
            valid = addresses[0] if column.null_count else 0
            width, place = self._widths[number], self.places[number]
            fields[number] = (values, offsets, valid, column.offset, width, place)
        return fields

    @classmethod
    def of_known(cls, schema: pa.Schema) -> RowLayout:
        """The layout of those columns that can be laid out."""
        return cls(pa.schema([field for field in schema if cls.holds(pa.schema([field]))]))

    @staticmethod
    def holds(schema: pa.Schema) -> bool:
        """Whether all columns can be laid out so."""
        return all(is_flat(field.type) for field in schema)


class Chosen(NamedTuple):
    """Rows to be laid out: the columns of a page for the kernels, and which rows."""

    fields: NDArray[np.void]
    columns: NDArray[np.int64]
    rows: Rows

    def first(self, count: int) -> Chosen:
        """The first `count` of them."""
        return self._replace(rows=self.rows[:count])


class LaidOut(NamedTuple):
    """Rows that are laid out already, in another block, from `starts` on."""

    block: RowBlock
    starts: NDArray[np.int64]

    def first(self, count: int) -> LaidOut:
        """The first `count` of them."""
        return self._replace(starts=self.starts[:count])


class RowBlock:
    """Memory for rows in one piece each, which come out of it as columns."""

    def __init__(self, schema: pa.Schema, nbytes: int) -> None:
        """Room for so many bytes of rows."""
        self.layout = RowLayout(schema)
        self.memory: NDArray[np.int64] = np.zeros(nbytes // GRANULE, np.int64)
        self.nulls: NDArray[np.bool_] = np.zeros(len(schema), np.bool_)
        """Which columns may have nulls."""

    def lengths(self, starts: NDArray[np.int64]) -> NDArray[np.int32]:
        """How many granules the rows at `starts` take."""
        return self.memory.view(np.int32)[2 * starts + 1]

    def gather(self, starts: NDArray[np.int64]) -> pa.RecordBatch:
        """The rows at `starts`, in that order, as columns."""
        schema = self.layout.schema
        columns: list[pa.Array | None] = [None] * len(schema)
        self._take_fixed(starts, columns)
        self._take_varying(starts, columns)
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _take_fixed(self, starts: NDArray[np.int64], columns: list[pa.Array | None]) -> None:
        schema = self.layout.schema
        for width, fields in self.layout.words.items():
            out = np.empty((len(fields), len(starts)), f"i{width}")
            places = np.array([field.place for field in fields])
            kernels.take_values(self.memory.view(out.dtype), starts, places, out)
            for (number, _, dtype), values in zip(fields, out, strict=True):
                kind = schema.field(number).type
                columns[number] = array_of(values.view(dtype), kind, self._valid(starts, number))
        for number, place, dtype in self.layout.blobs:
            blobs = np.empty((len(starts), dtype.itemsize), np.uint8)
            kernels.take_blobs(self.memory.view(np.uint8), starts, place, blobs)
            kind, valid = schema.field(number).type, self._valid(starts, number)
            columns[number] = array_of(blobs.reshape(-1).view(dtype), kind, valid)

    def _take_varying(self, starts: NDArray[np.int64], columns: list[pa.Array | None]) -> None:
        layout = self.layout
        data, words = self.memory.view(np.uint8), self.memory.view(np.int32)
        offsets = np.empty((len(layout.varying), len(starts) + 1), np.int32)
        kernels.take_ends(words, starts, layout.ends, layout.head, offsets)
        for place, number in enumerate(layout.varying):
            before = layout.ends + place - 1 if place else -1
            out = np.empty(offsets[place, -1] + SPILL, np.uint8)
            kernels.take_varying(data, words, starts, before, layout.head, offsets[place], out)
            kind, valid = layout.schema.field(number).type, self._valid(starts, number)
            columns[number] = varying_array(kind, offsets[place], out, valid)

    def _valid(self, starts: NDArray[np.int64], number: int) -> NDArray[np.bool_] | None:
        """Which values of a column are there; None when all rows ever put had it."""
        if not self.nulls[number]:
            return None
        valid = np.empty(len(starts), np.bool_)
        place = self.layout.flags + number // 8
        kernels.take_flags(self.memory.view(np.uint8), starts, place, number % 8, valid)
        return valid


class RowArena:
    """Rows by slot in one block of memory."""

    def __init__(self, schema: pa.Schema, capacity: int, arena_bytes: int, grant: Grant) -> None:
        """An empty arena."""
        self._grant = grant
        self._granted = arena_bytes + capacity * BYTES_PER_SLOT
        grant.take(self._granted)
        self._block = RowBlock(schema, arena_bytes)
        self._at = np.full(capacity, -1, np.int64)
        self._end = 0
        self._living = 0
        self.set_bytes(arena_bytes)

    @property
    def arena_bytes(self) -> int:
        """Bytes for rows, dead ones and spare room included."""
        return self._granted - len(self._at) * BYTES_PER_SLOT

    @property
    def free_bytes(self) -> int:
        """Bytes of rows that could be put, dead rows not counted against them."""
        return self.limit - self._living * GRANULE

    @property
    def fits(self) -> bool:
        """Whether the rows held are within the limit, which may have been lowered."""
        return self._living * GRANULE <= self.limit

    @property
    def layout(self) -> RowLayout:
        """How a row lies in one piece."""
        return self._block.layout

    def sizes(self, chosen: Chosen | LaidOut) -> NDArray[np.float64]:
        """Bytes that some rows take here."""
        if isinstance(chosen, LaidOut):
            lengths = chosen.block.lengths(chosen.starts)
        else:
            lengths = np.empty(len(chosen.rows), np.int32)
            head = self.layout.head
            kernels.measure_rows(chosen.fields, chosen.columns, head, chosen.rows, lengths)
        return np.multiply(lengths, float(GRANULE), dtype=np.float64)

    def how_many_fit(self, sizes: NDArray[np.float64]) -> int:
        """How many of the first rows of these sizes can be put now. O(rows)."""
        return int(np.searchsorted(np.cumsum(sizes), self.free_bytes, side="right"))

    def put(self, slots: Slots, chosen: Chosen | LaidOut, sizes: NDArray[np.float64]) -> None:
        """Keep some rows, copied, under `slots`; `how_many_fit` said that they fit."""
        lengths = (sizes / GRANULE).astype(np.int32)
        total = int(lengths.sum())
        if (self._end + total) * GRANULE > self._block.memory.nbytes - SPILL:
            self.compact()
        starts = np.cumsum(lengths, dtype=np.int64) - lengths + self._end
        block, layout = self._block, self._block.layout
        if isinstance(chosen, LaidOut):
            source = chosen.block
            kernels.copy_rows(source.memory, chosen.starts, block.memory, starts, slots)
            block.nulls |= source.nulls
        else:
            kernels.put_rows(
                block.memory,
                chosen.fields,
                chosen.columns,
                layout.head,
                layout.flags,
                chosen.rows,
                starts,
                lengths,
                slots,
                block.nulls,
            )
        self._at[slots] = starts
        self._end += total
        self._living += total

    def pieces(self, slots: Slots) -> Iterator[tuple[None, pa.RecordBatch]]:
        """As a tuple heap gives rows: all in one piece."""
        yield None, self.gather(slots)

    def gather(self, slots: Slots) -> pa.RecordBatch:
        """The rows under `slots`, in that order."""
        return self._block.gather(self._at[slots])

    def release(self, slots: Slots) -> None:
        """The rows under `slots` are needed no more."""
        self._living -= kernels.drop_rows(self._block.memory.view(np.int32), self._at[slots])
        self._at[slots] = -1

    def resize(self, capacity: int, arena_bytes: int) -> None:
        """Have slots and bytes for more or fewer rows; what is beyond must be free."""
        before, after = self._granted, arena_bytes + capacity * BYTES_PER_SLOT
        if after > before:
            self._grant.take(after - before)
        self._granted = after
        old = len(self._at)
        self._at.resize(capacity, refcheck=False)
        self._at[old:] = -1
        if self._end * GRANULE > arena_bytes - SPILL:
            self.compact()
        self._block.memory.resize(arena_bytes // GRANULE, refcheck=False)
        self.set_bytes(arena_bytes)
        if after < before:
            self._grant.give(before - after)

    def belong_to(self, grant: Grant) -> None:
        """From now on its bytes are taken from this grant."""
        grant.take(self._granted)
        self._grant.give(self._granted)
        self._grant = grant

    def set_bytes(self, arena_bytes: int) -> None:
        """Hold fewer or more bytes of rows from now on; the grant does not change."""
        self.limit = max(0, arena_bytes - arena_bytes // _SPARE - SPILL)

    def compact(self) -> bool:
        """Sweep the dead rows out; False when there are none."""
        end = kernels.slide_rows(
            self._block.memory, self._block.memory.view(np.int32), self._at, self._end
        )
        swept, self._end = end < self._end, end
        return swept

    def move(self, old: Slots, new: Slots) -> None:
        """Rename slots: all that are used, `new` being the lowest ones."""
        starts = self._at[old]
        self._at[:] = -1
        self._at[new] = starts
        self._block.memory.view(np.int32)[2 * starts] = new

    def check(self) -> None:
        """Assert that slots and rows point at each other, and that the limit holds."""
        words = self._block.memory.view(np.int32)
        here, found = 0, 0
        while here < self._end:
            slot, length = int(words[2 * here]), int(words[2 * here + 1])
            assert length > 0, "a row has no length"
            if slot >= 0:
                assert self._at[slot] == here, "a slot points elsewhere than at its row"
                found += length
            here += length
        assert here == self._end <= len(self._block.memory)
        assert found == self._living
        assert np.count_nonzero(self._at >= 0) == len(np.unique(self._at[self._at >= 0]))


def varying_array(
    kind: pa.DataType,
    offsets: NDArray[np.int32],
    data: NDArray[np.uint8],
    valid: NDArray[np.bool_] | None,
) -> pa.Array:
    """A column of varying size from its offsets and bytes, which it takes over."""
    wide = offsets.astype(np.int64) if is_large(kind) else offsets
    bitmap = None
    if valid is not None:
        bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [bitmap, pa.py_buffer(wide), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)
