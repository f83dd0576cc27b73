"""Change feeds of several kinds, each as the same few columns.

    "changes"    _change_type, _commit_version    Delta's change data feed, Spark's own changes
    "iceberg"    _change_type, _change_ordinal    a changelog view of Iceberg
    "debezium"   op, before, after                Debezium's events; tombstones are left out
    "upsert"     rows, or key and value           a compacted topic, where a null value deletes;
                                                  a table that is polled

A row as it was before an update counts as a delete with the update's sequence. The row after it
wins over that, unless the update has changed the key: then the old key has no row any more. An
event of Debezium has both rows in one, so one that has changed the key counts as two changes.

If two changes of a key have one sequence, a row wins over a delete, then the higher offset of a
topic if it is known, and else the same one of them whichever comes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    LongType,
    MapType,
    StructType,
    TimestampType,
    VariantType,
)

from semistream.errors import KeyColumnError, OptionError, StreamSchemaError
from semistream.history import time_kind
from semistream.relation import MasterTable
from semistream.relation.storage import harmless, scrubbed
from semistream.spark.columns import PREFIX, arrow_schema, column

__all__ = ["AT", "BAD", "COUNT", "DELETED", "FORMATS", "ChangeShape", "sequence_name"]

FORMATS: Final = ("changes", "debezium", "iceberg", "upsert")
DELETED, BAD, AT, COUNT, _ROW = (f"{PREFIX}{n}" for n in ("deleted", "bad", "at", "count", "row"))
_TIE, _IS_OLD = f"{PREFIX}tie", f"{PREFIX}is_old"
_KIND, _ORDINAL = "_change_type", "_change_ordinal"
_WITH_ROW: Final = {
    "changes": ("insert", "update_postimage"),
    "iceberg": ("INSERT", "UPDATE_AFTER"),
    "debezium": ("c", "r", "u"),
}
_WITHOUT: Final = {
    "changes": ("delete", "update_preimage"),
    "iceberg": ("DELETE", "UPDATE_BEFORE"),
    "debezium": ("d",),
}
_OF_SOURCE: Final = (("lsn",), ("file", "pos", "row"), ("file", "pos"))
"""What orders the events of a database, by the fields of Debezium's `source`."""


def sequence_name(number: int) -> str:
    """The column of this number among those that order changes."""
    return f"{PREFIX}sequence_{number}"


@dataclass(frozen=True)
class ChangeShape:
    """How the changes of a frame are read; it serves every frame with the same columns."""

    format: str
    columns: Mapping[str, Column]
    """The master's columns, without those of `valid`."""
    key: tuple[str, ...]
    sequence_by: tuple[str, ...]
    sequence: Sequence[Column]
    deleted: Column
    bad: Column
    """What is wrong with a change; null if nothing is."""
    at: Column
    """When the source made it, in seconds since 1970, if it says so."""
    is_change: Column
    tie: Sequence[Column]
    """What decides between changes of one sequence."""
    old_key: Mapping[str, Column]
    """The key that a row had before the change, if that is known; empty if the feed has none."""
    history: bool

    @classmethod
    def of(
        cls,
        df: DataFrame,
        master: MasterTable,
        format: str,
        sequence_by: str | Sequence[str] | None,
        apply_as_deletes: str | Column | None,
    ) -> ChangeShape:
        """The shape for a frame, after all checks of its columns."""
        kind = _recognised(df) if format == "auto" else format
        if kind not in FORMATS:
            raise OptionError(f"format={format!r} is not known. Use auto, or {_list(FORMATS)}.")
        names = [name for name in master.schema.names if name not in (master.valid or ())]
        reader = _Reader(df, kind, names, master.key)
        columns = reader.columns()
        by = _sequence_names(df, kind, sequence_by)
        sequence = [_expression(df, name, "sequence_by") for name in by]
        deleted = reader.deleted()
        if apply_as_deletes is not None:
            more = apply_as_deletes
            more = _expression(df, more, "apply_as_deletes") if isinstance(more, str) else more
            _check_boolean(df, more, apply_as_deletes)
            deleted = deleted | F.coalesce(more, F.lit(False))
        without = [
            F.when(one.isNull(), F.lit(f"a null in {name!r}, by which changes are ordered"))
            for name, one in zip(by, sequence, strict=True)
        ]
        without += [
            F.when(columns[name].isNull(), F.lit(f"a null in the key column {name!r}"))
            for name in master.key
        ]
        shape = cls(
            kind,
            columns,
            master.key,
            by,
            sequence,
            deleted,
            F.coalesce(*reader.faults(), *without),
            reader.at(),
            reader.is_change(),
            reader.tie(columns),
            reader.old_key(),
            master.valid is not None,
        )
        shape._check_types(df, master)
        return shape

    def last_changes(self, df: DataFrame, sequence: Sequence[Column] | None = None) -> DataFrame:
        """The last change of each key, or of each key and time for a history; a Spark job.

        Beside the master's columns it has the sequence, `DELETED`, and of all changes of the key
        `BAD`, the latest `AT` and their `COUNT`.
        """
        order = [one.alias(sequence_name(i)) for i, one in enumerate(sequence or self.sequence)]
        df, is_old = self._with_old_keys(df.where(self.is_change))
        columns = dict(self.columns) | {
            name: F.when(is_old, old).otherwise(self.columns[name])
            for name, old in self.old_key.items()
        }
        rows = df.select(
            *(one.alias(name) for name, one in columns.items()),
            *order,
            (self.deleted | is_old).alias(DELETED),
            self.bad.alias(BAD),
            self.at.alias(AT),
            F.struct(*self.tie).alias(_TIE),
            is_old.alias(_IS_OLD),
        )
        names = [sequence_name(i) for i in range(len(order))]
        group = [*self.key, *(names[:1] if self.history else [])]
        others = [name for name in (*self.columns, *names, DELETED) if name not in group]
        last = F.max_by(
            F.struct(*map(column, others)),
            F.struct(*map(column, names), ~column(DELETED), column(_TIE)),
        )
        found = rows.groupBy(*map(column, group)).agg(
            last.alias(_ROW),
            F.max(column(BAD)).alias(BAD),
            F.max(column(AT)).alias(AT),
            F.sum((~column(_IS_OLD)).cast("long")).alias(COUNT),
        )
        kept = [column(name) for name in (*group, BAD, AT, COUNT)]
        return found.select(*kept, *(column(_ROW)[name].alias(name) for name in others))

    def _with_old_keys(self, df: DataFrame) -> tuple[DataFrame, Column]:
        """The changes, those that have changed the key twice; and which are for the old key."""
        if not self.old_key:
            return df, F.lit(False)
        pairs = [(old, self.columns[name]) for name, old in self.old_key.items()]
        is_known = reduce(Column.__and__, [old.isNotNull() for old, _ in pairs])
        is_other = reduce(Column.__or__, [~old.eqNullSafe(new) for old, new in pairs])
        both = F.when(is_known & is_other, F.array(F.lit(False), F.lit(True)))
        turns = F.explode(F.coalesce(both, F.array(F.lit(False))))
        return df.select("*", turns.alias(_IS_OLD)), column(_IS_OLD)

    def _check_types(self, df: DataFrame, master: MasterTable) -> None:
        """Raise unless the columns have types that the master's can take."""
        rows = df.select(*(one.alias(name) for name, one in self.columns.items()))
        found = arrow_schema(rows, "changes", "UTC")
        for name in self.columns:
            have, want = found.field(name).type, master.schema.field(name).type
            if _family(have) != _family(want):
                raise StreamSchemaError(
                    f"Column {name!r} of the changes has type {have}, and that of the master "
                    f"{want}. If the source has changed it, build the master anew; else cast it."
                )


@dataclass(frozen=True)
class _Reader:
    """Finds a format's columns in a frame."""

    df: DataFrame
    format: str
    names: Sequence[str]
    key: tuple[str, ...]

    def columns(self) -> dict[str, Column]:
        """The master's columns."""
        if self.format == "debezium":
            self._check(self._fields("after", needed=True), "after")
            found = {name: _of("after", name) for name in self.names}
            places = [place for place in ("before", "key") if self._fields(place)]
            for name in self.key:
                others = [_of(place, name) for place in places if name in self._fields(place)]
                found[name] = F.coalesce(found[name], *others)
            return found
        if self._is_pair():
            key = self._key_fields()
            self._check([*self._fields("value"), *key], "value")
            return {name: key[name] if name in key else _of("value", name) for name in self.names}
        self._check(self.df.columns, None)
        return {name: column(name) for name in self.names}

    def deleted(self) -> Column:
        """Whether the key has no row after the change."""
        if self.format != "upsert":
            return F.coalesce(self._type().isin(*_WITHOUT[self.format]), F.lit(False))
        return column("value").isNull() if self._is_pair() else F.lit(False)

    def faults(self) -> list[Column]:
        """What may be wrong with a change, each null if it is not."""
        found = [F.lit(None).cast("string")]
        if "_corrupt_record" in self.df.columns:
            text = F.lit("a record that could not be parsed: ")
            found.append(F.concat(text, column("_corrupt_record")))
        if self.format != "upsert":
            known = (*_WITH_ROW[self.format], *_WITHOUT[self.format])
            is_known = F.coalesce(self._type().isin(*known), F.lit(False))
            named = F.coalesce(self._type(), F.lit("null"))
            text = F.concat(F.lit("the change type "), named, F.lit(f"; known are {_list(known)}"))
            found.append(F.when(~is_known, text))
        if self.format == "debezium":
            has_row = self._type().isin(*_WITH_ROW[self.format])
            text = F.concat(F.lit("an event with op "), self._type(), F.lit(" and no row in after"))
            found.append(F.when(has_row & column("after").isNull(), text))
        return found

    def at(self) -> Column:
        """When the source made the change, in seconds since 1970."""
        kinds = {field.name: field.dataType for field in self.df.schema.fields}
        if self.format == "debezium":
            millis = _of("source", "ts_ms") if "ts_ms" in self._fields("source") else None
            if millis is None and "ts_ms" in kinds:
                millis = column("ts_ms")
            if millis is not None:
                return millis.cast("double") / 1000
        name = "timestamp" if self.format == "upsert" else "_commit_timestamp"
        if name not in self.names and isinstance(kinds.get(name), TimestampType):
            return column(name).cast("double")
        return F.lit(None).cast("double")

    def is_change(self) -> Column:
        """False for tombstones, which come after the delete that they stand for."""
        if self.format != "debezium":
            return F.lit(True)
        told = [c for c in ("op", "before", "after", "_corrupt_record") if c in self.df.columns]
        return reduce(Column.__or__, [column(name).isNotNull() for name in told])

    def old_key(self) -> dict[str, Column]:
        """The key in `before` of an event; other feeds have a change of its own for it."""
        there = self._fields("before") if self.format == "debezium" else ()
        return {name: _of("before", name) for name in self.key} if {*self.key} <= {*there} else {}

    def tie(self, columns: Mapping[str, Column]) -> list[Column]:
        """What decides between two changes of a key with one sequence: the same in every run."""
        kinds = {field.name: field.dataType for field in self.df.schema.fields}
        known = isinstance(kinds.get("offset"), LongType) and "offset" not in self.names
        found = [column("offset")] if known else []
        rows = self.df.select(*(one.alias(name) for name, one in columns.items()))
        plain = [f.name for f in rows.schema.fields if not _has_map(f.dataType)]
        return [*found, F.xxhash64(*(columns[name] for name in plain))]

    def _type(self) -> Column:
        name = "op" if self.format == "debezium" else _KIND
        if name not in self.df.columns:
            raise StreamSchemaError(
                f"format={self.format!r} needs the column {name!r}, and the changes have "
                f"{_list(self.df.columns)}."
            )
        return column(name)

    def _is_pair(self) -> bool:
        """Whether rows are inside the column `value`."""
        flat = {*self.names} <= {*self.df.columns}
        return self.format == "upsert" and not flat and bool(self._fields("value"))

    def _key_fields(self) -> dict[str, Column]:
        """The master's key columns that stand outside of `value`."""
        inside = self._fields("key")
        found = {name: _of("key", name) for name in self.key if name in inside}
        return found | {name: column(name) for name in self.key if name in self.df.columns}

    def _fields(self, name: str, needed: bool = False) -> Sequence[str]:
        """The fields of a column; none if it has none, or is not there."""
        kind = self.df.schema[name].dataType if name in self.df.columns else None
        if isinstance(kind, StructType):
            return kind.names
        if needed:
            raise StreamSchemaError(
                f"format={self.format!r} needs the column {name!r} with the fields of a row; the "
                f"changes have {_list(self.df.columns)}. Parse the records first: ss.parsed(…)."
            )
        return ()

    def _check(self, there: Sequence[str], inside: str | None) -> None:
        missing = [name for name in self.names if name not in there]
        if missing:
            where = f" in {inside!r}" if inside else ""
            kind = KeyColumnError if {*missing} & {*self.key} else StreamSchemaError
            raise kind(
                f"The changes have no {_list(missing)}{where}, which the master has; there is "
                f"{_list(there)}. Rename their columns as the master's."
            )


def _of(struct: str, name: str) -> Column:
    return column(struct).getField(name)


def _recognised(df: DataFrame) -> str:
    """The format that has these columns."""
    if _KIND in df.columns:
        return "iceberg" if _ORDINAL in df.columns else "changes"
    return "debezium" if {"op", "after"} <= {*df.columns} else "upsert"


def _sequence_names(
    df: DataFrame, kind: str, sequence_by: str | Sequence[str] | None
) -> tuple[str, ...]:
    """What orders changes: as asked for, or what the format has for it."""
    if sequence_by is not None:
        by = (sequence_by,) if isinstance(sequence_by, str) else tuple(sequence_by)
        if not by or not all(isinstance(name, str) for name in by):
            raise OptionError(f"sequence_by={sequence_by!r} must name one or more columns.")
        return by
    if kind == "changes" and "_commit_version" in df.columns:
        return ("_commit_version",)
    if kind == "iceberg":
        return (_ORDINAL,)
    if kind == "debezium" and "source" in df.columns:
        source = df.schema["source"].dataType
        fields = source.names if isinstance(source, StructType) else []
        for names in _OF_SOURCE:
            if {*names} <= {*fields}:
                return tuple(f"source.{name}" for name in names)
    if kind == "upsert" and {"partition", "offset"} <= {*df.columns}:
        return ("offset",)
    raise OptionError(
        f"Nothing says in which order changes of format {kind!r} were made; their columns are "
        f"{_list(df.columns)}. Give sequence_by=: a column that rises with every change of a key, "
        "such as a version, a log position, or the time of the update."
    )


def _expression(df: DataFrame, text: str, argument: str) -> Column:
    """A column, or an SQL expression over the columns; an error if there is no such."""
    made = column(text) if text in df.columns else F.expr(text)
    try:
        df.select(made).schema  # noqa: B018 (asking for it makes Spark look)
    except PySparkException as error:
        raise OptionError(
            f"{argument}={text!r} is no column of the changes, and no SQL over them: "
            f"{scrubbed(str(error)).partition(chr(10))[0]} Their columns are {_list(df.columns)}."
        ) from harmless(error)
    return made


def _check_boolean(df: DataFrame, made: Column, given: object) -> None:
    kind = df.select(made).schema.fields[0].dataType
    if not isinstance(kind, BooleanType):
        raise OptionError(
            f"apply_as_deletes={given!r} is of type {kind.simpleString()}, and must say of each "
            'change whether it deletes, as "deleted_at is not null" does.'
        )


def _has_map(kind: DataType) -> bool:
    """Whether Spark can make no hash of it."""
    if isinstance(kind, StructType):
        return any(_has_map(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _has_map(kind.elementType)
    return isinstance(kind, MapType | VariantType)


def _family(kind: pa.DataType) -> str:
    """Types of one family can be cast into each other without a change of meaning."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "binary"
    for name in ("floating", "decimal", "nested", "integer"):
        if getattr(pa.types, f"is_{name}")(kind):
            return name
    return time_kind(kind) or str(kind)


def _list(names: Sequence[str]) -> str:
    return ", ".join(names)
