"""The locator of a new version, from the old locator and the rewritten pages.

The old locator is read page by page while the new one is written. Only the codes of the rewritten
pages are in memory, 16 bytes each.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.arrow_arrays import to_arrow, to_numpy
from semistream.keys import Codes
from semistream.relation.locator import LOCATOR_PAGE_BYTES, LOCATOR_SCHEMA, merged_locator_rows
from semistream.relation.master_version import MasterVersion
from semistream.relation.page_file import PageWriter, WrittenPages
from semistream.relation.shards import shard_of
from semistream.relation.stored_rows import pages_of
from semistream.relation.updates.rewrite import Rewritten

__all__ = ["rewrite_locator"]


def rewrite_locator(
    master: MasterVersion, result: Rewritten, name: str
) -> tuple[WrittenPages, tuple[int, ...]]:
    """Write the new locator. Returns its pages and the first page of each shard."""
    moved = result.moved(len(master.pages))
    located = result.located()
    owner = shard_of(to_numpy(located["code"].combine_chunks()), master.shard_count)
    starts = [0]
    with PageWriter(master.storage, name, LOCATOR_SCHEMA, LOCATOR_PAGE_BYTES) as writer:
        for shard in range(master.shard_count):
            mine = located.filter(to_arrow(owner == shard)).combine_chunks()
            for rows in _merged(master, shard, moved, mine):
                writer.add(rows, to_numpy(rows.column("code")))
            writer.end_page()
            starts.append(writer.page_count)
    return writer.written(), tuple(starts)


def _merged(
    master: MasterVersion, shard: int, moved: NDArray[np.int32], located: pa.Table
) -> Iterator[pa.RecordBatch]:
    """The locator rows of a shard, in code order, piece by piece."""
    new, low, high = (to_numpy(column.combine_chunks()) for column in located.columns)
    done = 0
    for codes, first, last in _old(master, shard):
        first, last = moved[first], moved[last]
        stays = (first >= 0) | (last >= 0)
        stop = int(np.searchsorted(new, codes[-1], side="right"))
        # If one end of a span was rewritten, `new` has that end; here the other stands for both.
        yield from _rows(
            np.concatenate([codes[stays], new[done:stop]]),
            np.concatenate([np.where(first >= 0, first, last)[stays], low[done:stop]]),
            np.concatenate([np.where(last >= 0, last, first)[stays], high[done:stop]]),
        )
        done = stop
    yield from _rows(new[done:], low[done:], high[done:])


def _old(
    master: MasterVersion, shard: int
) -> Iterator[tuple[Codes, NDArray[np.int32], NDArray[np.int32]]]:
    """The old locator's rows, page by page; valid until the next page is asked for."""
    begin, end = master.manifest.locator_starts[shard : shard + 2]
    locator = master.locator()
    if locator is None:
        return
    with locator:
        for _, batch in pages_of(locator.reader, np.arange(begin, end)):
            codes, first, last = map(to_numpy, batch.columns)
            yield codes, first, last


def _rows(
    codes: Codes, low: NDArray[np.int32], high: NDArray[np.int32]
) -> Iterator[pa.RecordBatch]:
    if len(codes):
        yield from merged_locator_rows(codes, low, high).to_batches()
