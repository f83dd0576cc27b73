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
    fill_4,
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
    """Where values go: for each column, an address; of a varying one, that of its offsets.

    `sources` has a row for each varying column: where the values lie; `sizes` is how many bytes
    they take together. `valid` has a row of bits for each column, all set.
    """

    columns: Codes
    address: Codes
    sources: Codes
    sizes: Codes
    valid: NDArray[np.uint8]
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
) -> int:
    """Note where the columns of a page begin; `lists` has where the page says so.

    Returns how many of them have nulls; -1 if they are not inside the page: it was checked, but
    somebody may be writing to the file.
    """
    message, length = index.base[index.file[page]] + index.offset[page], index.length[page]
    nodes, list_at, body = index.places[0], index.places[1], index.places[2]
    rows, with_nulls = int(index.rows[page]), 0
    for j in range(len(columns)):
        width, buffer = widths[j], message + list_at + lists[j]
        begin = body + load_8(buffer)
        if not _inside(begin, max(width * rows, 0) if width else rows >> 3, length):
            return -1
        opened.values[j, slot] = message + begin
        buffer -= PAIR
        if width < 0:
            begin = body + load_8(buffer)
            if not _inside(begin, -width * (rows + 1), length):
                return -1
            opened.offsets[j, slot] = message + begin
            buffer -= PAIR
        nulls = load_8(message + nodes + PAIR * columns[j] + 8)
        begin = body + load_8(buffer)
        if nulls and not _inside(begin, rows >> 3, length):
            return -1
        opened.nulls[j, slot] = message + begin if nulls else 0
        with_nulls += nulls != 0
    return with_nulls


@kernel
def _put_odd(width: int, at: int, row: int, to: int, position: int) -> None:
    """Copy a value of a width that has no loop of its own; 0 is for booleans, which are bits."""
    if width == 2:
        copy_2(to + 2 * position, at + 2 * row)
    elif width == 0:
        fill_1(to + position, (load_1(at + (row >> 3)) >> (row & 7)) & 1)
    else:
        copy_bytes(to + width * position, at + width * row, width)


@kernel
def add_up(ends: int, count: int) -> int:
    """From the lengths of values to where they end, in place; returns their sum, -1 if too large.

    What is at `ends` becomes 0: the first value begins there.
    """
    total = 0
    fill_4(ends, 0)
    for at in range(ends + 4, ends + 4 * count + 4, 4):
        total += load_4(at)
        if total > 2147483647:
            return -1
        fill_4(at, total)
    return total


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

    Of varying columns, the offsets are written and where the values lie is noted.
    """
    count = _choose(order, start, stop, index.rows, found, chosen)
    # Arrays are named before the loops, and no part of one is: each would count references.
    file, offset, base, length = index.file, index.offset, index.base, index.length
    pages, rows, positions = chosen.pages, chosen.rows, chosen.positions
    columns, address, sources = target.columns, target.address, target.sources
    valid, has_nulls = target.valid, target.has_nulls
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
        size = min(BLOCK, count - begin)
        slot = -1
        for k in range(size):
            page = pages[begin + k]
            if k == 0 or page != pages[begin + k - 1]:
                slot += 1
                message = base[file[page]] + offset[page]
                for at in range(first_line, last_line, LINE):
                    prefetch(message + at)
            slots[k] = slot
        some_nulls = False
        for k in range(size):
            if k == 0 or slots[k] != slots[k - 1]:
                page = int(pages[begin + k])
                state = _open_page(index, page, columns, widths, lists, opened, slots[k])
                if state < 0:
                    return page
                some_nulls |= state > 0
        for j in range(len(columns)):
            width, varies = abs(widths[j]), widths[j] < 0
            for k in range(size):
                at = offsets[j, slots[k]] if varies else values[j, slots[k]]
                prefetch(at + width * rows[begin + k])
        varying = 0
        for j in range(len(columns)):
            width, to = widths[j], address[j]
            if width == 8:
                for k in range(size):
                    at = values[j, slots[k]] + 8 * rows[begin + k]
                    copy_8(to + 8 * positions[begin + k], at)
            elif width == 4:
                for k in range(size):
                    at = values[j, slots[k]] + 4 * rows[begin + k]
                    copy_4(to + 4 * positions[begin + k], at)
            elif width >= 0:
                for k in range(size):
                    at, row = values[j, slots[k]], rows[begin + k]
                    _put_odd(width, at, row, to, positions[begin + k])
            else:
                for k in range(size):
                    at = offsets[j, slots[k]] - width * rows[begin + k]
                    first = int(load_4(at)) if width == -4 else load_8(at)
                    last = int(load_4(at + 4)) if width == -4 else load_8(at + 8)
                    page, heap = pages[begin + k], values[j, slots[k]]
                    room = length[page] - (heap - base[file[page]] - offset[page])
                    if first < 0 or last < first or last > room:
                        return int(page)
                    position = positions[begin + k]
                    sources[varying, position] = heap + first
                    fill_4(to + 4 * (position + 1), last - first)
                varying += 1
        if some_nulls:
            for j in range(len(columns)):
                for k in range(size):
                    bits, row = nulls[j, slots[k]], rows[begin + k]
                    if bits and not (load_1(bits + (row >> 3)) >> (row & 7)) & 1:
                        position = positions[begin + k]
                        valid[j, position >> 3] &= ~np.uint8(1 << (position & 7))
                        has_nulls[j] = True
    varying = 0
    for j in range(len(columns)):
        if widths[j] < 0:
            target.sizes[varying] = add_up(address[j], count)
            varying += 1
    return -1


@kernel
def copy_varying(sources: Codes, offsets: Codes, count: int, heaps: Codes) -> None:
    """Copy the values of varying columns, one behind the other, each column to its heap.

    `offsets` and `heaps` are addresses. Sources and heaps have `SPILL` bytes to spare.
    """
    for j in range(len(heaps)):
        to, ends = heaps[j], offsets[j]
        for i in range(count):
            prefetch(sources[j, min(i + BLOCK, count - 1)])
            at, begin, end = sources[j, i], load_4(ends + 4 * i), load_4(ends + 4 * i + 4)
            for k in range(0, end - begin, SPILL):
                copy_16(to + begin + k, at + k)
