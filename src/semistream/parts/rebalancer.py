"""Rebalancer: moves bytes between the front stage and the stream table while a join runs.

Both live from one pool. A row in the front stage answers tuples without a read; a slot in the
stream table lets one more tuple share each read. Which is worth more depends on the stream, and
changes with it.

Whether the front stage pays can be told without a model. Pages read per arriving tuple go as
(1 - h) / n, with h the hit ratio and n the slots; giving the front stage's share s of the pool
to the table makes them 1 / (n / (1 - s)). So the front stage pays exactly while h > s.

That judges a share as a whole. With a price, what judges it is its edge: by how much the hit ratio
would fall if the front stage had only the more frequent two thirds of its rows, and so about by how
much it would rise if it had half as many again. A row, a slot and a byte of either have the same
value then, and there is no share to choose.

Slots cannot be taken from waiting tuples: the table is told to give out none beyond its new
end, and only when the last tuple there has left does the memory move.
"""

from __future__ import annotations

from typing import Protocol

from semistream.budget import MemoryBudget
from semistream.parts.demand_table import DemandTable
from semistream.parts.kept_rows import BYTES_PER_ROW, KeptRows
from semistream.parts.stream_table import StreamTable

LEAST_SHARE = 1 / 128
"""A front stage with no more than that is not made smaller."""
_CAUTION = 0.8
"""The next rows are less frequent than the last: they answer about so much of what those do."""
_WORTH_MOVING = 0.98
"""A front stage shrinks only if that leaves less than this share of the reads: hits save more than
reads, as they do not wait."""
_STEPS = 64
"""An elastic front stage grows and shrinks by the pool's bytes divided by this."""


def judged_rows(
    rows: int, hit_ratio: float, row_bytes: float, pool: float, most_share: float
) -> int:
    """How many rows a front stage should have that answers this share of the tuples with `rows`.

    Half of them while it does not pay, twice as many while it pays well, up to its most.
    """
    share = rows * row_bytes / pool
    if hit_ratio < share and share > LEAST_SHARE:
        return rows // 2
    if hit_ratio > 2 * share and share * 1.1 < most_share:
        return int(min(rows * 2, most_share * pool / row_bytes))
    return rows


def priced_rows(
    rows: int, hits: float, hits_of_most: float, row_bytes: float, pool: float, most_share: float
) -> int:
    """How many rows a front stage should have, by what its least frequent rows are worth.

    The more frequent two thirds of the rows answer `hits_of_most`. Two thirds as many while that
    saves reads, half as many again while that seems to, up to its most; a quarter while they
    answer next to nothing.
    """
    share = rows * row_bytes / pool
    if not 0 < share < 1:
        return rows
    if hits < share / 4 and share > LEAST_SHARE:
        return rows // 4
    reads = (1 - hits) / (1 - share)
    if share > LEAST_SHARE and (1 - hits_of_most) / (1 - share / 1.5) < _WORTH_MOVING * reads:
        return int(rows / 1.5)
    more = min(1.5 * share, most_share)
    gained = _CAUTION * (hits - hits_of_most) * (more / share - 1) / 0.5
    if more > 1.1 * share and (1 - hits - gained) / (1 - more) < reads:
        return int(more * pool / row_bytes)
    return rows


class SlotOwner(Protocol):
    """Who gives out the slots of a stream table: an arrival queue or a scan window."""

    was_full: bool
    least: int
    """Slots without which the join would stand still."""

    @property
    def beyond(self) -> int:
        """Tuples that wait beyond the limit."""

    def limit(self, capacity: int) -> None:
        """Give out only slots below `capacity`."""

    def resize(self, capacity: int) -> None:
        """The table has `capacity` slots."""


class Rebalancer:
    """A pool of bytes: rows of the front stage and slots of the stream table."""

    def __init__(
        self,
        budget: MemoryBudget,
        kept: KeptRows,
        table: StreamTable | DemandTable,
        owner: SlotOwner,
        row_bytes: float,
        slot_bytes: float,
        slot_heap_bytes: float,
        most_share: float,
        elastic: bool,
        priced: bool = False,
    ) -> None:
        """`row_bytes` and `slot_bytes` are what a row here and a slot there take, all told.

        `elastic`: the front stage takes what it asks for, up to `most_share`; `priced`: what is
        worth its price, up to that; otherwise it has at most what it begins with, and less when
        it does not pay.
        """
        self._budget = budget
        self._kept = kept
        self._table = table
        self._owner = owner
        self._heap_row = row_bytes - BYTES_PER_ROW - 1
        self._row_bytes = row_bytes
        self._slot_bytes = slot_bytes
        self._slot_heap = slot_heap_bytes
        self._pool = kept.capacity * row_bytes + table.capacity * slot_bytes
        self._most = most_share if elastic or priced else self.share_of(kept.capacity)
        self._elastic = elastic
        self._priced = priced
        self._wanted: int | None = None

    @property
    def share(self) -> float:
        """The front stage's part of the pool."""
        return self.share_of(self._kept.capacity)

    def share_of(self, rows: int) -> float:
        """The part of the pool that so many rows take."""
        return rows * self._row_bytes / self._pool

    def tick(self, hit_ratio: float | None, crowded: bool, turned: bool) -> None:
        """Time has passed: finish a move under way, or begin one that pays.

        `hit_ratio` is that of this turn, None when no tuple was looked up in it.
        """
        if self._wanted is not None:
            self._finish()
        elif self._elastic:
            pays = hit_ratio is None or hit_ratio > self.share
            self._follow(crowded and pays, turned and not pays)
        elif turned and hit_ratio is not None:
            self._judge(hit_ratio)

    def is_idle(self, hit_ratio: float) -> bool:
        """Whether a front stage with a price has shrunk to its least, and answers no more."""
        return self._priced and self.share <= LEAST_SHARE and hit_ratio < 2 * LEAST_SHARE

    def _follow(self, crowded: bool, idle: bool) -> None:
        """Give the front stage what it asks for; take back what it leaves empty or wastes."""
        step = self._pool / _STEPS / self._row_bytes
        rows = self._kept.capacity
        if idle and rows > step:
            self._shrink_front(max(rows // 2, 16))
            return
        if crowded and (rows + step) * self._row_bytes < self._most * self._pool:
            self._grow_front(int(rows + step))
        elif len(self._kept) + 2 * step < rows:
            self._shrink_front(int(max(len(self._kept) + step, 16)))

    def _judge(self, hit_ratio: float) -> None:
        """Halve the front stage while it does not pay; double it while it pays well."""
        rows, row_bytes = self._kept.capacity, self._row_bytes
        # While slots stay free, as with short streams, more of them would save nothing.
        was_full, self._owner.was_full = self._owner.was_full, False
        if not was_full:
            return
        if self._priced:
            of_most = hit_ratio * self._kept.share_of_most(2 / 3)
            better = priced_rows(rows, hit_ratio, of_most, row_bytes, self._pool, self._most)
        else:
            better = judged_rows(rows, hit_ratio, row_bytes, self._pool, self._most)
        if better < rows:
            self._shrink_front(better)
        elif better > rows:
            self._grow_front(better)

    def _shrink_front(self, rows: int) -> None:
        before = self._budget.used
        self._kept.resize(rows, int(rows * self._heap_row))
        freed = before - self._budget.used
        self._resize_table(self._table.capacity + int(freed / self._slot_bytes))

    def _grow_front(self, rows: int) -> None:
        needed = (rows - self._kept.capacity) * self._row_bytes
        slots = self._table.capacity - int(-(-needed // self._slot_bytes))
        if slots < max(self._table.capacity // 8, self._owner.least):
            return
        self._wanted = rows
        self._owner.limit(slots)
        self._slots = slots
        self._finish()

    def _finish(self) -> None:
        heap = int(self._slots * self._slot_heap)
        if self._owner.beyond or not self._table.store.lower_heap(heap):
            return
        before = self._budget.used
        self._resize_table(self._slots)
        freed = before - self._budget.used
        rows = min(self._wanted or 0, self._kept.capacity + int(freed / self._row_bytes))
        self._wanted = None
        self._kept.resize(rows, int(rows * self._heap_row))

    def _resize_table(self, slots: int) -> None:
        self._table.resize(slots, int(slots * self._slot_heap))
        self._owner.resize(slots)
