"""The mark of a key table: which column has the surrogates, and the next number to give.

It is in the metadata of the manifest's schema, so it changes with the rows, in one commit. Every
version hands it on. Rows that are added raise the next number past theirs, whoever adds them, so
no number is given twice; a number whose key was deleted is not given again.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from semistream.errors import MasterFormatError, OptionError

__all__ = ["LAST", "Surrogates", "marked", "raised", "surrogates_of"]

_COLUMN: Final = b"semistream.surrogate"
_NEXT: Final = b"semistream.next"
LAST: Final = 2**63 - 1


class Surrogates(NamedTuple):
    """What the mark says."""

    column: str
    """The column with the surrogates, int64 and never null."""
    next: int
    """No row has this number or a higher one."""


def surrogates_of(schema: pa.Schema) -> Surrogates | None:
    """The mark of a stored schema; None if it is not that of a key table."""
    metadata = schema.metadata or {}
    if _COLUMN not in metadata and _NEXT not in metadata:
        return None
    column = metadata.get(_COLUMN, b"").decode(errors="replace")
    number = metadata.get(_NEXT, b"").decode(errors="replace")
    try:
        found = Surrogates(column, int(number))
    except ValueError as error:
        raise _broken(f"{number!r} as the next surrogate") from error
    if column not in schema.names or schema.field(column).type != pa.int64():
        raise _broken(f"{column!r} as the column of surrogates, which is not an int64 column")
    return found


def marked(schema: pa.Schema, column: str, next_number: int) -> pa.Schema:
    """The schema with the mark of a key table, in place of the one it may have."""
    mark = {_COLUMN: column.encode(), _NEXT: str(next_number).encode()}
    return schema.with_metadata({**(schema.metadata or {}), **mark})


def raised(schema: pa.Schema, rows: pa.Table) -> pa.Schema:
    """The schema with the next number above those of the rows, if it is that of a key table."""
    found = surrogates_of(schema)
    if found is None or not rows.num_rows:
        return schema
    highest = pc.max(rows.column(found.column)).as_py()
    if highest == LAST:
        raise OptionError(f"{found.column} has the value {LAST}, and no number is above it.")
    return marked(schema, found.column, max(found.next, highest + 1))


def _broken(what: str) -> MasterFormatError:
    return MasterFormatError(f"The schema of a key table names {what}. Restore its manifest.")
