"""Packing a page: each buffer in as few bytes as can be read again, value by value.

See `packed_pages` for what comes out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from semistream.kernels.bits import measure_numbers, packed_bytes, put_numbers
from semistream.kernels.checksum import xxh3
from semistream.kernels.compiling import kernel
from semistream.kernels.copying import fill_1, fill_4, fill_8, load_1, load_4, load_8
from semistream.kernels.packed_pages import (
    AS_IT_IS,
    AT,
    BEGIN,
    BITS,
    BODY,
    BUFFERS,
    ENDS,
    ENTRIES,
    ENTRY,
    HEAD,
    LENGTH,
    MOST_PLACES,
    NUMBERS,
    PATCH,
    PATCHES,
    PLACES,
    POWERS,
    PRICES,
    ROWS,
    SPARE,
    TEXTS,
    Symbols,
    offset_at,
    price_bits,
)
from semistream.kernels.page_check import PAIR, all_buffers
from semistream.kernels.rows import copy_bytes
from semistream.kernels.symbols import SymbolTable, put_text

_FEW_BITS = 32
"""Numbers of eight bytes that need more may be prices."""
_LARGEST = float(1 << 50)

Codes = NDArray[np.int64]
Bytes = NDArray[np.uint8]


class SymbolSearch(NamedTuple):
    """How symbols are found, for each varying column; see `SymbolTable`."""

    first: Codes
    codes: Bytes


@kernel
def _cents_of(floats: Codes, count: int, places: int, cents: Codes) -> bool:
    """Floats, given as bits, as whole numbers; False unless all come back exactly."""
    for i in range(count):
        shifted = np.int64(floats[i]).view(np.float64) * POWERS[places]
        if not abs(shifted) < _LARGEST:
            return False
        cents[i] = np.int64(np.rint(shifted))
        if price_bits(cents[i], places) != floats[i]:
            return False
    return True


@kernel
def _numbers_of(at: int, width: int, count: int, numbers: Codes) -> bool:
    """Load numbers of four, eight or sixteen bytes; False if one needs more than eight."""
    for i in range(count):
        numbers[i] = load_4(at + 4 * i) if width == 4 else load_8(at + width * i)
        if width == 16 and load_8(at + 16 * i + 8) != numbers[i] >> 63:
            return False
    return True


@kernel
def _note(block: int, entry: int, kind: int, bits: int, places: int, at: int) -> None:
    fill_1(block + entry, kind)
    fill_1(block + entry + BITS, bits)
    fill_1(block + entry + PLACES, places)
    fill_4(block + entry + AT, at)


@kernel
def _keep(block: int, entry: int, at: int, values: int) -> int:
    """Keep a buffer as it is. Like the others, returns where it ends in the block."""
    length = int(load_4(block + entry + LENGTH))
    _note(block, entry, AS_IT_IS, 0, 0, at)
    copy_bytes(block + at, values, length)
    return at + length


@kernel
def _pack_fixed(
    block: int, entry: int, at: int, values: int, width: int, rows: int, numbers: Codes
) -> int:
    """Pack the values of a column of fixed width."""
    length = int(load_4(block + entry + LENGTH))
    fits = width in (4, 8, 16) and length >= width * rows
    if not fits or not _numbers_of(values, width, rows, numbers):
        return _keep(block, entry, at, values)
    kind, places = NUMBERS, 0
    bits, base, trend = measure_numbers(numbers, rows)
    if width == 8 and not 0 <= bits <= _FEW_BITS:
        cents = np.empty(rows, np.int64)
        while places <= MOST_PLACES and not _cents_of(numbers, rows, places, cents):
            places += 1
        if places <= MOST_PLACES:
            kind, numbers = PRICES, cents
            bits, base, trend = measure_numbers(cents, rows)
    if bits < 0 or packed_bytes(rows, bits) >= length:
        return _keep(block, entry, at, values)
    _note(block, entry, kind, bits, places, at)
    put_numbers(numbers, rows, bits, base, trend, block + at)
    return at + packed_bytes(rows, bits)


@kernel
def _pack_varying(
    block: int,
    entry: int,
    at: int,
    offsets: int,
    heap: int,
    width: int,
    rows: int,
    numbers: Codes,
    symbols: Symbols,
    search: SymbolSearch,
    column: int,
    texts: Bytes,
) -> int:
    """Pack the offsets and the values of a column of varying size; `texts` is room for them."""
    behind = entry + ENTRY
    whole = int(load_4(block + behind + LENGTH))
    if int(load_4(block + entry + LENGTH)) < (rows + 1) * -width:
        return _keep(block, behind, _keep(block, entry, at, offsets), heap)
    table = SymbolTable(
        symbols.words[column], symbols.lengths[column], search.first[column], search.codes[column]
    )
    written = start = 0
    numbers[0] = 0
    for i in range(1, rows + 1):
        stop = offset_at(offsets, width, i)
        to = texts.ctypes.data + written
        written += put_text(heap + start, stop - start, to, table)
        numbers[i], start = written, stop
    bits, base, trend = measure_numbers(numbers, rows + 1)
    size = packed_bytes(rows + 1, bits)
    if bits < 0 or start > whole or written >= whole:
        return _keep(block, behind, _keep(block, entry, at, offsets), heap)
    _note(block, entry, ENDS, bits, 0, at)
    put_numbers(numbers, rows + 1, bits, base, trend, block + at)
    _note(block, behind, TEXTS, 0, column, at + size)
    copy_bytes(block + at + size, texts.ctypes.data, written)
    return at + size + written


@kernel
def pack_page(
    page: int,
    places: Codes,
    length: int,
    rows: int,
    widths: Codes,
    symbols: Symbols,
    search: SymbolSearch,
    texts: Bytes,
    block: int,
) -> int:
    """Pack the page at an address; returns the bytes of the block.

    `places` are where the page has its list of buffers and its body, as `sound_page` found them.
    There is room for twice the page, and behind the page for `SPARE` bytes.
    """
    listed, head = page + places[1], places[2]
    count = all_buffers(widths)
    fill_4(block + ROWS, rows)
    fill_4(block + HEAD, head)
    fill_4(block + BODY, length - head)
    fill_4(block + BUFFERS, count)
    fill_8(block + PATCHES, 0)
    for k in range(count):
        entry = block + ENTRIES + k * ENTRY
        fill_8(entry, 0)
        fill_4(entry + BEGIN, load_8(listed + k * PAIR))
        fill_4(entry + LENGTH, load_8(listed + k * PAIR + 8))
    at = ENTRIES + count * ENTRY
    copy_bytes(block + at, page, head)
    at += head
    numbers = np.empty(rows + 1, np.int64)
    entry, varying = ENTRIES, 0
    for j in range(len(widths)):
        here = listed + (entry - ENTRIES) // ENTRY * PAIR
        values = page + head + load_8(here + PAIR)
        at = _keep(block, entry, at, page + head + load_8(here))
        entry += ENTRY
        if widths[j] < 0:
            heap = page + head + load_8(here + 2 * PAIR)
            at = _pack_varying(
                block,
                entry,
                at,
                values,
                heap,
                widths[j],
                rows,
                numbers,
                symbols,
                search,
                varying,
                texts,
            )
            varying += 1
            entry += 2 * ENTRY
        else:
            at = _pack_fixed(block, entry, at, values, widths[j], rows, numbers)
            entry += ENTRY
    return seal(block, at)


@kernel
def seal(block: int, at: int) -> int:
    """Put what belongs behind the block, and the checksum before it; returns its bytes."""
    for k in range(SPARE):
        fill_1(block + at + k, 0)
    at += SPARE
    fill_8(block, int(np.int64(xxh3(block + 8, at - 8))))
    return at


@kernel
def patch(block: int, size: int, page: int, unpacked: int, length: int, most: int) -> int:
    """Add a patch for each byte that came back as another; the new size, -1 if there are too many.

    `unpacked` is what came back for the page.
    """
    at, count = size - SPARE, 0
    for k in range(length):
        if load_1(page + k) != load_1(unpacked + k):
            if count == most:
                return -1
            fill_4(block + at, k)
            fill_1(block + at + 4, int(load_1(page + k)))
            at, count = at + PATCH, count + 1
    if count == 0:
        return size
    fill_4(block + PATCHES, count)
    return seal(block, at)
