"""Terms and the columns of both sides → what goes through the engine, and what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from semistream.errors import OptionError
from semistream.matching.condition import PREFIX, Columns
from semistream.matching.terms import Terms
from semistream.matching.times import TimeRule
from semistream.parts.join_shape import JoinShape, On, resolve_on
from semistream.relation import MasterTable

__all__ = ["NUMBER", "Resolved"]

NUMBER: Final = PREFIX + "#"
"""The column with a tuple's number within its round."""


class Resolved:
    """A join of one stream with one master on some terms."""

    def __init__(
        self,
        stream: pa.Schema,
        master: MasterTable,
        on: On,
        columns: Sequence[str] | None,
        terms: Terms,
        passed_on: int = 0,
    ) -> None:
        """Raise the error a user should see if the terms do not fit the columns.

        `passed_on`: so many columns at the end of the stream go to the engine as they are, and no
        further.
        """
        self.terms = terms
        self.given_schema = stream
        own = pa.schema(list(stream)[: len(stream) - passed_on])
        self._passed_on = stream.names[len(own) :]
        if terms.how in ("semi", "anti"):
            if columns:
                raise OptionError(
                    f"columns={list(columns)!r} are the master's, and how={terms.how!r} gives the "
                    "stream's only. Leave columns out."
                )
            columns = []
        self.shape = JoinShape(own, master, on, "left" if terms.how == "left" else "inner", columns)
        keys = resolve_on(on, master.key)
        known = Columns(self.shape.plain_schema, master.schema, keys, dict(terms.known_as))
        self.condition = None if terms.where is None else terms.where.bind(known)
        self.time = TimeRule.of(terms, known)
        is_checked = terms.valid is not None and master.valid == terms.valid[1:]
        self.finds_overlaps = terms.valid is not None and not is_checked
        in_order = terms.preserve_order and terms.how in ("inner", "left")
        self.holds_results = in_order or terms.as_of is not None
        """Whether results wait for the end of their round."""
        self.holds_tuples = terms.how != "inner" or self.holds_results
        """Whether tuples are held; else all their columns go through the engine."""
        needed = [] if self.condition is None else list(self.condition.places)
        needed += [] if self.time is None else list(self.time.places)
        names = [place.column for place in needed if place.of_stream]
        self.carried = list(dict.fromkeys([*self.shape.stream_key, *names]))
        if not self.holds_tuples:
            self.carried = own.names
        master_names = [place.name for place in needed if not place.of_stream]
        self.engine_columns = list(dict.fromkeys([*self.shape.payload, *master_names]))
        """The master's columns that pairs need, those of the result first."""
        self.engine_on = {PREFIX + stream: key for key, stream in keys.items()}

    @property
    def emits_pairs(self) -> bool:
        """Whether result rows have master columns."""
        return self.terms.how in ("inner", "left")

    @property
    def is_encoded(self) -> bool:
        """Whether the stream has dictionaries or views."""
        return bool(self.shape.plain_schema != self.shape.stream_schema)

    def plain(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch without dictionaries and views."""
        if not self.is_encoded:
            return batch
        own = self.shape.stream_schema
        plain = self.shape.plain(pa.RecordBatch.from_arrays(batch.columns[: len(own)], schema=own))
        rest = [batch.column(name) for name in self._passed_on]
        names = [*own.names, *self._passed_on]
        return pa.RecordBatch.from_arrays([*plain.columns, *rest], names=names)

    def widest(self, batch: pa.RecordBatch) -> int:
        """The bytes of the widest tuple of a batch."""
        own = list(self.shape.stream_schema.names)
        return self.shape.tuple_bytes(self.plain(batch).select(own)) if batch.num_rows else 0

    def engine_batch(self, batch: pa.RecordBatch, numbers: pa.Array) -> pa.RecordBatch:
        """The columns of a batch that go through the engine, and the tuples' numbers."""
        names = [*(PREFIX + name for name in self.carried), NUMBER, *self._passed_on]
        arrays = [batch.column(name) for name in self.carried]
        arrays += [numbers, *(batch.column(name) for name in self._passed_on)]
        return pa.RecordBatch.from_arrays(arrays, names=names)

    def result(self, columns: list[pa.Array]) -> pa.RecordBatch:
        """A result batch of the stream's columns and the payload."""
        return pa.RecordBatch.from_arrays(columns, schema=self.shape.output_schema)
