"""A table that is asked, now and then, for the rows that were changed lately.

The first time all of its rows are read, so nothing but the master has to be kept: rows that it
knows do nothing. After that only those are read whose `sequence_by` is above the highest that there
was, less an overlap for transactions that were still open then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)

from semistream.durations import parse_duration
from semistream.errors import ConnectorError, OptionError, SourceError
from semistream.relation import MasterTable
from semistream.relation.storage import scrubbed, without_secrets
from semistream.spark.columns import column
from semistream.spark.connectors import JDBC
from semistream.spark.sync.sync import Sync

__all__ = ["Polling", "jdbc_errors", "with_driver"]

_CAUSE: Final = re.compile(r"^(?:Caused by: )?\S*SQL\S*Exception: (.+)$", re.MULTILINE)
"""How Java says what a driver of JDBC said."""
_NO_DRIVER: Final = re.compile(r"ClassNotFoundException|No suitable driver|^\S+\.Driver$")
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


@contextmanager
def jdbc_errors(options: Mapping[str, Any]) -> Iterator[None]:
    """Say what the database says: Spark's own message is that it cannot connect."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        # The reason is that of an exception below. This trace is no public part of Spark.
        told = f"{error}\n{getattr(error, '_stackTrace', '')}"
        url, table = without_secrets(options.get("url", "")), options.get("dbtable", "")
        if _NO_DRIVER.search(told):
            name = next((one for one in JDBC if url.startswith(one)), None)
            known = "its connector" if name is None else f'connectors = ["{JDBC[name]}"]'
            raise ConnectorError(
                f"Spark has no driver for {url}. Add {known} to [spark], or the driver's jar to "
                '"spark.jars" there.'
            ) from None
        found = _CAUSE.findall(told)
        if not found:
            raise
        secret = str(options.get("password", ""))
        said = scrubbed(found[-1].replace(secret, "…") if secret else found[-1])
        raise SourceError(
            f"The table {table} at {url} cannot be read: {said.rstrip('.')}. See to server, user, "
            "password and table. The master is as it was."
        ) from None


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
