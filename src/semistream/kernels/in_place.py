"""Looking rows up in pages that lie in memory, without copying or decoding them.

The codes come in ascending order, so each page is opened once and equal codes are looked up
once. A page's rows are ascending too: a guess by the code's place between the page's first and
last code is nearly right for most keys, and a search from there on settles the rest. Only the
cache lines of the rows asked for are touched.
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
)
from semistream.kernels.page_check import sound_page
from semistream.kernels.pages import code_of, open_page
from semistream.kernels.rows import copy_bytes, value_offset

RESIDENT: Final = 1
"""The operating system holds the page."""
CHECKED: Final = 2
"""Its checksum and its shape were right."""
ELSEWHERE: Final = -1
"""Instead of a count of rows: some page of the code is not in memory."""

Numbers = NDArray[np.int32]
Codes = NDArray[np.int64]


class MappedIndex(NamedTuple):
    """Of each page: its first and last code, address, bytes, rows and checksum, and its state."""

    first: Codes
    last: Codes
    file: Numbers
    offset: Codes
    length: Codes
    rows: Numbers
    checksum: NDArray[np.uint64]
    state: NDArray[np.uint8]
    base: Codes
    """Of each file, the address at which it is mapped; 0 if it is not."""


class Whereabouts(NamedTuple):
    """Of each tuple of a chunk: how many rows its code has, and where the first one is."""

    counts: Numbers
    pages: Numbers
    rows: Numbers


@kernel
def _is_sound(
    at: int,
    length: int,
    checksum: np.uint64,
    rows: int,
    first: int,
    last: int,
    widths: Codes,
    code_column: int,
    fields: Any,
) -> bool:
    """Whether a page is as it was written, and what the index says of it."""
    if length <= LONG or xxh3(at, length) != checksum or not sound_page(at, length, rows, widths):
        return False
    open_page(at, widths, fields)
    field = fields[code_column]
    return code_of(field, 0) == first and code_of(field, rows - 1) == last


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
def _row_of(field: Any, rows: int, code: int, first: int, last: int) -> int:
    """The first of a page's ascending rows whose code is not below `code`, which it may have."""
    guess = 0
    if code > first:
        share = (np.float64(code) - np.float64(first)) / (np.float64(last) - np.float64(first))
        guess = min(rows - 1, max(0, int(share * (rows - 1))))
    low, high, step = 0, rows, 1
    if code_of(field, guess) < code:
        low = guess + 1
        while low < rows:
            probe = min(low + step - 1, rows - 1)
            if code_of(field, probe) >= code:
                high = probe
                break
            low = probe + 1
            step <<= 1
    else:
        high = guess
        while high > 0:
            probe = max(high - step, 0)
            if code_of(field, probe) < code:
                low = probe + 1
                break
            high = probe
            step <<= 1
    while low < high:
        middle = (low + high) >> 1
        if code_of(field, middle) < code:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def locate(
    codes: Codes,
    order: Codes,
    index: MappedIndex,
    widths: Codes,
    code_column: int,
    fields: Any,
    found: Whereabouts,
) -> int:
    """Find the rows of all codes; `order` sorts them. Returns a broken page, or -1.

    A code with rows on several pages is found if all of them are in memory. A page is checked
    when it is used first.
    """
    # Parts of a tuple that are used in a loop are named first: each use would count references.
    firsts, lasts, file, offset, base = index.first, index.last, index.file, index.offset, index.base
    state, page_rows = index.state, index.rows
    counts, pages, rows_of = found.counts, found.pages, found.rows
    field = fields[code_column]
    page, opened, rows, before = 0, -1, 0, -1
    for at in range(len(order)):
        i = order[at]
        code = codes[i]
        if before >= 0 and codes[before] == code:
            counts[i], pages[i], rows_of[i] = counts[before], pages[before], rows_of[before]
            continue
        before = i
        counts[i] = 0
        page = _page_of(lasts, page, code)
        if page == len(lasts) or code < firsts[page]:
            continue
        there, row, count = page, -1, 0
        while True:
            if state[there] != RESIDENT | CHECKED:
                if not state[there] & RESIDENT:
                    count = ELSEWHERE
                    break
                address = base[file[there]] + offset[there]
                length, checksum = index.length[there], index.checksum[there]
                first, last = firsts[there], lasts[there]
                if not _is_sound(
                    address, length, checksum, page_rows[there], first, last, widths, code_column, fields
                ):
                    return there
                state[there] |= CHECKED
            if opened != there:
                rows = page_rows[there]
                open_page(base[file[there]] + offset[there], widths, fields)
                opened = there
            if row < 0:
                row = _row_of(field, rows, code, firsts[there], lasts[there])
                pages[i], rows_of[i] = there, row
            while row < rows and code_of(field, row) == code:
                row, count = row + 1, count + 1
            if row < rows or there + 1 == len(lasts) or firsts[there + 1] != code:
                break
            there, row = there + 1, 0
        counts[i] = count
    return -1


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


@kernel
def _put_value(field: Any, row: int, to: int, position: int) -> None:
    """Copy a value of fixed width to its position in a column."""
    width = field.width
    if width == 8:
        copy_8(to + 8 * position, field.values + 8 * row)
    elif width == 4:
        copy_4(to + 4 * position, field.values + 4 * row)
    elif width == 2:
        copy_2(to + 2 * position, field.values + 2 * row)
    elif width == 0:
        fill_1(to + position, (load_1(field.values + (row >> 3)) >> (row & 7)) & 1)
    else:
        copy_bytes(to + width * position, field.values + width * row, width)


@kernel
def gather(
    order: Codes,
    begins: Codes,
    start: int,
    stop: int,
    index: MappedIndex,
    widths: Codes,
    fields: Any,
    found: Whereabouts,
    target: Target,
) -> None:
    """Copy found rows to their positions; the rows of tuple i begin at position `begins[i]`.

    Only positions from `start` to before `stop` are filled. Of varying columns, where the values
    lie and how long they are is noted.
    """
    file, offset, base, page_rows = index.file, index.offset, index.base, index.rows
    counts, pages, rows_of = found.counts, found.pages, found.rows
    columns, address, sources, ends = target.columns, target.address, target.sources, target.ends
    valid, has_nulls = target.valid, target.has_nulls
    opened = -1
    for at in range(len(order)):
        i = order[at]
        count = counts[i]
        if count <= 0 or begins[i] >= stop or begins[i] + count <= start:
            continue
        page, row = pages[i], rows_of[i]
        for position in range(begins[i] - start, begins[i] - start + count):
            if row == page_rows[page]:
                page, row = page + 1, 0
            if opened != page:
                open_page(base[file[page]] + offset[page], widths, fields)
                opened = page
            if 0 <= position < stop - start:
                varying = 0
                for j in range(len(columns)):
                    field = fields[columns[j]]
                    if field.width < 0:
                        begin = value_offset(field, row)
                        sources[varying, position] = field.values + begin
                        ends[varying, position + 1] = value_offset(field, row + 1) - begin
                        varying += 1
                    else:
                        _put_value(field, row, address[j], position)
                    if field.valid and not (load_1(field.valid + (row >> 3)) >> (row & 7)) & 1:
                        valid[j, position] = False
                        has_nulls[j] = True
            row += 1


@kernel
def add_up(ends: Numbers, count: int) -> int:
    """From lengths to ends, in place; returns the last one, or -1 if it is too large."""
    total = np.int64(0)
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
        at, here = sources[i], to + ends[i]
        for k in range(0, ends[i + 1] - ends[i], SPILL):
            copy_16(here + k, at + k)


_mincore: Any = types.ExternalFunction(
    "mincore", types.intc(types.uintp, types.uintp, types.uintp)
)


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
