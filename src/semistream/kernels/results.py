"""Result columns: waiting tuples and master rows as they lie on pages, copied column by column.

A page is overwritten when the next one is read, so values are copied as soon as they are found.
Those of varying size go one behind the other into one buffer, whatever their column.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from semistream.kernels.compiling import borrowing_kernel, kernel
from semistream.kernels.copying import copy_4, copy_8, fill_1, load_1
from semistream.kernels.rows import copy_bytes, copy_value, value_offset

Numbers = NDArray[np.int32]
Codes = NDArray[np.int64]

USED_ROWS, USED_BYTES = range(2)
"""What `Results.used` counts: rows, and bytes of values of varying size."""


class Results(NamedTuple):
    """Where at most `most` result rows go.

    Stream columns come from `sources`, `strides` bytes apart, by slot; `widths` bytes go to
    `targets`. Of the master's columns, which have the numbers `columns` on a page, values go to
    `values`, or to `pool` if they vary in size: then `numbers` says which row of `starts` and
    `ends` has where each begins and how long it is; the pool has `room` bytes. `valid` are bitmaps.
    Addresses, all of them.
    """

    most: int
    used: Codes
    sources: Codes
    strides: Codes
    widths: Codes
    targets: Codes
    kept_flags: NDArray[np.uint8]
    flags: NDArray[np.uint8]
    columns: Codes
    values: Codes
    numbers: Codes
    pool: int
    room: int
    starts: Codes
    ends: NDArray[np.int32]
    valid: Codes
    has_nulls: NDArray[np.bool_]
    has_unmatched: bool


class Found(NamedTuple):
    """Pairs: waiting tuples by slot, and master rows by page of the partition and row there."""

    slots: Numbers
    pages: Numbers
    rows: Numbers


@borrowing_kernel
def _gather(source: int, stride: int, width: int, slots: Numbers, to: int) -> None:
    """Copy the values of some slots, one behind the other."""
    if width == 8:
        for i in range(len(slots)):
            copy_8(to + 8 * i, source + stride * slots[i])
    elif width == 4:
        for i in range(len(slots)):
            copy_4(to + 4 * i, source + stride * slots[i])
    else:
        for i in range(len(slots)):
            copy_bytes(to + width * i, source + stride * slots[i], width)


@borrowing_kernel
def scatter(source: int, width: int, slots: Numbers, to: int) -> None:
    """Copy values that lie one behind the other to some slots."""
    if width == 8:
        for i in range(len(slots)):
            copy_8(to + 8 * slots[i], source + 8 * i)
    elif width == 4:
        for i in range(len(slots)):
            copy_4(to + 4 * slots[i], source + 4 * i)
    else:
        for i in range(len(slots)):
            copy_bytes(to + width * slots[i], source + width * i, width)


@kernel
def _put_tuples(results: Results, slots: Numbers) -> None:
    """The stream's part of further result rows."""
    at, flags, kept_flags = results.used[USED_ROWS], results.flags, results.kept_flags
    for j in range(len(results.sources)):
        width = results.widths[j]
        to = results.targets[j] + at * width
        _gather(results.sources[j], results.strides[j], width, slots, to)
    if len(flags):
        for i in range(len(slots)):
            for k in range(flags.shape[1]):
                flags[at + i, k] = kept_flags[slots[i], k]


@kernel
def _put_null(bitmap: int, at: int) -> None:
    byte = bitmap + (at >> 3)
    fill_1(byte, load_1(byte) & ~(1 << (at & 7)))


@kernel
def put_unmatched(results: Results, slots: Numbers) -> None:
    """Waiting tuples with nothing of the master."""
    at = results.used[USED_ROWS]
    _put_tuples(results, slots)
    for j in range(len(results.columns)):
        number = results.numbers[j]
        results.has_nulls[j] = results.has_nulls[j] or len(slots) > 0
        for i in range(len(slots)):
            _put_null(results.valid[j], at + i)
            if number >= 0:
                results.starts[number, at + i] = results.pool
                results.ends[number, at + i + 1] = 0
    results.used[USED_ROWS] = at + len(slots)


@kernel
def _put_varying(results: Results, j: int, fields: Any, found: Found, at: int) -> None:
    """A column of varying size of further result rows."""
    pages, rows, column = found.pages, found.rows, results.columns[j]
    starts, ends = results.starts[results.numbers[j]], results.ends[results.numbers[j]]
    to = results.pool + results.used[USED_BYTES]
    if results.used[USED_BYTES] < 0:
        return
    for i in range(len(rows)):
        field = fields[pages[i], column]
        begin = value_offset(field, rows[i])
        length = value_offset(field, rows[i] + 1) - begin
        if to + length > results.pool + results.room:
            # Only if rows are wider than the widest is said to be. The caller says so.
            results.used[USED_BYTES] = -1
            return
        copy_bytes(to, field.values + begin, length)
        starts[at + i], ends[at + i + 1] = to, length
        to += length
    results.used[USED_BYTES] = to - results.pool


@borrowing_kernel
def _put_fixed(fields: Any, column: int, width: int, found: Found, to: int) -> None:
    """A column of fixed width of further result rows; a boolean takes a byte."""
    pages, rows = found.pages, found.rows
    for i in range(len(rows)):
        values = fields[pages[i], column].values
        row = fields[pages[i], column].first + rows[i]
        if values == 0:
            continue
        if width == 0:
            fill_1(to + i, (load_1(values + (row >> 3)) >> (row & 7)) & 1)
        else:
            copy_value(to + width * i, values + width * row, width)


@kernel
def put_results(results: Results, fields: Any, found: Found) -> None:
    """Waiting tuples with rows of pages, whose columns are `fields`; there must be room."""
    at, pages, rows = results.used[USED_ROWS], found.pages, found.rows
    _put_tuples(results, found.slots)
    for j in range(len(results.columns)):
        column = results.columns[j]
        width = fields[0, column].width
        if width < 0:
            _put_varying(results, j, fields, found, at)
        else:
            to = results.values[j] + at * (width if width else 1)
            _put_fixed(fields, column, width, found, to)
        for i in range(len(rows)):
            valid = fields[pages[i], column].valid
            bit = fields[pages[i], column].first + rows[i]
            if valid and not (load_1(valid + (bit >> 3)) >> (bit & 7)) & 1:
                _put_null(results.valid[j], at + i)
                results.has_nulls[j] = True
    results.used[USED_ROWS] = at + len(rows)
