"""Copy on write: pages that a change touches are rewritten, all others stay.

    version 1   | p0 | p1 | p2 | p3 | p4 |          file A
    a change        touches p1, p3
    version 2   | p0 | B0 | B1 | p2 | B2 | p4 |     p0 p2 p4 still in A, the rest in file B

Touched pages are read, merged and written one after the other, so only the change itself and a few
pages are in memory.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.arrow_arrays import to_arrow
from semistream.keys import Codes
from semistream.relation.build import distinct
from semistream.relation.gather import OrderedRows
from semistream.relation.locator import LOCATOR_SCHEMA, merged_locator_rows
from semistream.relation.master_version import MasterVersion
from semistream.relation.page_file import PageWriter, WrittenPages
from semistream.relation.page_index import PageIndex
from semistream.relation.reader import PageReader
from semistream.relation.stored_rows import key_columns, pages_of, row_codes
from semistream.relation.updates.change import Change
from semistream.relation.updates.placement import Placement, ShardPlan

__all__ = ["Rewrite", "Rewritten"]

_PIECE_ROWS = 1 << 16


class _Piece(NamedTuple):
    """A run of pages, of the old version or of the new file."""

    new: bool
    first: int
    stop: int


class Rewritten:
    """The pages of the new version in order: old ones that stay, and new ones."""

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []
        self._pages = self.new_pages = 0
        self._shard_starts = [0]
        self._noted: list[Codes] = []

    def keep(self, first: int, stop: int) -> None:
        """The old pages `first` to before `stop` come next."""
        self._pieces.append(_Piece(False, first, stop))
        self._pages += stop - first

    def add(self, count: int) -> None:
        """The next `count` pages of the new file come next."""
        if count:
            self._pieces.append(_Piece(True, self.new_pages, self.new_pages + count))
            self._pages += count
            self.new_pages += count

    def note(self, codes: Codes) -> None:
        """The next page of the new file has these codes. Equal codes are adjacent."""
        self._noted.append(distinct(codes))

    def end_shard(self) -> None:
        """The pages that follow belong to the next shard."""
        self._shard_starts.append(self._pages)

    @property
    def shard_starts(self) -> tuple[int, ...]:
        """The first page of each shard, then the number of pages."""
        return tuple(self._shard_starts)

    def index(self, old: PageIndex, new: PageIndex | None) -> PageIndex:
        """The index of the new version."""
        sides = (old, new if new is not None else old)
        return PageIndex.joined(sides[piece.new].part(*piece[1:]) for piece in self._pieces)

    def moved(self, old_count: int) -> NDArray[np.int32]:
        """The new number of each old page; -1 for pages that are gone."""
        return self._numbers(False, old_count)

    def located(self) -> pa.Table:
        """Locator rows of the new file's pages, in code order."""
        if not self._noted:
            return pa.Table.from_batches([], LOCATOR_SCHEMA)
        page = np.repeat(self._numbers(True, self.new_pages), [len(codes) for codes in self._noted])
        return merged_locator_rows(np.concatenate(self._noted), page, page)

    def _numbers(self, new: bool, count: int) -> NDArray[np.int32]:
        numbers = np.full(count, -1, np.int32)
        at = 0
        for piece in self._pieces:
            size = piece.stop - piece.first
            if piece.new == new:
                numbers[piece.first : piece.stop] = np.arange(at, at + size)
            at += size
        return numbers


class Rewrite:
    """Writes one new page file for a change; `run` does it, once."""

    def __init__(self, master: MasterVersion, change: Change, name: str, everything: bool) -> None:
        """`name` is the new file's name in the folder `data`.

        With `everything`, pages that the change does not touch are rewritten too.
        """
        self._master, self._change, self._name = master, change, name
        self._everything = everything
        self._rows: OrderedRows
        self._stack = ExitStack()
        self._writer: PageWriter | None = None
        self.result = Rewritten()
        """The pages of the new version."""

    def run(self) -> WrittenPages | None:
        """Write the pages; None if there was nothing to write."""
        placement = Placement(self._master, self._change, self._everything)
        self._rows = OrderedRows(self._change.rows, placement.order)
        with self._stack, self._master.reader() as reader:
            for plan in placement.plans:
                self._shard(plan, reader)
        return None if self._writer is None else self._writer.written()

    def _shard(self, plan: ShardPlan, reader: PageReader) -> None:
        done = plan.first
        for page, batch in pages_of(reader, plan.touched):
            self._keep(done, page)
            self._page(plan, page, batch)
            done = page + 1
        self._keep(done, plan.stop)
        low, high = plan.appended
        for at in range(low, high, _PIECE_ROWS):
            stop = min(at + _PIECE_ROWS, high)
            self._write(self._rows.take(at, stop), plan.codes(at, stop))
        self._end_run()
        self.result.end_shard()

    def _page(self, plan: ShardPlan, page: int, batch: pa.RecordBatch) -> None:
        """Rewrite an old page: without the removed rows, with the new rows that go into it."""
        codes = row_codes(self._master, batch)
        goes = self._change.goes(key_columns(self._master, batch), codes)
        low, high = plan.into(page)
        if low == high and not goes.any() and not self._everything:
            self._keep(page, page + 1)
            return
        stays = np.flatnonzero(~goes)
        places = self._places(codes, plan.codes(low, high))
        # In the given order, places do not rise with the row number, so no cut is safe.
        step = _PIECE_ROWS if self._master.layout == "key" else max(high - low, 1)
        done = 0
        for at in range(low, high, step):
            stop = min(at + step, high)
            some = places[at - low : stop - low]
            until = int(some.max())
            old = stays[(stays >= done) & (stays < until)]
            new = self._rows.take(at, stop), plan.codes(at, stop)
            self._write(*_interleaved((batch, codes), old, new, some))
            done = until
        old = stays[stays >= done]
        self._write(batch.take(to_arrow(old)), codes[old])

    def _places(self, codes: Codes, new: Codes) -> NDArray[np.int64]:
        """The row of the page before which each new row goes: after the last row of its code."""
        if self._master.layout == "key":
            return np.searchsorted(codes, new, side="right")
        known, behind = np.unique(codes[::-1], return_index=True)
        return len(codes) - behind[np.searchsorted(known, new)]

    def _write(self, rows: pa.RecordBatch, codes: Codes) -> None:
        if not rows.num_rows:
            return
        if self._writer is None:
            master = self._master
            writer = PageWriter(
                master.storage,
                f"data/{self._name}",
                master.stored_schema,
                master.page_bytes,
                len(master.manifest.page_files),
                self.result.note if master.layout == "given" else None,
                master.compression,
            )
            self._writer = self._stack.enter_context(writer)
        self._writer.add(rows, codes)

    def _keep(self, first: int, stop: int) -> None:
        """These old pages stay where they are."""
        if first < stop:
            self._end_run()
            self.result.keep(first, stop)

    def _end_run(self) -> None:
        """End the run of new pages: old pages or another shard follow."""
        if self._writer is not None:
            before = self.result.new_pages
            # Half-full pages have room to grow; `compact` wants full ones.
            self._writer.end_page(even=not self._everything)
            self.result.add(self._writer.page_count - before)


def _interleaved(
    page: tuple[pa.RecordBatch, Codes],
    old: NDArray[np.int64],
    new: tuple[pa.RecordBatch, Codes],
    places: NDArray[np.int64],
) -> tuple[pa.RecordBatch, Codes]:
    """The `old` rows of a page, and new rows before the rows of the page that `places` names."""
    order = np.argsort(np.concatenate([2 * old + 1, 2 * places]), kind="stable")
    rows = pa.concat_batches([page[0].take(to_arrow(old)), new[0]])
    return rows.take(to_arrow(order)), np.concatenate([page[1][old], new[1]])[order]
