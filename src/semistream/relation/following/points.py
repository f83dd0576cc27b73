"""Which points of a key count, and what rows follow from them.

    scd1    the last point of a key by its sequence: its row, or none
    scd2    the last point at each time; each begins a row, or a gap, up to the next one

A point wins over another with the same sequence if it has a row and the other has none: a commit
that removes a row and adds one has changed it. Of two that are alike, the one that is known wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from semistream.arrow_arrays import to_arrow, to_numpy
from semistream.history import nulls
from semistream.relation.wanted_keys import Numbers

__all__ = ["Points", "Resolved", "resolved"]

Mask = NDArray[np.bool_]


class Points(NamedTuple):
    """Points of keys, as columns."""

    key: Numbers
    """The number of the key."""
    sequence: Sequence[pa.Array]
    """What orders the points of a key, the first column first; the time, for a history."""
    deleted: Mask
    row: Numbers
    """The row that the point begins, by its number in a table of rows; -1 if it is not at hand."""

    def joined(self, other: Points) -> Points:
        """These, then the others."""
        columns = [
            pa.concat_arrays([one, two.cast(one.type)])
            for one, two in zip(self.sequence, other.sequence, strict=True)
        ]
        return Points(
            np.concatenate([self.key, other.key]),
            columns,
            np.concatenate([self.deleted, other.deleted]),
            np.concatenate([self.row, other.row]),
        )

    def take(self, chosen: Numbers) -> Points:
        """The points at these places."""
        columns = [column.take(to_arrow(chosen)) for column in self.sequence]
        return Points(self.key[chosen], columns, self.deleted[chosen], self.row[chosen])


class Resolved(NamedTuple):
    """The points that count, of keys for which one of them is new; by key and sequence."""

    points: Points
    until: Numbers
    """The place of the next point of the same key; -1 for the last one."""
    fresh: int
    """How many of them are new."""


def resolved(new: Points, known: Points, history: bool) -> Resolved:
    """Which points count once the new ones are there; O(n log n)."""
    points = new.joined(known)
    ranks = [_ranks(column) for column in points.sequence]
    is_known = np.arange(len(points.key)) >= len(new.key)
    order = np.lexsort((is_known, ~points.deleted, *reversed(ranks), points.key))
    group = [points.key[order], *([ranks[0][order]] if history else [])]
    last = np.ones(len(order), np.bool_)
    if len(order):
        last[:-1] = np.any([part[1:] != part[:-1] for part in group], axis=0)
    kept = order[last]
    touched = np.unique(points.key[kept[~is_known[kept]]])
    kept = kept[np.isin(points.key[kept], touched)]
    key = points.key[kept]
    until = np.arange(1, len(kept) + 1)
    until[np.r_[key[1:] != key[:-1], True][: len(kept)]] = -1
    return Resolved(points.take(kept), until, int(np.count_nonzero(~is_known[kept])))


def _ranks(column: pa.Array) -> Numbers:
    """Numbers in the order of the values, equal for equal ones; nulls come first."""
    ranks: Numbers = to_numpy(pc.rank(column, tiebreaker="dense")).astype(np.int64)
    ranks[nulls(column)] = 0
    return ranks
