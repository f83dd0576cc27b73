"""Very many changes: the master and its book are built anew, by Spark's executors.

    the last changes ─┐
    the book's rows ──┼─► by key, some tasks ─► settled ─┬─► the book, built
    the master's ─────┘                                  └─► the master, built, naming the book

A task has all that is known of its keys, and settles it as a merge does (`following`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import LongType, StructField, StructType

from semistream.arrow_arrays import to_arrow, to_numpy
from semistream.crash_points import reached
from semistream.errors import SemistreamError
from semistream.keys import KeyCodec
from semistream.relation import MasterTable
from semistream.relation.following import Applied, Changes, Following
from semistream.relation.following.apply import (
    aligned,
    book_sequence,
    checked_mark,
    next_mark,
    opened_book,
)
from semistream.relation.following.outcome import book_column, settled
from semistream.relation.following.points import Points
from semistream.relation.storage import storage_at
from semistream.relation.stored_rows import pages_of
from semistream.relation.sync_mark import marked
from semistream.relation.wanted_keys import WantedKeys
from semistream.spark.building.checks import user_schema
from semistream.spark.building.job import build
from semistream.spark.columns import PREFIX, column
from semistream.spark.schema import stream_schema
from semistream.spark.sync.formats import DELETED, ChangeShape, sequence_name

__all__ = ["can_rebuild", "rebuilt"]

_TAG, _COUNTS = f"{PREFIX}tag", tuple(f"{PREFIX}count_{i}" for i in range(3))
_NEW, _ENTRY, _ROW, _TOLD = range(4)
_ROWS_PER_TASK: Final = 200_000
_PAGES_PER_READ: Final = 64


def can_rebuild(master: MasterTable, near: DataFrame) -> bool:
    """Whether Spark can build this master anew just as it is: in key order, with the same types."""
    try:
        again = user_schema(near.sparkSession.createDataFrame([], _spark_schema(master, {})))
    except (PySparkException, SemistreamError):
        return False
    return master.layout == "key" and list(again.types) == list(master.schema.types)


def rebuilt(
    master: MasterTable, last: DataFrame, shape: ChangeShape, nothing: Changes, following: Following
) -> Applied:
    """Settle the last changes of keys with all that is there; `nothing` has their types."""
    mark = checked_mark(master, shape.sequence_by, following)
    nothing = aligned(master, nothing)
    book = opened_book(master, mark, nothing)
    book_sequence(book.schema, nothing)
    count = len(shape.sequence_by)
    known_as = {book_column(i): sequence_name(i) for i in range(count)} | {"deleted": DELETED}
    rows = _frame(last, master, _ROW, {})
    entries = _frame(last, book, _ENTRY, known_as)
    kinds = {field.name: field.dataType for field in (*rows.schema, *entries.schema)}
    names = [*shape.columns, *known_as.values()]
    new = last.select(
        F.lit(_NEW).alias(_TAG), *(column(name).cast(kinds[name]).alias(name) for name in names)
    )
    every = new.unionByName(entries, True).unionByName(rows, True)
    fields = [*every.schema.fields, *(StructField(name, LongType()) for name in _COUNTS)]
    schema = StructType([StructField(one.name, one.dataType) for one in fields])
    task = _SettleTask(
        tuple(master.schema.names),
        master.key,
        pa.schema([master.schema.field(name) for name in master.key]).serialize().to_pybytes(),
        master.valid,
        count,
        tuple(schema.names),
    )
    pieces = 1 + (master.row_count + book.row_count + last.count()) // _ROWS_PER_TASK
    spread = every.repartition(max(pieces, 2), *(column(name) for name in master.key))
    done = spread.mapInArrow(task, schema).persist()
    try:
        told = done.agg(*(F.coalesce(F.sum(name), F.lit(0)) for name in _COUNTS)).collect()[0]
        fresh, touched, ended = map(int, told)
        if not fresh:
            return Applied(master.version)
        written = _built(book, done.where(f"{_TAG} = {_ENTRY}"), known_as, None)
        reached("sync.booked")
        mark = next_mark(mark, written, nothing, following)
        number = _built(master, done.where(f"{_TAG} = {_ROW}"), {}, marked(master.schema, mark))
    finally:
        done.unpersist()
    reached("sync.committed")
    return Applied(number, touched - ended, ended, fresh)


def _built(
    like: MasterTable, rows: DataFrame, known_as: Mapping[str, str], schema: pa.Schema | None
) -> int:
    """Build the next version of a table from rows, as it is otherwise; its number.

    With a schema, whose metadata it gets, nobody may have made another version meanwhile.
    """
    names = [column(known_as.get(name, name)).alias(name) for name in like.schema.names]
    members = like.membership_filter()
    return build(
        rows.select(*names),
        storage_at(like.location),
        key=like.key,
        page_bytes=like.page_bytes,
        layout="key",
        order_by=None,
        sample=None,
        shards=like.shard_count,
        filter_bits=0 if members is None else members.bits,
        compression=like.compression,
        valid=like.valid,
        replace=True,
        progress=False,
        metadata=None if schema is None else schema.metadata,
        after=None if schema is None else like.version,
        operation="sync, all rows",
    )


def _frame(
    near: DataFrame, master: MasterTable, tag: int, known_as: Mapping[str, str]
) -> DataFrame:
    """The rows of a master table as a frame in the session of another."""
    spark = near.sparkSession
    schema = _spark_schema(master, known_as)
    target = stream_schema(spark.createDataFrame([], schema))
    reads = 1 + master.page_count // _PAGES_PER_READ
    task = _ReadTask(master, target.serialize().to_pybytes())
    read = spark.range(0, reads, 1, min(reads, 256)).mapInArrow(task, schema)
    return read.select(F.lit(tag).alias(_TAG), "*")


def _spark_schema(master: MasterTable, known_as: Mapping[str, str]) -> StructType:
    """The master's columns as Spark knows them, some of them by other names."""
    plain = pa.schema([pa.field(known_as.get(f.name, f.name), f.type) for f in master.schema])
    return StructType([StructField(f.name, f.dataType) for f in from_arrow_schema(plain)])


@dataclass(frozen=True)
class _ReadTask:
    """Reads pages of a master table; it gets numbers of runs of pages."""

    master: MasterTable
    target: bytes
    """The Arrow schema that Spark expects."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of the pages."""
        master, target = self.master, pa.ipc.read_schema(pa.py_buffer(self.target))
        numbers = [run for batch in batches for run in batch.column(0).to_pylist()]
        with master.reader() as reader:
            for run in numbers:
                first = run * _PAGES_PER_READ
                pages = np.arange(first, min(first + _PAGES_PER_READ, master.page_count))
                for _, page in pages_of(reader, pages):
                    # A copy: a page is valid until the next one is read.
                    rows = page.take(to_arrow(np.arange(page.num_rows)))
                    columns = [rows.column(name) for name in master.schema.names]
                    kinds = zip(columns, target.types, strict=True)
                    yield pa.RecordBatch.from_arrays(
                        [one.cast(kind) for one, kind in kinds], schema=target
                    )


@dataclass(frozen=True)
class _SettleTask:
    """Settles all keys of a partition."""

    names: tuple[str, ...]
    """The master's columns."""
    key: tuple[str, ...]
    key_schema: bytes
    valid: tuple[str, str] | None
    count: int
    """How many columns order changes."""
    columns: tuple[str, ...]
    """Those of the result."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows of the master and of the book, and what was counted, told apart by their tag."""
        found = [batch for batch in batches if batch.num_rows]
        if not found:
            return
        table = pa.Table.from_batches(found)
        for part in self._settled(table):
            yield from part.combine_chunks().to_batches()

    def _settled(self, table: pa.Table) -> Iterator[pa.Table]:
        codec = KeyCodec(list(pa.ipc.read_schema(pa.py_buffer(self.key_schema))))
        key = [table.column(name).combine_chunks() for name in self.key]
        keys = WantedKeys.of(codec, key, self.key)
        tag: NDArray[np.int32] = to_numpy(table.column(_TAG).combine_chunks())
        places = [np.flatnonzero(tag == one) for one in (_NEW, _ENTRY, _ROW)]
        new, book, stored = (table.take(to_arrow(place)) for place in places)
        order = [sequence_name(i) for i in range(self.count)]
        points = Points(
            keys.key_of[places[0]],
            [new.column(name).combine_chunks() for name in order],
            to_numpy(new.column(DELETED).combine_chunks()),
            np.arange(new.num_rows),
        )
        names = [name for name in self.names if name not in (self.valid or ())]
        entries = book.select([*self.key, *order, DELETED]).rename_columns(
            [*self.key, *(book_column(i) for i in range(self.count)), "deleted"]
        )
        history = None
        if self.valid is not None:
            history = (stored.select(list(self.names)), keys.key_of[places[2]], self.valid)
        known = (entries, keys.key_of[places[1]])
        done = settled(keys, self.key, points, new.select(names), known, history)
        is_left = ~np.isin(keys.key_of, done.numbers)
        for rows, place, kind in ((book, places[1], _ENTRY), (stored, places[2], _ROW)):
            yield self._told(rows.filter(to_arrow(is_left[place])), kind)
        yield self._told(done.rows, _ROW, table)
        renamed = done.entries.rename_columns([*self.key, *order, DELETED])
        yield self._told(renamed, _ENTRY, table)
        counts = (done.fresh, len(done.numbers), done.ended)
        one = pa.table({name: [n] for name, n in zip(_COUNTS, counts, strict=True)})
        yield self._told(one, _TOLD, table)

    def _told(self, rows: pa.Table, tag: int, like: pa.Table | None = None) -> pa.Table:
        """Rows with all columns of the result."""
        columns: list[Any] = []
        kinds = {f.name: f.type for f in (rows if like is None else like).schema}
        for name in self.columns:
            kind = pa.int64() if name in _COUNTS else kinds[name]
            if name == _TAG:
                columns.append(pa.repeat(pa.scalar(tag, kind), rows.num_rows))
            elif name in rows.column_names:
                columns.append(rows.column(name).cast(kind))
            else:
                columns.append(pa.nulls(rows.num_rows, kind))
        return pa.table(columns, names=list(self.columns))
