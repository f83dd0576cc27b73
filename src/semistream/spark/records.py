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
from pyspark.sql.functions import col, from_json
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from semistream.errors import OptionError, StreamSchemaError
from semistream.spark.avro_records import AvroRecords

__all__ = ["parsed"]

_CORRUPT: Final = "_corrupt_record"
_FORMATS: Final = ("json", "avro")


def parsed(
    df: DataFrame,
    schema: str | StructType,
    *,
    format: str = "json",
    column: str = "value",
    keep: tuple[str, ...] = (),
) -> DataFrame:
    """The fields of the records in a column as columns, for a batch or a stream.

    Args:
        df: the frame with the records, as `spark.readStream.format("kafka")` gives it.
        schema: the columns. For "json" as SQL, "product_id long, quantity int", or a Spark type;
            for "avro" the writer's schema as JSON, or a file of that, *.avsc.
        format: "json" or "avro". Avro needs fastavro: pip install 'semistream[avro]'.
        column: the column of the records.
        keep: other columns of `df` to keep, as "topic" or "timestamp".
    """
    if format not in _FORMATS:
        raise OptionError(f"format={format!r} is not known. Use one of: {', '.join(_FORMATS)}.")
    missing = [name for name in (column, *keep) if name not in df.columns]
    if missing:
        raise StreamSchemaError(f"The stream has no column {missing}; it has {df.columns}.")
    if format == "avro":
        return _avro(df.select(column, *keep), schema)
    record, corrupt = _json(column, schema)
    fields = df.select(record.alias("record"), corrupt.alias(_CORRUPT), *keep)
    return fields.select("record.*", _CORRUPT, *keep)


def _json(column: str, schema: str | StructType) -> tuple[Column, Column]:
    """The record, and its text if it is not one."""
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
    record = from_json(col(column).cast("string"), whole, options)
    return record.dropFields(_CORRUPT), record[_CORRUPT]


def _no_columns(schema: object) -> OptionError:
    return OptionError(
        f"schema={schema!r} is not a list of columns as SQL has it: "
        '"product_id long, quantity int".'
    )


def _avro(df: DataFrame, schema: str | StructType) -> DataFrame:
    """The fields of the records in the first column; if one is none, its bytes in base 64."""
    if not isinstance(schema, str):
        raise OptionError("For Avro, schema is the writer's schema as JSON, or a file *.avsc.")
    records = AvroRecords(schema)
    names = [field.name for field in records.fields]
    if _CORRUPT in names:
        raise OptionError(f"schema has a column {_CORRUPT}; it is added by itself. Leave it out.")
    fields = from_arrow_schema(pa.schema(records.fields)).fields
    whole = StructType([*fields, StructField(_CORRUPT, StringType()), *df.schema.fields[1:]])
    return df.mapInArrow(partial(AvroRecords.rows, records, corrupt=_CORRUPT), whole)
