"""Does a page hold what the index says? Asked once per page, before its rows are used.

A checksum shows that a page is as it was written, not that whoever wrote it did so properly: a page
may have lengths that lead outside of it, and an index may belong to other pages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.keys import Codes

__all__ = ["PageRules", "rows_fault", "schema_of_bytes"]

RowCodes = Callable[[pa.RecordBatch], Codes]
"""The codes of a page's rows; `ValueError` if a row has none."""

_PLAIN: Final = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
}


class PageRules:
    """What the pages of one master table, or of one locator, must be like."""

    def __init__(
        self,
        schema: pa.Schema,
        codes: RowCodes | None = None,
        in_order: bool = False,
        fault: Callable[[pa.RecordBatch], str | None] | None = None,
        key: tuple[object, ...] = (),
    ) -> None:
        """`codes` gives the rows' codes, which never fall if `in_order`; `fault` checks more.

        `key` has whatever else the rules depend on.
        """
        self.key = (schema.serialize().to_pybytes(), codes is not None, in_order, key)
        """Pages that obey these rules also obey others with an equal key."""
        self._schema = schema_of_bytes(schema)
        self._codes, self._in_order, self._fault = codes, in_order, fault

    def fault(self, message: pa.Buffer, batch: pa.RecordBatch, expected: Any) -> str | None:
        """What is wrong with a page that was decoded; None if nothing is.

        `expected` is what the index says: rows, first code, last code.
        """
        rows, first, last = expected
        if batch.num_rows != rows:
            return f"it has {batch.num_rows:,} rows, and its index says {rows:,}"
        try:
            pa.ipc.read_record_batch(message, self._schema).validate(full=True)
            codes = None if self._codes is None else self._codes(batch)
        except (pa.ArrowException, OSError, ValueError) as error:
            return f"its content does not fit its columns ({error})"
        if codes is not None and (codes.item(0), codes.item(-1)) != (first, last):
            return (
                f"its keys have the codes {codes.item(0)} to {codes.item(-1)}, and its index says "
                f"{first} to {last}"
            )
        if codes is not None and self._in_order and bool((codes[1:] < codes[:-1]).any()):
            return "its rows are not in the order of their keys"
        return None if self._fault is None else self._fault(batch)


def schema_of_bytes(schema: pa.Schema) -> pa.Schema:
    """The schema with all text as bytes.

    Batches are checked with it: text that is not UTF-8 was always taken as it is.
    """
    return pa.schema([field.with_type(_as_bytes(field.type)) for field in schema])


def rows_fault(low: NDArray[np.int32], high: NDArray[np.int32], pages: int) -> str | None:
    """What is wrong with a locator's page numbers, for so many pages; None if nothing is."""
    if bool((low < 0).any() or (high < low).any() or (high >= pages).any()):
        return f"it names pages that are not among the {pages:,} there are"
    return None


def _as_bytes(kind: pa.DataType) -> pa.DataType:
    """The type with all text as bytes, which lie in the same way; nested types included."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    if isinstance(kind, pa.BaseExtensionType):
        return _as_bytes(kind.storage_type)
    if pa.types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(_as_bytes(kind.key_type)),
            kind.item_field.with_type(_as_bytes(kind.item_type)),
        )
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_bytes(field.type)) for field in kind])
    if pa.types.is_union(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        inside = [field.with_type(_as_bytes(field.type)) for field in fields]
        return pa.union(inside, kind.mode, kind.type_codes)
    if hasattr(kind, "value_field"):
        values = kind.value_field.with_type(_as_bytes(kind.value_type))
        if pa.types.is_fixed_size_list(kind):
            return pa.list_(values, kind.list_size)
        return pa.large_list(values) if pa.types.is_large_list(kind) else pa.list_(values)
    return kind
