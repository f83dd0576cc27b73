"""Queues of waiting stream tuples: the retry queue and the deferred queue.

A queue is a folder, and an entry is a folder in it. The name of an entry says when its tuples are
due, so listing the folder is enough to read the queue. An entry appears, by a rename, when the
batch that put it there is written, and is removed when the batch that takes it in is done.

    checkpoint/semistream/retry/00000012-0-1-1763200000000-1763200030000-4-250/*.parquet
                                batch, part, attempt, since, due, version, rows
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from semistream.errors import CheckpointError
from semistream.spark.pipeline.folders import Folder

__all__ = ["QueueEntry", "TupleQueue", "rows_in"]

_TASK_ROWS: Final = 50_000
"""Tuples that one task takes out of a queue; a task for each small file would cost more."""


class QueueEntry(NamedTuple):
    """Tuples that wait together."""

    batch: int
    """The batch that put them here."""
    part: int
    """A number within the batch, for entries that are otherwise alike."""
    attempt: int
    """How often they were looked for; 0 in the deferred queue."""
    since: int
    """When they began to wait, in milliseconds since 1970."""
    due: int
    """When to look for them next, in milliseconds since 1970."""
    version: int
    """The master's version in which they were not found."""
    rows: int

    @property
    def name(self) -> str:
        """The name of its folder; names sort by batch."""
        return f"{self.batch:08d}-" + "-".join(map(str, self[1:]))

    @classmethod
    def parse(cls, name: str) -> QueueEntry | None:
        """From the name of a folder; None if it is not the name of an entry."""
        with contextlib.suppress(ValueError, TypeError):
            return cls(*map(int, name.split("-")))
        return None


class TupleQueue:
    """Entries in a folder, the oldest first."""

    def __init__(self, folder: Folder) -> None:
        """The queue in this folder, which need not exist yet."""
        self._folder = folder

    def entries(self) -> list[QueueEntry]:
        """All entries, in the order of the batches that put them here."""
        names = self._folder.names()
        found = {name: QueueEntry.parse(name) for name in names}
        unknown = [name for name, entry in found.items() if entry is None and name[:8].isdigit()]
        if unknown:
            raise CheckpointError(
                f"{self._folder.shown}/{unknown[0]} is not an entry as this semistream writes it: "
                "a newer one did. Go on with that one, or upgrade."
            )
        return sorted(entry for entry in found.values() if entry is not None)

    def put(self, entry: QueueEntry, rows: Folder) -> None:
        """Move a folder of rows here as an entry, unless that is done."""
        rows.move(self._folder / entry.name)

    def read(self, spark: SparkSession, names: Sequence[str], schema: StructType) -> DataFrame:
        """The tuples of some entries, in few partitions; columns that they do not have are null."""
        paths = [(self._folder / name).spark for name in names]
        return spark.read.schema(schema).parquet(*paths).coalesce(1 + rows_in(names) // _TASK_ROWS)

    def remove(self, names: Iterable[str]) -> None:
        """Remove entries that were taken in; some may be gone already."""
        for name in names:
            (self._folder / name).remove()


def rows_in(names: Iterable[str]) -> int:
    """How many tuples the entries of these names hold."""
    return sum(entry.rows for entry in map(QueueEntry.parse, names) if entry is not None)
