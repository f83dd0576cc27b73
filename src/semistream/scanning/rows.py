"""Master rows, block by block: kept in memory once they are read, or read again each time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.arrow_arrays import to_arrow
from semistream.budget import MemoryBudget
from semistream.errors import BudgetError
from semistream.metrics import Recorder
from semistream.relation import Frame, MasterTable
from semistream.row_bytes import Sizes, row_bytes
from semistream.scanning.matcher import Matcher
from semistream.scanning.shape import ScanShape
from semistream.scanning.sizing import ScanPlan

__all__ = ["Block", "MasterRows"]


@dataclass
class Block:
    """Some master rows: the columns that go out, and what the matcher needs of them."""

    rows: pa.RecordBatch
    keys: Any

    @cached_property
    def row_bytes(self) -> Sizes:
        """Bytes of each row."""
        return row_bytes(self.rows)


class MasterRows:
    """All rows of R, again and again."""

    def __init__(
        self,
        master: MasterTable,
        shape: ScanShape,
        matcher: Matcher,
        plan: ScanPlan,
        budget: MemoryBudget,
        io: str,
        recorder: Recorder,
    ) -> None:
        """Open the files, and read the rows if they are to be kept."""
        budget.grant("index").take(plan.parts["index"])
        budget.grant("disk buffer").take(plan.parts["disk buffer"])
        self._page_count = master.page_count
        self._columns, self._payload = shape.read_columns, shape.payload
        self._matcher = matcher
        self._per_read = plan.partition_pages
        self._recorder = recorder
        self._counted = 0
        self._reader = master.reader(io)
        self._frame = Frame(master.pages.frame_bytes(self._per_read))
        self._kept: list[Block] | None = None
        if plan.kept:
            try:
                self._keep(plan, budget)
            except BaseException:
                self._reader.close()
                raise

    def close(self) -> None:
        """Close the files."""
        self._reader.close()

    def blocks(self) -> Iterator[Block]:
        """All rows; each block is valid until the next one is asked for."""
        if self._kept is not None:
            yield from self._kept
            return
        for pages in self._reads():
            for page in pages:
                yield Block(page.select(self._payload), self._matcher.keys(page))

    def _keep(self, plan: ScanPlan, budget: MemoryBudget) -> None:
        """Read the rows into memory, in blocks; `BudgetError` if they are more than planned."""
        grant = budget.grant("kept rows")
        kept: list[Block] = []
        for pages in self._reads():
            block = self._copied(pages)
            size = _bytes_of([*block.rows.columns, *block.keys.arrays])
            if grant.bytes + size > plan.parts["kept rows"]:
                raise BudgetError(f"The rows take more than {plan.parts['kept rows']:,} bytes.")
            grant.take(size)
            kept.append(block)
        grant.take(plan.parts["kept rows"] - grant.bytes)
        self._kept = kept

    def _copied(self, pages: list[pa.RecordBatch]) -> Block:
        """Pages as a block of its own memory, in the order in which rows are found fastest."""
        chosen = [page.select(self._columns) for page in pages]
        batch = chosen[0] if len(chosen) == 1 else pa.concat_batches(chosen)
        order = self._matcher.order(self._matcher.keys(batch))
        if order is not None or len(chosen) == 1:
            order = np.arange(batch.num_rows) if order is None else order
            batch = batch.take(to_arrow(order))
        return Block(batch.select(self._payload), self._matcher.keys(batch))

    def _reads(self) -> Iterator[list[pa.RecordBatch]]:
        """All pages, a partition at a time; they are valid until the next."""
        recorder = self._recorder
        for first in range(0, self._page_count, self._per_read):
            count = min(self._per_read, self._page_count - first)
            yield self._reader.read(first, count, self._frame)
            recorder.partitions_read += 1
            recorder.sequential_reads += first > 0
            recorder.pages_read += count
            recorder.bytes_read += self._reader.bytes_read - self._counted
            self._counted = self._reader.bytes_read


def _bytes_of(arrays: list[Any]) -> int:
    """Bytes of Arrow and NumPy arrays; memory that several share counts once."""
    buffers: dict[int, int] = {}
    for array in arrays:
        if isinstance(array, np.ndarray):
            buffers[array.ctypes.data] = array.nbytes
        else:
            buffers |= {b.address: b.size for b in array.buffers() if b is not None}
    return sum(buffers.values())
