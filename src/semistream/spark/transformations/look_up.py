"""A left join inside a task, for what is done with its rows there.

The stream's columns get other names on the way in, so that any column of the master can be added.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

from semistream.errors import OptionError, SemistreamError
from semistream.parts.join_shape import On, resolve_on
from semistream.relation import MasterTable
from semistream.spark.columns import PREFIX, column
from semistream.spark.join import JoinTask, join_task

__all__ = ["LookUp", "beside", "check_sides", "looked_up"]


def _place(number: int) -> str:
    """The name of the stream's column of this number, inside a look-up."""
    return f"{PREFIX}{number}"


@dataclass(frozen=True)
class LookUp:
    """Joins the batches of a task: the result has the stream's columns, then the master's."""

    join: JoinTask
    names: tuple[str, ...]
    """The stream's columns."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The result; in it, `_place` gives the names of the stream's columns."""
        places = [_place(i) for i in range(len(self.names))]
        return self.join(batch.rename_columns(places) for batch in batches)

    def stream_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The stream's columns of a result, under their own names."""
        columns = rows.columns[: len(self.names)]
        return pa.RecordBatch.from_arrays(columns, names=list(self.names))


def check_sides(df: object, master: object) -> None:
    """Raise unless these are a Spark DataFrame and a master table."""
    if not isinstance(df, DataFrame):
        raise OptionError(f"df is a {type(df).__name__}; it must be a Spark DataFrame.")
    if not isinstance(master, MasterTable):
        raise OptionError(
            f"master is a {type(master).__name__}; it must be a master table. Open one with "
            "ss.MasterTable.open(path)."
        )


def looked_up(
    df: DataFrame, master: MasterTable, on: On, columns: list[str], **options: Any
) -> tuple[LookUp, StructType]:
    """The look-up of a frame, after all checks, and the schema of its result.

    Its columns are the stream's under other names, then `columns` of the master, and last the
    master's first key column, which is null if there is no master row. Options are those of `join`.
    """
    resolve_on(on, master.key, df.columns)
    taken = [name for name in (*df.columns, *master.schema.names) if name.startswith(PREFIX)]
    if taken:
        raise OptionError(f"The names of {taken} are kept for semistream. Rename these columns.")
    if master.shard_count > 1:
        options["shuffle"] = False
    places = {name: _place(i) for i, name in enumerate(df.columns)}
    pairs = {places[name]: key for key, name in resolve_on(on, master.key).items()}
    wanted = [name for name in columns if name != master.key[0]]
    renamed = df.toDF(*places.values())
    added = [*wanted, master.key[0]]
    try:
        task, schema = join_task(renamed, master, on=pairs, how="left", columns=added, **options)
    except SemistreamError:
        # Most likely this fails too, and its message has the stream's own names.
        join_task(df, master, on=on, how="left", columns=[], **options)
        raise
    return LookUp(task, tuple(df.columns)), schema


def beside(
    df: DataFrame, master: MasterTable, on: On, columns: list[str], **options: Any
) -> tuple[DataFrame, dict[str, Column], Column]:
    """A frame with the tuples and, beside each, columns of its master rows.

    Returns the frame; the stream's columns in it, by their own names; and a column that is null if
    there is no master row. Columns of the master have the master's names. See `looked_up`.
    """
    look_up, schema = looked_up(df, master, on, columns, **options)

    def semistream_look_up(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return look_up(batches)

    ours = {name: column(_place(i)) for i, name in enumerate(df.columns)}
    return df.mapInArrow(semistream_look_up, schema), ours, column(schema.names[-1])
