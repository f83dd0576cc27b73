"""Texts written in symbols: strings of up to eight bytes that occur often, one byte each.

A text becomes a row of codes, and each text can be read by itself. The code `ESCAPE` says that the
next byte stands for itself. The idea is that of FSST (Boncz, Neumann, Leis: VLDB 2020).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from semistream.kernels.compiling import borrowing_kernel, kernel
from semistream.kernels.copying import fill_1, fill_8, load_1, load_8

ESCAPE: Final = 255
LONGEST: Final = 8
"""Bytes of a symbol; also those behind a text, read or written, that may be touched."""

Bytes = NDArray[np.uint8]


@borrowing_kernel
def symbol_at(
    at: int,
    left: int,
    words: NDArray[np.int64],
    lengths: Bytes,
    first: NDArray[np.int64],
    codes: Bytes,
) -> int:
    """The longest symbol that the `left` bytes at an address begin with; `ESCAPE` if none."""
    word, byte = load_8(at), int(load_1(at))
    for i in range(first[byte], first[byte + 1]):
        code = int(codes[i])
        length = int(lengths[code])
        # The bytes behind the symbol are shifted out.
        if length <= left and ((word ^ words[code]) << (64 - 8 * length)) == 0:
            return code
    return ESCAPE


@borrowing_kernel
def put_text(
    at: int,
    length: int,
    to: int,
    words: NDArray[np.int64],
    lengths: Bytes,
    first: NDArray[np.int64],
    codes: Bytes,
) -> int:
    """Write a text in symbols; returns the bytes they take, at most twice its own."""
    done, written = 0, 0
    while done < length:
        code = symbol_at(at + done, length - done, words, lengths, first, codes)
        fill_1(to + written, code)
        written += 1
        if code == ESCAPE:
            fill_1(to + written, int(load_1(at + done)))
            written, done = written + 1, done + 1
        else:
            done += int(lengths[code])
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
def cut_text(
    text: Bytes,
    length: int,
    words: NDArray[np.int64],
    lengths: Bytes,
    first: NDArray[np.int64],
    codes: Bytes,
    cuts: NDArray[np.int64],
) -> int:
    """Where each symbol of a text begins, and where the last one ends; how many there are."""
    at, done, count = text.ctypes.data, 0, 0
    cuts[0] = 0
    while done < length:
        code = symbol_at(at + done, length - done, words, lengths, first, codes)
        done += 1 if code == ESCAPE else int(lengths[code])
        count += 1
        cuts[count] = done
    return count
