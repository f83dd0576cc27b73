"""Rows picked from packed pages: a page with only those rows that somebody wants.

Rows of a packed page can be read one by one, and a look-up wants a few of hundreds. They are laid
out in columns, as if the page had no others, so that whoever searches a page can search this.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from semistream.kernels.bits import number_at
from semistream.kernels.compiling import borrowing_kernel, kernel
from semistream.kernels.copying import fill_1, load_1, load_4, load_8
from semistream.kernels.packed_pages import (
    AS_IT_IS,
    AT,
    BITS,
    ENDS,
    ENTRIES,
    ENTRY,
    LENGTH,
    PLACES,
    SPARE,
    Symbols,
    kind_of,
    offset_at,
    put_offset,
    sound_block,
    unpack_text,
    unpack_value,
)
from semistream.kernels.page_check import buffers_of
from semistream.kernels.rows import copy_bytes, copy_value

Codes = NDArray[np.int64]


class PackedPages(NamedTuple):
    """Packed pages: how long they are unpacked, and the symbols of each file and column.

    Without any, nothing is packed.
    """

    whole: Codes
    file: NDArray[np.int32]
    words: NDArray[np.int64]
    lengths: NDArray[np.uint8]


class Tray(NamedTuple):
    """Where picked rows are laid out: an address and its bytes; and room for a mark per row.

    `asked` says which columns are.
    """

    address: int
    room: int
    marks: NDArray[np.uint8]
    asked: NDArray[np.bool_]


@kernel
def _aligned(size: int) -> int:
    return (size + 7) & -8


@kernel
def _code_at(block: int, entry: int, width: int, row: int) -> int:
    """The code of a row, from a code column of eight or four bytes."""
    at = block + load_4(entry + AT)
    if kind_of(entry) != AS_IT_IS:
        return number_at(at, int(load_1(entry + BITS)), row)
    return load_8(at + 8 * row) if width == 8 else int(load_4(at + 4 * row))


@borrowing_kernel
def _mark(
    block: int, entry: int, width: int, rows: int, codes: Codes, first: int, stop: int, marks: Any
) -> int:
    """Mark the rows that have one of the codes first..stop; returns how many there are."""
    count = 0
    for row in range(rows):
        marks[row] = 0
    for i in range(first, stop):
        low, high = 0, rows
        while low < high:
            middle = (low + high) >> 1
            if _code_at(block, entry, width, middle) < codes[i]:
                low = middle + 1
            else:
                high = middle
        while low < rows and _code_at(block, entry, width, low) == codes[i]:
            count += marks[low] == 0
            marks[low] = 1
            low += 1
    return count


@borrowing_kernel
def _pick_flags(at: int, rows: int, marks: Any, to: int) -> None:
    """Copy the bits of marked rows, one behind the other."""
    k = 0
    for row in range(rows):
        if marks[row]:
            if k & 7 == 0:
                fill_1(to + (k >> 3), 0)
            bit = (int(load_1(at + (row >> 3))) >> (row & 7)) & 1
            fill_1(to + (k >> 3), int(load_1(to + (k >> 3))) | (bit << (k & 7)))
            k += 1


@borrowing_kernel
def _pick_fixed(block: int, entry: int, width: int, rows: int, marks: Any, to: int) -> None:
    """Copy the values of marked rows, one behind the other."""
    at = block + load_4(entry + AT)
    is_packed = kind_of(entry) != AS_IT_IS
    for row in range(rows):
        if marks[row]:
            if is_packed:
                unpack_value(block, entry, width, row, to)
            else:
                copy_value(to, at + width * row, width)
            to += width


@borrowing_kernel
def _pick_varying(
    block: int,
    size: int,
    entry: int,
    width: int,
    rows: int,
    marks: NDArray[np.uint8],
    words: Codes,
    lengths: NDArray[np.uint8],
    to: int,
    heap: int,
    end: int,
) -> int:
    """Copy the texts of marked rows to `heap`, and their offsets to `to`; their bytes, or -1."""
    whole, is_packed = 0, kind_of(entry) == ENDS
    offsets, texts = block + load_4(entry + AT), block + load_4(entry + ENTRY + AT)
    length = int(load_4(entry + ENTRY + LENGTH))
    picked = 0
    put_offset(to, width, 0, 0)
    for row in range(rows):
        if marks[row]:
            if is_packed:
                at = heap + whole
                written = unpack_text(block, size, entry, row, words, lengths, at, end - at)
            else:
                start = offset_at(offsets, width, row)
                stop = offset_at(offsets, width, row + 1)
                written = stop - start if 0 <= start <= stop <= length else -1
                if 0 <= written <= end - heap - whole:
                    copy_bytes(heap + whole, texts + start, written)
            if not 0 <= written <= end - heap - whole:
                return -1
            whole += written
            picked += 1
            put_offset(to, width, picked, whole)
    return whole


@kernel
def pick_rows(
    block: int,
    size: int,
    rows: int,
    ends: tuple[int, int],
    widths: Codes,
    code: int,
    codes: Codes,
    first: int,
    stop: int,
    symbols: Symbols,
    tray: Tray,
    used: int,
    fields: Any,
) -> tuple[int, int]:
    """Lay out the rows that have one of the codes first..stop; how many, and where the tray ends.

    `ends` are the first and the last code that the page should have, `used` bytes of the tray are
    taken. -1 rows if the page is not what it should be.
    """
    if not sound_block(block, size, rows, widths, len(symbols.words)):
        return -1, used
    entry = block + ENTRIES
    for j in range(code):
        entry += buffers_of(widths[j]) * ENTRY
    entry += ENTRY
    if _code_at(block, entry, widths[code], 0) != ends[0]:
        return -1, used
    if _code_at(block, entry, widths[code], rows - 1) != ends[1]:
        return -1, used
    marks = tray.marks
    picked = _mark(block, entry, widths[code], rows, codes, first, stop, marks)
    if picked == 0:
        return 0, used
    entry = block + ENTRIES
    to, end = tray.address + used, tray.address + tray.room
    for j in range(len(widths)):
        width = widths[j]
        if not tray.asked[j]:
            entry += buffers_of(width) * ENTRY
            continue
        fields[j].first, fields[j].width, fields[j].valid, fields[j].offsets = 0, width, 0, 0
        bits = _aligned((picked + 7) >> 3)
        fixed = _aligned(picked * width) if width > 0 else bits
        if to + bits + (_aligned(-width * (picked + 1)) if width < 0 else fixed) + SPARE > end:
            return -1, used
        if load_4(entry + LENGTH):
            _pick_flags(block + load_4(entry + AT), rows, marks, to)
            fields[j].valid = to
            to += bits
        entry += ENTRY
        if width < 0:
            heap = to + _aligned(-width * (picked + 1))
            # Of a column that is kept as it is, any symbols will do.
            number = min(int(load_1(entry + ENTRY + PLACES)), len(symbols.words) - 1)
            words, lengths = symbols.words[number], symbols.lengths[number]
            length = _pick_varying(
                block, size, entry, width, rows, marks, words, lengths, to, heap, end - SPARE
            )
            if length < 0:
                return -1, used
            fields[j].offsets, fields[j].values = to, heap
            to, entry = heap + _aligned(length), entry + ENTRY
        elif width == 0:
            _pick_flags(block + load_4(entry + AT), rows, marks, to)
            fields[j].values = to
            to += bits
        else:
            _pick_fixed(block, entry, width, rows, marks, to)
            fields[j].values = to
            to += fixed
        entry += ENTRY
    return picked, to - tray.address
