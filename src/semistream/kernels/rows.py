"""Rows as bytes: whole rows laid one after the other, found and copied by where they begin.

    | slot, length | fixed columns, widest first | ends of varying ones | flags | their bytes |
    ^ a row begins at a granule of eight bytes

A column of a hundred rows that lie anywhere costs a hundred cache misses; a row of ten columns
that lies in one piece costs two. Columns of one width are handled in one pass over the rows.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from semistream.kernels.compiling import borrowing_kernel, kernel
from semistream.kernels.copying import (
    SPILL,
    copy_1,
    copy_2,
    copy_4,
    copy_8,
    copy_16,
    fill_1,
    fill_4,
    load_1,
    load_4,
    load_8,
    prefetch,
)

_LINE: Final = 64
_AHEAD: Final = 8
"""Rows are asked for so far ahead."""
GRANULE: Final = 8
"""Rows begin at multiples of so many bytes."""

Starts = NDArray[np.int64]
Lengths = NDArray[np.int32]
Bytes = NDArray[np.uint8]
Words = NDArray[np.int32]


FIELD: Final = np.dtype(
    [
        ("values", np.int64),
        ("offsets", np.int64),
        ("valid", np.int64),
        ("first", np.int64),
        ("width", np.int64),
        ("place", np.int64),
    ]
)
"""A column of an Arrow batch, by the addresses of its buffers, and its place in a row.

`width` is in bytes; 0 stands for booleans, which are bits; -4 and -8 for varying size, with
offsets of so many bytes. `first` is where the batch begins in the buffers; `valid` is 0 when
there are no nulls. `place` counts bytes from the row's begin; of a varying column, its end.
Arrays of fields have a row per page, or one for a batch, and a column per column.
"""


@kernel
def value_offset(field: Any, row: int) -> int:
    """Where a value of varying size begins in its buffer."""
    if field.width == -4:
        return load_4(field.offsets + 4 * (field.first + row))
    return load_8(field.offsets + 8 * (field.first + row))


@borrowing_kernel
def granules_of(fields: Any, columns: NDArray[np.int64], row: int, head: int) -> int:
    """How many granules a row of a page takes, laid out with some of its columns."""
    size = head
    for j in range(len(columns)):
        field = fields[columns[j]]
        if field.width < 0:
            size += value_offset(field, row + 1) - value_offset(field, row)
    return (size + GRANULE - 1) // GRANULE


@kernel
def measure_rows(
    fields: Any, columns: NDArray[np.int64], head: int, rows: NDArray[np.int64], lengths: Lengths
) -> None:
    """How many granules each of some rows will take."""
    for i in range(len(rows)):
        lengths[i] = granules_of(fields, columns, rows[i], head)


@kernel
def copy_bytes(to: int, at: int, length: int) -> None:
    """Copy a short value, in as few pieces as there can be."""
    k = 0
    while length - k >= 16:
        copy_16(to + k, at + k)
        k += 16
    if length - k >= 8:
        copy_8(to + k, at + k)
        k += 8
    if length - k >= 4:
        copy_4(to + k, at + k)
        k += 4
    while k < length:
        copy_1(to + k, at + k)
        k += 1


@kernel
def copy_value(to: int, at: int, width: int) -> None:
    """Copy a value of fixed width."""
    if width == 8:
        copy_8(to, at)
    elif width == 4:
        copy_4(to, at)
    elif width == 2:
        copy_2(to, at)
    else:
        copy_bytes(to, at, width)


@kernel
def _put_value(field: Any, row: int, begin: int, end: int) -> int:
    """Copy one value into the row at address `begin`; returns where varying values now end."""
    to = begin + field.place
    if field.values == 0:
        # Nothing but nulls, or nothing but empty values.
        return end
    if field.width < 0:
        at = value_offset(field, row)
        length = value_offset(field, row + 1) - at
        copy_bytes(begin + end, field.values + at, length)
        return end + length
    copy_value(to, field.values + (field.first + row) * field.width, field.width)
    return end


@borrowing_kernel
def put_row(
    memory: NDArray[np.int64],
    start: int,
    fields: Any,
    columns: NDArray[np.int64],
    row: int,
    head: int,
    flags: int,
    nulls: NDArray[np.bool_],
) -> None:
    """Lay a row of a page out at granule `start`; notes which columns have nulls."""
    begin = memory.ctypes.data + start * GRANULE
    end = head
    for k in range(flags, head):
        fill_1(begin + k, 0xFF)
    for j in range(len(columns)):
        field = fields[columns[j]]
        bit = field.first + row
        if field.width == 0 and field.values:
            fill_1(begin + field.place, (load_1(field.values + (bit >> 3)) >> (bit & 7)) & 1)
        elif field.width:
            end = _put_value(field, row, begin, end)
        if field.width < 0:
            fill_4(begin + field.place, end)
        if field.valid and not (load_1(field.valid + (bit >> 3)) >> (bit & 7)) & 1:
            at = begin + flags + (j >> 3)
            fill_1(at, load_1(at) & ~(1 << (j & 7)))
            nulls[j] = True


@kernel
def put_rows(
    memory: NDArray[np.int64],
    fields: Any,
    columns: NDArray[np.int64],
    head: int,
    flags: int,
    rows: NDArray[np.int64],
    starts: Starts,
    lengths: Lengths,
    slots: Lengths,
    nulls: NDArray[np.bool_],
) -> None:
    """Lay some rows of a page out at `starts`, for `slots`; notes which columns have nulls."""
    words = memory.view(np.int32)
    for i in range(len(rows)):
        words[2 * starts[i]] = slots[i]
        words[2 * starts[i] + 1] = lengths[i]
        put_row(memory, starts[i], fields, columns, rows[i], head, flags, nulls)


@kernel
def copy_rows(
    source: NDArray[np.int64],
    begins: Starts,
    memory: NDArray[np.int64],
    starts: Starts,
    slots: Lengths,
) -> None:
    """Copy rows that are laid out already from one block to another, for `slots`."""
    words = memory.view(np.int32)
    for i in range(len(starts)):
        length = source.view(np.int32)[2 * begins[i] + 1]
        for k in range(length):
            memory[starts[i] + k] = source[begins[i] + k]
        words[2 * starts[i]] = slots[i]


@kernel
def take_values(view: Any, starts: Starts, places: NDArray[np.int64], out: Any) -> None:
    """Read columns of one fixed width, a row of `out` for each."""
    per_granule, count, address = GRANULE // view.itemsize, len(starts), view.ctypes.data
    for i in range(count):
        prefetch(address + starts[min(i + _AHEAD, count - 1)] * GRANULE)
        base = starts[i] * per_granule
        for j in range(len(places)):
            out[j, i] = view[base + places[j]]


@kernel
def take_blobs(data: Bytes, starts: Starts, place: int, out: Bytes) -> None:
    """Read a column of fixed size that is no integer word, such as a decimal."""
    count, size = out.shape
    source, target = data.ctypes.data + place, out.ctypes.data
    whole = size - size % SPILL
    for i in range(count):
        ahead = source + starts[min(i + _AHEAD, count - 1)] * GRANULE
        for j in range(0, size, _LINE):
            prefetch(ahead + j)
        at, to = source + starts[i] * GRANULE, target + i * size
        for j in range(0, whole, SPILL):
            copy_16(to + j, at + j)
        for j in range(whole, size):
            copy_1(to + j, at + j)


@kernel
def take_ends(
    words: Words, starts: Starts, place: int, head: int, offsets: NDArray[np.int32]
) -> None:
    """Arrow's offsets of the varying columns, a row of `offsets` for each."""
    columns = offsets.shape[0]
    for j in range(columns):
        offsets[j, 0] = 0
    count, address = len(starts), words.ctypes.data
    for i in range(count):
        prefetch(address + starts[min(i + _AHEAD, count - 1)] * GRANULE)
        base = starts[i] * 2 + place
        begin = head
        for j in range(columns):
            end = words[base + j]
            offsets[j, i + 1] = offsets[j, i] + (end - begin)
            begin = end


@kernel
def take_varying(
    data: Bytes,
    words: Words,
    starts: Starts,
    end_before: int,
    head: int,
    offsets: NDArray[np.int32],
    out: Bytes,
) -> None:
    """The bytes of a varying column; `end_before` is where the one before ends, or -1.

    Both arrays have `SPILL` bytes to spare.
    """
    source, target = data.ctypes.data, out.ctypes.data
    for i in range(len(starts)):
        begin = head if end_before < 0 else words[starts[i] * 2 + end_before]
        at = source + starts[i] * GRANULE + begin
        to = target + offsets[i]
        for j in range(0, offsets[i + 1] - offsets[i], SPILL):
            copy_16(to + j, at + j)


@kernel
def take_flags(data: Bytes, starts: Starts, place: int, bit: int, out: NDArray[np.bool_]) -> None:
    """Whether a column's value is there, row by row."""
    for i in range(len(starts)):
        out[i] = (data[starts[i] * GRANULE + place] >> bit) & 1 != 0


@kernel
def drop_rows(words: Words, starts: Starts) -> int:
    """The rows have no slot any more; returns their granules."""
    granules = 0
    for i in range(len(starts)):
        words[2 * starts[i]] = -1
        granules += words[2 * starts[i] + 1]
    return granules


@kernel
def slide_rows(granules: NDArray[np.int64], words: Words, at: Starts, end: int) -> int:
    """Close the gaps between the rows that have a slot, in place; returns the new end."""
    here, to = 0, 0
    while here < end:
        slot, length = words[2 * here], words[2 * here + 1]
        if slot >= 0:
            if to < here:
                for j in range(length):
                    granules[to + j] = granules[here + j]
                at[slot] = to
            to += length
        here += length
    return to
