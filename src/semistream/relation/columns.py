"""Any Arrow input as a table whose columns can be stored.

Dictionaries and views become plain values. A page is decoded alone, without a dictionary from
elsewhere; and Arrow's `take` on views would keep pointing into the frame they were read into.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.arrow_arrays import to_arrow, to_numpy
from semistream.errors import OptionError, UnsupportedTypeError

__all__ = [
    "ArrowData",
    "SparkFrame",
    "as_table",
    "has_union",
    "plain_array",
    "stored_table",
    "stored_type",
]

ArrowData: TypeAlias = pa.Table | pa.RecordBatchReader | pa.RecordBatch | Iterable[pa.RecordBatch]
"""What a master table can be built from without Spark."""


class SparkFrame(Protocol):
    """A batch DataFrame of Spark, classic or Connect: the methods that are used without PySpark."""

    @property
    def schema(self) -> Any:
        """Its columns and their types."""

    def toArrow(self) -> pa.Table:  # noqa: N802 (Spark's name)
        """All its rows, collected."""


# Decoding a dictionary multiplies bytes. Slices keep string columns far below Arrow's 2 GB limit.
_SLICE_ROWS = 1 << 20


def as_table(data: ArrowData) -> pa.Table:
    """Collect the data in memory; its column names must differ."""
    if isinstance(data, pa.RecordBatchReader):
        table = data.read_all()
    elif isinstance(data, pa.Table):
        table = data
    else:
        table = _from_batches(data)
    repeated = sorted({name for name in table.column_names if table.column_names.count(name) > 1})
    if repeated:
        raise OptionError(
            f"Column names occur twice: {', '.join(repeated)}. Rename them so that all differ."
        )
    return table


def stored_table(table: pa.Table) -> pa.Table:
    """The table with plain types; `UnsupportedTypeError` for a column that cannot be stored."""
    columns, fields = [], []
    for field, column in zip(table.schema, table.columns, strict=True):
        target = stored_type(field.type)
        try:
            _refuse_dense_union(target)
            if target != field.type:
                column = _plain(column, target)
            _check_storable(column)
        except (pa.ArrowException, NotImplementedError) as error:
            raise UnsupportedTypeError(
                f"Column {field.name!r} has type {field.type}, which cannot be stored: {error}. "
                "Cast it to a plain type, or leave it out."
            ) from error
        columns.append(column)
        fields.append(field.with_type(target))
    return pa.table(columns, schema=pa.schema(fields, table.schema.metadata))


def stored_type(type_: pa.DataType) -> pa.DataType:
    """The plain type that values of this type are stored as, nested types included."""
    if pa.types.is_dictionary(type_) or pa.types.is_run_end_encoded(type_):
        return stored_type(type_.value_type)
    if pa.types.is_string_view(type_):
        return pa.string()
    if pa.types.is_binary_view(type_):
        return pa.binary()
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(stored_type(field.type)) for field in type_])
    if pa.types.is_map(type_):
        return pa.map_(
            type_.key_field.with_type(stored_type(type_.key_type)),
            type_.item_field.with_type(stored_type(type_.item_type)),
            keys_sorted=type_.keys_sorted,
        )
    return _stored_list(type_)


def has_union(type_: pa.DataType) -> bool:
    """Whether it is a union, or has one inside."""
    inside = (type_.field(i).type for i in range(type_.num_fields))
    return bool(pa.types.is_union(type_)) or any(map(has_union, inside))


def _refuse_dense_union(type_: pa.DataType) -> None:
    """Raise for a dense union: Arrow does not cut its values, so each page would carry them all."""
    if pa.types.is_union(type_) and type_.mode == "dense":
        raise pa.ArrowNotImplementedError("a dense union cannot be cut into pages")
    for i in range(type_.num_fields):
        _refuse_dense_union(type_.field(i).type)


def _stored_list(type_: pa.DataType) -> pa.DataType:
    if not hasattr(type_, "value_field"):
        return type_
    values = type_.value_field.with_type(stored_type(type_.value_type))
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(values, type_.list_size)
    wide = pa.types.is_large_list(type_) or pa.types.is_large_list_view(type_)
    return pa.large_list(values) if wide else pa.list_(values)


def _from_batches(data: object) -> pa.Table:
    if isinstance(data, pa.RecordBatch):
        batches = [data]
    elif isinstance(data, Iterable):
        batches = list(data)
    else:
        batches = [data]
    for batch in batches:
        if not isinstance(batch, pa.RecordBatch):
            raise OptionError(
                f"The data holds a {type(batch).__name__}. Give a pyarrow Table, a "
                "RecordBatchReader, a RecordBatch or an iterable of record batches."
            )
    if not batches:
        raise OptionError(
            "The iterable of record batches is empty, so its columns are unknown. "
            "For a master table without rows give an empty pyarrow Table."
        )
    try:
        return pa.Table.from_batches(batches)
    except pa.ArrowInvalid as error:
        raise OptionError(
            f"The record batches differ in schema: {error}. Cast them to one schema first."
        ) from error


def _plain(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    slices = [
        plain_array(chunk.slice(start, _SLICE_ROWS), target)
        for chunk in column.chunks
        for start in range(0, len(chunk), _SLICE_ROWS)
    ]
    return pa.chunked_array(slices, target)


def plain_array(array: pa.Array, target: pa.DataType) -> pa.Array:
    """The column cast to its `stored_type`; no copy if it has that type already."""
    if array.type == target:
        return array
    plain = _rebuilt(array, target)
    plain.validate()
    return plain


def _rebuilt(array: pa.Array, target: pa.DataType) -> pa.Array:
    """The array in plain types, from the inside out. Arrow's own casts do not know all of them."""
    kind = array.type
    if kind == target:
        return array
    if pa.types.is_dictionary(kind):
        return _rebuilt(array.dictionary, target).take(array.indices)
    if pa.types.is_run_end_encoded(kind):
        rows = np.arange(array.offset, array.offset + len(array))
        runs = np.searchsorted(to_numpy(array.run_ends), rows, side="right")
        return _rebuilt(array.values, target).take(to_arrow(runs))
    if pa.types.is_struct(kind):
        inner = [_rebuilt(array.field(i), field.type) for i, field in enumerate(target)]
        return pa.StructArray.from_arrays(inner, fields=list(target), mask=_nulls(array))
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        array = _from_list_view(array)
    if pa.types.is_map(kind) or pa.types.is_fixed_size_list(kind) or hasattr(array, "offsets"):
        return _rebuilt_list(array, target)
    return array.cast(target)


def _rebuilt_list(array: pa.Array, target: pa.DataType) -> pa.Array:
    if pa.types.is_fixed_size_list(array.type):
        size = target.list_size
        values = array.values.slice(array.offset * size, len(array) * size)
        inner = _rebuilt(values, target.value_type)
        return pa.FixedSizeListArray.from_arrays(inner, type=target, mask=_nulls(array))
    # A copy: Arrow takes no mask with offsets that are a slice.
    offsets = to_arrow(to_numpy(array.offsets).copy())
    if pa.types.is_map(array.type):
        inner = [_rebuilt(array.keys, target.key_type), _rebuilt(array.items, target.item_type)]
        return pa.MapArray.from_arrays(offsets, *inner, type=target, mask=_nulls(array))
    inner = _rebuilt(array.values, target.value_type)
    wide = pa.types.is_large_list(array.type)
    kind = pa.LargeListArray if wide else pa.ListArray
    return kind.from_arrays(offsets, inner, mask=_nulls(array)).cast(target)


def _nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _from_list_view(array: pa.Array) -> pa.Array:
    """A list view as a list. Arrow's own cast may lose the last elements (seen in pyarrow 26)."""
    lengths = to_numpy(pc.fill_null(pc.list_value_length(array), 0))
    offsets = np.zeros(len(array) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return pa.LargeListArray.from_arrays(to_arrow(offsets), array.flatten(), mask=_nulls(array))


def _check_storable(column: pa.ChunkedArray) -> None:
    """Try on one row what building and reading do with all rows: concatenate, take, write, read."""
    chunks = column.slice(0, 1).chunks
    sample = pa.concat_arrays(chunks) if chunks else pa.nulls(0, column.type)
    twice = pa.concat_arrays([sample, sample]).take(to_arrow(np.arange(len(sample))))
    batch = pa.record_batch([twice], names=["column"])
    decoded = pa.ipc.read_record_batch(batch.serialize(), batch.schema)
    decoded.validate()
