"""Copying rows out of pages that lie in memory into the columns of a result.

Rows come in the order of their pages and go to any positions. The memory of a block of rows is
asked for before it is used, so that it is waited for once and not for each value.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from semistream.kernels.compiling import kernel
from semistream.kernels.copying import (
    SPILL,
    copy_2,
    copy_4,
    copy_8,
    copy_16,
    fill_1,
    load_1,
    load_4,
    load_8,
    prefetch,
)
from semistream.kernels.in_place import Whereabouts
from semistream.kernels.mapped_index import BLOCK, LINE, Codes, MappedIndex, Numbers
from semistream.kernels.page_check import PAIR, values_at
from semistream.kernels.rows import copy_bytes


class Chosen(NamedTuple):
    """Master rows, by page and row, and their positions in the result; in the order of pages."""

    pages: Numbers
    rows: Numbers
    positions: Numbers


@kernel
def choose(
    order: Codes,
    begins: Codes,
    start: int,
    stop: int,
    page_rows: Numbers,
    found: Whereabouts,
    chosen: Chosen,
) -> int:
    """The rows of result positions `start` to before `stop`; returns how many there are.

    The rows of tuple i begin at position `begins[i]`.
    """
    counts, first_pages, first_rows = found.counts, found.pages, found.rows
    pages, rows, positions = chosen.pages, chosen.rows, chosen.positions
    written = 0
    for at in range(len(order)):
        i = order[at]
        if counts[i] <= 0 or begins[i] >= stop or begins[i] + counts[i] <= start:
            continue
        page, row = first_pages[i], first_rows[i]
        for position in range(begins[i] - start, begins[i] - start + counts[i]):
            if row == page_rows[page]:
                page, row = page + 1, 0
            if 0 <= position < stop - start:
                pages[written], rows[written], positions[written] = page, row, position
                written += 1
            row += 1
    return written


class Target(NamedTuple):
    """Where values go: for each column, an address; of varying ones, where each value lies.

    `sources` and `ends` have a row for each varying column; `valid` one for each column.
    """

    columns: Codes
    address: Codes
    sources: Codes
    ends: Numbers
    valid: NDArray[np.bool_]
    has_nulls: NDArray[np.bool_]


class _Buffers(NamedTuple):
    """For each row of a block, where its page's columns begin; `nulls` is 0 if there are none."""

    values: Codes
    offsets: Codes
    nulls: Codes


@kernel
def _put_value(values: int, width: int, row: int, to: int, position: int) -> None:
    """Copy a value of fixed width to its position in a column."""
    if width == 8:
        copy_8(to + 8 * position, values + 8 * row)
    elif width == 4:
        copy_4(to + 4 * position, values + 4 * row)
    elif width == 2:
        copy_2(to + 2 * position, values + 2 * row)
    elif width == 0:
        fill_1(to + position, (load_1(values + (row >> 3)) >> (row & 7)) & 1)
    else:
        copy_bytes(to + width * position, values + width * row, width)


@kernel
def _inside(begin: int, size: int, length: int) -> bool:
    return 0 <= begin <= length - size


@kernel
def _open_page(
    message: int,
    length: int,
    rows: int,
    places: Codes,
    widths: Codes,
    columns: Codes,
    buffers: _Buffers,
    k: int,
) -> bool:
    """Note where the columns of a page begin, for the k-th row of a block.

    False if they are not inside the page: it was checked, but somebody may be writing to the file.
    """
    for j in range(len(columns)):
        column = columns[j]
        width = widths[column]
        buffer = message + places[1] + values_at(widths, column)
        begin = places[2] + load_8(buffer)
        if not _inside(begin, max(width * rows, 0) if width else rows >> 3, length):
            return False
        buffers.values[k, j] = message + begin
        buffer -= PAIR
        if width < 0:
            begin = places[2] + load_8(buffer)
            if not _inside(begin, -width * (rows + 1), length):
                return False
            buffers.offsets[k, j] = message + begin
            buffer -= PAIR
        nulls = load_8(message + places[0] + PAIR * column + 8)
        begin = places[2] + load_8(buffer)
        if nulls and not _inside(begin, rows >> 3, length):
            return False
        buffers.nulls[k, j] = message + begin if nulls else 0
    return True


@kernel
def gather(chosen: Chosen, count: int, index: MappedIndex, widths: Codes, target: Target) -> int:
    """Copy the first `count` chosen rows to their positions; returns a broken page, or -1.

    Of varying columns, where the values lie and how long they are is noted.
    """
    file, offset, base, places = index.file, index.offset, index.base, index.places
    length, page_rows = index.length, index.rows
    pages, rows, positions = chosen.pages, chosen.rows, chosen.positions
    columns, address, sources, ends = target.columns, target.address, target.sources, target.ends
    valid, has_nulls = target.valid, target.has_nulls
    shape = (BLOCK, len(columns))
    buffers = _Buffers(
        np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    )
    values, offsets, nulls = buffers.values, buffers.offsets, buffers.nulls
    for begin in range(0, count, BLOCK):
        size = min(BLOCK, count - begin)
        for k in range(size):
            page = pages[begin + k]
            if k == 0 or page != pages[begin + k - 1]:
                message = base[file[page]] + offset[page]
                for at in range(places[1], places[2], LINE):
                    prefetch(message + at)
        for k in range(size):
            page, row = pages[begin + k], int(rows[begin + k])
            if k and page == pages[begin + k - 1]:
                for j in range(len(columns)):
                    values[k, j], offsets[k, j] = values[k - 1, j], offsets[k - 1, j]
                    nulls[k, j] = nulls[k - 1, j]
            else:
                message, rows_there = base[file[page]] + offset[page], int(page_rows[page])
                if not _open_page(
                    message, length[page], rows_there, places, widths, columns, buffers, k
                ):
                    return int(page)
            for j in range(len(columns)):
                width = widths[columns[j]]
                prefetch(offsets[k, j] - width * row if width < 0 else values[k, j] + width * row)
        for k in range(size):
            row, to, varying = int(rows[begin + k]), int(positions[begin + k]), 0
            for j in range(len(columns)):
                width = widths[columns[j]]
                if width < 0:
                    at = offsets[k, j] - width * row
                    first = int(load_4(at)) if width == -4 else load_8(at)
                    last = int(load_4(at + 4)) if width == -4 else load_8(at + 8)
                    page = pages[begin + k]
                    room = length[page] - (values[k, j] - base[file[page]] - offset[page])
                    if first < 0 or last < first or last > room:
                        return int(page)
                    sources[varying, to], ends[varying, to + 1] = values[k, j] + first, last - first
                    varying += 1
                else:
                    _put_value(values[k, j], width, row, address[j], to)
                if nulls[k, j] and not (load_1(nulls[k, j] + (row >> 3)) >> (row & 7)) & 1:
                    valid[j, to] = False
                    has_nulls[j] = True
    return -1


@kernel
def add_up(ends: Numbers, count: int) -> int:
    """From lengths to ends, in place; returns the last one, or -1 if it is too large."""
    total = 0
    ends[0] = 0
    for i in range(count):
        total += ends[i + 1]
        if total > 2147483647:
            return -1
        ends[i + 1] = total
    return total


@kernel
def copy_varying(sources: Codes, ends: Numbers, count: int, to: int) -> None:
    """Copy the values of a varying column, one behind the other.

    Sources and target have `SPILL` bytes to spare.
    """
    for i in range(count):
        prefetch(sources[min(i + BLOCK, count - 1)])
        at, here = sources[i], to + ends[i]
        for k in range(0, ends[i + 1] - ends[i], SPILL):
            copy_16(here + k, at + k)
