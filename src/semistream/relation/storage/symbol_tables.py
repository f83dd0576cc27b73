"""Symbols for the texts of a column: found by writing some of them again and again.

Each time the sample is cut into the symbols that are known. Those that save most bytes stay, and
two that often follow each other may become one. After a few times the best 255 are found, as in
FSST (Boncz, Neumann, Leis: VLDB 2020).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa

from semistream.arrow_arrays import to_arrow
from semistream.kernels.packed_pages import Symbols
from semistream.kernels.page_packing import SymbolSearch
from semistream.kernels.symbols import ESCAPE, LONGEST, SymbolTable, cut_text

__all__ = ["known_symbols", "search_of", "symbols_of"]

_ROUNDS: Final = 5
_SAMPLE_ROWS: Final = 2_000
_SAMPLE_BYTES: Final = 16 << 10
_LONGEST_SAMPLE: Final = 256
"""A long text is no better sample than a short one."""


def known_symbols(rows: pa.RecordBatch, columns: list[int]) -> Symbols:
    """The symbols of some columns, from a sample of rows."""
    return symbols_of([_best(_sample(rows.column(column))) for column in columns])


def symbols_of(tables: list[list[bytes]]) -> Symbols:
    """Symbols for kernels: those of each column, at most 255."""
    words = np.zeros((len(tables), ESCAPE + 1), np.int64)
    lengths = np.zeros((len(tables), ESCAPE + 1), np.uint8)
    for column, table in enumerate(tables):
        for code, symbol in enumerate(table):
            words[column, code] = int.from_bytes(symbol, "little", signed=len(symbol) == LONGEST)
            lengths[column, code] = len(symbol)
    return Symbols(words, lengths)


def search_of(symbols: Symbols) -> SymbolSearch:
    """How they are found in texts."""
    columns = len(symbols.words)
    first = np.zeros((columns, 257), np.int64)
    codes = np.zeros((columns, ESCAPE + 1), np.uint8)
    for column in range(columns):
        begins = symbols.words[column] & 255
        lengths = symbols.lengths[column].astype(np.int64)
        used = np.flatnonzero(lengths)
        order = used[np.lexsort((-lengths[used], begins[used]))]
        codes[column, : len(order)] = order
        first[column] = np.searchsorted(begins[order], np.arange(257))
    return SymbolSearch(first, codes)


def _best(texts: list[bytes]) -> list[bytes]:
    """The symbols that write these texts in the fewest bytes, or nearly."""
    table: list[bytes] = []
    for _ in range(_ROUNDS):
        gains: Counter[bytes] = Counter()
        for pieces in _cut(texts, table):
            for piece in pieces:
                gains[piece] += len(piece)
            for pair in map(bytes.__add__, pieces, pieces[1:]):
                if len(pair) <= LONGEST:
                    gains[pair] += len(pair)
        table = [symbol for symbol, _ in gains.most_common(ESCAPE)]
    return table


def _cut(texts: list[bytes], table: list[bytes]) -> Iterator[list[bytes]]:
    """Each text cut into symbols; bytes that begin none stand alone."""
    symbols = symbols_of([table])
    known = SymbolTable(*(part[0] for part in (*symbols, *search_of(symbols))))
    cuts = np.zeros(max(map(len, texts), default=0) + 1, np.int64)
    for text in texts:
        data = np.frombuffer(text + bytes(LONGEST), np.uint8)
        count = cut_text(data, len(text), known, cuts)
        yield [text[begin:end] for begin, end in pairwise(cuts[: count + 1].tolist())]


def _sample(column: pa.Array) -> list[bytes]:
    """Some texts of a column, from everywhere in it."""
    count = min(len(column), _SAMPLE_ROWS)
    chosen = np.linspace(0, len(column) - 1, count).astype(np.int64)
    texts = column.take(to_arrow(chosen)).drop_null().to_pylist()
    some = [
        (text.encode() if isinstance(text, str) else bytes(text))[:_LONGEST_SAMPLE]
        for text in texts
    ]
    every = max(1, sum(map(len, some)) // _SAMPLE_BYTES)
    return [text for text in some[::every] if text]
