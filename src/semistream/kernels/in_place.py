"""Looking rows up in pages that lie in memory, without copying or decoding them.

The codes come in ascending order, so equal codes are looked up once and a page is gone through
once. A page's rows are ascending too: a guess by the code's place between the page's first and last
code is nearly right for most keys, and a search from there on settles the rest. Only the cache
lines of the rows asked for are touched.

All pages of a master table are written alike: the list of their buffers begins at the same place
in each. A page where it does not is left to whoever decodes pages.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from semistream.kernels.checksum import LONG, xxh3
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
from semistream.kernels.page_check import PAIR, sound_page
from semistream.kernels.rows import copy_bytes

RESIDENT: Final = 1
"""The operating system holds the page."""
CHECKED: Final = 2
"""Its checksum and its shape were right."""
UNLIKE: Final = 4
"""It was, but the page is not laid out as the others are."""
READY: Final = RESIDENT | CHECKED
BLOCK: Final = 16
"""Rows whose memory is asked for together."""
LINE: Final = 64
"""Bytes of a cache line."""
ELSEWHERE: Final = -1
"""Instead of a count of rows: some page of the code is not in memory."""

Numbers = NDArray[np.int32]
Codes = NDArray[np.int64]


class MappedIndex(NamedTuple):
    """Of each page: first and last code, file, offset, bytes, rows, checksum and state."""

    first: Codes
    last: Codes
    file: Numbers
    offset: Codes
    length: Codes
    rows: Numbers
    checksum: NDArray[np.uint64]
    state: NDArray[np.uint8]
    base: Codes
    """Of each file, the address at which it is mapped."""
    places: Codes
    """Where a page's nodes, list of buffers and body begin; 0 until the first is checked."""


class PageColumns(NamedTuple):
    """The columns of a page: their widths (see `rows.FIELD`), and the one that has the codes."""

    widths: Codes
    code: int


class Whereabouts(NamedTuple):
    """Of each tuple of a chunk: how many rows its code has, and where the first one is."""

    counts: Numbers
    pages: Numbers
    rows: Numbers


@kernel
def _code(values: int, wide: bool, row: int) -> int:
    return load_8(values + 8 * row) if wide else int(load_4(values + 4 * row))


@kernel
def _values_buffer(widths: Codes, column: int) -> int:
    """Which of a page's buffers has the values of a column; its validity is the first it has."""
    number = 0
    for j in range(column):
        number += 3 if widths[j] < 0 else 2
    return number + (2 if widths[column] < 0 else 1)


@kernel
def _check(index: MappedIndex, page: int, columns: PageColumns) -> bool:
    """Check a page that is used for the first time; False if it is broken."""
    at, length = index.base[index.file[page]] + index.offset[page], index.length[page]
    if length <= LONG or xxh3(at, length) != index.checksum[page]:
        return False
    rows, widths, found = int(index.rows[page]), columns.widths, np.zeros(3, np.int64)
    if not sound_page(at, length, rows, widths, found):
        return False
    buffer = at + found[1] + PAIR * _values_buffer(widths, columns.code)
    values, wide = at + found[2] + load_8(buffer), widths[columns.code] == 8
    before = _code(values, wide, 0)
    if before != index.first[page] or _code(values, wide, rows - 1) != index.last[page]:
        return False
    for row in range(1, rows):
        code = _code(values, wide, row)
        if code < before:
            return False
        before = code
    if index.places[2] == 0:
        index.places[:] = found
    alike = (index.places == found).all()
    index.state[page] |= CHECKED if alike else CHECKED | UNLIKE
    return True


@kernel
def _page_of(last: Codes, page: int, code: int) -> int:
    """The first page, from `page` on, whose last code is not below `code`; len(last) if none."""
    if page < len(last) and last[page] < code:
        step = 1
        while page + step < len(last) and last[page + step] < code:
            page += step
            step <<= 1
        low, high = page + 1, min(page + step, len(last))
        while low < high:
            middle = (low + high) >> 1
            if last[middle] < code:
                low = middle + 1
            else:
                high = middle
        page = low
    return page


@kernel
def _guess(rows: int, code: int, first: int, last: int) -> int:
    """About where a code stands among a page's rows, if its codes are spread evenly."""
    if code <= first:
        return 0
    share = (np.float64(code) - np.float64(first)) / (np.float64(last) - np.float64(first))
    return min(rows - 1, max(0, int(share * (rows - 1))))


@kernel
def _row_of(values: int, wide: bool, rows: int, code: int, guess: int) -> int:
    """The first of a page's ascending rows whose code is not below `code`, from `guess` on."""
    low, high, step = 0, rows, 1
    if _code(values, wide, guess) < code:
        low = guess + 1
        while low < rows:
            probe = min(low + step - 1, rows - 1)
            if _code(values, wide, probe) >= code:
                high = probe
                break
            low = probe + 1
            step <<= 1
    else:
        high = guess
        while high > 0:
            probe = max(high - step, 0)
            if _code(values, wide, probe) < code:
                low = probe + 1
                break
            high = probe
            step <<= 1
    while low < high:
        middle = (low + high) >> 1
        if _code(values, wide, middle) < code:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def locate(
    codes: Codes, order: Codes, index: MappedIndex, columns: PageColumns, found: Whereabouts
) -> int:
    """Find the rows of all codes; `order` sorts them. Returns a broken page, or -1.

    A code with rows on several pages is found if all of them are in memory. A page is checked
    when it is used first. What the search of a block of codes will touch is asked for before, so
    that the memory is waited for once and not for each code.
    """
    # What a tuple holds is named before the loop: each use in it would count references.
    firsts, lasts, file, offset = index.first, index.last, index.file, index.offset
    state, page_rows, base, places = index.state, index.rows, index.base, index.places
    length = index.length
    counts, pages, rows_of = found.counts, found.pages, found.rows
    wide = columns.widths[columns.code] == 8
    width = 8 if wide else 4
    buffer = PAIR * _values_buffer(columns.widths, columns.code)
    page = 0
    for begin in range(0, len(order), BLOCK):
        end = min(begin + BLOCK, len(order))
        for at in range(begin, end):
            page = _page_of(lasts, page, codes[order[at]])
            pages[order[at]] = page
            if page < len(lasts) and state[page] == READY:
                prefetch(base[file[page]] + offset[page] + places[1] + buffer)
        for at in range(begin, end):
            i = order[at]
            there, code = pages[i], codes[i]
            if there < len(lasts) and state[there] == READY and code >= firsts[there]:
                message = base[file[there]] + offset[there]
                values = message + places[2] + load_8(message + places[1] + buffer)
                rows_of[i] = _guess(page_rows[there], code, firsts[there], lasts[there])
                prefetch(values + width * rows_of[i])
        for at in range(begin, end):
            i = order[at]
            code = codes[i]
            if at and codes[order[at - 1]] == code:
                before = order[at - 1]
                counts[i], pages[i], rows_of[i] = counts[before], pages[before], rows_of[before]
                continue
            counts[i], there, count, row = 0, int(pages[i]), 0, -1
            if there == len(lasts) or code < firsts[there]:
                continue
            while True:
                if state[there] != READY:
                    if not state[there] & RESIDENT:
                        count = ELSEWHERE
                        break
                    if not state[there] & CHECKED and not _check(index, there, columns):
                        return there
                    if state[there] & UNLIKE:
                        count = ELSEWHERE
                        break
                message = base[file[there]] + offset[there]
                begins = places[2] + load_8(message + places[1] + buffer)
                rows = int(page_rows[there])
                # It was checked, but somebody may be writing to the file.
                if begins < 0 or begins + rows * width > length[there]:
                    return there
                values = message + begins
                if row < 0:
                    guess = _guess(rows, code, firsts[there], lasts[there])
                    row = _row_of(values, wide, rows, code, guess)
                    pages[i], rows_of[i] = there, row
                while row < rows and _code(values, wide, row) == code:
                    row, count = row + 1, count + 1
                if row < rows or there + 1 == len(lasts) or firsts[there + 1] != code:
                    break
                there, row = there + 1, 0
            counts[i] = count
    return -1


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
        buffer = message + places[1] + PAIR * _values_buffer(widths, column)
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

    Of varying columns, where the values lie and how long they are is noted. Memory is asked for
    ahead, as in `locate`.
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
                values[k], offsets[k], nulls[k] = values[k - 1], offsets[k - 1], nulls[k - 1]
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


_mincore: Any = types.ExternalFunction("mincore", types.intc(types.uintp, types.uintp, types.uintp))


@kernel
def note_resident(index: MappedIndex, grain: int, held: NDArray[np.uint8]) -> int:
    """Ask the operating system which pages it holds; returns how many it does, or -1.

    `grain` is the size of its own pages; `held` is scratch, a byte for each of them.
    """
    length, state = index.length, index.state
    at = index.base[index.file] + index.offset
    count, page = 0, 0
    most = len(held) * grain
    while page < len(at):
        begin = at[page] & -grain
        stop = page
        while stop < len(at) and begin <= at[stop] and at[stop] + length[stop] - begin <= most:
            stop += 1
        if stop == page:
            # Longer than the scratch: it is read as if it were not held.
            state[page] &= ~np.uint8(RESIDENT)
            page += 1
            continue
        end = at[stop - 1] + length[stop - 1]
        if _mincore(begin, end - begin, held.ctypes.data) != 0:
            return -1
        for k in range(page, stop):
            there = True
            for i in range((at[k] - begin) // grain, (at[k] + length[k] - 1 - begin) // grain + 1):
                there = there and held[i] & 1 != 0
            if there:
                state[k] |= np.uint8(RESIDENT)
                count += 1
            else:
                state[k] &= ~np.uint8(RESIDENT)
        page = stop
    return count
