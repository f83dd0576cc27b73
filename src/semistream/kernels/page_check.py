"""Is a page what it says it is? Asked once per page, before anything in it is followed.

A checksum shows that a page is as it was written, not that whoever wrote it did so properly. Every
offset, length and count is compared with the page's own bytes here, so that kernels which follow
them afterwards stay inside.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from semistream.kernels.compiling import kernel
from semistream.kernels.copying import load_2, load_4, load_8

PREFIX: Final = 8
MESSAGE_HEADER: Final = 2
BATCH_ROWS: Final = 0
BATCH_NODES: Final = 1
BATCH_BUFFERS: Final = 2
BATCH_COMPRESSION: Final = 3
PAIR: Final = 16
"""Bytes of a node (rows, nulls) and of a buffer (begin, length)."""


@kernel
def _sound_field(table: int, number: int, size: int, begin: int, end: int) -> int:
    """Where a field of a flatbuffer table stands; 0 if it is not there, -1 if it is outside."""
    if table < begin or table + 4 > end:
        return -1
    vtable = table - load_4(table)
    if vtable < begin or vtable + 4 > end:
        return -1
    entries = load_2(vtable)
    if vtable + entries > end:
        return -1
    if 4 + 2 * number + 2 > entries:
        return 0
    offset = load_2(vtable + 4 + 2 * number)
    if offset == 0:
        return 0
    at = table + offset
    return at if at + size <= end else -1


@kernel
def _sound_vector(batch: int, number: int, count: int, begin: int, end: int) -> int:
    """Where the `count` pairs of a vector begin; -1 if there are not as many inside."""
    at = _sound_field(batch, number, 4, begin, end)
    if at <= 0:
        return -1
    vector = at + int(load_4(at))
    if vector < begin or vector + 4 > end or load_4(vector) != count:
        return -1
    return vector + 4 if vector + 4 + count * PAIR <= end else -1


@kernel
def _sound_column(
    width: int, rows: int, node: int, buffers: int, body: int, body_bytes: int
) -> bool:
    """Whether a column's buffers lie inside the body and are long enough for its rows."""
    nulls = load_8(node + 8)
    if load_8(node) != rows or nulls < 0 or nulls > rows:
        return False
    for k in range(buffers_of(width)):
        at, length = load_8(buffers + PAIR * k), load_8(buffers + PAIR * k + 8)
        if at < 0 or length < 0 or at > body_bytes or length > body_bytes - at:
            return False
    if nulls and load_8(buffers + 8) < (rows + 7) // 8:
        return False
    if width == 0:
        return load_8(buffers + PAIR + 8) >= (rows + 7) // 8
    if width > 0:
        return load_8(buffers + PAIR + 8) >= rows * width
    return _sound_offsets(width, rows, buffers, body)


@kernel
def _sound_offsets(width: int, rows: int, buffers: int, body: int) -> bool:
    """Whether the offsets of a varying column ascend and stay inside its values."""
    if load_8(buffers + PAIR + 8) < (rows + 1) * -width:
        return False
    at, most = body + load_8(buffers + PAIR), load_8(buffers + 2 * PAIR + 8)
    before = 0
    for i in range(rows + 1):
        now = int(load_4(at + 4 * i)) if width == -4 else load_8(at + 8 * i)
        if now < before:
            return False
        before = now
    return before <= most


@kernel
def sound_page(
    message: int, length: int, rows: int, widths: NDArray[np.int64], places: NDArray[np.int64]
) -> bool:
    """Whether the page at address `message` has these rows and columns, all inside `length` bytes.

    `widths` are those of `rows.FIELD`. Writes to `places` how far behind `message` its nodes, its
    list of buffers and its body begin.
    """
    if length < PREFIX + 8 or load_4(message) != -1:
        return False
    begin = message + PREFIX
    metadata = int(load_4(message + 4))
    if metadata < 8 or metadata > length - PREFIX:
        return False
    end = begin + metadata
    header = _sound_field(begin + int(load_4(begin)), MESSAGE_HEADER, 4, begin, end)
    if header <= 0:
        return False
    batch = header + int(load_4(header))
    counted = _sound_field(batch, BATCH_ROWS, 8, begin, end)
    if counted <= 0 or load_8(counted) != rows or rows <= 0:
        return False
    if _sound_field(batch, BATCH_COMPRESSION, 4, begin, end) != 0:
        return False
    parts = all_buffers(widths)
    node = _sound_vector(batch, BATCH_NODES, len(widths), begin, end)
    buffer = _sound_vector(batch, BATCH_BUFFERS, parts, begin, end)
    if node < 0 or buffer < 0:
        return False
    places[0], places[1], places[2] = node - message, buffer - message, end - message
    for j in range(len(widths)):
        if not _sound_column(widths[j], rows, node, buffer, end, length - PREFIX - metadata):
            return False
        node += PAIR
        buffer += buffers_of(widths[j]) * PAIR
    return True


@kernel
def buffers_of(width: int) -> int:
    """How many buffers a column has: its flags, offsets if its size varies, and its values."""
    return 3 if width < 0 else 2


@kernel
def all_buffers(widths: NDArray[np.int64]) -> int:
    """How many all columns have together."""
    count = 0
    for j in range(len(widths)):
        count += buffers_of(widths[j])
    return count


@kernel
def values_at(widths: NDArray[np.int64], column: int) -> int:
    """Where, in the list of a page's buffers, that of a column's values stands; in bytes."""
    number = 0
    for j in range(column):
        number += buffers_of(widths[j])
    return PAIR * (number + (2 if widths[column] < 0 else 1))


@kernel
def sound_codes(values: int, wide: bool, rows: int, first: int, last: int, in_order: bool) -> bool:
    """Whether codes of eight bytes, or four, go from `first` to `last`, in order if they should."""
    before = first
    for row in range(rows):
        code = load_8(values + 8 * row) if wide else int(load_4(values + 4 * row))
        if (in_order and code < before) or (row == 0 and code != first):
            return False
        before = code
    return before == last
