"""How a scan divides its budget: what is needed first, then R if it fits, then waiting tuples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from semistream.column_widths import fixed_dtype
from semistream.errors import BudgetError
from semistream.parts.output import staging_bytes
from semistream.plan import JoinPlan
from semistream.relation import MasterTable
from semistream.scanning.shape import ScanShape

__all__ = ["ALGORITHM", "Needs", "ScanPlan", "Sizing", "scan_plan"]

ALGORITHM: Final = "meshjoin"
"""Whose scan it is."""
_MOST_FRAGMENT: Final = 2 << 20
_MOST_PAIRS: Final = 32768
_FEWEST_PAIRS: Final = 16
_UNSEEN_TUPLE: Final = 64
_MOST_PAGES: Final = 32
_SHARE: Final = 16
"""The disk buffer, and a piece of output, have one in so many bytes of the memory."""


class Needs(NamedTuple):
    """Bytes that a matcher needs."""

    waiting: int
    """For a waiting tuple beside its columns; about so many, if it depends on its value."""
    row: int
    """For each row of a page or block, while its pairs are looked for."""
    kept_row: int
    """For a row that is kept, beside its columns."""
    fixed: int = 0
    """However many there are."""


@dataclass(frozen=True)
class ScanPlan(JoinPlan):
    """A plan of a scan. `stream_slots` is about how many tuples wait at a time."""

    condition: str = ""
    kept: bool = False
    """Whether what is needed of R stays in memory."""
    window_bytes: int = 0
    widest_tuple: int = 0
    """The tuples that it is made for are at most so wide."""

    def sizes(self) -> list[str]:
        """Its sizes in words, and what it is for."""
        rows = "R is kept in memory" if self.kept else "R is read for each window"
        return [self.condition, rows, *super().sizes()]


class Sizing(NamedTuple):
    """What the sizes of a scan follow from."""

    master: MasterTable
    shape: ScanShape
    first: pa.RecordBatch
    """The stream begins so."""
    needs: Needs


def scan_plan(sizing: Sizing, memory: int, may_keep: bool = True) -> ScanPlan:
    """The sizes for so much memory; `BudgetError` if it is too little."""
    ample = memory // _SHARE
    reads = _plan(sizing, memory, ample, kept=False)
    keeps = _plan(sizing, memory, ample, kept=True)
    # To read R for fewer windows is not worth more than to have it: unless they are far fewer.
    if may_keep and keeps.window_bytes > 0 and 4 * keeps.window_bytes >= reads.window_bytes:
        return keeps
    smallest = _plan(sizing, memory, 0, kept=False)
    for plan in (reads, smallest):
        if plan.window_bytes > 0:
            return plan
    least = sum(smallest.parts.values()) + _least_window(smallest, sizing.needs)
    raise BudgetError(
        f"memory={memory:,} bytes is too little for {sizing.shape.condition} on this master: the "
        f"least is {least:,} bytes. Give more memory."
    )


def _plan(sizing: Sizing, memory: int, ample: int, kept: bool) -> ScanPlan:
    """Sizes with `ample` bytes for the disk buffer and for a piece of output, or what they need."""
    master, shape, first, needs = sizing
    widest_row = master.widest_row if shape.payload else 0
    seen = shape.tuple_bytes(shape.plain(first)) if first.num_rows else _UNSEEN_TUPLE
    fragment = max(2 * (seen + widest_row), min(_MOST_FRAGMENT, ample))
    pairs = min(_MOST_PAIRS, max(_FEWEST_PAIRS, fragment // 64))
    pages = _partition_pages(master, ample, needs, kept)
    parts = {
        "index": master.index_bytes,
        "disk buffer": disk_bytes(master, pages, needs, kept),
        "output": staging_bytes(fragment, pairs, widest_row, large=True),
    }
    if kept:
        parts["kept rows"] = _kept_bytes(master, shape, needs)
    left = memory - sum(parts.values())
    plan = ScanPlan(
        algorithm=ALGORITHM,
        memory=memory,
        partition_pages=pages,
        stream_slots=0,
        chunk_tuples=0,
        pinned_partitions=0,
        heap_bytes=0,
        fragment_bytes=fragment,
        pairs=pairs,
        stream_chunk_rows=0,
        frames=1,
        parts=parts,
        condition=str(shape.condition),
        kept=kept,
        window_bytes=left,
        widest_tuple=seen,
    )
    if left < _least_window(plan, needs):
        return _with_window(plan, 0, needs)
    return _with_window(plan, left, needs)


def _with_window(plan: ScanPlan, size: int, needs: Needs) -> ScanPlan:
    parts = plan.parts | ({"waiting tuples": size} if size else {})
    size = max(0, size - needs.fixed)
    slots = size // (needs.waiting + (0 if plan.kept else 2 * plan.widest_tuple))
    return replace(plan, window_bytes=size, stream_slots=slots, parts=parts)


def _least_window(plan: ScanPlan, needs: Needs) -> int:
    """Room for one tuple, as wide as any that a piece of output can hold."""
    return needs.fixed + needs.waiting + 2 * plan.fragment_bytes


def disk_bytes(master: MasterTable, pages: int, needs: Needs, kept: bool) -> int:
    """The frame, what is worked out of a block, and for kept rows the copies until they are."""
    frame = master.pages.frame_bytes(pages)
    rows = _most_rows(master, pages if kept else 1)
    return (3 if kept else 1) * frame + rows * needs.row


def _most_rows(master: MasterTable, pages: int) -> int:
    rows = master.pages.rows
    if not len(rows):
        return 0
    ends = np.concatenate([[0], np.cumsum(rows)])
    pages = min(pages, len(rows))
    return int((ends[pages:] - ends[:-pages]).max())


def _partition_pages(master: MasterTable, limit: int, needs: Needs, kept: bool) -> int:
    pages = 1
    while 2 * pages <= _MOST_PAGES and disk_bytes(master, 2 * pages, needs, kept) <= limit:
        pages *= 2
    return pages


def _kept_bytes(master: MasterTable, shape: ScanShape, needs: Needs) -> int:
    """An upper bound of what the needed columns take in memory."""
    fields = [master.schema.field(name) for name in shape.read_columns]
    dtypes = [fixed_dtype(field.type) for field in fields]
    if any(dtype is None for dtype in dtypes):
        # A page has all of its columns, padded: more than they take in a block.
        columns = int(master.pages.length.sum())
    else:
        columns = sum(dtype.itemsize + 1 for dtype in dtypes if dtype is not None)
        columns *= master.row_count
    return columns + master.row_count * needs.kept_row
