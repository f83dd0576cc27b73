"""Looking rows up in pages that lie in memory, without copying or decoding them.

The codes come in ascending order, so equal codes are looked up once and a page is gone through
once. A page's rows are ascending too: a guess by the code's place between the page's first and last
code is nearly right for most keys, and a search from there on settles the rest. Only the cache
lines of the rows asked for are touched.

All pages of a master table are written alike: the list of their buffers begins at the same place
in each. A page where it does not is left to whoever decodes pages.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from semistream.kernels.checksum import SHORTEST, xxh3
from semistream.kernels.compiling import kernel
from semistream.kernels.copying import load_4, load_8, prefetch
from semistream.kernels.mapped_index import (
    BLOCK,
    CHECKED,
    READY,
    RESIDENT,
    UNLIKE,
    Codes,
    MappedIndex,
    Numbers,
)
from semistream.kernels.page_check import sound_codes, sound_page, values_at

ELSEWHERE: Final = -1
"""Instead of a count of rows: some page of the code is not in memory."""


class PageColumns(NamedTuple):
    """The columns of a page: their widths (see `rows.FIELD`), and the one that has the codes."""

    widths: Codes
    code: int


class Whereabouts(NamedTuple):
    """Of each tuple of a chunk: how many rows its code has, and where the first one is.

    `begins` is how many result rows the tuples before it have. `totals` are the result rows, the
    tuples whose pages are in memory, and those of them that have rows.
    """

    counts: Numbers
    pages: Numbers
    rows: Numbers
    begins: Codes
    totals: Codes


@kernel
def _code(values: int, wide: bool, row: int) -> int:
    return load_8(values + 8 * row) if wide else int(load_4(values + 4 * row))


@kernel
def _check(index: MappedIndex, page: int, columns: PageColumns) -> bool:
    """Check a page that is used for the first time; False if it is broken."""
    at, length = index.base[index.file[page]] + index.offset[page], index.length[page]
    if length < SHORTEST or xxh3(at, length) != index.checksum[page]:
        return False
    rows, widths, found = int(index.rows[page]), columns.widths, np.zeros(3, np.int64)
    if not sound_page(at, length, rows, widths, found):
        return False
    buffer = at + found[1] + values_at(widths, columns.code)
    values, wide = at + found[2] + load_8(buffer), widths[columns.code] == 8
    if not sound_codes(values, wide, rows, index.first[page], index.last[page], True):
        return False
    places, alike = index.places, True
    if places[2] == 0:
        places[0], places[1], places[2] = found[0], found[1], found[2]
    for k in range(3):
        alike = alike and places[k] == found[k]
    index.state[page] |= CHECKED if alike else CHECKED | UNLIKE
    return True


@kernel
def _page_of(lasts: int, pages: int, page: int, code: int) -> int:
    """The first page, from `page` on, whose last code is not below `code`; `pages` if none.

    `lasts` is the address of the last codes: an array would count references for each code.
    """
    if page < pages and load_8(lasts + 8 * page) < code:
        step = 1
        while page + step < pages and load_8(lasts + 8 * (page + step)) < code:
            page += step
            step <<= 1
        low, high = page + 1, min(page + step, pages)
        while low < high:
            middle = (low + high) >> 1
            if load_8(lasts + 8 * middle) < code:
                low = middle + 1
            else:
                high = middle
        page = low
    return page


@kernel
def _guess(rows: int, code: int, first: int, last: int) -> int:
    """About where a code stands among a page's rows, if its codes are spread evenly."""
    # Codes that are large and close together are one and the same floating-point number.
    if code <= first or np.float64(last) == np.float64(first):
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
def _sum_up(found: Whereabouts) -> None:
    counts, begins, totals = found.counts, found.begins, found.totals
    totals[:] = 0
    for i in range(len(counts)):
        begins[i] = totals[0]
        if counts[i] >= 0:
            totals[0] += counts[i]
            totals[1] += 1
            totals[2] += counts[i] > 0


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
    length, lasts_at = index.length, index.last.ctypes.data
    counts, pages, rows_of = found.counts, found.pages, found.rows
    wide = columns.widths[columns.code] == 8
    width = 8 if wide else 4
    buffer = values_at(columns.widths, columns.code)
    page = 0
    for begin in range(0, len(order), BLOCK):
        end = min(begin + BLOCK, len(order))
        for at in range(begin, end):
            page = _page_of(lasts_at, len(lasts), page, codes[order[at]])
            pages[order[at]] = page
            if page < len(lasts) and state[page] == READY:
                prefetch(base[file[page]] + offset[page] + places[1] + buffer)
        for at in range(begin, end):
            i = order[at]
            there, code = pages[i], codes[i]
            rows_of[i] = -1
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
                    guess = rows_of[i]
                    if guess < 0:
                        guess = _guess(rows, code, firsts[there], lasts[there])
                    row = _row_of(values, wide, rows, code, guess)
                    pages[i], rows_of[i] = there, row
                while row < rows and _code(values, wide, row) == code:
                    row, count = row + 1, count + 1
                if row < rows or there + 1 == len(lasts) or firsts[there + 1] != code:
                    break
                there, row = there + 1, 0
            counts[i] = count
    _sum_up(found)
    return -1
