"""Ranges of keys as pages: a page is what the table has between two keys.

    keys    … 3 ──────────── 903 ───────────── 1802 ──── …
    pages   | page 0          | page 1          | page 2 |     each key, also a new one, is in one

The first page begins below all keys and the last ends above all, so keys that are added later have
a page too. A division only decides how large pages are, never what is found: it need not be new.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from semistream.errors import KeyTypeError
from semistream.relation.databases.source import Source, SourceColumn, TooManyBytesError
from semistream.relation.frame import ALIGNMENT, aligned
from semistream.relation.page_index import PageIndex

__all__ = ["KeyRanges", "divided"]

_PLACES: Final = 8
_SAMPLED: Final = 64
"""Rows that are looked at in each place, to know how wide rows are."""
_SAMPLE_BYTES: Final = 1 << 20
"""The most bytes that they may take; fewer are looked at if they are wide."""
_FEW: Final = 4
"""Rows that are looked at first, when nothing is known yet."""
_ROOM: Final = 2
"""A page has room for so many times the rows that it is planned for: rows are added."""
_HIGHEST: Final = 2**63 - 1


@dataclass(frozen=True, eq=False)
class KeyRanges(PageIndex):
    """Ranges of keys; `rows` and `length` of each are estimates."""

    page_bytes: int = 65536
    """The room for a page."""

    def frame_bytes(self, count: int, grain: int = ALIGNMENT) -> int:
        """Bytes for any `count` consecutive ranges."""
        return aligned(max(1, min(count, len(self))) * self.page_bytes)


def divided(
    source: Source, columns: Sequence[SourceColumn], key: pa.DataType, page_bytes: int
) -> KeyRanges:
    """The table as it is now, in ranges that take about half of `page_bytes`. O(rows).

    `columns` are those that are read, and `key` is the type of the key.
    """
    bounds = source.bounds()
    if bounds is not None and bounds[1] > _HIGHEST:
        raise KeyTypeError(
            f"A key is {bounds[1]}, more than 64 bits with a sign hold. Copy the table with "
            "MasterTable.build, which takes keys of any type."
        )
    width = 1.0 if bounds is None else _row_bytes(source, columns, *bounds)
    rows = max(1, int(page_bytes / _ROOM / width))
    starts = np.empty(0, np.int64) if bounds is None else source.every(rows)
    # The first page has no lower limit, and without rows it is the only one.
    first = np.concatenate([[np.iinfo(key.to_pandas_dtype()).min], starts[1:]]).astype(np.int64)
    last = np.concatenate([first[1:] - 1, [np.iinfo(key.to_pandas_dtype()).max]]).astype(np.int64)
    counts = np.full(len(first), rows, np.int32)
    counts[-1] = source.count(source.between(int(starts[-1]), _HIGHEST)) if len(starts) else 0
    length = np.maximum(64, counts * width).astype(np.int64)
    nothing = np.zeros(len(first), np.int64)
    return KeyRanges(
        first=first,
        last=last,
        offset=np.cumsum(length) - length,
        length=length,
        rows=counts,
        checksum=nothing.view(np.uint64),
        file=nothing.astype(np.int32),
        page_bytes=page_bytes,
    )


def _row_bytes(source: Source, columns: Sequence[SourceColumn], low: int, high: int) -> float:
    """How wide a row is on average, by some rows from all over the table."""
    size = rows = 0
    most = _FEW
    for place in range(_PLACES):
        begin = low + (high - low) * place // _PLACES
        some_bytes, some_rows = _sampled(source, columns, source.between(begin, high), most)
        size, rows = size + some_bytes, rows + some_rows
        most = min(_SAMPLED, max(1, _SAMPLE_BYTES * rows // max(2 * size, 1)))
    return max(1.0, size / max(rows, 1))


def _sampled(
    source: Source, columns: Sequence[SourceColumn], condition: str, most: int
) -> tuple[int, int]:
    """The bytes of some rows, and how many they are."""
    while most:
        try:
            some = source.rows(columns, condition, _SAMPLE_BYTES, limit=most)
            return some.nbytes, some.num_rows
        except TooManyBytesError:
            most //= 4
    return _SAMPLE_BYTES, 1
