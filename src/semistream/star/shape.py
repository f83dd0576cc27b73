"""The shape of a star: what each look-up gets of the stream, and what comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from semistream.column_widths import fixed_dtype
from semistream.errors import (
    ColumnClashError,
    KeyColumnError,
    StreamSchemaError,
)
from semistream.matching.condition import Columns
from semistream.matching.times import TimeRule
from semistream.parts.join_shape import JoinShape, resolve_on
from semistream.relation import MasterTable
from semistream.relation.columns import plain_array, stored_type
from semistream.star.lookup import Lookup, named

__all__ = ["NUMBER", "LookupShape", "StarShape"]

NUMBER: Final = "__semistream_number"
_KEY: Final = "__semistream_key_"


class LookupShape:
    """What a look-up gets, which is row numbers, keys and times, and which columns it adds."""

    def __init__(self, lookup: Lookup, stream: pa.Schema) -> None:
        """Raise the error a user should see if the stream cannot be looked up this way."""
        master = lookup.master
        self.lookup = lookup
        pairs = resolve_on(lookup.on, master.key, stream.names)
        names = [*pairs.values(), *_needed(lookup, stream, pairs)]
        self.given = {name: _KEY + name for name in dict.fromkeys(names)}
        """The stream's columns that it gets, and what they are called in the look-up."""
        self.keys = {name: self.given[name] for name in pairs.values()}
        """Those of its key."""
        known = {called: lookup.known_as.get(name, name) for name, called in self.given.items()}
        self.asked = replace(lookup.asked, known_as=tuple(known.items()))
        """What is asked for beside equal keys, of the columns under these names."""
        self.on = {self.keys[name]: key for key, name in pairs.items()}
        master.codec.check_types(
            [stream.field(name).type for name in pairs.values()], tuple(pairs.values())
        )
        fields = [pa.field(NUMBER, pa.int32())]
        for name, called in self.given.items():
            fields.append(pa.field(called, stored_type(stream.field(name).type)))
        self.schema = pa.schema(fields)
        self.shape = JoinShape(self.schema, master, self.on, "inner", lookup.columns)
        added = list(self.shape.output_schema)[len(self.schema) :]
        self.fields = [
            field.with_name(lookup.prefix + field.name).with_nullable(
                field.nullable or lookup.keeps
            )
            for field in added
        ]
        self.row_bytes = _row_bytes(master, self.shape.payload)

    def sample(self, first: pa.RecordBatch) -> pa.RecordBatch:
        """What the look-up gets of a stream that begins so."""
        numbers = pa.nulls(first.num_rows, pa.int32())
        keys = [first.column(name) for name in self.given]
        return pa.RecordBatch.from_arrays([numbers, *keys], schema=self.schema)


class StarShape:
    """Stream schema × look-ups → what each gets, and the schema of the result."""

    def __init__(self, stream: pa.Schema, lookups: Sequence[Lookup]) -> None:
        """Raise the error a user should see if they do not go together."""
        if len(set(stream.names)) != len(stream.names):
            raise KeyColumnError(
                f"The stream has a column name twice: {stream.names}. Rename one of them."
            )
        self.stream = stream
        self.plain_stream = pa.schema([f.with_type(stored_type(f.type)) for f in stream])
        self.lookups = [self._of(lookup) for lookup in lookups]
        owners = dict.fromkeys(stream.names, "the stream")
        for one in self.lookups:
            _check_clash(one, owners)
        added = [field for one in self.lookups for field in one.fields]
        self.output_schema = pa.schema([*self.plain_stream, *added])

    def _of(self, lookup: Lookup) -> LookupShape:
        with named(lookup):
            return LookupShape(lookup, self.stream)

    def plain(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch without dictionaries and views; it must have the schema of the stream."""
        if not batch.schema.equals(self.stream):
            raise StreamSchemaError(
                f"A stream batch has the schema\n{batch.schema}\nbut the first one had\n"
                f"{self.stream}\nCast the batches to one schema before the join."
            )
        if self.plain_stream.equals(self.stream):
            return batch
        types = self.plain_stream.types
        columns = [plain_array(c, kind) for c, kind in zip(batch.columns, types, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=self.plain_stream)


def _needed(lookup: Lookup, stream: pa.Schema, pairs: Mapping[str, str]) -> list[str]:
    """The stream's columns that conditions need; what cannot be evaluated is refused."""
    asked = lookup.asked
    plain = pa.schema([field.with_type(stored_type(field.type)) for field in stream])
    known = Columns(plain, lookup.master.schema, pairs, lookup.known_as)
    places = [] if asked.where is None else list(asked.where.bind(known).places)
    time = TimeRule.of(asked, known)
    places += [] if time is None else time.places
    return [place.column for place in places if place.of_stream]


def _check_clash(one: LookupShape, owners: dict[str, str]) -> None:
    """Raise if a look-up adds a column that the stream, or another look-up, has already."""
    name = one.lookup.name
    for field in one.fields:
        if field.name in owners:
            raise ColumnClashError(
                f"Look-up {name}: the column {field.name!r} is one of {owners[field.name]} too. "
                "Rename it in the stream, choose the master's columns with columns=[…], or give "
                "the look-up a prefix=…."
            )
    owners |= dict.fromkeys((field.name for field in one.fields), f"look-up {name}")


def _row_bytes(master: MasterTable, columns: Sequence[str]) -> float:
    """What these columns of a master row take on average, as Arrow holds them."""
    fields = list(master.stored_schema)
    widths = {field.name: _width(field.type) for field in fields}
    stored = float(master.pages.length.sum()) / max(master.row_count, 1)
    varying = [name for name, width in widths.items() if not width]
    # What columns of fixed width leave of a stored row, each of the others has its part of.
    rest = max(stored - sum(widths.values()), 8.0 * len(varying)) / max(len(varying), 1)
    return sum(widths[name] or rest for name in columns)


def _width(kind: pa.DataType) -> float:
    """Bytes of a value; 0 if it varies."""
    dtype = fixed_dtype(kind)
    return 0.0 if dtype is None else dtype.itemsize + 1 / 8
