"""The shape of a join: which columns meet, what comes out, and what is refused.

Worked out once, from the first stream batch and the master table, before anything is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.arrow_arrays import to_arrow, to_numpy
from semistream.column_widths import fixed_dtype
from semistream.errors import (
    ColumnClashError,
    KeyColumnError,
    OptionError,
    StreamSchemaError,
    UnsupportedTypeError,
)
from semistream.relation import MasterTable
from semistream.relation.columns import has_union, plain_array, stored_type
from semistream.row_bytes import widest_row

On = str | Sequence[str] | Mapping[str, str]


def resolve_on(on: On, key: tuple[str, ...], stream: Sequence[str] | None = None) -> dict[str, str]:
    """`on` as a dict from master key column to stream column, in the master's key order.

    `stream` has the names of the stream's columns, if they are known.

    >>> resolve_on({"sale_product": "product_id"}, ("product_id",))
    {'product_id': 'sale_product'}
    """
    given: object = on
    if not isinstance(given, str | Sequence | Mapping) or not all(
        isinstance(n, str) for n in given
    ):
        raise KeyColumnError(
            f"on={on!r} must be a column name, a list of names, or a dict from stream column to "
            f"master key column; the master's key is {list(key)}."
        )
    missing = [n for n in ([on] if isinstance(on, str) else on) if n not in (stream or [n])]
    if missing:
        raise KeyColumnError(
            f"The stream has no column {missing}; it has {list(stream or ())}. Name the stream's "
            f"key columns with on=…; where the master's key {list(key)} has other names, use "
            "on={stream column: key column}."
        )
    if isinstance(on, str):
        pairs = {on: on}
    elif isinstance(on, Mapping):
        pairs = {master: stream for stream, master in on.items()}
        if len(pairs) != len(on):
            raise KeyColumnError(
                f"on={dict(on)!r} names a master key column twice. Name each once."
            )
    else:
        pairs = {name: name for name in on}
    if set(pairs) != set(key) or (not isinstance(on, str) and len(pairs) != len(on)):
        raise KeyColumnError(
            f"on={on!r} covers the master key columns {sorted(pairs)}, but the master's key is "
            f"{list(key)}. Name every key column once; "
            "where the names differ use on={stream column: key column}."
        )
    return {name: pairs[name] for name in key}


class JoinShape:
    """Stream schema × master table → key columns, payload columns, output schema."""

    def __init__(
        self,
        stream_schema: pa.Schema,
        master: MasterTable,
        on: On,
        how: str,
        columns: Sequence[str] | None,
    ) -> None:
        """Raise the error a user should see if the two sides cannot be joined this way."""
        self.codec = master.codec
        self.stream_key = tuple(resolve_on(on, master.key, stream_schema.names).values())
        self.master_key = master.key
        self.code_column = master.code_column or master.key[0]
        self._check_stream(stream_schema)
        types = [stream_schema.field(name).type for name in self.stream_key]
        self.codec.check_types(types, self.stream_key)
        added = [name for name in master.schema.names if name not in master.key]
        self._describe(stream_schema, master, how, added if columns is None else columns)
        self.stored_key = self._stored_key(master)
        self._verified = [] if self.codec.exact else list(master.key)
        needed = [*self.payload, *self._verified, self.code_column]
        self.read_columns = list(dict.fromkeys(needed))

    def _describe(
        self, stream_schema: pa.Schema, master: MasterTable, how: str, columns: Sequence[str]
    ) -> None:
        """What comes in and what comes out: the stream's columns, then these of the master's."""
        self.how = how
        self.stream_schema = stream_schema
        self.payload = self._payload(master, columns)
        clash = sorted(set(stream_schema.names) & set(self.payload))
        if clash:
            raise ColumnClashError(
                f"The columns {clash} are on both sides. Rename them in the stream, or choose "
                "the master's columns with columns=[…]."
            )
        fields = [master.schema.field(name) for name in self.payload]
        if how == "left":
            fields = [field.with_nullable(True) for field in fields]
        self.payload_types = [field.type for field in fields]
        self.plain_schema = pa.schema(
            [field.with_type(stored_type(field.type)) for field in stream_schema]
        )
        self.output_schema = pa.schema([*self.plain_schema, *fields])
        self.fixed_tuple_bytes = _fixed_bytes(self.plain_schema)
        """Bytes of every tuple, when all columns are of fixed width; else None."""

    def kept_schema(self, stored: pa.Schema) -> pa.Schema:
        """What is needed of master rows that stay in memory: their codes are known."""
        names = [name for name in self.read_columns if name != self.code_column]
        if self.code_column in self.payload or self.code_column in self._verified:
            names = self.read_columns
        return pa.schema([stored.field(name) for name in names])

    @property
    def matched_columns(self) -> list[str]:
        """The master's columns that a pair needs: the payload, and a hashed key to compare."""
        return list(dict.fromkeys([*self.payload, *self._verified]))

    def check_batch(self, batch: pa.RecordBatch) -> None:
        """A stream batch must have the first one's schema."""
        if not batch.schema.equals(self.stream_schema):
            raise StreamSchemaError(
                f"A stream batch has the schema\n{batch.schema}\nbut the first one had\n"
                f"{self.stream_schema}\nCast the batches to one schema before the join."
            )

    def plain(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch without dictionaries and views, which cannot be kept in slots."""
        if self.plain_schema == self.stream_schema:
            return batch
        columns = [
            plain_array(column, field.type)
            for column, field in zip(batch.columns, self.plain_schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.plain_schema)

    def tuple_bytes(self, batch: pa.RecordBatch) -> int:
        """The bytes of the widest tuple in a plain batch."""
        if self.fixed_tuple_bytes is None:
            return widest_row(batch)
        return self.fixed_tuple_bytes

    def key_codes(
        self, batch: pa.RecordBatch
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
        """The codes of a stream batch's keys, and which of them can match (None: all)."""
        columns = [batch.column(name) for name in self.stream_key]
        return self.codec.codes(self.codec.align(columns, self.stream_key))

    def row_codes(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """The codes of master rows."""
        if self.codec.exact:
            return self.codec.codes([batch.column(self.code_column)])[0]
        codes: NDArray[np.int64] = to_numpy(batch.column(self.code_column))
        return codes

    def true_pairs(
        self, stream: pa.RecordBatch, master: pa.RecordBatch, tuples: NDArray[np.int32]
    ) -> tuple[pa.RecordBatch, pa.RecordBatch, NDArray[np.int32]]:
        """The pairs that agree on the key itself and not only on its code.

        Stream tuples, their master rows, and `tuples`, which numbers the stream tuples.
        """
        if self.codec.exact:
            return stream, master, tuples
        agree = self.agreeing(stream, [master.column(name) for name in self.master_key])
        if agree is None:
            return stream, master, tuples
        keep = to_arrow(agree)
        return stream.filter(keep), master.filter(keep), tuples[agree]

    def agreeing(
        self, stream: pa.RecordBatch, keys: Sequence[pa.Array]
    ) -> NDArray[np.bool_] | None:
        """Which stream tuples have the keys of the master rows beside them (None: all)."""
        columns = [stream.column(name) for name in self.stream_key]
        agree = self.codec.equal(self.codec.align(columns, self.stream_key), keys)
        return None if agree.all() else agree

    def _check_stream(self, schema: pa.Schema) -> None:
        for field in schema:
            if has_union(field.type):
                raise UnsupportedTypeError(
                    f"Stream column {field.name!r} has type {field.type}, which cannot wait in a "
                    "stream table. Cast it to a struct, or leave it out."
                )
        if len(set(schema.names)) != len(schema.names):
            raise KeyColumnError(
                f"The stream has a column name twice: {schema.names}. Rename one of them."
            )

    def _stored_key(self, master: MasterTable) -> str | None:
        """The stream column that is its own code, so that it need not be stored."""
        kind = master.schema.field(master.key[0]).type
        if not self.codec.exact or pa.types.is_boolean(kind):
            return None
        name = self.stream_key[0]
        return name if self.plain_schema.field(name).type == kind else None

    def _payload(self, master: MasterTable, columns: Sequence[str]) -> list[str]:
        if isinstance(columns, str):
            raise OptionError(f"columns={columns!r} must be a list of names: [{columns!r}].")
        unknown = [name for name in columns if name not in master.schema.names]
        if unknown or len(set(columns)) != len(columns):
            raise OptionError(
                f"columns={list(columns)!r} must name master columns, each once; the master has "
                f"{master.schema.names}."
            )
        return list(columns)


def _fixed_bytes(schema: pa.Schema) -> int | None:
    """Bytes of every tuple, when all columns are of fixed width; else None."""
    dtypes = [fixed_dtype(field.type) for field in schema]
    if any(dtype is None for dtype in dtypes):
        return None
    return sum(dtype.itemsize + 1 for dtype in dtypes if dtype is not None)
