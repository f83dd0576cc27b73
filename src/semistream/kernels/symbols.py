"""Texts written in symbols: strings of up to eight bytes that occur often, one byte each.

A text becomes a row of codes, and each text can be read by itself. The code `ESCAPE` says that the
next byte stands for itself. The idea is that of FSST (Boncz, Neumann, Leis: VLDB 2020).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from semistream.kernels.compiling import borrowing_kernel, kernel
from semistream.kernels.copying import fill_1, fill_8, load_1, load_8

ESCAPE: Final = 255
LONGEST: Final = 8
"""Bytes of a symbol; also those behind a text, read or written, that may be touched."""

Bytes = NDArray[np.uint8]


class SymbolTable(NamedTuple):
    """The symbols of one column: each code's as one number, and its bytes.

    Codes of symbols with first byte b are `codes[first[b]:first[b + 1]]`, those of longer ones
    first.
    """

    words: NDArray[np.int64]
    lengths: Bytes
    first: NDArray[np.int64]
    codes: Bytes


@borrowing_kernel
def symbol_at(at: int, left: int, table: SymbolTable) -> int:
    """The longest symbol that the `left` bytes at an address begin with; `ESCAPE` if none."""
    word, byte = load_8(at), int(load_1(at))
    for i in range(table.first[byte], table.first[byte + 1]):
        code = int(table.codes[i])
        length = int(table.lengths[code])
        # The bytes behind the symbol are shifted out.
        if length <= left and ((word ^ table.words[code]) << (64 - 8 * length)) == 0:
            return code
    return ESCAPE


@borrowing_kernel
def put_text(at: int, length: int, to: int, table: SymbolTable) -> int:
    """Write a text in symbols; returns the bytes they take, at most twice its own."""
    done, written = 0, 0
    while done < length:
        code = symbol_at(at + done, length - done, table)
        fill_1(to + written, code)
        written += 1
        if code == ESCAPE:
            fill_1(to + written, int(load_1(at + done)))
            written, done = written + 1, done + 1
        else:
            done += int(table.lengths[code])
    return written


@borrowing_kernel
def get_text(
    at: int, size: int, to: int, room: int, words: NDArray[np.int64], lengths: Bytes
) -> int:
    """Write the text that `size` bytes of symbols stand for; its bytes, or -1 without room.

    It may write `LONGEST` bytes behind its end, and they count as room.
    """
    written, done = 0, 0
    while done < size:
        if written + LONGEST > room:
            return -1
        code = int(load_1(at + done))
        if code == ESCAPE:
            done += 1
            fill_1(to + written, int(load_1(at + done)))
            written += 1
        else:
            fill_8(to + written, words[code])
            written += int(lengths[code])
        done += 1
    return written


@kernel
def cut_text(text: Bytes, length: int, table: SymbolTable, cuts: NDArray[np.int64]) -> int:
    """Where each symbol of a text begins, and where the last one ends; how many there are."""
    at, done, count = text.ctypes.data, 0, 0
    cuts[0] = 0
    while done < length:
        code = symbol_at(at + done, length - done, table)
        done += 1 if code == ESCAPE else int(table.lengths[code])
        count += 1
        cuts[count] = done
    return count
