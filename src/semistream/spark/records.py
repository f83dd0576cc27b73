"""Records of a message queue as columns: `parsed`.

A record that does not fit the schema is kept whole in the column `_corrupt_record`, which
`ss.Pipeline` sends to its route `rejected`. With `whole` each record comes along as it was, so that
a tuple that is rejected for another reason has it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, TypeAlias

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import (
    base64,
    coalesce,
    col,
    concat,
    from_json,
    is_valid_utf8,
    lit,
    size,
    when,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from semistream.errors import OptionError, StreamSchemaError
from semistream.spark.avro_records import AvroRecords
from semistream.spark.columns import PREFIX
from semistream.spark.sql_columns import column_names, no_columns

__all__ = ["CORRUPT", "RECORD", "check_columns", "check_schema", "parsed", "selected"]

CORRUPT: Final = "_corrupt_record"
"""Where Spark's readers, and `parsed`, put a record that they could not parse."""
RECORD: Final = "_semistream_record"
"""Where `parsed` puts each record as it came, if it is asked to."""
_FORMATS: Final = ("json", "avro")
_OF_QUEUE: Final = ("partition", "offset", "timestamp")


def parsed(
    df: DataFrame,
    schema: str | StructType,
    *,
    format: str = "json",
    column: str = "value",
    keep: tuple[str, ...] = (),
    key: str | StructType | None = None,
    whole: bool = False,
) -> DataFrame:
    """The fields of the records in a column as columns, for a batch or a stream.

    Args:
        df: the frame with the records, as `spark.readStream.format("kafka")` gives it.
        schema: the columns. For "json" as SQL, "product_id long, quantity int", or a Spark type;
            for "avro" the writer's schema as JSON, or a file of that (`.avsc`).
        format: "json" or "avro". Avro needs fastavro: pip install 'semistream[avro]'.
        column: the column of the records.
        keep: other columns of `df` to keep, as "topic" or "timestamp".
        key: the fields of the messages' keys, as `schema` has those of the records. Then the
            columns are `key` and `value`, each with its fields inside, `value` null where a message
            has none, and what the queue knows of a message: its partition, offset and timestamp.
            So `MasterTable.sync` takes a compacted topic.
        whole: keep each record as it came too, in a column that `ss.Pipeline` knows: whatever a
            tuple is rejected for, its `_corrupt_record` then has the record. Not with `key`.

    A record is kept as its text. Bytes that are no text are kept in base 64: those of Avro as they
    are, and JSON that is not UTF-8 with "base64:" before them.
    """
    for text in (schema, key):
        if text is not None:
            check_schema(text, format)
    check_columns(df.columns, (column, *keep, *(() if key is None else ("key",))))
    read = _json if format == "json" else _avro
    if key is None:
        df, record, corrupt, kept = read(df.select(column, *keep), column, schema)
    else:
        told = [name for name in _OF_QUEUE if name in df.columns and name not in keep]
        df, record, corrupt, _ = read(df, column, schema)
        df, of_key, corrupt_key, _ = read(df, "key", key)
        return df.select(
            of_key.alias("key"),
            when(col(column).isNotNull(), record).alias("value"),
            coalesce(corrupt, corrupt_key).alias(CORRUPT),
            *told,
            *keep,
        )
    more = [kept.alias(RECORD)] if whole else []
    fields = df.select(record.alias("record"), corrupt.alias(CORRUPT), *more, *keep)
    return fields.select("record.*", CORRUPT, *([RECORD] if whole else []), *keep)


def check_schema(schema: str | StructType, format: str) -> None:
    """Raise unless it can be a schema of records in this format; Spark is not asked."""
    if format not in _FORMATS:
        raise OptionError(f"Records in {format!r} are not known. Use one of: {_list(_FORMATS)}.")
    if format == "avro":
        names = [field.name for field in _of_avro(schema).fields]
    elif isinstance(schema, str):
        names = column_names(schema)
    else:
        names = schema.names
    if CORRUPT in names:
        raise OptionError(f"schema has a column {CORRUPT}; it is added by itself. Leave it out.")


def check_columns(there: Sequence[str], wanted: Sequence[str]) -> None:
    """Raise unless a stream has these columns."""
    missing = [name for name in wanted if name not in there]
    if missing:
        raise StreamSchemaError(
            f"The stream has no column {_list(missing)}; it has {_list(there)}. Name those only."
        )


def selected(frame: DataFrame, expressions: Sequence[str]) -> DataFrame:
    """The columns that SQL expressions make, and those that a rejected tuple needs."""
    made = frame.selectExpr(*expressions)
    needed = (CORRUPT, RECORD) if RECORD in frame.columns else ()
    left = [name for name in needed if name in frame.columns and name not in made.columns]
    return frame.selectExpr(*expressions, *left) if left else made


_Read: TypeAlias = tuple[DataFrame, Column, Column, Column]
"""The frame; of its rows the record, what is kept of it if it is not one, and what is always."""


def _json(df: DataFrame, column: str, schema: str | StructType) -> _Read:
    """Records that are texts."""
    try:
        found = schema if isinstance(schema, StructType) else StructType.fromDDL(schema)
    except PySparkException as error:
        raise no_columns(schema) from error
    if not isinstance(found, StructType):
        raise no_columns(schema)
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    whole = StructType([*found.fields, StructField(CORRUPT, StringType())])
    text = col(column).cast("string")
    record = from_json(text, whole, options)
    # Spark reads the first object of a text, and says nothing of what follows it.
    alone = size(from_json(concat(lit("["), text, lit("]")), "array<string>")) == 1
    is_text = is_valid_utf8(text)
    kept = when(is_text, text).otherwise(concat(lit("base64:"), base64(col(column).cast("binary"))))
    is_one = is_text & record[CORRUPT].isNull() & coalesce(alone, lit(False))
    return df, record.dropFields(CORRUPT), when(text.isNotNull() & ~is_one, kept), kept


def _avro(df: DataFrame, column: str, schema: str | StructType) -> _Read:
    """Records that are bytes of Avro, and are kept in base 64."""
    records = _of_avro(schema)
    names = f"{PREFIX}{column}", f"{PREFIX}{column}_corrupt"
    kind = from_arrow_schema(pa.schema(records.fields))
    new = [StructField(names[0], kind), StructField(names[1], StringType())]
    add = partial(AvroRecords.added, records, column=column, record=names[0], corrupt=names[1])
    whole = df.mapInArrow(add, StructType([*df.schema.fields, *new]))
    return whole, col(names[0]), col(names[1]), base64(col(column).cast("binary"))


def _of_avro(schema: str | StructType) -> AvroRecords:
    if not isinstance(schema, str):
        raise OptionError("For Avro, schema is the writer's schema as JSON, or a file *.avsc.")
    return AvroRecords(schema)


def _list(names: Sequence[str]) -> str:
    return ", ".join(names)
