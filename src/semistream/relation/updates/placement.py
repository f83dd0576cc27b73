"""Where the rows of a change go, and which pages that touches.

In key order, a new row goes into the page whose range of codes includes its own. In the given
order, it goes after the other rows of its code, or to new pages at the end if there are none. So a
frequent key stays among the frequent keys.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semistream.keys import Codes
from semistream.relation.master_version import MasterVersion
from semistream.relation.shards import shard_of
from semistream.relation.updates.change import Change

__all__ = ["Placement", "ShardPlan"]

Numbers = NDArray[np.int64]


class ShardPlan:
    """What a change does to one shard, whose pages are `first` to before `stop`."""

    def __init__(
        self, first: int, stop: int, touched: Numbers, codes: Codes, slots: Numbers, begin: int
    ) -> None:
        """`codes` and `slots` belong to the shard's new rows; `begin` is the number of the first.

        Slot 2 p is inside page p, slot 2 p + 1 behind it.
        """
        self.first, self.stop = first, stop
        self.touched = touched
        """The pages to look at, in order."""
        self._codes, self._slots, self._begin = codes, slots, begin

    @property
    def appended(self) -> tuple[int, int]:
        """The new rows, from first to before stop, that go behind the last page."""
        return self._in_slot(2 * self.stop - 1)

    def into(self, page: int) -> tuple[int, int]:
        """The new rows, from first to before stop, that go into a page."""
        return self._in_slot(2 * page)

    def codes(self, low: int, high: int) -> Codes:
        """The codes of the new rows `low` to before `high`."""
        return self._codes[low - self._begin : high - self._begin]

    def _in_slot(self, slot: int) -> tuple[int, int]:
        low, high = np.searchsorted(self._slots, [slot, slot + 1])
        return self._begin + int(low), self._begin + int(high)


class Placement:
    """The order in which a change's rows are written, and a plan for each shard."""

    def __init__(self, master: MasterVersion, change: Change, everything: bool) -> None:
        """With `everything`, every page counts as touched."""
        self._master, self._change, self._everything = master, change, everything
        count = master.shard_count
        rows = _by_shard(change.codes, count)
        gone = _by_shard(change.gone_codes, count)
        self.plans: list[ShardPlan] = []
        orders: list[Numbers] = [np.empty(0, np.int64)]
        for shard in range(count):
            begin = sum(map(len, orders))
            order, plan = self._plan(shard, rows[shard], gone[shard], begin)
            orders.append(order)
            self.plans.append(plan)
        self.order: Numbers = np.concatenate(orders)
        """The rows of the change, in the order in which they are written."""

    def _plan(
        self, shard: int, rows: Numbers, gone: Numbers, begin: int
    ) -> tuple[Numbers, ShardPlan]:
        master, change = self._master, self._change
        starts = master.manifest.shard_starts
        first, stop = starts[shard], starts[shard + 1]
        part = master if master.shard_count == 1 else master.shard(shard)
        codes = change.codes[rows]
        home = _home(part, codes)
        slots = np.where(home >= 0, 2 * (first + home), 2 * stop - 1)
        order = np.lexsort((_tie(codes, home, master.layout), slots))
        touched = np.full(len(part.pages), self._everything)
        touched[home[home >= 0]] = True
        low, high = _spans(part, change.gone_codes[gone])
        touched |= _covered(low[low <= high], high[low <= high], len(part.pages))
        numbers = first + np.flatnonzero(touched)
        return rows[order], ShardPlan(first, stop, numbers, codes[order], slots[order], begin)


def _by_shard(codes: Codes, count: int) -> list[Numbers]:
    """For each shard, the positions of its codes."""
    owner = shard_of(codes, count)
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.searchsorted(owner[order], np.arange(1, count)))


def _spans(part: MasterVersion, codes: Codes) -> tuple[Numbers, Numbers]:
    """The first and last page that may hold each code; last is below first if none does."""
    locator = part.locator()
    if locator is None:
        first = np.searchsorted(part.pages.last, codes, side="left")
        return first, np.searchsorted(part.pages.first, codes, side="right") - 1
    with locator:
        low, high = locator.find_many(codes)
    return low.astype(np.int64), high.astype(np.int64)


def _home(part: MasterVersion, codes: Codes) -> Numbers:
    """The page for the new rows of each code; -1 if they go behind the last page."""
    if not len(part.pages):
        return np.full(len(codes), -1, np.int64)
    low, high = _spans(part, codes)
    return np.maximum(high, 0) if part.layout == "key" else np.where(low <= high, high, -1)


def _tie(codes: Codes, home: Numbers, layout: str) -> Numbers:
    """The order of rows that go to one place: by code, or by which key came first in the data."""
    if layout == "key":
        return codes
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    return np.where(home >= 0, codes, first[inverse])


def _covered(low: Numbers, high: Numbers, count: int) -> NDArray[np.bool_]:
    """Which of `count` pages lie in any of the spans."""
    edges = np.zeros(count + 1, np.int64)
    np.add.at(edges, low, 1)
    np.add.at(edges, high + 1, -1)
    return np.asarray(np.cumsum(edges)[:count] > 0)
