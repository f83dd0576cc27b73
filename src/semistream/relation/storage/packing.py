"""Packing: how pages are packed, and unpacked, as Arrow and the kernels see them.

    | magic | bytes of all this | checksum | columns | widths | symbols | their bytes | blocks ...

So a file begins. Its symbols come from its first rows; later rows that they suit less take more
bytes.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from semistream.column_widths import column_width, is_flat
from semistream.errors import OptionError
from semistream.kernels.packed_pages import PATCH, SPARE, Symbols, unpack_page
from semistream.kernels.page_check import sound_page
from semistream.kernels.page_packing import SymbolSearch, pack_page, patch
from semistream.kernels.symbols import LONGEST
from semistream.relation.storage.symbol_tables import known_symbols, search_of

__all__ = ["PACKED", "Packing"]

PACKED: Final = "packed"
_MAGIC: Final = b"SEMIPACK"
_CODES: Final = 256
_LONGEST_HEAD: Final = 1 << 26
_VARYING: Final = (-4, -8)
_WIDEST: Final = 1 << 30
_ROOM: Final = 256
"""Bytes that a column may take beside its values, at most."""
_LONGEST_PAGE: Final = 1 << 30
"""Longer pages are kept as they are: entries have four bytes for a place."""


class Packing:
    """The symbols of one file, and the widths of its columns."""

    def __init__(self, widths: NDArray[np.int64], symbols: Symbols) -> None:
        """From what `head` has."""
        self.widths, self.symbols = widths, symbols

    @cached_property
    def _search(self) -> SymbolSearch:
        return search_of(self.symbols)

    @staticmethod
    def symbol_bytes(schema: pa.Schema) -> int:
        """What the symbols of one file take in memory, once here and once for kernels."""
        varying = sum(column_width(field.type) < 0 for field in schema)
        return 2 * varying * _CODES * (8 + 1)

    @staticmethod
    def check(schema: pa.Schema) -> None:
        """Refuse columns whose values kernels do not know."""
        for field in schema:
            if not is_flat(field.type):
                raise OptionError(
                    f'compression="packed" is for columns of plain types, and column '
                    f'"{field.name}" is {field.type}. Use "lz4" or "zstd", or None.'
                )

    @classmethod
    def learned(cls, rows: pa.RecordBatch) -> Packing:
        """For pages of such rows."""
        widths = np.array([column_width(field.type) for field in rows.schema], np.int64)
        return cls(widths, known_symbols(rows, np.flatnonzero(widths < 0).tolist()))

    @classmethod
    def of_head(cls, head: bytes) -> Packing:
        """From the first bytes of a file, all of `head_bytes`; `ValueError` if they are wrong."""
        if xxhash.xxh3_64_intdigest(head[24:]) != int.from_bytes(head[16:24], "little"):
            raise ValueError("the begin of the file is not as it was written")
        columns = int.from_bytes(head[24:32], "little")
        if columns > len(head) // 8:
            raise ValueError("it would have more columns than bytes")
        widths = np.frombuffer(head, np.int64, columns, 32)
        if not all(width in _VARYING or 0 <= width <= _WIDEST for width in widths.tolist()):
            raise ValueError("a column has a width that is none")
        shape = int(np.count_nonzero(widths < 0)), _CODES
        at = 32 + widths.nbytes
        words = np.frombuffer(head, np.int64, shape[0] * _CODES, at).reshape(shape)
        at += words.nbytes
        lengths = np.frombuffer(head, np.uint8, shape[0] * _CODES, at).reshape(shape)
        if lengths.max(initial=0) > LONGEST:
            raise ValueError("a symbol is too long")
        return cls(widths, Symbols(words, lengths))

    @staticmethod
    def head_bytes(begin: bytes) -> int:
        """Bytes of the head of a file that begins so; `ValueError` if it has none."""
        size = int.from_bytes(begin[8:16], "little")
        if begin[:8] != _MAGIC or not 32 <= size <= _LONGEST_HEAD:
            raise ValueError("the file does not begin as one of packed pages does")
        return size

    @property
    def head(self) -> bytes:
        """What a file begins with."""
        parts = (self.widths, self.symbols.words, self.symbols.lengths)
        columns = len(self.widths).to_bytes(8, "little")
        content = b"".join([columns, *(part.tobytes() for part in parts)])
        numbers = 24 + len(content), xxhash.xxh3_64_intdigest(content)
        return b"".join([_MAGIC, *(n.to_bytes(8, "little") for n in numbers), content])

    def packed(self, page: bytes, rows: int) -> bytes:
        """A page in fewer bytes; the page itself if there are not fewer, or it cannot be packed."""
        length = len(page)
        source = np.frombuffer(page + bytes(SPARE), np.uint8)
        places = np.zeros(3, np.int64)
        address = source.ctypes.data
        if length > _LONGEST_PAGE or not sound_page(address, length, rows, self.widths, places):
            return page
        texts = np.empty(2 * length + SPARE, np.uint8)
        target = np.empty(3 * length + _ROOM * (len(self.widths) + 1), np.uint8)
        size = pack_page(
            address,
            places,
            length,
            rows,
            self.widths,
            self.symbols,
            self._search,
            texts,
            target.ctypes.data,
        )
        most = (len(target) - size) // PATCH
        back = self.unpacked(target.data[:size], length)
        came = np.frombuffer(back, np.uint8).ctypes.data
        size = patch(target.ctypes.data, size, address, came, length, most)
        return page if not 0 < size < length else target[:size].tobytes()

    def unpacked(self, block: memoryview, length: int) -> memoryview:
        """The page of a block; `ValueError` if it is damaged."""
        source = np.frombuffer(block, np.uint8)
        page = np.empty(length + SPARE, np.uint8)
        rows = int.from_bytes(block[8:12], "little", signed=True)
        if rows < 1 or not unpack_page(
            source.ctypes.data,
            len(block),
            rows,
            self.widths,
            self.symbols,
            page.ctypes.data,
            length,
        ):
            raise ValueError("it is not as it was packed")
        return page.data[:length]
