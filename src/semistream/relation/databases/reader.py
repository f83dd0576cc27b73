"""Pages and rows of a table in a database, each read a query."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.arrow_arrays import no_rows, to_arrow
from semistream.errors import InternalError
from semistream.keys import Codes
from semistream.relation.frame import Frame
from semistream.relation.page_index import PageIndex
from semistream.relation.reader import PageReader
from semistream.relation.storage import Nowhere, PageFiles

__all__ = ["NOWHERE", "DatabaseReader", "Rows"]


class Rows(Protocol):
    """What the rows come from."""

    def rows_between(self, low: int, high: int, most_bytes: int) -> pa.RecordBatch:
        """The rows whose keys are in low..high, by key."""

    def rows_among(self, codes: Codes, most_bytes: int) -> pa.RecordBatch:
        """The rows with these keys, by key."""

    def rows_in_lots(self, code: int, most_bytes: int) -> Iterator[pa.RecordBatch]:
        """The rows with this key, as many at a time as there is room for."""


class DatabaseReader(PageReader):
    """Reads ranges of keys, and rows by key.

    What is read is in memory of its own. A frame stands for the room that it may take.
    """

    by_code = True

    def __init__(self, rows: Rows, index: PageIndex, schema: pa.Schema) -> None:
        """Nothing is opened: the rows come through a session."""
        super().__init__(PageFiles(NOWHERE, ("none",)), index, schema, "unmapped")
        self._rows = rows
        self._batches: dict[int, pa.RecordBatch] = {}
        """What was read last for each frame."""

    def fetch(self, first: int, count: int, frame: Frame) -> None:
        """Read consecutive ranges with one query."""
        low, high = self.index.first.item(first), self.index.last.item(first + count - 1)
        self._batches.pop(frame.address, None)
        batch = self._rows.rows_between(low, high, frame.nbytes)
        self._batches[frame.address] = batch
        self._count(count, batch)

    def decode(self, first: int, count: int, frame: Frame) -> list[pa.RecordBatch]:
        """All rows that were read for the frame, as one batch."""
        return [self._batches[frame.address]]

    def rows_of(self, codes: Codes, most_bytes: int) -> pa.RecordBatch:
        """All rows of these codes, by code, with one query."""
        if not len(codes):
            return no_rows(self.schema)
        batch = self._rows.rows_among(np.unique(codes), most_bytes)
        self._count(0, batch)
        return batch

    def lots_of(self, code: int, most_bytes: int) -> Iterator[pa.RecordBatch]:
        """All rows of one code, in as many queries as it takes."""
        for batch in self._rows.rows_in_lots(code, most_bytes):
            self._count(0, batch)
            yield batch

    def stretches(
        self, firsts: NDArray[np.int64], stops: NDArray[np.int64], numbers: NDArray[np.int64]
    ) -> NDArray[np.void]:
        """Not for a database: its pages do not lie in files."""
        raise InternalError("Pages of a database were to be read as files. Please report this.")

    def close(self) -> None:
        """Forget what was read; the session is the master's."""
        self._batches.clear()
        super().close()

    def _count(self, pages: int, batch: pa.RecordBatch) -> None:
        self.pages_read += pages
        self.bytes_read += batch.nbytes
        self.reads += 1


def in_order(batch: pa.RecordBatch, codes: Codes) -> pa.RecordBatch:
    """The rows in the order of their codes; a database gives them in any."""
    if bool((codes[1:] >= codes[:-1]).all()):
        return batch
    return batch.take(to_arrow(np.argsort(codes, kind="stable")))


NOWHERE: Final = Nowhere(Path("database"))
