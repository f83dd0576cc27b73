"""Parquet files that a task writes while it joins, one for each folder that it has rows for.

Each file has a name that no other has, and is of use only once the driver has moved it to where it
belongs. So files that are left by a task which failed, or which ran twice, are in nobody's way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import __version__ as spark_version

from semistream.spark.pipeline.folders import Folder

__all__ = ["ParquetFiles", "WrittenFile"]

_HELD_ROWS: Final = 1 << 16
_HELD_BYTES: Final = 1 << 22
"""Rows wait until there are this many, or this many bytes, and then make a row group."""


class WrittenFile(NamedTuple):
    """A file that is complete."""

    name: str
    target: str
    """The folder that its rows belong to."""
    rows: int


class ParquetFiles:
    """The files of one task."""

    def __init__(self, folder: Folder, codec: str, schemas: Mapping[str, str]) -> None:
        """Files go to a folder that exists already; `schemas` are Spark's, of some targets."""
        self._folder, self._codec, self._schemas = folder, codec, schemas
        self._open: dict[str, _GrowingFile] = {}

    def add(self, target: str, rows: pa.RecordBatch) -> None:
        """Write rows that belong to the folder `target`."""
        if not rows.num_rows:
            return
        if target not in self._open:
            place = self._folder / f"part-{uuid4().hex}.parquet"
            known = self._schemas.get(target)
            self._open[target] = _GrowingFile(place, rows.schema, self._codec, known)
        self._open[target].add(rows)

    def close(self) -> list[WrittenFile]:
        """Complete all files."""
        return [
            WrittenFile(file.place.name, target, file.close())
            for target, file in self._open.items()
        ]


class _GrowingFile:
    """One Parquet file, as Spark would write it."""

    def __init__(self, place: Folder, schema: pa.Schema, codec: str, known: str | None) -> None:
        self.place = place
        self._schema = pa.schema(map(_nullable, schema))
        self._writer = pq.ParquetWriter(
            place.path,
            self._schema,
            filesystem=place.filesystem,
            compression=codec,
            store_schema=False,
            store_decimal_as_integer=True,
        )
        # By these Spark knows the calendar of dates, and types that Parquet does not have.
        notes = {"org.apache.spark.version": spark_version}
        if known is not None:
            notes["org.apache.spark.sql.parquet.row.metadata"] = known
        self._writer.add_key_value_metadata(notes)
        self._held: list[pa.RecordBatch] = []
        self._held_rows = self._held_bytes = self._rows = 0

    def add(self, rows: pa.RecordBatch) -> None:
        columns = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(rows.columns, self._schema, strict=True)
        ]
        self._held.append(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        self._held_rows += rows.num_rows
        self._held_bytes += rows.nbytes
        if self._held_rows >= _HELD_ROWS or self._held_bytes >= _HELD_BYTES:
            self._write()

    def close(self) -> int:
        self._write()
        self._writer.close()
        return self._rows

    def _write(self) -> None:
        if self._held:
            self._writer.write_table(pa.Table.from_batches(self._held, self._schema))
            self._rows += self._held_rows
            self._held, self._held_rows, self._held_bytes = [], 0, 0


def _nullable(field: pa.Field) -> pa.Field:
    """The field with nulls allowed at every depth.

    Spark says that a field of a struct has no nulls even if the struct itself may be null, and then
    the field's values are null too, which Arrow does not write.
    """
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_nullable(inner) for inner in kind])
    elif pa.types.is_list(kind):
        kind = pa.list_(_nullable(kind.value_field))
    elif pa.types.is_large_list(kind):
        kind = pa.large_list(_nullable(kind.value_field))
    elif pa.types.is_map(kind):
        key = _nullable(kind.key_field).with_nullable(False)
        kind = pa.map_(key, _nullable(kind.item_field))
    return field.with_type(kind).with_nullable(True)
