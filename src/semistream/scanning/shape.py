"""The shape of a join by a condition: which columns meet, and what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from semistream.errors import KeyColumnError, KeyTypeError, OptionError
from semistream.parts.join_shape import JoinShape
from semistream.relation import MasterTable
from semistream.relation.columns import stored_type
from semistream.scanning.conditions import Condition, Range
from semistream.scanning.values import Order, order_of

__all__ = ["HOWS", "ScanShape"]

HOWS: Final = ("inner", "left", "semi", "anti")


class ScanShape(JoinShape):
    """Stream schema × master table × condition → output schema.

    What comes out are the stream's columns and then all of the master's. A column of the condition
    that has the stream's name is left out, as a key is.
    """

    def __init__(
        self,
        stream_schema: pa.Schema,
        master: MasterTable,
        condition: Condition,
        how: str,
        columns: Sequence[str] | None,
    ) -> None:
        """Raise the error a user should see if the two sides cannot be joined this way."""
        self.condition = condition
        self.stream_key = (condition.stream,)
        self._check_columns(stream_schema, master)
        self._check_stream(stream_schema)
        self.orders = self._orders(stream_schema, master)
        """How the stream's column is compared with each of the bounds."""
        self._compared_type = master.schema.field(condition.master_columns[0]).type
        self._describe(stream_schema, master, how, self._added(master, how, columns))
        self.read_columns = list(dict.fromkeys([*self.payload, *condition.master_columns]))

    def values(self, batch: pa.RecordBatch) -> pa.Array:
        """The values of the condition's column in a plain batch."""
        column = batch.column(self.condition.stream)
        return column.cast(self._compared_type) if pa.types.is_null(column.type) else column

    def _check_columns(self, schema: pa.Schema, master: MasterTable) -> None:
        condition = self.condition
        if condition.stream not in schema.names:
            raise KeyColumnError(
                f"The stream has no column {condition.stream!r}; it has {schema.names}. The first "
                "name in a condition is the stream's column, the others are the master's."
            )
        missing = [name for name in condition.master_columns if name not in master.schema.names]
        if missing:
            raise KeyColumnError(
                f"The master has no column {missing}; it has {master.schema.names}. The first "
                "name in a condition is the stream's column, the others are the master's."
            )

    def _orders(self, schema: pa.Schema, master: MasterTable) -> list[Order]:
        condition = self.condition
        stream = schema.field(condition.stream)
        stream = stream.with_type(stored_type(stream.type))
        others = [master.schema.field(name) for name in condition.master_columns]
        if isinstance(condition, Range):
            return order_of(stream, others)
        for field, whose in ((stream, "Stream"), (others[0], "Master")):
            kind = field.type
            known = (pa.types.is_string, pa.types.is_large_string, pa.types.is_null)
            if not any(test(kind) for test in known):
                raise KeyTypeError(
                    f"{whose} column {field.name!r} has type {kind}; only texts can be similar. "
                    "Cast it to a string."
                )
        return []

    def _added(self, master: MasterTable, how: str, columns: Sequence[str] | None) -> Sequence[str]:
        if how in ("semi", "anti"):
            if columns:
                raise OptionError(
                    f"A join with how={how!r} adds no columns. Leave columns=… out, or use "
                    'how="inner" or how="left".'
                )
            return []
        if columns is not None:
            return columns
        same = {self.condition.stream} & {*self.condition.master_columns}
        return [name for name in master.schema.names if name not in same]
