"""`deduplicate`: tuples whose key is in the master already, or twice in the batch, are dropped.

    tuples ─► look-up ─┬─ in R ─► dropped
                       └─ not in R ─► shuffle by key ─► the first of each key ─► out

The shuffle brings the tuples of a key together. Then each task keeps the first tuple of each key in
memory; if they do not fit, it writes them to files by their codes, and goes on file by file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from semistream.arrow_arrays import to_arrow, to_numpy
from semistream.budget import parse_memory
from semistream.errors import OptionError
from semistream.keys import KeyCodec
from semistream.parts.join_shape import On, resolve_on
from semistream.relation import MasterTable, shard_of
from semistream.spark.columns import column
from semistream.spark.schema import stream_schema
from semistream.spark.transformations.look_up import LookUp, check_sides, looked_up

__all__ = ["Firsts", "deduplicate"]

_Batches: TypeAlias = Iterator[pa.RecordBatch]

_HELD_SHARE: Final = 4
"""1/4 of the memory is for tuples. To find their firsts takes copies of them."""
_FILES: Final = 16
_DEEPEST: Final = 4
"""How often tuples are divided into files, at most."""


def deduplicate(
    df: DataFrame,
    master: MasterTable,
    *,
    on: On,
    first_by: str | None = None,
    memory: int | str = "64MB",
    freshness: str = "pinned",
    io: str = "buffered",
) -> DataFrame:
    """Drop the tuples whose key the master has, and all but the first of each key in the batch.

    The result has the columns of `df`, and is a stream if `df` is one. A batch is then a
    micro-batch: nothing is remembered from one to the next, but what the master has got
    meanwhile. A tuple whose key has a null is equal to none, and stays. Rows come in no
    particular order; the tuples that are left are shuffled by their keys.

    Args:
        df: a batch or streaming DataFrame, of a classic or a Connect session.
        master: the master table; every executor must be able to read its path.
        on: the stream's key columns, as for `join`.
        first_by: the first tuple of a key is the one with the least value in this column, nulls
            last. Of several such tuples, and without this column, it is any one of them.
        memory: the budget of each task, as bytes or "64MB".
        freshness: "pinned" for the version that `master` has open; "latest" for the newest when
            a task starts.
        io: "buffered", "unmapped" or "direct", as in `engine`.
    """
    check_sides(df, master)
    look_up, _ = looked_up(df, master, on, [], memory=memory, freshness=freshness, io=io)
    key = tuple(resolve_on(on, master.key, df.columns).values())
    _check_order(df, first_by)
    firsts = Firsts(key, first_by, parse_memory(memory) // _HELD_SHARE)
    new = df.mapInArrow(_named("semistream_not_in_master", partial(_absent, look_up)), df.schema)
    together = new.repartition(*map(column, key))
    return together.mapInArrow(_named("semistream_first_of_key", firsts), df.schema)


def _absent(look_up: LookUp, batches: _Batches) -> _Batches:
    """The tuples that have no master row."""
    for rows in look_up(batches):
        is_absent = rows.column(rows.num_columns - 1).is_null()
        absent = look_up.stream_rows(rows).filter(is_absent)
        if absent.num_rows:
            yield absent


@dataclass(frozen=True)
class Firsts:
    """Gives the first tuple of each key of a task's batches, and all tuples without a key."""

    key: tuple[str, ...]
    first_by: str | None
    most: int
    """The bytes of tuples that are held before they go to files."""
    depth: int = 0
    """How often they were divided into files already."""

    def __call__(self, batches: _Batches) -> _Batches:
        """The tuples that stay."""
        held: list[pa.RecordBatch] = []
        with tempfile.TemporaryDirectory(prefix="semistream-") as folder:
            files = _Files(Path(folder))
            for batch in batches:
                keyed, others = self._divided(batch)
                if others.num_rows:
                    yield others
                held.append(keyed)
                if sum(part.nbytes for part in held) > self.most and self.depth < _DEEPEST:
                    held = [self._firsts(held)]
                    # Unless half is free now, it would be full again soon.
                    if held[0].nbytes > self.most // 2:
                        self._put(files, held.pop())
            if files.are_used:
                self._put(files, *held)
                below = Firsts(self.key, self.first_by, self.most, self.depth + 1)
                for part in files.parts():
                    yield from below(part)
            elif any(part.num_rows for part in held):
                yield self._firsts(held)

    def _divided(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """The tuples that have a key, and those that have none."""
        valid = np.ones(batch.num_rows, np.bool_)
        for name in self.key:
            if batch.column(name).null_count:
                valid &= to_numpy(batch.column(name).is_valid())
        if valid.all():
            return batch, batch.slice(0, 0)
        return batch.filter(to_arrow(valid)), batch.filter(to_arrow(~valid))

    def _firsts(self, parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """The first tuple of each key."""
        rows = pa.concat_batches(parts)
        columns = [rows.column(name) for name in self.key]
        codec = self._codec(rows.schema)
        numbers = codec.numbered(columns, codec.codes(columns)[0])
        if self.first_by is None:
            return rows.take(to_arrow(np.unique(numbers, return_index=True)[1]))
        order = to_numpy(pc.sort_indices(rows.column(self.first_by))).astype(np.int64)
        first = np.unique(numbers[order], return_index=True)[1]
        return rows.take(to_arrow(order[first]))

    def _put(self, files: _Files, *parts: pa.RecordBatch) -> None:
        """Write tuples to the files of their codes."""
        for rows in parts:
            codes, _ = self._codec(rows.schema).codes([rows.column(name) for name in self.key])
            # At each depth, another digit of the same number.
            digits = shard_of(codes, _FILES ** (self.depth + 1)) // _FILES**self.depth
            for number in np.unique(digits).tolist():
                files.append(number, rows.filter(to_arrow(digits == number)))

    def _codec(self, schema: pa.Schema) -> KeyCodec:
        return KeyCodec([schema.field(name) for name in self.key])


class _Files:
    """Tuples on disk, in one file for each of some numbers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[int, pa.RecordBatchStreamWriter] = {}

    @property
    def are_used(self) -> bool:
        """Whether anything was written."""
        return bool(self._writers)

    def append(self, number: int, rows: pa.RecordBatch) -> None:
        """Write tuples to the file of this number."""
        if number not in self._writers:
            path = str(self._folder / str(number))
            self._writers[number] = pa.ipc.new_stream(path, rows.schema)
        self._writers[number].write_batch(rows)

    def parts(self) -> Iterator[_Batches]:
        """What was written, file by file."""
        for writer in self._writers.values():
            writer.close()
        for number in self._writers:
            path = self._folder / str(number)
            with pa.OSFile(str(path)) as file:
                yield iter(pa.ipc.open_stream(file))
            path.unlink()


def _check_order(df: DataFrame, first_by: str | None) -> None:
    """Raise unless tuples can be ordered by this column."""
    if first_by is None:
        return
    if first_by not in df.columns:
        raise OptionError(f"first_by={first_by!r} is not a column; there are {df.columns}.")
    field = stream_schema(df).field(first_by)
    try:
        pc.sort_indices(pa.nulls(0, field.type))
    except (pa.ArrowException, NotImplementedError) as error:
        raise OptionError(
            f"first_by={first_by!r} has type {field.type}, which has no order here: {error}."
        ) from error


def _named(name: str, task: Callable[[_Batches], _Batches]) -> Callable[[_Batches], _Batches]:
    """The task as a function, under a name that Spark's UI shows."""

    def run(batches: _Batches) -> _Batches:
        return task(batches)

    run.__name__ = run.__qualname__ = name
    return run
