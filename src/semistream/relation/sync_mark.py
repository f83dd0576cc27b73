"""The mark of a master that follows its source: how far it has come.

It is in the metadata of the manifest's schema, as that of a key table (see `surrogates`), so it
changes with the rows, in one commit. Every update hands it on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import pyarrow as pa

from semistream.errors import MasterFormatError

__all__ = ["SyncMark", "mark_of", "marked", "unmarked"]

_NAME: Final = b"semistream.sync"


@dataclass(frozen=True)
class SyncMark:
    """What the mark says."""

    book: int
    """The version of the book that goes with this version of the master."""
    sequence_by: tuple[str, ...]
    stored_as: str
    as_of: float
    """The master had all changes of its source up to then; seconds since 1970."""
    position: Mapping[str, Any] = field(default_factory=dict)
    """For each source, the last of its batches that is in the master."""


def mark_of(schema: pa.Schema) -> SyncMark | None:
    """The mark of a stored schema; None if its master follows nothing."""
    text = (schema.metadata or {}).get(_NAME)
    if text is None:
        return None
    try:
        found = json.loads(text)
        mark = SyncMark(**{**found, "sequence_by": tuple(found["sequence_by"])})
        if type(mark.book) is not int or not isinstance(mark.position, dict):
            raise TypeError("a field is of another kind")
        return SyncMark(**{**asdict(mark), "as_of": float(mark.as_of)})
    except (ValueError, TypeError, KeyError) as error:
        raise MasterFormatError(
            f"The schema of a master that follows its source has a mark that cannot be read "
            f"({error!r}). Restore its manifest, or use the semistream that wrote it."
        ) from error


def marked(schema: pa.Schema, mark: SyncMark) -> pa.Schema:
    """The schema with this mark, in place of the one it may have."""
    text = json.dumps(asdict(mark)).encode()
    return schema.with_metadata({**(schema.metadata or {}), _NAME: text})


def unmarked(schema: pa.Schema) -> pa.Schema:
    """The schema without a mark: another master's says nothing of this one."""
    if _NAME not in (schema.metadata or {}):
        return schema
    return schema.with_metadata(
        {name: text for name, text in (schema.metadata or {}).items() if name != _NAME}
    )
