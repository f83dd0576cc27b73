"""Page staging: rows of several pages, still in their frames, that go to the output together.

INLJ finds a row or two on each page it reads. Copying them out one by one costs more than finding
them, so they stay where they are, in the frames of the disk buffer, until a few pages have some.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.arrow_arrays import to_arrow
from semistream.parts.disk_buffer import DiskBuffer, Partition


class PageStaging:
    """Pages read one after the other, and the rows set aside on them."""

    def __init__(self, disk: DiskBuffer, frames: int) -> None:
        """The disk buffer, whose partitions are pages, has `frames` frames, at least two."""
        self._disk = disk
        self._most_reads = frames - 1
        self._reads = 0
        self._page: Partition | None = None
        self._rows: list[pa.RecordBatch] = []
        self._tuples: list[NDArray[np.int32]] = []

    def __len__(self) -> int:
        """How many pieces are set aside."""
        return len(self._rows)

    @property
    def is_full(self) -> bool:
        """Whether the next read would overwrite a page with rows that are set aside."""
        return self._reads == self._most_reads

    def read(self, number: int) -> Partition:
        """A page; it is not read again if it was the last one."""
        if self._page is None or self._page.number != number:
            self._page = self._disk.read(number)
            self._reads += 1
        return self._page

    def add(self, page: Partition, rows: NDArray[np.int32], tuples: NDArray[np.int32]) -> None:
        """Set aside rows of the page that was read last, each for a tuple."""
        if len(rows) == 1:
            self._rows.append(page.batch.slice(int(rows[0]), 1))
        else:
            self._rows.append(page.batch.take(to_arrow(rows)))
        self._tuples.append(tuples)

    def take(self) -> tuple[NDArray[np.int32], pa.RecordBatch] | None:
        """The tuples and, copied, the rows that were set aside for them; None without any."""
        self._reads = 0
        if not self._rows:
            return None
        taken = np.concatenate(self._tuples), pa.concat_batches(self._rows)
        self._rows, self._tuples = [], []
        return taken

    def check(self) -> None:
        """Assert that every row set aside has its tuple, and that no frame was overwritten."""
        assert [rows.num_rows for rows in self._rows] == [len(some) for some in self._tuples]
        assert self._reads <= self._most_reads
