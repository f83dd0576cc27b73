"""Reading a version's rows page by page, with their codes, to write the next version."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.arrow_arrays import to_numpy
from semistream.keys import Codes
from semistream.relation.master_version import MasterVersion
from semistream.relation.reader import Frame, PageReader

__all__ = ["RUN_PAGES", "key_columns", "pages_of", "row_codes"]

RUN_PAGES = 32
"""The most pages that are read at once."""


def key_columns(master: MasterVersion, batch: pa.RecordBatch) -> list[pa.Array]:
    """The key columns of stored rows."""
    return [batch.column(name) for name in master.key]


def row_codes(master: MasterVersion, batch: pa.RecordBatch) -> Codes:
    """The codes of stored rows; valid as long as the rows are."""
    if master.code_column is not None:
        stored: Codes = to_numpy(batch.column(master.code_column))
        return stored
    return master.codec.codes(key_columns(master, batch))[0]


def pages_of(reader: PageReader, pages: NDArray[np.int64]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The pages with these numbers, in order; each is valid until the next one is asked for.

    Adjacent pages are read together, up to a limit.
    """
    if not len(pages):
        return
    runs = np.split(pages, np.flatnonzero(np.diff(pages) != 1) + 1)
    frame = Frame(reader.frame_bytes(min(max(map(len, runs)), RUN_PAGES)))
    for run in runs:
        for at in range(0, len(run), RUN_PAGES):
            first, count = int(run[at]), min(RUN_PAGES, len(run) - at)
            yield from enumerate(reader.read(first, count, frame), first)
