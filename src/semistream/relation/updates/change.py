"""What an update changes: keys that lose their rows, and rows that are added.

Keys are compared by their true values: of two keys with the same code, only the named one changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.arrow_arrays import to_arrow
from semistream.errors import KeyColumnError, OptionError
from semistream.keys import Codes, KeyCodec
from semistream.relation.build import keyed_rows
from semistream.relation.columns import ArrowData, SparkFrame, as_table, stored_table
from semistream.relation.surrogates import raised

__all__ = ["Change", "KeyData", "deletion", "upsertion"]

KeyData: TypeAlias = ArrowData | SparkFrame | pa.Array | pa.ChunkedArray | Sequence[Any]
"""Keys to delete: a table or frame with the key columns, an array, a list of values or tuples."""


@dataclass(frozen=True, eq=False)
class Change:
    """Keys that lose all their rows, then rows that are added."""

    codec: KeyCodec
    gone: list[pa.Array]
    """The keys that lose their rows, as key columns in code order."""
    gone_codes: Codes
    rows: pa.Table
    """The rows that are added, in the stored schema; all their keys are in `gone`."""
    codes: Codes
    """The codes of the rows that are added."""
    rows_without_key: int
    operation: str
    schema: pa.Schema | None = None
    """The stored schema of the next version, if it is another one; only metadata may differ."""

    def pairs(
        self, keys: Sequence[pa.Array], codes: Codes
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Pairs of a stored row and a key in `gone` that is its key.

        The rows are given by their key columns and codes.
        """
        low = np.searchsorted(self.gone_codes, codes, side="left")
        counts = np.searchsorted(self.gone_codes, codes, side="right") - low
        row = np.repeat(np.arange(len(codes)), counts)
        before = np.cumsum(counts) - counts
        other = np.arange(len(row)) - np.repeat(before - low, counts)
        if self.codec.exact:
            return row, other
        # Equal codes are only candidates: compare the true keys.
        same = self.codec.equal(
            [column.take(to_arrow(row)) for column in keys],
            [column.take(to_arrow(other)) for column in self.gone],
        )
        return row[same], other[same]

    def goes(self, keys: Sequence[pa.Array], codes: Codes) -> NDArray[np.bool_]:
        """Which stored rows are removed, given their key columns and codes."""
        goes = np.zeros(len(codes), np.bool_)
        goes[self.pairs(keys, codes)[0]] = True
        return goes


def upsertion(
    data: ArrowData | SparkFrame,
    codec: KeyCodec,
    key: Sequence[str],
    schema: pa.Schema,
    hidden: str | None,
) -> Change:
    """The change that replaces all rows of each key in the data with the data's rows of that key.

    `schema` is the stored schema, `hidden` the name of its code column, if it has one.
    """
    table = _as_stored(_collected(data), schema, hidden)
    table, codes, without_key = keyed_rows(table, codec, key)
    gone, gone_codes = _distinct_keys(table.select(list(key)), codes, codec)
    if hidden is not None:
        table = table.append_column(schema.field(hidden), to_arrow(codes))
    rows = pa.table(table.columns, schema=schema)
    text = f"upsert {_keys(len(gone_codes))}"
    return Change(codec, gone, gone_codes, rows, codes, without_key, text, raised(schema, rows))


def deletion(keys: KeyData, codec: KeyCodec, key: Sequence[str], schema: pa.Schema) -> Change:
    """The change that removes all rows of the keys."""
    table, codes, _ = keyed_rows(_key_table(keys, codec, key), codec, key)
    gone, gone_codes = _distinct_keys(table, codes, codec)
    nothing = pa.Table.from_batches([], schema)
    text = f"delete {_keys(len(gone_codes))}"
    return Change(codec, gone, gone_codes, nothing, np.empty(0, np.int64), 0, text)


def _keys(count: int) -> str:
    return "1 key" if count == 1 else f"{count:,} keys"


def _collected(data: Any) -> Any:
    """A Spark frame's rows as Arrow; anything else as it is."""
    return data.toArrow() if hasattr(data, "toArrow") else data


def _as_stored(data: ArrowData, schema: pa.Schema, hidden: str | None) -> pa.Table:
    """The data with the master's columns and types."""
    table = as_table(data)
    names = [name for name in schema.names if name != hidden]
    if set(table.column_names) != set(names):
        raise OptionError(
            f"The data's columns are {', '.join(table.column_names)}; those of the master table "
            f"are {', '.join(names)}. Give exactly these, or build the master anew."
        )
    table = stored_table(table.select(names))
    columns = []
    for name, column in zip(names, table.columns, strict=True):
        field = schema.field(name)
        try:
            # Arrow's cast may break a slice even where there is nothing to cast.
            cast = column if column.type == field.type else column.cast(field.type)
            cast.validate()
            columns.append(cast)
        except (pa.ArrowException, NotImplementedError) as error:
            raise OptionError(
                f"Column {name!r} has type {column.type}, and the master table has {field.type}: "
                f"{error}. Cast it first, or build the master anew."
            ) from error
        if column.null_count and not field.nullable:
            raise OptionError(
                f"Column {name!r} has nulls, but the master table was built without: it is not "
                "nullable. Fill them, or build the master anew."
            )
    return pa.table(columns, names=names)


def _key_table(keys: KeyData, codec: KeyCodec, key: Sequence[str]) -> pa.Table:
    """The keys as a table of the key columns, in the master's types."""
    found = _collected(keys)
    if found is None:
        raise OptionError("The keys to delete are None. Give a list of keys, which may be empty.")
    if isinstance(found, (pa.Array, pa.ChunkedArray)):
        found = _named([found], key)
    elif not isinstance(found, (pa.Table, pa.RecordBatch, pa.RecordBatchReader)):
        items = list(found) if isinstance(found, Iterable) else [found]
        of_batches = bool(items) and isinstance(items[0], pa.RecordBatch)
        found = items if of_batches else _named(_columns_of(items, len(key)), key)
    table = as_table(found)
    missing = [name for name in key if name not in table.column_names]
    if missing:
        raise KeyColumnError(
            f"The keys have no column {', '.join(missing)}; their columns are "
            f"{', '.join(table.column_names)}. Give the master's key columns: {', '.join(key)}."
        )
    batches = [
        pa.record_batch(codec.align(batch.columns, key), names=list(key))
        for batch in table.select(list(key)).to_batches()
    ]
    return pa.Table.from_batches(batches, pa.schema([(f.name, f.type) for f in codec.fields]))


def _columns_of(items: list[Any], count: int) -> list[pa.Array]:
    """A list of values, or of tuples for several key columns, as columns."""
    try:
        if count == 1:
            return [pa.array(items)]
        columns = list(zip(*items, strict=True)) or [()] * count
        return [pa.array(list(column)) for column in columns]
    except (TypeError, ValueError, pa.ArrowException) as error:
        what = "values of the key column" if count == 1 else f"tuples of {count} values"
        raise OptionError(f"The keys are not {what}: {error}. Give a list of such.") from error


def _named(columns: list[Any], key: Sequence[str]) -> pa.Table:
    if len(columns) != len(key):
        raise KeyColumnError(
            f"{len(columns)} columns of keys were given, but the key has {len(key)}: "
            f"{', '.join(key)}. Give a table with these columns, or a list of tuples."
        )
    return pa.table(columns, names=list(key))


def _distinct_keys(keys: pa.Table, codes: Codes, codec: KeyCodec) -> tuple[list[pa.Array], Codes]:
    """The key columns and codes in code order, without repeated neighbours."""
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    columns = [column.combine_chunks().take(to_arrow(order)) for column in keys.columns]
    if len(codes) < 2:
        return columns, codes
    keep = np.r_[True, codes[1:] != codes[:-1]]
    if not codec.exact:
        before = [column.slice(0, len(codes) - 1) for column in columns]
        keep[1:] |= ~codec.equal(before, [column.slice(1) for column in columns])
    return [column.filter(to_arrow(keep)) for column in columns], codes[keep]
