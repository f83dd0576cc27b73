"""`split_new`: which tuples are new to a master, which would change it, and which it has already.

    tuples ─► look-up ─► compare ─► new | changed | unchanged

One pass: the look-up adds the master's values, and an expression of Spark's compares them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from typing import Final, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)
from pyspark.sql.types import DataType, StructType

from semistream.errors import OptionError
from semistream.parts.join_shape import On, resolve_on
from semistream.relation import MasterTable
from semistream.spark.columns import column
from semistream.spark.schema import spark_types
from semistream.spark.transformations.common_types import common_type
from semistream.spark.transformations.look_up import beside, check_sides

__all__ = ["CHANGE", "Compare", "common_types", "compared_columns", "split_new"]

CHANGE: Final = "change"
"""The column that says what a tuple is."""

Compare: TypeAlias = Sequence[str] | Mapping[str, str]
"""Columns to compare: names, or a dict from stream column to master column."""


def split_new(
    df: DataFrame,
    master: MasterTable,
    *,
    on: On,
    compare: Compare | None = None,
    memory: int | str = "64MB",
    freshness: str = "pinned",
    io: str = "buffered",
) -> DataFrame:
    """Add a column `change`: "new", "changed" or "unchanged", beside what the master has.

    New is a tuple whose key the master does not have, or whose key has a null. Changed is one
    that differs from the master's row in a compared column; null equals null there, and NaN NaN.
    Columns of unlike types are compared exactly, or refused. The result
    has the columns of `df` and `change`, a row for each tuple, and is a stream if `df` is one.
    Tuples of one batch are not compared with each other. If a key has several master rows, there
    is a row for each of them.

    Args:
        df: a batch or streaming DataFrame, of a classic or a Connect session.
        master: the master table; every executor must be able to read its path.
        on: the stream's key columns, as for `join`.
        compare: the columns to compare: names, or a dict from stream column to master column. By
            default all that both have, but for the key.
        memory: the budget of each task, as bytes or "64MB".
        freshness: "pinned" for the version that `master` has open; "latest" for the newest when
            a task starts.
        io: "buffered", "unmapped" or "direct", as in `engine`.
    """
    check_sides(df, master)
    if CHANGE in (name.lower() for name in df.columns):
        raise OptionError(f"The stream has a column {CHANGE!r} already. Rename it.")
    key = resolve_on(on, master.key, df.columns)
    pairs = compared_columns(df, master, compare, leave_out=key.values())
    kinds = common_types(df.schema, spark_types(master), pairs)
    wanted = list(dict.fromkeys(pairs.values()))
    options = {"memory": memory, "freshness": freshness, "io": io}
    joined, ours, witness = beside(df, master, on, wanted, **options)
    same = [
        ours[name].cast(kind).eqNullSafe(column(pairs[name]).cast(kind))
        for name, kind in kinds.items()
    ]
    change = (
        F.when(witness.isNull(), "new")
        .when(reduce(Column.__and__, same), "unchanged")
        .otherwise("changed")
    )
    return joined.select(*(ours[n].alias(n) for n in df.columns), change.alias(CHANGE))


def compared_columns(
    df: DataFrame, master: MasterTable, compare: Compare | None, leave_out: Collection[str]
) -> dict[str, str]:
    """The columns to compare, from stream column to master column; both sides have them.

    By default all that both have, except the master's key and those in `leave_out`.
    """
    if compare is None:
        names = [name for name in df.columns if name in master.schema.names]
        pairs = {name: name for name in names if name not in {*master.key, *leave_out}}
    elif isinstance(compare, Mapping):
        pairs = dict(compare)
    else:
        pairs = {name: name for name in ([compare] if isinstance(compare, str) else compare)}
    if not pairs:
        raise OptionError(
            f"There is nothing to compare: the stream has {df.columns}, and the master "
            f"{master.schema.names}. Name the columns with compare=[…]."
        )
    for ours, theirs in pairs.items():
        if ours not in df.columns or theirs not in master.schema.names:
            raise OptionError(
                f"compare={compare!r}: the stream must have {ours!r} and the master {theirs!r}; "
                f"they have {df.columns} and {master.schema.names}."
            )
    return pairs


def common_types(
    stream: StructType, master: StructType, pairs: Mapping[str, str]
) -> dict[str, DataType]:
    """By stream column, the type in which it is compared; `OptionError` if there is none."""
    found: dict[str, DataType] = {}
    for ours, theirs in pairs.items():
        kind = stream[ours].dataType
        other = master[theirs].dataType if theirs in master.names else None
        common = None if other is None else common_type(kind, other)
        if common is None:
            shown = "a type that Spark does not have" if other is None else other.simpleString()
            raise OptionError(
                f"Column {ours!r} is {kind.simpleString()}, and the master's {theirs!r} is "
                f"{shown}: these cannot be compared exactly. Cast {ours!r} first, or name the "
                "columns to compare with compare=[…]."
            )
        found[ours] = common
    return found
