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
def _choose(
    order: Codes, start: int, stop: int, page_rows: Numbers, found: Whereabouts, chosen: Chosen
) -> int:
    """The rows of result positions `start` to before `stop`; returns how many there are."""
    counts, first_pages, first_rows = found.counts, found.pages, found.rows
    begins, pages, rows, positions = found.begins, chosen.pages, chosen.rows, chosen.positions
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


class _Opened(NamedTuple):
    """For each column and page of a block, where it begins; `nulls` is 0 if there are none."""

    values: Codes
    offsets: Codes
    nulls: Codes


@kernel
def _inside(begin: int, size: int, length: int) -> bool:
    return 0 <= begin <= length - size


@kernel
def _open_page(
    index: MappedIndex,
    page: int,
    columns: Codes,
    widths: Codes,
    lists: Codes,
    opened: _Opened,
    slot: int,
) -> bool:
    """Note where the columns of a page begin; `lists` has where the page says so.

    False if they are not inside the page: it was checked, but somebody may be writing to the file.
    """
    message, length = index.base[index.file[page]] + index.offset[page], index.length[page]
    nodes, list_at, body = index.places[0], index.places[1], index.places[2]
    rows = int(index.rows[page])
    for j in range(len(columns)):
        width, buffer = widths[j], message + list_at + lists[j]
        begin = body + load_8(buffer)
        if not _inside(begin, max(width * rows, 0) if width else rows >> 3, length):
            return False
        opened.values[j, slot] = message + begin
        buffer -= PAIR
        if width < 0:
            begin = body + load_8(buffer)
            if not _inside(begin, -width * (rows + 1), length):
                return False
            opened.offsets[j, slot] = message + begin
            buffer -= PAIR
        nulls = load_8(message + nodes + PAIR * columns[j] + 8)
        begin = body + load_8(buffer)
        if nulls and not _inside(begin, rows >> 3, length):
            return False
        opened.nulls[j, slot] = message + begin if nulls else 0
    return True


@kernel
def _put_values(
    values: Codes, width: int, slots: Codes, rows: Numbers, positions: Numbers, to: int
) -> None:
    """Copy a value of fixed width for each row of a block to its position in a column."""
    if width == 8:
        for k in range(len(rows)):
            copy_8(to + 8 * positions[k], values[slots[k]] + 8 * rows[k])
    elif width == 4:
        for k in range(len(rows)):
            copy_4(to + 4 * positions[k], values[slots[k]] + 4 * rows[k])
    elif width == 2:
        for k in range(len(rows)):
            copy_2(to + 2 * positions[k], values[slots[k]] + 2 * rows[k])
    elif width == 0:
        for k in range(len(rows)):
            bits = load_1(values[slots[k]] + (rows[k] >> 3))
            fill_1(to + positions[k], (bits >> (rows[k] & 7)) & 1)
    else:
        for k in range(len(rows)):
            copy_bytes(to + width * positions[k], values[slots[k]] + width * rows[k], width)


@kernel
def gather(
    order: Codes,
    start: int,
    stop: int,
    index: MappedIndex,
    page_widths: Codes,
    found: Whereabouts,
    chosen: Chosen,
    target: Target,
) -> int:
    """Copy the rows of result positions `start` to before `stop`; returns a broken page, or -1.

    Of varying columns, where the values lie and how long they are is noted.
    """
    count = _choose(order, start, stop, index.rows, found, chosen)
    file, offset, base, length = index.file, index.offset, index.base, index.length
    all_pages, all_rows, all_positions = chosen.pages, chosen.rows, chosen.positions
    columns, address, sources, ends = target.columns, target.address, target.sources, target.ends
    first_line, last_line = index.places[1], index.places[2]
    widths, lists = page_widths[columns], np.zeros(len(columns), np.int64)
    for j in range(len(columns)):
        lists[j] = values_at(page_widths, columns[j])
    shape = (len(columns), BLOCK)
    opened = _Opened(
        np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    )
    values, offsets, nulls = opened.values, opened.offsets, opened.nulls
    slots = np.zeros(BLOCK, np.int64)
    for begin in range(0, count, BLOCK):
        end = min(begin + BLOCK, count)
        pages, rows = all_pages[begin:end], all_rows[begin:end]
        positions, size = all_positions[begin:end], end - begin
        slot = -1
        for k in range(size):
            if k == 0 or pages[k] != pages[k - 1]:
                slot += 1
                message = base[file[pages[k]]] + offset[pages[k]]
                for at in range(first_line, last_line, LINE):
                    prefetch(message + at)
            slots[k] = slot
        for k in range(size):
            if k == 0 or slots[k] != slots[k - 1]:
                page = int(pages[k])
                if not _open_page(index, page, columns, widths, lists, opened, slots[k]):
                    return page
        for j in range(len(columns)):
            width, begins = widths[j], offsets[j] if widths[j] < 0 else values[j]
            for k in range(size):
                prefetch(begins[slots[k]] + abs(width) * rows[k])
        varying = 0
        for j in range(len(columns)):
            width = widths[j]
            if width >= 0:
                _put_values(values[j], width, slots, rows, positions, address[j])
            else:
                for k in range(size):
                    at = offsets[j, slots[k]] - width * rows[k]
                    first = int(load_4(at)) if width == -4 else load_8(at)
                    last = int(load_4(at + 4)) if width == -4 else load_8(at + 8)
                    page, to, heap = pages[k], positions[k], values[j, slots[k]]
                    room = length[page] - (heap - base[file[page]] - offset[page])
                    if first < 0 or last < first or last > room:
                        return int(page)
                    sources[varying, to], ends[varying, to + 1] = heap + first, last - first
                varying += 1
            for k in range(size):
                bits = nulls[j, slots[k]]
                if bits and not (load_1(bits + (rows[k] >> 3)) >> (rows[k] & 7)) & 1:
                    target.valid[j, positions[k]] = False
                    target.has_nulls[j] = True
    return -1


@kernel
def add_up(ends: Numbers, count: int, sizes: Codes) -> None:
    """From lengths to ends, in place, for each varying column; `sizes` has the last ones.

    A size that is too large is -1.
    """
    for j in range(len(sizes)):
        total = 0
        ends[j, 0] = 0
        for i in range(1, count + 1):
            total += ends[j, i]
            if total > 2147483647:
                total = -1
                break
            ends[j, i] = total
        sizes[j] = total


@kernel
def copy_varying(sources: Codes, ends: Numbers, count: int, addresses: Codes) -> None:
    """Copy the values of varying columns, one behind the other.

    Sources and targets have `SPILL` bytes to spare.
    """
    for j in range(len(addresses)):
        to, sources_there, ends_there = addresses[j], sources[j], ends[j]
        for i in range(count):
            prefetch(sources_there[min(i + BLOCK, count - 1)])
            at, here = sources_there[i], to + ends_there[i]
            for k in range(0, ends_there[i + 1] - ends_there[i], SPILL):
                copy_16(here + k, at + k)
