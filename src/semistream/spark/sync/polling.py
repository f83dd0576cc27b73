"""A table that is asked, now and then, for the rows that were changed lately.

The first time all of its rows are read, so nothing but the master has to be kept: rows that it
knows do nothing. After that only those are read whose `sequence_by` is above the highest that there
was, less an overlap for transactions that were still open then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)

from semistream.durations import parse_duration
from semistream.errors import OptionError
from semistream.relation import MasterTable
from semistream.spark.columns import column
from semistream.spark.sync.sync import Sync

__all__ = ["Polling", "with_driver"]

_POSTGRESQL: Final = "jdbc:postgresql:"
_MARIADB: Final = "jdbc:mariadb:"


def with_driver(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of Spark's JDBC source, with the driver's class.

    Java does not find it by itself in a jar that Spark has resolved. And Spark quotes names as
    MariaDB reads them only if the URL says MySQL: otherwise each value would be its column's name.
    """
    url = str(options.get("url", ""))
    if url.startswith(_POSTGRESQL):
        return {"driver": "org.postgresql.Driver", **options}
    if url.startswith(_MARIADB):
        mark = "&" if "?" in url else "?"
        known = f"jdbc:mysql:{url.removeprefix(_MARIADB)}{mark}permitMysqlScheme"
        return {"driver": "org.mariadb.jdbc.Driver", **options, "url": known}
    return dict(options)


class Polling:
    """Brings a master up to date with a table, a poll at a time."""

    def __init__(
        self,
        master: MasterTable,
        read: Callable[[], DataFrame],
        overlap: float | str,
        sequence_by: str | list[str] | None,
        **terms: Any,
    ) -> None:
        """`read` gives the table as it is now; the terms are those of `MasterTable.sync`."""
        if not isinstance(sequence_by, str) or sequence_by not in read().columns:
            raise OptionError(
                f"sequence_by={sequence_by!r} must be one column of the table that is polled, "
                "which rises with every change, such as the time of the update."
            )
        self._master, self._read, self._by = master, read, sequence_by
        self._overlap = timedelta(seconds=parse_duration(overlap, "overlap"))
        self._terms = terms
        self._since: Any = None

    def poll(self) -> Sync:
        """Apply the rows that were changed since the last poll, all of them the first time."""
        table = self._read()
        # Asked for before the rows are read: what comes in between is read again.
        newest = table.agg(F.max(column(self._by))).collect()[0][0]
        if self._since is not None:
            table = table.where(column(self._by) >= F.lit(self._since))
        done: Sync = self._master.sync(table, sequence_by=self._by, **self._terms)
        is_time = isinstance(newest, datetime)
        self._since = newest - self._overlap if is_time else newest
        return done
