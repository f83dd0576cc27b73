"""`IcebergSink`: an Iceberg table whose snapshots say which batch they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)

__all__ = ["IcebergSink"]

_WRITER: Final = "semistream-writer"
_BATCH: Final = "semistream-batch"


@dataclass(frozen=True)
class IcebergSink:
    """An Iceberg table of a catalog; made with the first rows if it is missing.

    A batch is one snapshot, and its number is a property of that, so both are there or neither. A
    batch that runs again looks for its number in the table's snapshots first. So do not expire the
    snapshot of a pipeline's last batch while the pipeline is stopped half-way.
    """

    table: str
    """With its catalog: "lake.shop.sales"."""
    options: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        # The values of options may be keys and passwords.
        return f"IcebergSink({self.table!r}, options={sorted(self.options)})"

    def write(self, frame: DataFrame, batch: int, writer: str) -> None:
        """Append the rows, unless a snapshot of the table has them."""
        is_there = frame.sparkSession.catalog.tableExists(self.table)
        if is_there and self._has(frame, batch, writer):
            return
        out = frame.writeTo(self.table).using("iceberg")
        marks = {f"snapshot-property.{_WRITER}": writer, f"snapshot-property.{_BATCH}": str(batch)}
        for name, value in {**self.options, **marks}.items():
            out = out.option(name, value)
        if is_there:
            out.append()
        else:
            out.create()

    def check(self, columns: list[str]) -> None:
        """Nothing: the table itself checks its columns."""

    def _has(self, frame: DataFrame, batch: int, writer: str) -> bool:
        summary = F.col("summary")
        snapshots = frame.sparkSession.table(f"{self.table}.snapshots")
        of_writer = snapshots.where(summary[_WRITER] == writer)
        return bool(of_writer.where(summary[_BATCH].cast("long") >= batch).head(1))
