"""What a master must hold after some changes: replayed by hand, one after the other, in dicts."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from semistream.relation import MasterTable
from semistream.relation.stored_rows import pages_of

__all__ = ["Change", "history", "newest", "stored"]


class Change(NamedTuple):
    """A change of a key; without a value, its row is removed."""

    key: int
    sequence: int
    value: str | None


def newest(changes: Iterable[Change]) -> dict[int, str]:
    """The last value of each key that has one."""
    last: dict[int, Change] = {}
    for change in changes:
        known = last.get(change.key)
        # Within one commit, a row that is removed and added again is there.
        if known is None or _order(change) > _order(known):
            last[change.key] = change
    return {key: one.value for key, one in last.items() if one.value is not None}


def history(changes: Iterable[Change]) -> set[tuple[int, str, int, int | None]]:
    """Each row that was ever there: key, value, from when, to when."""
    points: dict[int, dict[int, Change]] = {}
    for change in changes:
        of_key = points.setdefault(change.key, {})
        known = of_key.get(change.sequence)
        if known is None or _order(change) > _order(known):
            of_key[change.sequence] = change
    rows = set()
    for key, of_key in points.items():
        times = [*sorted(of_key), None]
        for begin, end in pairwise(times):
            assert begin is not None
            value = of_key[begin].value
            if value is not None:
                rows.add((key, value, begin, end))
    return rows


def _order(change: Change) -> tuple[Any, ...]:
    return change.sequence, change.value is not None


def stored(master: MasterTable) -> pa.Table:
    """All rows of a master, without its column of codes."""
    with master.reader() as reader:
        pages = pages_of(reader, np.arange(master.page_count))
        # A page is valid until the next one is read.
        copies = [page.take(pa.array(np.arange(page.num_rows))) for _, page in pages]
    return pa.Table.from_batches(copies, master.stored_schema).select(master.schema.names)
