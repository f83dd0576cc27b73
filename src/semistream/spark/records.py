"""Records of a message queue as columns: `parsed`.

A record that does not fit the schema is kept whole in the column `_corrupt_record`, which
`ss.Pipeline` sends to its route `rejected`.
"""

from __future__ import annotations

from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import base64, coalesce, col, from_json, when
from pyspark.sql.types import StringType, StructField, StructType

from semistream.errors import ConnectorError, OptionError, StreamSchemaError

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
            for "avro" the writer's schema as JSON.
        format: "json" or "avro". Avro needs Spark's own connector of that name.
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
    record, corrupt = read(df, column, schema)
    if key is not None:
        of_key, corrupt_key = read(df, "key", key)
        told = [name for name in _OF_QUEUE if name in df.columns and name not in keep]
        return df.select(
            of_key.alias("key"),
            when(col(column).isNotNull(), record).alias("value"),
            coalesce(corrupt, corrupt_key).alias(_CORRUPT),
            *told,
            *keep,
        )
    fields = df.select(record.alias("record"), corrupt.alias(_CORRUPT), *keep)
    return fields.select("record.*", _CORRUPT, *keep)


def _json(df: DataFrame, column: str, schema: str | StructType) -> tuple[Column, Column]:
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


def _avro(df: DataFrame, column: str, schema: str | StructType) -> tuple[Column, Column]:
    """The record, and its bytes in base 64 if they are not one."""
    from pyspark.sql.avro.functions import from_avro

    if not isinstance(schema, str):
        raise OptionError("For Avro, schema is the writer's schema as JSON.")
    try:
        record = from_avro(col(column), schema, {"mode": "PERMISSIVE"})
        df.select(record)  # The schema is read when the frame is analysed.
    except (PySparkException, TypeError) as error:
        raise ConnectorError(
            "The session cannot read Avro: it lacks Spark's connector, or the schema is not Avro's "
            f'JSON: {str(error).partition(chr(10))[0]} Try ss.local_session(connectors=["avro"]).'
        ) from error
    broken = record.isNull() & col(column).isNotNull()
    return record, when(broken, base64(col(column)))
