"""Pages as they are stored, for kernels that read and search them without a reader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from semistream.kernels.packed_rows import PackedPages
from semistream.kernels.reading import PageList
from semistream.relation.frame import ALIGNMENT
from semistream.relation.page_index import PageIndex
from semistream.relation.storage import CompressedFile, PageSource

__all__ = ["NOT_PACKED", "Stored", "packed_pages"]


class Stored(NamedTuple):
    """Where pages are in their files."""

    pages: PageList
    packed: PackedPages
    descriptors: NDArray[np.int64]
    """Of each file; -1 if kernels cannot read it."""
    grain: int
    """Reads begin and end at multiples of this."""

    @property
    def is_packed(self) -> bool:
        """Whether kernels read packed pages."""
        return len(self.packed.whole) > 0


NOT_PACKED: Final = PackedPages(
    np.zeros(0, np.int64),
    np.zeros(0, np.int32),
    np.zeros((0, 0, 0), np.int64),
    np.zeros((0, 0, 0), np.uint8),
)


def packed_pages(
    files: Mapping[int, PageSource], index: PageIndex, pages: PageList, direct: bool
) -> Stored | None:
    """Packed pages of open files, by their numbers; None if kernels cannot read one of these."""
    if index.place is None or index.size is None or not files:
        return None
    known = {}
    for number, file in files.items():
        if not isinstance(file, CompressedFile) or file.stored.descriptor < 0:
            return None
        try:
            known[number] = file.stored.descriptor, file.packing.symbols
        except OSError:
            # Whoever reads from it is told what is wrong.
            return None
    (_, some), count = known[max(known)], max(known) + 1
    shape = count, *some.words.shape
    words, lengths = np.zeros(shape, np.int64), np.zeros(shape, np.uint8)
    descriptors = np.full(count, -1, np.int64)
    if any(symbols.words.shape != some.words.shape for _, symbols in known.values()):
        return None
    for number, (descriptor, symbols) in known.items():
        words[number], lengths[number] = symbols
        descriptors[number] = descriptor
    return Stored(
        pages._replace(offset=index.place, length=index.size),
        PackedPages(index.length, index.file, words, lengths),
        descriptors,
        ALIGNMENT if direct else 1,
    )
