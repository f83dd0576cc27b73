"""What the tasks of a master build do inside Python workers.

    rows ─► CodeTask ─► (range-partitioned and sorted by Spark) ─► WriteTask ─► one page file each
    page files ─► LocateTask ─► (sorted by code) ─► WriteTask ─► the locator's page files

Each is a frozen record that Spark ships; called with the Arrow batches of a task, it gives Arrow
batches back. A task that is tried again writes a file of another name; the driver keeps the files
of the tries that succeeded and removes the rest.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import TaskContext

from semistream.crash_points import reached
from semistream.keys import Codes, KeyCodec
from semistream.relation.build import CODE_COLUMN, distinct
from semistream.relation.columns import plain_array
from semistream.relation.locator import LOCATOR_SCHEMA, merged_locator_rows
from semistream.relation.page_file import PageWriter
from semistream.relation.page_index import PageIndex
from semistream.relation.reader import PageReader
from semistream.relation.shards import shard_of
from semistream.relation.storage import PageFiles, storage_at
from semistream.relation.stored_rows import pages_of

__all__ = [
    "FILE_ROW",
    "LOCATED_ROW",
    "SHARD",
    "WEIGHT",
    "Batches",
    "CodeReader",
    "CodeTask",
    "LocateTask",
    "SampleTask",
    "WriteTask",
    "equal_runs",
]

SHARD: Final = "__shard"
WEIGHT: Final = "__weight"
"""Columns that are added to the rows, besides `CODE_COLUMN`."""

_NO_SHARD: Final = -1
"""The shard of a row that is only a message: its code is how many rows of its task had no key."""

FILE_ROW: Final = (
    "partition int, name string, bytes bigint, rows bigint, codes bigint, rows_without_key bigint, "
    "widest_row bigint, shards array<int>, pages array<int>, entries binary"
)
"""What a `WriteTask` reports about its file, as a Spark schema."""

LOCATED_ROW: Final = (
    f"code bigint, first_page int, last_page int, {SHARD} int, {CODE_COLUMN} bigint"
)
"""What a `LocateTask` gives."""

Batches = Iterator[pa.RecordBatch]


def _schema(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(data))


def _key_codes(
    batch: pa.RecordBatch, schema: pa.Schema, key: Sequence[str], codec: KeyCodec
) -> tuple[Codes, Any]:
    # Spark labels timestamps with the session's time zone; codes are those of the stored types.
    return codec.codes([plain_array(batch.column(name), schema.field(name).type) for name in key])


def equal_runs(values: NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Where runs of equal values begin and end.

    >>> list(equal_runs(np.array([7, 7, 8])))
    [(0, 2), (2, 3)]
    """
    if len(values):
        yield from pairwise([0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)])


@dataclass(frozen=True)
class CodeTask:
    """Adds code and shard to each row, and leaves out those without a key."""

    schema: bytes
    """Of the rows as they are stored, serialised."""
    key: tuple[str, ...]
    shards: int

    def __call__(self, batches: Batches) -> Batches:
        """The rows with a key, and at the end, if any had none, a row that says how many."""
        schema = _schema(self.schema)
        codec = KeyCodec([schema.field(name) for name in self.key])
        without_key = 0
        for batch in batches:
            codes, valid = _key_codes(batch, schema, self.key, codec)
            if valid is not None:
                without_key += int(len(codes) - valid.sum())
                batch, codes = batch.filter(pa.array(valid)), codes[valid]
            yield _with_codes(batch, codes, shard_of(codes, self.shards))
            names = batch.schema
        if without_key:
            nothing = pa.record_batch([pa.nulls(1, f.type) for f in names], names=names.names)
            yield _with_codes(nothing, np.array([without_key]), np.array([_NO_SHARD], np.int32))


def _with_codes(batch: pa.RecordBatch, codes: Codes, shards: Any) -> pa.RecordBatch:
    columns = [*batch.columns, pa.array(codes), pa.array(shards, pa.int32())]
    return pa.record_batch(columns, names=[*batch.schema.names, CODE_COLUMN, SHARD])


@dataclass(frozen=True)
class SampleTask:
    """The codes of stream tuples, given by their key columns."""

    schema: bytes
    """Of the master's rows as they are stored, serialised."""
    key: tuple[str, ...]

    def __call__(self, batches: Batches) -> Batches:
        """A column of codes; tuples without a key are left out."""
        schema = _schema(self.schema)
        codec = KeyCodec([schema.field(name) for name in self.key])
        for batch in batches:
            aligned = codec.align([batch.column(name) for name in self.key], self.key)
            codes, valid = codec.codes(aligned)
            column = pa.array(codes if valid is None else codes[valid])
            yield pa.record_batch([column], [CODE_COLUMN])


@dataclass(frozen=True)
class WriteTask:
    """Writes the rows of a task, which are in order, as one page file."""

    location: str = field(repr=False)
    """Of the master table. Not shown, since a URI may hold passwords."""
    stem: str
    """How the file's name begins."""
    kind: str
    """How it ends."""
    schema: bytes
    """Of the rows as they are stored, serialised."""
    page_bytes: int
    compression: str | None = None

    def __call__(self, batches: Batches) -> Batches:
        """A single row of `FILE_ROW`, or none if there was no input."""
        written = _File(self)
        try:
            for batch in batches:
                written.add(batch)
            row = written.finish()
            reached("task.pages")
        except BaseException as error:
            written.abandon(error)
            raise
        if row is not None:
            yield row


@dataclass
class _File:
    """A page file in the making."""

    task: WriteTask
    partition: int = field(default_factory=lambda: _partition())
    writer: PageWriter | None = None
    shards: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    codes: int = 0
    last: int | None = None
    rows_without_key: int = 0

    def __post_init__(self) -> None:
        token = secrets.token_hex(4)
        self.name = f"{self.task.stem}-{self.partition:05d}-{token}.{self.task.kind}"
        self.schema = _schema(self.task.schema)
        self.storage = storage_at(self.task.location)

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows of one or several shards, in their order."""
        codes, owner = batch.column(CODE_COLUMN).to_numpy(), batch.column(SHARD).to_numpy()
        for low, high in equal_runs(owner):
            self._add(int(owner[low]), batch.slice(low, high - low), codes[low:high])

    def _add(self, shard: int, batch: pa.RecordBatch, codes: Codes) -> None:
        if shard == _NO_SHARD:
            self.rows_without_key += int(codes.sum())
            return
        if self.writer is None:
            task = self.task
            self.writer = PageWriter(
                self.storage,
                f"data/{self.name}",
                self.schema,
                task.page_bytes,
                compression=task.compression,
            )
        if not self.shards or self.shards[-1] != shard:
            self._end_shard()
            self.shards.append(shard)
            self.last = None
        some = distinct(codes)
        self.codes += len(some) - (self.last == some[0])
        self.last = int(codes[-1])
        columns = [plain_array(batch.column(f.name), f.type) for f in self.schema]
        self.writer.add(pa.RecordBatch.from_arrays(columns, schema=self.schema), codes)

    def _end_shard(self) -> None:
        if self.writer is not None and self.shards:
            self.writer.end_page()
            self.pages.append(self.writer.page_count - sum(self.pages))

    def finish(self) -> pa.RecordBatch | None:
        """Close the file; a `FILE_ROW` about it."""
        if self.writer is None:
            return self._row(None) if self.rows_without_key else None
        self._end_shard()
        self.writer.__exit__(None, None, None)
        return self._row(self.writer)

    def abandon(self, error: BaseException) -> None:
        """Close the file and remove it."""
        if self.writer is not None:
            self.writer.__exit__(type(error), error, None)
            self.storage.remove([f"data/{self.name}"])

    def _row(self, writer: PageWriter | None) -> pa.RecordBatch:
        written = None if writer is None else writer.written()
        values: dict[str, Any] = {
            "partition": pa.array([self.partition], pa.int32()),
            "name": [self.name if written else ""],
            "bytes": [written.bytes if written else 0],
            "rows": [written.index.row_count if written else 0],
            "codes": [self.codes],
            "rows_without_key": [self.rows_without_key],
            "widest_row": [written.widest_row if written else 0],
            "shards": pa.array([self.shards], pa.list_(pa.int32())),
            "pages": pa.array([self.pages], pa.list_(pa.int32())),
            "entries": [written.index.to_bytes() if written else b""],
        }
        return pa.record_batch(values)


def _partition() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


@dataclass(frozen=True)
class CodeReader:
    """Reads the codes back from page files that were written, in whatever task."""

    location: str = field(repr=False)
    """Of the master table. Not shown, since a URI may hold passwords."""
    schema: bytes
    """Of the rows as they are stored, serialised."""
    key: tuple[str, ...]
    compression: str | None = None

    def files(self, batches: Batches) -> Iterator[tuple[int, Iterator[tuple[int, Codes]]]]:
        """For each file that the batches name: its first page's number, and its pages' codes.

        The batches have columns `name`, `base` (that number) and `entries` (the file's index).
        """
        storage, stored = storage_at(self.location), _schema(self.schema)
        codec = KeyCodec([stored.field(name) for name in self.key])
        for batch in batches:
            for row in batch.to_pylist():
                index = PageIndex.from_bytes(row["entries"])
                names = (f"data/{row['name']}",)
                files = PageFiles(storage, names, compression=self.compression)
                with PageReader(files, index, stored, "buffered") as reader:
                    yield row["base"], self._page_codes(reader, codec)

    def _page_codes(self, reader: PageReader, codec: KeyCodec) -> Iterator[tuple[int, Codes]]:
        for number, batch in pages_of(reader, np.arange(len(reader.index))):
            if CODE_COLUMN in batch.schema.names:
                yield number, batch.column(CODE_COLUMN).to_numpy().copy()
            else:
                yield number, codec.codes([batch.column(name) for name in self.key])[0].copy()


@dataclass(frozen=True)
class LocateTask:
    """The pages of each code, from page files that were written."""

    reader: CodeReader
    shards: int

    def __call__(self, batches: Batches) -> Batches:
        """Rows of `LOCATED_ROW`, in code order within a file. A code's rows are all in one file."""
        for base, pages in self.reader.files(batches):
            codes, numbers = [], []
            for number, some in pages:
                codes.append(distinct(some))
                numbers.append(np.full(len(codes[-1]), base + number, np.int32))
            page = np.concatenate(numbers)
            rows = merged_locator_rows(np.concatenate(codes), page, page)
            for batch in rows.to_batches(max_chunksize=1 << 16):
                found = batch.column("code").to_numpy()
                owner = pa.array(shard_of(found, self.shards), pa.int32())
                columns = [*batch.columns, owner, batch.column("code")]
                yield pa.record_batch(columns, names=[*LOCATOR_SCHEMA.names, SHARD, CODE_COLUMN])
