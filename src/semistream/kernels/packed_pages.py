"""Packed pages: pages in fewer bytes, of which single rows can be read.

    | checksum | rows, sizes | entry of each buffer | head of the page | buffers, packed | patches |

Numbers take as few bits as they need, prices are numbers of cents, and texts are written in symbols
(see `bits` and `symbols`). A buffer for which none of this pays is kept as it is. The page itself,
an Arrow IPC message, comes back byte for byte: bytes between its buffers, which may have any value,
are among the patches.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from semistream.kernels.bits import MOST_BITS, number_at, packed_bytes
from semistream.kernels.checksum import SHORTEST, xxh3
from semistream.kernels.compiling import borrowing_kernel, kernel
from semistream.kernels.copying import fill_1, fill_4, fill_8, load_1, load_4, load_8
from semistream.kernels.page_check import all_buffers, buffers_of
from semistream.kernels.rows import copy_bytes
from semistream.kernels.symbols import get_text

AS_IT_IS, NUMBERS, PRICES, ENDS, TEXTS = range(5)
"""How a buffer is packed. Texts have the ends of their symbols in place of Arrow's offsets."""

SPARE: Final = 16
"""Bytes behind a block, and behind what is unpacked, that may be touched."""

ROWS, HEAD, BODY, BUFFERS, PATCHES, ENTRIES = 8, 12, 16, 20, 24, 32
"""Where a block has its rows, the bytes of the page's head and body, how many buffers and patches,
and its entries."""
PATCH: Final = 5
"""Bytes of a patch: a place in the page, and the byte there. Spare bytes follow the last one."""
ENTRY: Final = 16
BITS, PLACES, AT, BEGIN, LENGTH = 1, 2, 4, 8, 12
"""Of an entry: a number's bits, a price's decimal places; where the buffer is packed; where it
begins in the page's body, and its length there."""

MOST_PLACES = 4
POWERS = (1.0, 10.0, 100.0, 1_000.0, 10_000.0)

Codes = NDArray[np.int64]
Bytes = NDArray[np.uint8]


class Symbols(NamedTuple):
    """For each varying column and code: the symbol, as one number, and its bytes."""

    words: Codes
    lengths: Bytes


@kernel
def price_bits(cents: int, places: int) -> int:
    """A whole number, shifted by some decimal places, as the bits of a float."""
    return int(np.float64(cents / POWERS[places]).view(np.int64))


@kernel
def offset_at(at: int, width: int, i: int) -> int:
    """The i-th of Arrow's offsets, of -`width` bytes each."""
    return int(load_4(at + 4 * i)) if width == -4 else load_8(at + 8 * i)


@kernel
def put_offset(at: int, width: int, i: int, offset: int) -> None:
    """Write it."""
    if width == -4:
        fill_4(at + 4 * i, offset)
    else:
        fill_8(at + 8 * i, offset)


@kernel
def _inside(begin: int, size: int, whole: int) -> bool:
    return 0 <= begin <= whole - size


@kernel
def kind_of(entry: int) -> int:
    """How a buffer is packed."""
    return int(load_1(entry))


@kernel
def is_packed_so(entry: int, size: int, count: int, plain: int, width: int) -> bool:
    """Whether a buffer of `count` numbers is packed inside a block of `size` bytes.

    `plain` is what it takes at least as it is, and `width` that of a number.
    """
    kind, bits, at = kind_of(entry), int(load_1(entry + BITS)), int(load_4(entry + AT))
    length = int(load_4(entry + LENGTH))
    if kind == AS_IT_IS:
        return length >= plain and _inside(at, length + SPARE, size)
    if length < plain or bits > MOST_BITS or not _inside(at, packed_bytes(count, bits) + 8, size):
        return False
    if kind == NUMBERS:
        return width in (4, 8, 16)
    if kind == PRICES:
        return width == 8 and int(load_1(entry + PLACES)) <= MOST_PLACES
    return kind == ENDS and width < 0


@kernel
def sound_block(block: int, size: int, rows: int, widths: Codes, columns: int) -> bool:
    """Whether a block is as it was written, and has all buffers of such a page inside.

    `columns` have symbols of their own. Where single texts lie is checked when they are read.
    """
    if size < max(SHORTEST + 8, ENTRIES) or xxh3(block + 8, size - 8) != np.uint64(load_8(block)):
        return False
    head, body = int(load_4(block + HEAD)), int(load_4(block + BODY))
    count = all_buffers(widths)
    if load_4(block + ROWS) != rows or load_4(block + BUFFERS) != count or body < 0:
        return False
    if not _inside(ENTRIES + count * ENTRY, head, size) or head < 0:
        return False
    if not 0 <= int(load_4(block + PATCHES)) <= (size - SPARE - ENTRIES) // PATCH:
        return False
    entry = block + ENTRIES
    for k in range(count):
        here = entry + k * ENTRY
        if not _inside(int(load_4(here + BEGIN)), int(load_4(here + LENGTH)), body):
            return False
    for j in range(len(widths)):
        width, flags = widths[j], int(load_4(entry + LENGTH))
        plain = (rows + 7) >> 3
        # Without nulls there are no flags at all.
        least_flags = plain if flags else 0
        if kind_of(entry) != AS_IT_IS or not is_packed_so(entry, size, 0, least_flags, 0):
            return False
        entry += ENTRY
        if width < 0:
            if not is_packed_so(entry, size, rows + 1, -width * (rows + 1), width):
                return False
            texts = entry + ENTRY
            kind, at = kind_of(texts), int(load_4(texts + AT))
            if kind != (TEXTS if kind_of(entry) == ENDS else AS_IT_IS):
                return False
            if kind == TEXTS and int(load_1(texts + PLACES)) >= columns:
                return False
            least = int(load_4(texts + LENGTH)) if kind == AS_IT_IS else 0
            if not _inside(at, least + SPARE, size):
                return False
            entry = texts
        elif not is_packed_so(entry, size, rows, width * rows if width else plain, width):
            return False
        entry += ENTRY
    return True


@kernel
def unpack_value(block: int, entry: int, width: int, row: int, to: int) -> None:
    """Write a packed value of fixed width to an address."""
    number = number_at(block + load_4(entry + AT), int(load_1(entry + BITS)), row)
    if kind_of(entry) == PRICES:
        number = price_bits(number, int(load_1(entry + PLACES)))
    if width == 4:
        fill_4(to, number)
    else:
        fill_8(to, number)
        if width == 16:
            fill_8(to + 8, number >> 63)


@borrowing_kernel
def unpack_text(
    block: int, size: int, entry: int, row: int, words: Codes, lengths: Bytes, to: int, room: int
) -> int:
    """Write a text of a column whose ends are at `entry`; its bytes, or -1 if it has no room.

    The symbols are those of its column.
    """
    ends, bits = block + load_4(entry + AT), int(load_1(entry + BITS))
    at = int(load_4(entry + ENTRY + AT))
    start, stop = number_at(ends, bits, row), number_at(ends, bits, row + 1)
    # An escape at the end would be followed by a byte of the spare ones.
    if start < 0 or stop < start or not _inside(at + stop, 1, size):
        return -1
    return get_text(block + at + start, stop - start, to, room, words, lengths)


@kernel
def unpack_page(
    block: int, size: int, rows: int, widths: Codes, symbols: Symbols, page: int, length: int
) -> bool:
    """Write the whole page to an address, with `SPARE` bytes behind it; False if it is damaged."""
    if not sound_block(block, size, rows, widths, len(symbols.words)):
        return False
    head = int(load_4(block + HEAD))
    if head + int(load_4(block + BODY)) != length:
        return False
    entry = block + ENTRIES
    body = page + head
    for k in range(head, length, 8):
        fill_8(page + k, 0)
    copy_bytes(page, entry + ENTRY * load_4(block + BUFFERS), head)
    for j in range(len(widths)):
        for _ in range(buffers_of(widths[j])):
            to, count = body + load_4(entry + BEGIN), int(load_4(entry + LENGTH))
            kind = kind_of(entry)
            if kind == AS_IT_IS:
                copy_bytes(to, block + load_4(entry + AT), count)
            elif kind == ENDS:
                heap, whole = body + load_4(entry + ENTRY + BEGIN), 0
                end, column = page + length + SPARE, int(load_1(entry + ENTRY + PLACES))
                words, lengths = symbols.words[column], symbols.lengths[column]
                for row in range(rows):
                    at = heap + whole
                    written = unpack_text(block, size, entry, row, words, lengths, at, end - at)
                    if written < 0:
                        return False
                    whole += written
                    put_offset(to, widths[j], row + 1, whole)
            elif kind != TEXTS:
                for row in range(rows):
                    unpack_value(block, entry, widths[j], row, to + widths[j] * row)
            entry += ENTRY
    patches = int(load_4(block + PATCHES))
    for at in range(block + size - SPARE - PATCH * patches, block + size - SPARE, PATCH):
        if not _inside(int(load_4(at)), 1, length):
            return False
        fill_1(page + load_4(at), int(load_1(at + 4)))
    return True
