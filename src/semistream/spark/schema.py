"""Schemas between Spark and Arrow: what a task will be given, and what it must give back.

A task gets Arrow batches from Spark and gives Arrow batches back, but Spark does not have every
type that a master table can hold: no unsigned integers, no milliseconds, no lists with 64-bit
offsets. Such master columns are *carried* as the nearest type that loses nothing. Where there is
none, the join is refused before it starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from semistream.errors import ColumnClashError, UnsupportedTypeError
from semistream.parts.join_shape import JoinShape
from semistream.relation import MasterTable
from semistream.spark.columns import arrow_schema, check_collations

__all__ = [
    "carried_batch",
    "carried_type",
    "carried_types",
    "joined_schema",
    "spark_types",
    "still_has",
    "stream_schema",
]

_SAME: Final = frozenset(
    {
        pa.null(),
        pa.bool_(),
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.large_binary(),
        pa.date32(),
        pa.time64("ns"),
        pa.duration("us"),
    }
)
_WIDER: Final = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.time32("s"): pa.time64("ns"),
    pa.time32("ms"): pa.time64("ns"),
    pa.time64("us"): pa.time64("ns"),
    pa.duration("s"): pa.duration("us"),
    pa.duration("ms"): pa.duration("us"),
}
_MOST_DIGITS: Final = 38


def stream_schema(df: DataFrame) -> pa.Schema:
    """The Arrow schema of the batches that Spark hands to a task of this frame."""
    conf = df.sparkSession.conf
    large = str(conf.get("spark.sql.execution.arrow.useLargeVarTypes", "false"))
    timezone = conf.get("spark.sql.session.timeZone")
    return arrow_schema(df, "stream", timezone, large.lower() == "true")


def joined_schema(df: DataFrame, shape: JoinShape, pinned: bool = True) -> StructType:
    """The Spark schema of the join: the stream's fields as they are, then the master's.

    Unless `pinned`, a master column may hold nulls: a later version of it may have some.
    """
    check_collations(df.schema, shape.stream_key, "Stream column")
    _check_cases(df, shape.payload)
    fields = list(shape.output_schema)[len(df.columns) :]
    carried = [
        pa.field(field.name, _carried(field), field.nullable or not pinned) for field in fields
    ]
    return StructType([*df.schema.fields, *from_arrow_schema(pa.schema(carried)).fields])


def spark_types(master: MasterTable) -> StructType:
    """The master's columns as Spark knows them; those that it cannot hold are left out."""
    known = [(field.name, carried_type(field.type)) for field in master.schema]
    return from_arrow_schema(pa.schema([(name, kind) for name, kind in known if kind is not None]))


def carried_types(master: MasterTable, columns: Sequence[str]) -> tuple[str, ...]:
    """The types of these columns of the master as Spark knows them, as text to compare."""
    return tuple(str(carried_type(master.schema.field(name).type)) for name in columns)


def still_has(master: MasterTable, columns: Sequence[str], types: Sequence[str]) -> bool:
    """Whether this version of the master has these columns, carried as these types."""
    known = all(name in master.schema.names for name in columns)
    return known and carried_types(master, columns) == tuple(types)


def carried_batch(batch: pa.RecordBatch, stream_columns: int) -> pa.RecordBatch:
    """The result batch with its master columns carried; nothing is copied that has its type."""
    columns, fields = list(batch.columns), list(batch.schema)
    for i in range(stream_columns, len(columns)):
        target = carried_type(columns[i].type)
        if target is not None and target != columns[i].type:
            columns[i], fields[i] = columns[i].cast(target), fields[i].with_type(target)
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def carried_type(type_: pa.DataType) -> pa.DataType | None:
    """The type in which Spark takes these values without loss; None if there is none.

    >>> carried_type(pa.uint8()), carried_type(pa.timestamp("ns"))
    (DataType(int16), None)
    """
    if type_ in _SAME:
        return type_
    if type_ in _WIDER:
        return _WIDER[type_]
    if pa.types.is_decimal(type_):
        digits, scale = type_.precision, type_.scale
        fits = digits <= _MOST_DIGITS and 0 <= scale <= digits
        return pa.decimal128(digits, scale) if fits else None
    if pa.types.is_timestamp(type_):
        return None if type_.unit == "ns" else pa.timestamp("us", type_.tz)
    if pa.types.is_fixed_size_binary(type_):
        return pa.binary()
    return _carried_nested(type_)


def _carried_nested(type_: pa.DataType) -> pa.DataType | None:
    inner = [type_.field(i) for i in range(type_.num_fields)]
    if pa.types.is_map(type_):
        inner = [type_.key_field, type_.item_field]
    types = [carried_type(field.type) for field in inner]
    if not types or None in types:
        return None
    fields = [field.with_type(kind) for field, kind in zip(inner, types, strict=True)]
    if pa.types.is_struct(type_):
        return pa.struct(fields)
    if pa.types.is_map(type_):
        return pa.map_(*fields)
    if any(test(type_) for test in _LISTS):
        return pa.list_(fields[0])
    return None


_LISTS: Final = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


def _carried(field: pa.Field) -> pa.DataType:
    carried = carried_type(field.type)
    if carried is None:
        raise UnsupportedTypeError(
            f"Master column {field.name!r} has type {field.type}, which Spark cannot hold without "
            "loss. Build the master with a type that it can (a timestamp in microseconds, say), "
            "or leave the column out with columns=[…]."
        )
    return carried


def _check_cases(df: DataFrame, payload: Sequence[str]) -> None:
    """To Spark, names that differ only in case are the same, unless it is told otherwise."""
    if str(df.sparkSession.conf.get("spark.sql.caseSensitive", "false")).lower() == "true":
        return
    known = {name.lower() for name in df.columns}
    clash = sorted(name for name in payload if name.lower() in known)
    if clash:
        raise ColumnClashError(
            f"The columns {clash} are on both sides but for upper and lower case, which Spark does "
            "not tell apart. Rename them in the stream, choose the master's columns with "
            "columns=[…], or set spark.sql.caseSensitive to true."
        )
