"""Iceberg's snapshots in the order in which they were made.

A changelog view numbers its snapshots from 0, whatever its first one is, and their ids have no
order. So the master remembers the ids that it has seen, in order: a snapshot that comes again has
the number that it had, and one that is new comes after all others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)

from semistream.errors import OptionError
from semistream.relation.sync_mark import SyncMark
from semistream.spark.columns import column

__all__ = ["Snapshots"]

_ID, _ORDINAL = "_commit_snapshot_id", "_change_ordinal"
_MOST: Final = 1000
"""How many ids are remembered."""


@dataclass(frozen=True)
class Snapshots:
    """The ids of the last snapshots, and the number of the first of them."""

    first: int = 0
    ids: tuple[int, ...] = ()

    @classmethod
    def of(cls, mark: SyncMark | None) -> Snapshots:
        """Those that a master has seen."""
        found = {} if mark is None else mark.position.get("iceberg", {})
        return cls(found.get("first", 0), tuple(found.get("ids", ())))

    def with_those_of(self, changes: DataFrame) -> Snapshots:
        """Those of a changelog view too; an error if one of them is older than all known ones."""
        view = changes.select(column(_ID), column(_ORDINAL)).distinct().collect()
        ids = [row[0] for row in sorted(view, key=lambda row: row[1])]
        new = [one for one in ids if one not in self.ids]
        known = [place for place, one in enumerate(ids) if one in self.ids]
        if known and ids[: known[-1] + 1] != [one for one in ids if one in self.ids]:
            raise OptionError(
                f"The changes have the snapshot {new[0]}, which is older than others that the "
                "master has already, or than it remembers. Begin the view after those, or give "
                "sequence_by=."
            )
        return replace(self, ids=(*self.ids, *new))

    def number(self) -> Column:
        """The number of a change's snapshot."""
        pairs = [F.lit(n) for i, one in enumerate(self.ids) for n in (one, self.first + i)]
        return F.create_map(*pairs)[column(_ID)] if pairs else F.lit(None).cast("int")

    def position(self) -> dict[str, Any]:
        """What the master remembers."""
        gone = max(len(self.ids) - _MOST, 0)
        return {"first": self.first + gone, "ids": list(self.ids[gone:])}
