"""`surrogate_keys`: the warehouse's key in place of the source's, as one `mapInArrow`.

    tuples ─► look-up in the newest version ─┬─ known ──────────────────► out
                                             └─ unknown ─► a piece ─► commit ─► out

A task commits the keys that it finds unknown itself, before it hands on any tuple with such a key.
So whatever stops it afterwards, it finds them when it runs again; and a copy of it that runs at the
same time, or another query, finds them too. See `semistream.relation.key_table`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame

from semistream.arrow_arrays import to_arrow, to_numpy
from semistream.budget import parse_memory
from semistream.errors import BudgetError, OptionError
from semistream.parts.join_shape import On
from semistream.relation import MasterTable
from semistream.relation.key_table import (
    assigned,
    numbering_bytes,
    numbering_growth,
    surrogates_in,
)
from semistream.spark.join import JoinTask, join_task

__all__ = ["KeyTask", "surrogate_keys"]

_LOOK_UP_SHARE: Final = 2
"""Of the memory, 1/2 is for the look-up. The rest is for numbering: tuples with unknown keys, and
what `numbering_bytes` says."""
_LEAST_PIECE: Final = 1 << 16
"""The least bytes for a piece of tuples; a smaller one would cost a commit for a few keys."""


def surrogate_keys(
    df: DataFrame,
    keys: MasterTable,
    *,
    on: On,
    memory: int | str = "64MB",
    io: str = "buffered",
    keep: float | None = 3600.0,
) -> DataFrame:
    """Add the surrogate of each tuple's source key; an unknown key gets a new one, exactly once.

    The result has the columns of `df` and the key table's surrogate. It is a stream if `df` is
    one. Rows come in no particular order. If any column of a key is null, the surrogate is null.

    Each task looks its tuples up in the version that is the newest when it starts. It commits the
    keys that it does not find as a new version, before any tuple with such a key goes out. A key
    has the same surrogate for ever, so a task, a batch or a query that runs again gives the same
    rows. Numbers rise, with gaps.

    Args:
        df: a batch or streaming DataFrame, of a classic or a Connect session.
        keys: a key table, from `key_table`; every executor must be able to write to its path.
        on: the key columns in `df`: a name, a list, or a dict from column to key table column.
        memory: the budget of each task, as bytes or "64MB".
        io: "buffered", "unmapped" or "direct", as in `engine`.
        keep: versions of the key table that were made by assigning keys are removed after so many
            seconds; None keeps them. Other versions stay until a vacuum.
    """
    table: object = keys
    seconds: object = keep
    if seconds is not None and not (isinstance(seconds, (int, float)) and seconds >= 0):
        raise OptionError(f"keep={keep!r} must be a number of seconds, or None.")
    if not isinstance(table, MasterTable):
        raise OptionError(f"keys is a {type(table).__name__}; it must be a key table.")
    column = surrogates_in(keys).column
    if keys.shard_count > 1 or keys.is_shard:
        raise OptionError(f"{keys!r} is in shards. Make the key table without.")
    size = parse_memory(memory)
    room = size - size // _LOOK_UP_SHARE
    _check_room(room, keys)
    try:
        look_up, schema = join_task(
            df,
            keys,
            on=on,
            memory=size // _LOOK_UP_SHARE,
            how="left",
            columns=[column],
            freshness="latest",
            io=io,
        )
    except BudgetError as error:
        if error.least is None:
            raise
        least = error.least * _LOOK_UP_SHARE
        raise BudgetError(
            f"memory={size:,} bytes is too little to assign keys: the least is {least:,} bytes. "
            "Give more memory.",
            least=least,
        ) from error
    stream = {master: column for column, master in look_up.on}
    task = KeyTask(look_up, tuple(stream[name] for name in keys.key), room, keep)
    return df.mapInArrow(_operator(task), schema)


@dataclass(frozen=True)
class KeyTask:
    """What each Spark task does: called with its batches, it gives those with surrogates."""

    look_up: JoinTask
    """A left join with the newest version; its last column is the surrogate."""
    key: tuple[str, ...]
    """The stream's key columns, in the key table's order."""
    room: int
    """The bytes for tuples with unknown keys, and for numbering them."""
    keep: float | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The tuples with their surrogates."""
        held: list[pa.RecordBatch] = []
        taken = room = 0
        for rows in self.look_up(batches):
            unknown = self._unknown(rows)
            if not unknown.any():
                yield rows
                continue
            if not unknown.all():
                yield rows.filter(to_arrow(~unknown))
            # The table grows, and with it what numbering takes.
            room = room or self._free()
            for begin, part in self._pieces(rows, room):
                new = part.filter(to_arrow(unknown[begin : begin + part.num_rows]))
                if held and taken + self._bytes(new) > room:
                    yield self._numbered(held)
                    held, taken = [], 0
                held.append(new)
                taken += self._bytes(new)
        if taken:
            yield self._numbered(held)

    def _free(self) -> int:
        """The bytes for tuples, beside what numbering takes whatever their number."""
        table = MasterTable.open(self.look_up.path)
        _check_room(self.room, table)
        return self.room - numbering_bytes(table)

    def _bytes(self, rows: pa.RecordBatch) -> int:
        """What tuples take while they are numbered: twice themselves, and what is made of keys."""
        keys = sum(rows.column(name).nbytes for name in self.key)
        return int(2 * rows.nbytes) + numbering_growth(rows.num_rows, keys)

    def _pieces(self, rows: pa.RecordBatch, room: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows in slices that fit, each with the number of its first row."""
        waiting = [(0, rows)]
        while waiting:
            begin, part = waiting.pop()
            if self._bytes(part) <= room:
                yield begin, part
                continue
            if part.num_rows == 1:
                raise BudgetError(
                    f"A tuple takes {self._bytes(part):,} bytes while its key is numbered, and "
                    f"there are {room:,}. Give surrogate_keys more memory."
                )
            half = part.num_rows // 2
            waiting += [(begin + half, part.slice(half)), (begin, part.slice(0, half))]

    def _unknown(self, rows: pa.RecordBatch) -> NDArray[np.bool_]:
        """Which tuples have a key, but no surrogate."""
        surrogate = rows.column(rows.num_columns - 1)
        unknown: NDArray[np.bool_] = to_numpy(surrogate.is_null())
        for name in self.key:
            if rows.column(name).null_count:
                unknown = unknown & to_numpy(rows.column(name).is_valid())
        return unknown

    def _numbered(self, parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """The tuples with the surrogates of their keys, which have them now."""
        rows = pa.concat_batches(parts)
        columns = [rows.column(name) for name in self.key]
        numbers = to_arrow(assigned(self.look_up.path, columns, self.key, self.keep))
        return rows.set_column(rows.num_columns - 1, rows.schema.field(-1), numbers)


def _check_room(room: int, table: MasterTable) -> None:
    """Raise unless the keys of some tuples can be numbered in this many bytes."""
    least = numbering_bytes(table) + _LEAST_PIECE
    if room < least:
        # Twice, because the look-up has half.
        whole = _LOOK_UP_SHARE * least
        raise BudgetError(
            f"memory={_LOOK_UP_SHARE * room:,} is too little to number keys of {table.path}: the "
            f"least is {whole:,} bytes, as long as the table has {table.page_count:,} pages of "
            f"{table.page_bytes:,} bytes.",
            least=whole,
        )


def _operator(task: KeyTask) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The task as a function, under a name that Spark's UI shows.

    Spark ships the function by value, but the task's class by reference to this module.
    """

    def semistream_surrogate_keys(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task(batches)

    return semistream_surrogate_keys
