"""Changes become the next version of a master, exactly once.

The book's new version is written first, and the master's commit names it. Whoever is killed in
between leaves a version of the book that no master names: the next one starts from the version that
is named, as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.crash_points import reached
from semistream.errors import KeyColumnError, MasterNotFoundError, OptionError
from semistream.history import time_kind
from semistream.relation.following.outcome import Outcome, book_column, settled
from semistream.relation.following.points import Points
from semistream.relation.master_table import MasterTable
from semistream.relation.storage import Location, inside
from semistream.relation.sync_mark import SyncMark, mark_of, marked
from semistream.relation.tidy import tidy
from semistream.relation.updates.change import Change, upsertion
from semistream.relation.updates.update import is_scattered, update
from semistream.relation.wanted_keys import WantedKeys

__all__ = [
    "Applied",
    "Changes",
    "Following",
    "applied",
    "book_location",
    "checked_mark",
    "is_done",
    "tidied",
]

STORED_AS: Final = ("scd1", "scd2")
_OPERATION: Final = "sync"
_BOOK_PAGE_BYTES: Final = 16384
"""Changed keys are all over the book, and each rewrites its page: small ones cost less."""
_MOST_POSITIONS: Final = 16
"""How many sources the mark remembers, the ones heard of last."""


@dataclass(frozen=True, eq=False)
class Changes:
    """Changes of keys, several of one key or not, in any order."""

    rows: pa.Table
    """The master's columns, without those of `valid`; for a delete, only the key counts."""
    deleted: NDArray[np.bool_]
    sequence: Sequence[pa.Array]
    sequence_by: tuple[str, ...]
    """What the sequence is called."""


@dataclass(frozen=True)
class Following:
    """How a master follows, and how far it has come with these changes."""

    stored_as: str
    as_of: float
    """The changes are all that the source had up to then, as seconds since 1970."""
    source: str | None = None
    """Which source they are from, if it counts its batches."""
    position: Any = None
    """The batch that they are; one that is not higher than the last does nothing."""


@dataclass(frozen=True)
class Applied:
    """What some changes have done."""

    version: int
    """The master's version now."""
    upserted: int = 0
    """Keys that have a row, or another one."""
    deleted: int = 0
    """Keys that have lost their row."""
    fresh: int = 0
    """Changes that count; the others were late, repeated or overtaken."""


def applied(master: MasterTable, changes: Changes, following: Following) -> Applied:
    """Bring a master up to date with some changes; only what is new makes a version.

    `MasterExistsError` if another writer was first: then nothing has changed.
    """
    mark = checked_mark(master, changes.sequence_by, following)
    if is_done(mark, following) or not changes.rows.num_rows:
        return Applied(master.version)
    changes = aligned(master, changes)
    book = opened_book(master, mark, changes)
    done = outcome(master, book, changes)
    if not done.fresh:
        return Applied(master.version)
    version = update(book, _entered(book, done), is_scattered(book), branch=True)
    reached("sync.booked")
    schema = marked(master.stored_schema, next_mark(mark, version, changes, following))
    number = update(master, _change(master, done, schema), is_scattered(master))
    reached("sync.committed")
    return Applied(number, len(done.keys.codes) - done.ended, done.ended, done.fresh)


def is_done(mark: SyncMark | None, following: Following) -> bool:
    """Whether the master has this batch of its source already."""
    last = None if mark is None else mark.position.get(following.source or "")
    return type(last) is int and following.position is not None and following.position <= last


def checked_mark(
    master: MasterTable, sequence_by: tuple[str, ...], following: Following
) -> SyncMark | None:
    """How far the master has come; an error if it followed in another way."""
    stored_as = following.stored_as
    if stored_as not in STORED_AS:
        raise OptionError(f"stored_as={stored_as!r} is not known. Use one of: {STORED_AS}.")
    if (stored_as == "scd2") != (master.valid is not None):
        raise OptionError(
            f"stored_as={stored_as!r}, and the master at {master.path} was built with "
            f"valid={master.valid!r}. A history has the columns from when to when a row is valid: "
            'build it with valid=("valid_from", "valid_to"). Any other master is "scd1".'
        )
    mark = mark_of(master.stored_schema)
    if mark is not None and (mark.sequence_by, mark.stored_as) != (sequence_by, stored_as):
        raise OptionError(
            f"{master.path} follows its source by sequence_by={list(mark.sequence_by)} and "
            f"stored_as={mark.stored_as!r}, not {list(sequence_by)} and {stored_as!r}: older and "
            "newer changes could not be compared. Go on with these, or build the master anew."
        )
    return mark


def next_mark(mark: SyncMark | None, book: int, changes: Changes, following: Following) -> SyncMark:
    """The mark of the next version."""
    position = dict(mark.position) if mark is not None else {}
    if following.source is not None:
        position.pop(following.source, None)
        position[following.source] = following.position
    last = dict(list(position.items())[-_MOST_POSITIONS:])
    at = max(following.as_of, 0.0 if mark is None else mark.as_of)
    return SyncMark(book, changes.sequence_by, following.stored_as, at, last)


def tidied(path: Location, keep: float, pinned: Iterable[int]) -> None:
    """Remove versions of the master that following has made, and of its book, when they are old."""
    master = MasterTable.open(path)
    tidy(master, _OPERATION, keep, pinned)
    mark = mark_of(master.stored_schema)
    if mark is not None:
        tidy(MasterTable.open(book_location(master), mark.book), "", keep, [mark.book])


def aligned(master: MasterTable, changes: Changes) -> Changes:
    """The changes, checked; for a history, their time has the type of the master's."""
    for name, column in zip(master.key, key_columns(master, changes.rows), strict=True):
        if column.null_count:
            raise KeyColumnError(
                f"{column.null_count:,} changes have a null in the key column {name!r}: which row "
                "they change is not known. Leave them out, or mend the source."
            )
    for name, column in zip(changes.sequence_by, changes.sequence, strict=True):
        if column.null_count:
            raise OptionError(
                f"{column.null_count:,} changes have a null in {name!r}, by which they are "
                "ordered. Leave them out, or give another sequence_by."
            )
    if master.valid is None:
        return changes
    kind, first = master.schema.field(master.valid[0]).type, changes.sequence[0]
    if time_kind(kind) != time_kind(first.type):
        raise OptionError(
            f"The first of sequence_by={list(changes.sequence_by)} says from when on a row is "
            f"valid. It has type {first.type}, and the master's {master.valid[0]!r} {kind}. Cast "
            "it, or give another."
        )
    return replace(changes, sequence=[_cast(first, kind, changes, 0), *changes.sequence[1:]])


def book_location(master: MasterTable) -> str:
    """Where the book of a master is."""
    return inside(master.location, "book")


def opened_book(master: MasterTable, mark: SyncMark | None, changes: Changes) -> MasterTable:
    """The book's version that goes with the master's; an empty book for a master without."""
    if mark is None:
        key = [master.schema.field(name) for name in master.key]
        sequence = [pa.field(book_column(i), one.type) for i, one in enumerate(changes.sequence)]
        schema = pa.schema([*key, *sequence, pa.field("deleted", pa.bool_())])
        return MasterTable.from_arrow(
            pa.Table.from_batches([], schema),
            book_location(master),
            key=list(master.key),
            page_bytes=_BOOK_PAGE_BYTES,
            replace=True,
        )
    try:
        return MasterTable.open(book_location(master), mark.book)
    except MasterNotFoundError as error:
        raise MasterNotFoundError(
            f"The master at {master.path} follows its source, and its book is not there: {error} "
            "Restore the whole folder of the master, or build it anew."
        ) from error


def outcome(master: MasterTable, book: MasterTable, changes: Changes) -> Outcome:
    """What changes for which keys; nothing is written."""
    keys = WantedKeys.of(master.codec, key_columns(master, changes.rows), master.key)
    new = Points(
        keys.key_of,
        book_sequence(book.schema, changes),
        changes.deleted,
        np.arange(changes.rows.num_rows),
    )
    history = None if master.valid is None else (*keys.rows_in(master), master.valid)
    return settled(keys, master.key, new, changes.rows, keys.rows_in(book), history)


def _entered(book: MasterTable, done: Outcome) -> Change:
    return upsertion(done.entries, book.codec, book.key, book.stored_schema, book.code_column)


def _change(master: MasterTable, done: Outcome, schema: pa.Schema) -> Change:
    """All rows of the keys go, and the rows of those that have some are added."""
    change = upsertion(done.rows, master.codec, master.key, schema, master.code_column)
    count = len(done.keys.codes)
    text = f"{_OPERATION} 1 key" if count == 1 else f"{_OPERATION} {count:,} keys"
    return replace(change, gone=done.keys.columns, gone_codes=done.keys.codes, operation=text)


def key_columns(master: MasterTable, rows: pa.Table) -> list[pa.Array]:
    """The key columns of some rows."""
    return [rows.column(name).combine_chunks() for name in master.key]


def book_sequence(schema: pa.Schema, changes: Changes) -> list[pa.Array]:
    """The sequence of changes, with the types that it has in the book."""
    return [
        _cast(one, schema.field(book_column(i)).type, changes, i)
        for i, one in enumerate(changes.sequence)
    ]


def _cast(column: pa.Array, kind: pa.DataType, changes: Changes, number: int) -> pa.Array:
    """A column of the sequence, with the type that it has in the book."""
    if column.type == kind:
        return column
    try:
        if time_kind(column.type) != time_kind(kind) or time_kind(kind) is None:
            raise pa.ArrowInvalid("they are not of one kind")
        return column.cast(kind)
    except (pa.ArrowException, NotImplementedError) as error:
        raise OptionError(
            f"{changes.sequence_by[number]!r}, by which changes are ordered, has type "
            f"{column.type}, and earlier changes had {kind}: {error}. Cast it."
        ) from error
