"""Columns of Spark frames: names as SQL wants them, collations of keys, types in Arrow."""

from __future__ import annotations

from collections.abc import Iterable
from inspect import signature
from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructType

from semistream.errors import KeyTypeError, OptionError, UnsupportedTypeError
from semistream.relation.storage import scrubbed

__all__ = [
    "PREFIX",
    "arrow_schema",
    "check_collations",
    "check_condition",
    "check_plain",
    "column",
    "first_sentence",
    "quoted",
]

PREFIX: Final = "__semistream_"
"""What the names of columns begin with that semistream adds to a stream for a while."""


def quoted(name: str) -> str:
    """A column's name in SQL, whatever characters it has.

    >>> quoted("a.b`c")
    '`a.b``c`'
    """
    return "`" + name.replace("`", "``") + "`"


def column(name: str) -> Column:
    """The column of exactly this name; a dot in it does not mean a field of a struct."""
    return F.col(quoted(name))


def first_sentence(error: PySparkException) -> str:
    """What Spark says is wrong with a query, without the plan that follows, and without secrets."""
    said = str(error).strip().splitlines()[:1]
    return scrubbed("".join(said).partition(" SQLSTATE: ")[0])


def check_plain(names: Iterable[str]) -> None:
    """Raise unless Spark can hand columns of these names to a Python function."""
    dotted = [name for name in names if "." in name or "`" in name]
    if dotted:
        raise OptionError(
            "Spark cannot hand columns with a dot or a backtick in their name to a Python "
            f"function: {', '.join(dotted)}. Rename them."
        )


def check_collations(schema: StructType, key: Iterable[str], what: str) -> None:
    """Raise unless strings in the key columns are equal only if their bytes are.

    Keys are compared by their bytes; other collations take different bytes for equal. `what` names
    the columns in the message: "Key column".
    """
    for name in key:
        kind = schema[name].dataType
        if isinstance(kind, StringType) and not kind.isUTF8BinaryCollation():
            raise KeyTypeError(
                f"{what} {name!r} has the collation {kind.collation}, but keys are compared "
                f"by their bytes. Cast it first: collate({name}, 'UTF8_BINARY')."
            )


def check_condition(schema: StructType, names: Iterable[str]) -> None:
    """Raise unless a condition compares strings in these columns as Spark would: by their bytes."""
    for name in names:
        kind = schema[name].dataType
        if isinstance(kind, StringType) and not kind.isUTF8BinaryCollation():
            raise OptionError(
                f"The condition names {name!r}, whose collation is {kind.collation}; strings are "
                f"compared by their bytes. Cast it first: collate({name}, 'UTF8_BINARY')."
            )


def arrow_schema(
    df: DataFrame, what: str, timezone: str | None, large_types: bool = False
) -> pa.Schema:
    """The Arrow schema of the batches that Spark makes of this frame; `what` names it."""
    try:
        return _to_arrow(df.schema, timezone, large_types)
    except PySparkException as error:
        raise UnsupportedTypeError(
            f"The {what} has a column that Spark cannot hand over as Arrow: {error}. "
            "Cast it to another type, or leave it out."
        ) from error


def _to_arrow(schema: StructType, timezone: str | None, large_types: bool) -> pa.Schema:
    if "timezone" in signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone=timezone, prefers_large_types=large_types)
    # Before Spark 4.2 it says UTC for every instant; batches have the session's time zone.
    found = to_arrow_schema(schema, prefers_large_types=large_types)
    return pa.schema([in_zone(field, timezone) for field in found])


def in_zone(field: pa.Field, timezone: str | None) -> pa.Field:
    """The field with all instants in it, at any depth, in another time zone."""
    kind = field.type
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        kind = pa.timestamp(kind.unit, timezone)
    elif pa.types.is_struct(kind):
        kind = pa.struct([in_zone(one, timezone) for one in kind])
    elif pa.types.is_list(kind):
        kind = pa.list_(in_zone(kind.value_field, timezone))
    elif pa.types.is_map(kind):
        kind = pa.map_(in_zone(kind.key_field, timezone), in_zone(kind.item_field, timezone))
    return field.with_type(kind)
