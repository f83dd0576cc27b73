"""What the master and its book get for keys that have changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from semistream.arrow_arrays import to_arrow, to_numpy
from semistream.relation.following.points import Points, Resolved, resolved
from semistream.relation.wanted_keys import Numbers, WantedKeys

__all__ = ["Outcome", "book_column", "settled"]


class Outcome(NamedTuple):
    """What the master and its book get for the keys that have changed."""

    keys: WantedKeys
    """These keys."""
    numbers: Numbers
    """Their numbers among those that were asked for."""
    rows: pa.Table
    """The master's rows of them."""
    entries: pa.Table
    """The book's."""
    fresh: int
    """How many changes count."""
    ended: int
    """How many keys have no row from their last change on."""


def book_column(number: int) -> str:
    """The book's column of this number among those that order changes."""
    return f"sequence_{number}"


def settled(
    keys: WantedKeys,
    key: Sequence[str],
    new: Points,
    values: pa.Table,
    known: tuple[pa.Table, Numbers],
    history: tuple[pa.Table, Numbers, tuple[str, str]] | None,
) -> Outcome:
    """What changes for which keys.

    `values` are the rows that the new points begin. `known` has the book's rows of the keys;
    `history`, if there is one, the master's, and its two columns of `valid`.
    """
    entries, owner = known
    points = _points(entries, owner, len(new.sequence))
    if history is not None:
        stored = history[0]
        points = _with_history(points, *history, values.num_rows)
        values = pa.concat_tables([values, stored.select(values.column_names).cast(values.schema)])
    found = resolved(new, points, history=history is not None)
    numbers = np.unique(found.points.key)
    return Outcome(
        keys.some(numbers),
        numbers,
        _rows(values, found, history),
        _entries(keys, key, found.points),
        found.fresh,
        int(np.count_nonzero(found.points.deleted & (found.until < 0))),
    )


def _points(entries: pa.Table, owner: Numbers, count: int) -> Points:
    """The points that a book's rows are."""
    columns = [entries.column(book_column(i)).combine_chunks() for i in range(count)]
    deleted: NDArray[np.bool_] = to_numpy(entries.column("deleted").combine_chunks())
    return Points(owner, columns, deleted, np.full(len(owner), -1))


def _with_history(
    known: Points, stored: pa.Table, owner: Numbers, valid: tuple[str, str], base: int
) -> Points:
    """The book's points with the rows that they began, and points for rows it knows nothing of.

    These are rows from before the master followed its source, or of an upsert by hand. A row that
    was removed by hand is forgotten. The row numbers begin at `base`.
    """
    begin, end = (stored.column(name).combine_chunks() for name in valid)
    end = end.cast(begin.type)
    others = [pa.nulls(len(owner), one.type) for one in known.sequence[1:]]
    alive = np.zeros(len(owner), np.bool_)
    rows = Points(owner, [begin, *others], alive, base + np.arange(len(owner)))
    ends = Points(owner, [end, *others], ~alive, np.full(len(owner), -1))
    ends = ends.take(np.flatnonzero(to_numpy(end.is_valid())))
    place = _places(known.joined(rows).joined(ends))
    book, row, stop = np.split(place, np.cumsum([len(known.key), len(owner)]))
    row_at = dict(zip(row.tolist(), range(base, base + len(row)), strict=True))
    numbers = np.array([row_at.get(one, -1) for one in book.tolist()], np.int64)
    numbers[known.deleted] = -1
    known = known._replace(row=numbers).take(np.flatnonzero((numbers >= 0) | known.deleted))
    unknown = rows.take(np.flatnonzero(~np.isin(row, book)))
    gaps = ends.take(np.flatnonzero(~np.isin(stop, book) & ~np.isin(stop, row)))
    return known.joined(unknown).joined(gaps)


def _places(points: Points) -> Numbers:
    """A number for key and time of each point, equal only if both are."""
    time = pc.dictionary_encode(points.sequence[0], null_encoding="encode")
    codes: Numbers = to_numpy(time.indices).astype(np.int64)
    return points.key * (len(time.dictionary) + 1) + codes


def _rows(
    values: pa.Table,
    found: Resolved,
    history: tuple[pa.Table, Numbers, tuple[str, str]] | None,
) -> pa.Table:
    """The master's rows that the points begin."""
    points = found.points
    alive = np.flatnonzero(~points.deleted)
    rows = values.take(to_arrow(points.row[alive]))
    if history is not None:
        time, until = points.sequence[0], found.until[alive]
        ends = time.take(pc.if_else(to_arrow(until >= 0), to_arrow(until), None))
        begin, end = (history[0].schema.field(name) for name in history[2])
        rows = rows.append_column(begin, time.take(to_arrow(alive)).cast(begin.type))
        rows = rows.append_column(end, ends.cast(end.type))
    return rows


def _entries(keys: WantedKeys, names: Sequence[str], points: Points) -> pa.Table:
    """The book's rows of some points."""
    owner = to_arrow(points.key)
    columns = dict(zip(names, (column.take(owner) for column in keys.columns), strict=True))
    columns |= {book_column(i): column for i, column in enumerate(points.sequence)}
    return pa.table(columns | {"deleted": to_arrow(points.deleted)})
