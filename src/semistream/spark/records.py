"""Records of a message queue as columns: `parsed`.

A record that does not fit the schema is kept whole in the column `_corrupt_record`, which
`ss.Pipeline` sends to its route `rejected`.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import coalesce, col, concat, from_json, lit, size, when
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from semistream.errors import OptionError, StreamSchemaError
from semistream.spark.avro_records import AvroRecords
from semistream.spark.columns import PREFIX

__all__ = ["parsed"]

_CORRUPT: Final = "_corrupt_record"
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
    """
    if format not in _FORMATS:
        raise OptionError(f"format={format!r} is not known. Use one of: {', '.join(_FORMATS)}.")
    wanted = (column, *keep, *(() if key is None else ("key",)))
    missing = [name for name in wanted if name not in df.columns]
    if missing:
        raise StreamSchemaError(f"The stream has no column {missing}; it has {df.columns}.")
    read = _json if format == "json" else _avro
    if key is None:
        df, record, corrupt = read(df.select(column, *keep), column, schema)
    else:
        told = [name for name in _OF_QUEUE if name in df.columns and name not in keep]
        df, record, corrupt = read(df, column, schema)
        df, of_key, corrupt_key = read(df, "key", key)
        return df.select(
            of_key.alias("key"),
            when(col(column).isNotNull(), record).alias("value"),
            coalesce(corrupt, corrupt_key).alias(_CORRUPT),
            *told,
            *keep,
        )
    fields = df.select(record.alias("record"), corrupt.alias(_CORRUPT), *keep)
    return fields.select("record.*", _CORRUPT, *keep)


def _json(df: DataFrame, column: str, schema: str | StructType) -> tuple[DataFrame, Column, Column]:
    """The frame; the record, and its text if it is not one."""
    try:
        found = schema if isinstance(schema, StructType) else StructType.fromDDL(schema)
    except PySparkException as error:
        raise _no_columns(schema) from error
    if not isinstance(found, StructType):
        raise _no_columns(schema)
    if _CORRUPT in found.names:
        raise OptionError(f"schema has a column {_CORRUPT}; it is added by itself. Leave it out.")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    whole = StructType([*found.fields, StructField(_CORRUPT, StringType())])
    text = col(column).cast("string")
    record = from_json(text, whole, options)
    # Spark reads the first object of a text, and says nothing of what follows it.
    alone = size(from_json(concat(lit("["), text, lit("]")), "array<string>")) == 1
    corrupt = coalesce(
        record[_CORRUPT], when(text.isNotNull() & ~coalesce(alone, lit(False)), text)
    )
    return df, record.dropFields(_CORRUPT), corrupt


def _no_columns(schema: object) -> OptionError:
    return OptionError(
        f"schema={schema!r} is not a list of columns as SQL has it: "
        '"product_id long, quantity int".'
    )


def _avro(df: DataFrame, column: str, schema: str | StructType) -> tuple[DataFrame, Column, Column]:
    """The frame with both added; the record, and its bytes in base 64 if they are not one."""
    if not isinstance(schema, str):
        raise OptionError("For Avro, schema is the writer's schema as JSON, or a file *.avsc.")
    records = AvroRecords(schema)
    if _CORRUPT in (field.name for field in records.fields):
        raise OptionError(f"schema has a column {_CORRUPT}; it is added by itself. Leave it out.")
    names = f"{PREFIX}{column}", f"{PREFIX}{column}_corrupt"
    kind = from_arrow_schema(pa.schema(records.fields))
    new = [StructField(names[0], kind), StructField(names[1], StringType())]
    add = partial(AvroRecords.added, records, column=column, record=names[0], corrupt=names[1])
    whole = df.mapInArrow(add, StructType([*df.schema.fields, *new]))
    return whole, col(names[0]), col(names[1])
