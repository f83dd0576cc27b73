"""Sinks: where the rows of a batch go, once, however often the batch runs.

After a crash Spark may run a batch again. A sink gets the number of the batch, and must not write a
batch twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

from pyspark.sql import DataFrame

from semistream.errors import OptionError
from semistream.relation.storage import Location, without_secrets
from semistream.spark.pipeline.folders import Folder

__all__ = ["CallableSink", "ParquetSink", "Sink", "SinkLike", "TableSink", "sink_of"]

Write: TypeAlias = Callable[[DataFrame, int], object]
"""A user's function of rows and the number of their batch."""


@runtime_checkable
class Sink(Protocol):
    """Takes the rows of a batch."""

    def write(self, frame: DataFrame, batch: int, writer: str) -> None:
        """Write the rows, unless this writer has written this batch before.

        `writer` is a name that belongs to one route of one pipeline, and never changes.
        """
        ...

    def check(self, columns: list[str]) -> None:
        """Raise `OptionError` if rows of these columns cannot be written."""
        ...


SinkLike: TypeAlias = Sink | Location | Write
"""What a user may give for a sink: a path means `ParquetSink(path)`, a function `CallableSink`."""


@dataclass(frozen=True)
class ParquetSink:
    """Parquet files, a folder `batch=<number>` per batch.

    A batch's folder is written under a hidden name and renamed, so on a local disk or HDFS a
    reader sees all of a batch or nothing. On an object store it appears file by file, and
    `_committed.json` comes last: there, use a table format.
    """

    path: Location
    batch_column: str = "batch"
    """The column in which readers see the number of the batch."""

    def __repr__(self) -> str:
        return f"ParquetSink({without_secrets(self.path)!r}, {self.batch_column!r})"

    def folder(self, batch: int) -> Folder:
        """The folder of a batch."""
        return Folder.at(self.path) / f"{self.batch_column}={batch}"

    def write(self, frame: DataFrame, batch: int, writer: str) -> None:
        """Write the folder of the batch, unless it is there already."""
        self.folder(batch).fill(
            lambda path: frame.write.parquet(path), lambda written: {"rows": written.row_count()}
        )

    def check(self, columns: list[str]) -> None:
        """Raise `OptionError` if a column has the name of the batch's number."""
        if self.batch_column.lower() in (name.lower() for name in columns):
            raise OptionError(
                f"The rows for {without_secrets(self.path)} have a column {self.batch_column!r}, "
                "which is also the name of the batch's number there. Choose another: "
                "ss.ParquetSink(path, batch_column=…)."
            )


@dataclass(frozen=True)
class TableSink:
    """A table of a format with transactions: rows and the number of their batch go in together.

    The format must know the write options `txnAppId` and `txnVersion`, and skip a version that it
    has already, as Delta Lake does. For any other format, give a function that is idempotent.
    """

    table: str | None = None
    """The table's name in the catalog; or give `path`."""
    path: str | None = None
    format: str = "delta"
    options: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        place = without_secrets(self.table if self.path is None else self.path)
        # The values of options may be keys and passwords.
        return f"TableSink({place!r}, format={self.format!r}, options={sorted(self.options)})"

    def __post_init__(self) -> None:
        """Check that there is one place to write to."""
        if (self.table is None) == (self.path is None):
            given = (self.table, self.path)
            table, path = (None if one is None else without_secrets(one) for one in given)
            raise OptionError(f"TableSink has table={table!r} and path={path!r}; give one of them.")
        if self.format == "iceberg":
            raise OptionError(
                "Iceberg has no txnAppId: a batch that runs again would be there twice. Use "
                "ss.IcebergSink(table)."
            )

    def write(self, frame: DataFrame, batch: int, writer: str) -> None:
        """Append the rows as transaction `batch` of `writer`."""
        out = frame.write.format(self.format).mode("append").options(**self.options)
        out = out.option("txnAppId", writer).option("txnVersion", batch)
        if self.table is not None:
            out.saveAsTable(self.table)
        else:
            out.save(self.path)

    def check(self, columns: list[str]) -> None:
        """Nothing: the table itself checks its columns."""


@dataclass(frozen=True)
class CallableSink:
    """A user's function, called with a frame and the batch's number.

    It must be idempotent by that number: after a crash it is called once more with the same rows
    and the same number. It may use the frame more than once.
    """

    function: Write

    def __repr__(self) -> str:
        # Not the function's own text: that of a partial shows its arguments.
        kind = type(self.function).__name__
        return f"CallableSink({getattr(self.function, '__qualname__', kind)})"

    def write(self, frame: DataFrame, batch: int, writer: str) -> None:
        """Call the function."""
        self.function(frame, batch)

    def check(self, columns: list[str]) -> None:
        """Nothing: the function may take any columns."""


def sink_of(given: object, argument: str) -> Sink:
    """The sink that a user's argument stands for."""
    if isinstance(given, Sink):
        return given
    if isinstance(given, str | os.PathLike):
        return ParquetSink(given)
    if callable(given):
        return CallableSink(given)
    raise OptionError(
        f"{argument} is a {type(given).__name__}, which is no sink. Give a path, "
        "ss.ParquetSink(…), ss.TableSink(…), ss.IcebergSink(…), ss.DatabaseSink(…), "
        "ss.KafkaSink(…), or a function of a DataFrame and a batch number that is idempotent by "
        "that number."
    )
