"""`DatabaseSink`: rows of a batch and the batch's number go into a database in one transaction.

    semistream_batches        writer                                      batch
                              3f1c…/sink                                     12

Before a batch is written its writer's line is locked. If the line has this number already, or a
later one, the rows are there too, and nothing is written. So a batch is there whole, once, however
often it runs, and even if two processes run it at the same time.

The rows come from the batch's staged files, by way of the driver: one transaction has one
connection.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame

from semistream.crash_points import reached
from semistream.durations import parse_duration
from semistream.errors import SinkError
from semistream.relation.databases.address import table_names
from semistream.relation.storage import without_secrets
from semistream.spark.pipeline.databases import Database, database_of

__all__ = ["DatabaseSink", "Rows"]

Rows = Callable[[], Iterable[pa.RecordBatch]]
"""Rows that can be read again."""

_BATCHES: Final = "semistream_batches"
_NONE: Final = -1
"""The number of a writer's last batch before its first."""
_PAUSE_SECONDS: Final = 1.0


@dataclass(frozen=True)
class DatabaseSink:
    """A table of PostgreSQL, MariaDB or MySQL, which exists and has columns of the rows' names.

    The table `semistream_batches` beside it has the number of the last batch; it is made if it is
    missing.
    """

    table: str
    """Its name, with its schema if it is in another than the connection's: "shop.sales". A name
    with a dot in it has quotes: '"my.shop".sales'."""
    url: str
    """"postgresql://${DB_USER}:${DB_PASSWORD}@host:5432/shop", or "mariadb://…": variables of the
    environment, which alone may have a password."""
    patience: float | str = "1m"
    """How long to try again when the database does not answer."""

    def __repr__(self) -> str:
        return f"DatabaseSink({self.table!r}, {without_secrets(self.url)!r})"

    def check_settings(self) -> None:
        """Raise if the sink cannot be as it is given; the database is not asked."""
        parse_duration(self.patience, "patience")
        table_names(self.table)
        database_of(self.url)

    def check(self, columns: list[str]) -> None:
        """Raise unless the database answers and the table has the columns."""
        self.check_settings()
        database = database_of(self.url)
        with self._explaining(database), closing(database.connect()) as connection:
            self._columns(database, connection.cursor(), columns)

    def write(self, frame: DataFrame, batch: int, writer: str) -> None:
        """Write the rows of a frame, which must fit into memory."""
        table = frame.toArrow()
        self.load(table.to_batches, batch, writer)

    def load(self, rows: Rows, batch: int, writer: str) -> None:
        """Write the rows, unless this writer has written this batch before."""
        database = database_of(self.url)
        end = time.monotonic() + parse_duration(self.patience, "patience")
        while True:
            try:
                with self._explaining(database):
                    return self._load(database, rows, batch, writer)
            except _LostError:
                if time.monotonic() >= end:
                    raise
            time.sleep(_PAUSE_SECONDS)

    def _load(self, database: Database, rows: Rows, batch: int, writer: str) -> None:
        with closing(database.connect()) as connection:
            cursor = connection.cursor()
            self._make_batches(database, connection, cursor)
            if not self._is_new(database, cursor, batch, writer):
                return
            names: list[str] | None = None
            for some in rows():
                if names is None:
                    types = self._columns(database, cursor, some.schema.names)
                    names = [database.quoted(name) for name in types]
                    self._check_types(database, some.schema, list(types.values()))
                self._check_values(database, some)
                database.put(cursor, self._named(database, self._place[1]), names, some)
            reached("database.rows")
            connection.commit()
            reached("database.committed")

    def _is_new(self, database: Database, cursor: Any, batch: int, writer: str) -> bool:
        """Whether the batch is not there yet; then its number is, from the commit on."""
        batches = self._named(database, _BATCHES)
        last = self._last(cursor, batches, writer)
        if last is None:
            # Another process may be first: then this waits until it is done.
            cursor.execute(
                f"INSERT INTO {batches} (batch, writer) VALUES (%s, %s){database.unless_there}",
                (_NONE, writer),
            )
            last = self._last(cursor, batches, writer)
        if last is None:
            raise SinkError(
                f"The line of this pipeline in {batches}, in {database.shown}, is not to be seen "
                "after it was written: its user needs to see, add and change lines there."
            )
        if last >= batch:
            return False
        cursor.execute(f"UPDATE {batches} SET batch = %s WHERE writer = %s", (batch, writer))
        return True

    def _last(self, cursor: Any, batches: str, writer: str) -> int | None:
        """The number of the writer's last batch, locked."""
        cursor.execute(f"SELECT batch FROM {batches} WHERE writer = %s FOR UPDATE", (writer,))
        found = cursor.fetchone()
        return None if found is None else int(found[0])

    def _make_batches(self, database: Database, connection: Any, cursor: Any) -> None:
        # Not "if not exists": PostgreSQL asks for the right to make one even if there is one.
        if not self._found(database, cursor, _BATCHES):
            try:
                cursor.execute(
                    f"CREATE TABLE {self._named(database, _BATCHES)} "
                    "(writer varchar(200) NOT NULL PRIMARY KEY, batch bigint NOT NULL)"
                    f"{database.with_transactions}"
                )
            except Exception:
                connection.rollback()
                # Another pipeline may have made it meanwhile.
                if not self._found(database, cursor, _BATCHES):
                    raise
        connection.commit()

    def _columns(self, database: Database, cursor: Any, wanted: Sequence[str]) -> dict[str, str]:
        """The table's own names of the columns, and types; `SinkError` if it lacks some."""
        types = self._found(database, cursor, self._place[1])
        found = {name.lower(): name for name in types}
        if not found:
            raise SinkError(
                f"There is no table {self.table} in {database.shown}, or it may not be read. Make "
                f"it, with the columns {', '.join(wanted)}, and start again."
            )
        for table in (self._place[1], _BATCHES) if database.plain_tables else ():
            if self._ask(database, cursor, database.plain_tables, table):
                raise SinkError(
                    f"The table {table} in {database.shown} has no transactions, so a batch could "
                    "be there in part. Make it one of InnoDB: ALTER TABLE … ENGINE = InnoDB."
                )
        missing = [name for name in wanted if name.lower() not in found]
        if missing:
            raise SinkError(
                f"The table {self.table} in {database.shown} has no column {', '.join(missing)}; "
                f"it has {', '.join(found.values())}. Add the column, or leave it out of the rows."
            )
        return {found[name.lower()]: types[found[name.lower()]] for name in wanted}

    def _check_types(self, database: Database, schema: pa.Schema, types: Sequence[str]) -> None:
        nested = [one.name for one in schema if pa.types.is_nested(one.type)]
        if nested:
            raise SinkError(
                f"The rows for {self.table} have columns with fields or lists in them: "
                f"{', '.join(nested)}. Make them text in a step, as with to_json."
            )
        for one, kind in zip(schema, types, strict=True):
            if database.loses(one.type, kind):
                raise SinkError(
                    f"The rows for {self.table} have {one.type} in {one.name}, but the table has "
                    f"{kind} there, which cannot hold all of such values. Cast it in a step, or "
                    "change the column; nothing of the batch is there, and nothing is lost."
                )

    def _check_values(self, database: Database, rows: pa.RecordBatch) -> None:
        for name, values in zip(rows.schema.names, rows.columns, strict=True):
            if database.lacks(values):
                raise SinkError(
                    f"The rows for {self.table} have NaN or an infinity in {name}, and "
                    f"{database.name} has neither. Make them null in a step, as with "
                    f"if(abs({name}) < double('infinity'), {name}, null); nothing of the batch is "
                    "there, and nothing is lost."
                )

    def _found(self, database: Database, cursor: Any, table: str) -> dict[str, str]:
        """The columns of a table and their types; none if there is no such table."""
        query = "SELECT column_name, data_type FROM information_schema.columns AS t"
        return dict(self._ask(database, cursor, query, table))

    def _ask(self, database: Database, cursor: Any, query: str, table: str) -> list[Any]:
        """What the information schema, as `t`, says of a table in the sink's schema."""
        schema, _ = self._place
        here = database.here if schema is None else "%s"
        named = (table,)
        cursor.execute(
            f"{query} WHERE t.table_schema = {here} AND t.table_name = %s",
            named if schema is None else (schema, *named),
        )
        return list(cursor.fetchall())

    @property
    def _place(self) -> tuple[str | None, str]:
        """Schema and table."""
        *schema, table = table_names(self.table)
        return schema[0] if schema else None, table

    def _named(self, database: Database, table: str) -> str:
        schema = self._place[0]
        name = database.quoted(table)
        return name if schema is None else f"{database.quoted(schema)}.{name}"

    @contextmanager
    def _explaining(self, database: Database) -> Iterator[None]:
        """Turn errors of the driver into ours."""
        try:
            yield
        except Exception as error:
            if not database.is_drivers(error):
                raise
            said = database.without_password(str(error))
            if database.is_lost(error):
                raise _LostError(
                    f"{database.name} at {database.shown} does not take a connection, or has "
                    f"dropped one: {said}. Nothing of the batch is there, and nothing is lost: see "
                    "to server, user and password, and start again with the same checkpoint."
                ) from None
            raise SinkError(
                f"{database.name} at {database.shown} has refused rows for {self.table}: {said}. "
                "Nothing of the batch is there, and nothing is lost: mend the table, and start "
                "again with the same checkpoint."
            ) from None


class _LostError(SinkError):
    """The database does not answer."""
