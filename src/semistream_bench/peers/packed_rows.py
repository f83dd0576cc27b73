"""Rows as fixed-width records for stores that keep bytes, made and read with no Python per row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semistream_bench.peers.left_join import Keys

Records = npt.NDArray[np.void]


@dataclass(frozen=True)
class PackedRows:
    """The layout of a record: numbers and days as they are, strings padded with zero bytes.

    Nulls, and strings that end with a zero byte, are not supported: a shop's products have none.
    """

    schema: pa.Schema
    dtype: np.dtype[np.void]

    @classmethod
    def of(cls, table: pa.Table) -> PackedRows:
        """The narrowest layout that has room for every row of a table."""
        fields = [(field.name, _type(table[field.name])) for field in table.schema]
        return cls(table.schema, np.dtype(fields))

    def pack(self, table: pa.Table) -> Records:
        """A record for each row."""
        records = np.zeros(table.num_rows, self.dtype)
        for field in self.schema:
            records[field.name] = _values(
                table[field.name].combine_chunks(), self.dtype[field.name]
            )
        return records

    def unpack(self, records: Records) -> pa.RecordBatch:
        """The rows of some records."""
        columns = [
            # Arrow makes binary values of NumPy's padded strings, without the padding.
            _array(np.ascontiguousarray(records[field.name]), field.type)
            for field in self.schema
        ]
        return pa.record_batch(columns, schema=self.schema)

    def found(self, keys: Keys, values: list[bytes | None]) -> tuple[Keys, pa.RecordBatch]:
        """The keys that have a value, and the rows of these values."""
        if None in values:
            keys = keys[[value is not None for value in values]]
        records = b"".join(filter(None, values))
        return keys, self.unpack(np.frombuffer(records, self.dtype))


def _type(column: pa.ChunkedArray) -> np.dtype[Any]:
    if column.null_count:
        raise ValueError("a packed row has no nulls.")
    if pa.types.is_string(column.type):
        return np.dtype(f"S{pc.max(pc.binary_length(column)).as_py() or 1}")
    if pa.types.is_date32(column.type):
        return np.dtype(np.int32)
    dtype: np.dtype[Any] = np.dtype(column.type.to_pandas_dtype())
    return dtype


def _values(column: pa.Array, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if pa.types.is_string(column.type):
        padded = pc.ascii_rpad(column, dtype.itemsize, "\0")
        values = np.frombuffer(padded.buffers()[2], np.uint8, len(padded) * dtype.itemsize)
        return values.view(dtype)
    if pa.types.is_date32(column.type):
        column = column.view(pa.int32())
    return np.asarray(column)


def _array(values: npt.NDArray[Any], arrow_type: pa.DataType) -> pa.Array:
    array = pa.array(values)
    if pa.types.is_date32(arrow_type):
        return array.view(arrow_type)
    return array.cast(arrow_type)
