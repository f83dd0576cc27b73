"""Checks of a frame that is to become a master table, before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)

from semistream.errors import HistoryError, KeyColumnError, OptionError
from semistream.relation.build import CODE_COLUMN
from semistream.relation.columns import stored_table
from semistream.spark.building.tasks import SHARD, WEIGHT
from semistream.spark.columns import PREFIX, arrow_schema, check_plain, column

__all__ = ["batch_frame", "check_names", "check_no_overlap", "check_order", "user_schema"]

_NEXT: Final = PREFIX + "next"


def batch_frame(df: object, what: str) -> DataFrame:
    """The frame, if it is a batch frame of Spark; `what` names the argument."""
    if not isinstance(df, DataFrame):
        raise OptionError(
            f"{what} is a {type(df).__name__}. Give a Spark DataFrame; Arrow data goes to "
            "MasterTable.from_arrow."
        )
    if df.isStreaming:
        raise OptionError(
            f"{what} is a streaming DataFrame, which has no end. Give a batch one (spark.read)."
        )
    return df


def check_order(df: DataFrame, layout: str, order_by: str | None, sample: object | None) -> None:
    """Raise unless the layout and the arguments that give its order go together."""
    if order_by is not None and sample is not None:
        raise OptionError("order_by= and sample= both say how keys are laid out. Give one of them.")
    if order_by is None and sample is None and layout == "given":
        raise OptionError(
            'layout="given" on Spark, where rows have no order of their own, needs one of '
            "order_by= (a column) and sample= (a DataFrame of stream tuples). Give one of them."
        )
    if layout == "key" and (order_by is not None or sample is not None):
        raise OptionError(
            'order_by= and sample= are for layout="given". Leave layout= out, or leave them out.'
        )
    if order_by is not None and order_by not in df.columns:
        raise KeyColumnError(
            f"order_by={order_by!r} is not a column; the columns are {', '.join(df.columns)}. "
            "Name one of these."
        )


def check_no_overlap(df: DataFrame, key: Sequence[str], valid: tuple[str, str]) -> None:
    """Raise `HistoryError` if two rows of a key are valid at the same time: a job of Spark's.

    Sorted by their beginning, rows overlap only if two neighbours do.
    """
    begin, end = (column(name) for name in valid)
    lasting = begin.isNotNull() & (end.isNull() | (begin < end))
    keyed = reduce(Column.__and__, (column(name).isNotNull() for name in key))
    rows = Window.partitionBy(*(column(name) for name in key)).orderBy(begin)
    following = df.where(keyed & lasting).withColumn(_NEXT, F.lead(begin).over(rows))
    overlap = following.where(column(_NEXT).isNotNull() & (end.isNull() | (column(_NEXT) < end)))
    found = overlap.select(*(column(name) for name in (*key, _NEXT))).limit(1).collect()
    if found:
        told = ", ".join(f"{name}={found[0][name]}" for name in key)
        raise HistoryError(
            f"The data has, for the key {told}, more than one row that is valid at "
            f"{valid[0]}={found[0][_NEXT]}. Mend its rows, so that each ends before the next "
            "begins."
        )


def check_names(names: Sequence[str]) -> None:
    """Raise unless the tasks of a build can take columns of these names."""
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise OptionError(
            f"Column names occur twice: {', '.join(repeated)}. Rename them so that all differ."
        )
    taken = [name for name in names if name.lower() in (CODE_COLUMN, SHARD, WEIGHT)]
    if taken:
        raise OptionError(f"The name {taken[0]} is kept for semistream. Rename that column.")
    check_plain(names)


def user_schema(df: DataFrame) -> pa.Schema:
    """The rows as they are stored: plain types, any column may be null, times in UTC."""
    schema = arrow_schema(df, "frame", timezone="UTC")
    fields = [field.with_nullable(True).remove_metadata() for field in schema]
    return stored_table(pa.schema(fields).empty_table()).schema
