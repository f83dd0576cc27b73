"""Keys that are asked for, and the rows that a version of a master table has of them.

A few keys are looked for in the pages where they can be, without a join.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.arrow_arrays import to_arrow
from semistream.errors import KeyTypeError
from semistream.keys import Codes, KeyCodec
from semistream.relation.master_version import MasterVersion
from semistream.relation.updates.change import Change
from semistream.relation.updates.finding import found_rows

__all__ = ["Numbers", "WantedKeys"]

Numbers = NDArray[np.int64]


class WantedKeys(NamedTuple):
    """The keys that are asked for, each once, in code order."""

    codec: KeyCodec
    columns: list[pa.Array]
    codes: Codes
    key_of: Numbers
    """For each row asked for, the number of its key."""
    first: Numbers
    """For each key, the first row that asks for it."""

    @classmethod
    def of(cls, codec: KeyCodec, columns: Sequence[pa.Array], names: Sequence[str]) -> WantedKeys:
        """The distinct keys of some rows; `KeyTypeError` if a master of this codec has no such."""
        aligned = codec.align(columns, names)
        codes, valid = codec.codes(aligned)
        if valid is not None and not valid.all():
            row = int(np.flatnonzero(~valid)[0])
            key = {name: column[row].as_py() for name, column in zip(names, columns, strict=True)}
            types = ", ".join(str(field.type) for field in codec.fields)
            raise KeyTypeError(
                f"The key {key} does not fit into the table, whose key has the types {types}. "
                "Make a table with wider types, or cast the key."
            )
        _, first, key_of = np.unique(
            codec.numbered(aligned, codes), return_index=True, return_inverse=True
        )
        order = np.argsort(codes[first], kind="stable")
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        first = first[order]
        distinct = [column.take(to_arrow(first)) for column in aligned]
        return cls(codec, distinct, codes[first], place[key_of], first)

    def by_arrival(self, keys: Numbers) -> Numbers:
        """The numbers of some keys, in the order in which the keys came."""
        return keys[np.argsort(self.first[keys], kind="stable")]

    def some(self, keys: Numbers) -> WantedKeys:
        """Only the keys of these numbers, which rise; the rows are left out."""
        columns = [column.take(to_arrow(keys)) for column in self.columns]
        nothing = np.empty(0, np.int64)
        return WantedKeys(self.codec, columns, self.codes[keys], nothing, nothing)

    def removed(self, schema: pa.Schema) -> Change:
        """The change that takes all their rows from a master of this stored schema."""
        no_codes = np.empty(0, np.int64)
        rows = pa.Table.from_batches([], schema)
        return Change(self.codec, self.columns, self.codes, rows, no_codes, 0, "delete")

    def rows_in(self, master: MasterVersion) -> tuple[pa.Table, Numbers]:
        """Their stored rows in a version, and for each row the number of its key."""
        found: list[pa.RecordBatch] = []
        numbers: list[Numbers] = [np.empty(0, np.int64)]
        for page, rows, key in found_rows(master, self.columns, self.codes):
            if len(rows):
                found.append(page.take(to_arrow(rows)))
                numbers.append(key)
        return pa.Table.from_batches(found, master.stored_schema), np.concatenate(numbers)
