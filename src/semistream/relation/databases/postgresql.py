"""A table in PostgreSQL, read through ADBC: binary COPY, which its driver turns into Arrow.

The driver is used without its DB-API layer, which imports pandas and makes a Python object of each
value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote, urlencode

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.arrow_arrays import no_rows, to_numpy
from semistream.errors import DatabaseError
from semistream.keys import Codes
from semistream.relation.databases.address import Address
from semistream.relation.databases.faults import (
    connection_error,
    lacks_driver,
    query_error,
)
from semistream.relation.databases.source import (
    LostConnectionError,
    SourceColumn,
    TooManyBytesError,
    UnfitValueError,
    listed,
)

__all__ = ["PostgreSQL"]

_PLAIN: Final = {
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "time without time zone": pa.time64("us"),
    "timestamp without time zone": pa.timestamp("us"),
    "timestamp with time zone": pa.timestamp("us", "UTC"),
}
_INTEGERS: Final = ("smallint", "integer", "bigint")
_ENDLESS: Final = {
    "date": "infinity",
    "timestamp without time zone": "290000-01-01 00:00:00+00",
    "timestamp with time zone": "290000-01-01 00:00:00+00",
}
"""From when on a time is as good as infinity: Arrow's microseconds end before PostgreSQL's."""
_FIRST_TIME, _LAST_TIME = "0001-01-01 00:00:00+00", "9999-12-31 00:00:00+00"
"""What infinities become: times that Arrow, Spark and Python have, in all time zones but one."""
_CHANGED: Final = ("42703", "42P01", "42883", "42804")
"""There is no such column, no such table; a column has another type than its query expects."""
_PRECISION: Final = re.compile(r"(?<=time|tamp)\(\d\)")
"""Of `timestamp(3)`, say: Arrow's have microseconds."""
_MOST_DIGITS: Final = 38
_BATCH: Final = "adbc.postgresql.batch_size_hint_bytes"
_CREDENTIALS: Final = ("authentication failed", "no password supplied", "role ", "pg_hba")


class PostgreSQL:
    """A connection to one table."""

    def __init__(self, address: Address) -> None:
        """Connect; `DatabaseError` says what is wrong."""
        try:
            import adbc_driver_manager
            import adbc_driver_postgresql
        except ImportError:
            raise lacks_driver("adbc-driver-postgresql") from None
        self._address = address
        self._driver: Any = adbc_driver_manager
        self._table = ".".join(map(_name, address.names))
        self._key = _name(address.key)
        try:
            self._database: Any = adbc_driver_postgresql.connect(_uri(address))
            self._connection: Any = adbc_driver_manager.AdbcConnection(self._database)
        except adbc_driver_manager.Error as error:
            # Not "from error": what the driver says may name the user.
            raise _connection_error(address, str(error)) from None

    def begin(self, moment: str | None = None) -> None:
        """Begin a transaction that reads the table as it is now, or as of a shared moment."""
        self._run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        if moment is None:
            return
        try:
            self._run(f"SET TRANSACTION SNAPSHOT {_literal(moment)}")
        except DatabaseError:
            raise DatabaseError(
                f"The moment that all tasks of a batch share in {self._address.server} is gone: "
                "the driver has lost its connection, or this task has reached another server. Let "
                "the URL name one server, and start again: the batch runs anew."
            ) from None

    def shared(self) -> str | None:
        """The name of this transaction's moment."""
        # While others read, this connection has nothing to do.
        self._run("SET LOCAL idle_in_transaction_session_timeout = 0")
        moment: str = self._queried("SELECT pg_export_snapshot() AS moment")["moment"][0].as_py()
        return moment

    def end(self) -> None:
        """End the transaction."""
        self._run("ROLLBACK")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
        self._database.close()

    def columns(self) -> list[SourceColumn]:
        """The columns of the table, in its order."""
        found = self._queried(
            "SELECT attname, format_type(atttypid, atttypmod) AS type, "
            "coalesce(information_schema._pg_char_max_length(atttypid, atttypmod), -1)::int4 "
            "AS most FROM pg_attribute WHERE attrelid = "
            f"{self._oid} AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
        )
        if not found.num_rows:
            raise DatabaseError(
                f"{self._address.server} has no table {self._address.table!r}. Name one as "
                "table='products', or with its schema as table='sales.products'."
            )
        return [_column(**row) for row in found.to_pylist()]

    def has_index(self) -> bool:
        """Whether a b-tree index has the key first, for all rows."""
        found = self._queried(
            "SELECT 1 FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
            "JOIN pg_am m ON m.oid = c.relam JOIN pg_attribute a ON a.attrelid = i.indrelid "
            f"AND a.attnum = i.indkey[0] WHERE i.indrelid = {self._oid} "
            f"AND a.attname = {_literal(self._address.key)} AND m.amname = 'btree' "
            "AND i.indisvalid AND i.indpred IS NULL LIMIT 1"
        )
        return bool(found.num_rows)

    def between(self, low: int, high: int) -> str:
        """The condition that the key is in low..high."""
        return f"{self._key} BETWEEN {_integer(low)} AND {_integer(high)}"

    def among(self, codes: Codes) -> str:
        """The condition that the key is one of these."""
        return f"{self._key} = ANY ('{{{listed(codes)}}}'::bigint[])"

    def rows(
        self,
        columns: Sequence[SourceColumn],
        condition: str,
        most_bytes: int,
        limit: int = 0,
        offset: int | None = None,
    ) -> pa.RecordBatch:
        """The rows for which a condition holds."""
        chosen = ", ".join(f"{column.sql} AS {_name(column.name)}" for column in columns)
        order = f" ORDER BY {self._key} LIMIT {limit}" if limit else ""
        if offset is not None:
            # Where a row lies does not change while a transaction sees it.
            order = f" ORDER BY tableoid, ctid LIMIT {limit} OFFSET {offset}"
        table = self._queried(
            f"SELECT {chosen} FROM {self._table} WHERE {condition}{order}", most_bytes
        )
        schema = pa.schema([(column.name, column.type) for column in columns])
        # Decimals come as text.
        fitting = [
            _fitting(found, column) for found, column in zip(table.columns, columns, strict=True)
        ]
        whole = pa.Table.from_arrays(fitting, schema=schema).combine_chunks()
        (batch,) = whole.to_batches() or [no_rows(schema)]
        return batch

    def bounds(self) -> tuple[int, int] | None:
        """The lowest and the highest key."""
        (row,) = self._queried(
            f"SELECT min({self._key})::bigint AS low, max({self._key})::bigint AS high "
            f"FROM {self._table}"
        ).to_pylist()
        return None if row["low"] is None else (row["low"], row["high"])

    def every(self, rows: int) -> NDArray[np.int64]:
        """The lowest key, and every so many rows the next one: a walk along the index."""
        key, table = self._key, self._table
        found = self._queried(
            f"WITH RECURSIVE start(k) AS (SELECT min({key})::bigint FROM {table} UNION ALL SELECT "
            f"(SELECT {key}::bigint FROM {table} WHERE {key} > start.k ORDER BY {key} "
            f"LIMIT 1 OFFSET {rows - 1}) FROM start WHERE start.k IS NOT NULL) "
            "SELECT k FROM start WHERE k IS NOT NULL"
        )
        return (
            np.sort(to_numpy(found["k"].combine_chunks())) if found.num_rows else np.empty(0, int)
        )

    def count(self, condition: str) -> int:
        """For how many rows a condition holds."""
        found = self._queried(f"SELECT count(*) AS rows FROM {self._table} WHERE {condition}")
        return int(found["rows"][0].as_py())

    @property
    def _oid(self) -> str:
        return f"to_regclass({_literal(self._table)})"

    def _run(self, sql: str) -> None:
        with self._statement(sql) as statement:
            statement.execute_update()

    def _queried(self, sql: str, most_bytes: int = 1 << 40) -> pa.Table:
        with self._statement(sql) as statement:
            statement.set_options(**{_BATCH: str(min(most_bytes, 1 << 24))})
            handle, _ = statement.execute_query()
            reader = pa.RecordBatchReader._import_from_c(handle.address)
            batches, size = [], 0
            for batch in reader:
                size += batch.nbytes
                if size > most_bytes:
                    reader.close()
                    raise TooManyBytesError
                batches.append(batch)
            return pa.Table.from_batches(batches, reader.schema)

    @contextmanager
    def _statement(self, sql: str) -> Iterator[Any]:
        try:
            statement = self._driver.AdbcStatement(self._connection)
            try:
                statement.set_sql_query(sql)
                yield statement
            finally:
                statement.close()
        except (self._driver.Error, pa.ArrowException, OSError) as error:
            raise self._fault(error) from None

    def _fault(self, error: Exception) -> Exception:
        state = getattr(error, "sqlstate", None) or ""
        text = str(error).partition("ERROR:")[2] or str(error)
        reason = text.partition("\n")[0].partition("Query was")[0].strip()
        if not state or (state[:2] in ("08", "57") and state != "57014"):
            return LostConnectionError(reason)
        return query_error(self._address, reason, state in _CHANGED)


def _uri(address: Address) -> str:
    """What libpq connects to; it takes what is missing from its own environment variables."""
    found = address.taken_from()
    login = "" if found.user is None else quote(found.user, safe="")
    if found.password is not None:
        login += f":{quote(found.password, safe='')}"
    settings = {"connect_timeout": "10", "application_name": "semistream", **dict(address.settings)}
    host = f"[{address.host}]" if ":" in address.host else address.host
    place = f"{host}:{address.port}/{quote(address.database, safe='')}"
    return f"postgresql://{login}{'@' if login else ''}{place}?{urlencode(settings)}"


def _connection_error(address: Address, text: str) -> DatabaseError:
    refused = any(sign in text for sign in _CREDENTIALS)
    return connection_error(address, refused, 'database "' in text and "does not exist" in text)


def _column(attname: str, type: str, most: int) -> SourceColumn:
    name, quoted = attname, _name(attname)
    type = _PRECISION.sub("", type)
    if type in _ENDLESS:
        return SourceColumn(name, _finite(quoted, type), _PLAIN[type])
    if type in _PLAIN:
        return SourceColumn(name, quoted, _PLAIN[type], is_integer=type in _INTEGERS)
    if type == "bytea":
        return SourceColumn(name, quoted, pa.binary())
    if type.startswith("numeric("):
        digits, scale = (int(number) for number in type[8:-1].split(","))
        if digits <= _MOST_DIGITS and 0 <= scale <= digits:
            return SourceColumn(name, f"{quoted}::text", pa.decimal128(digits, scale))
    # What Arrow lacks comes as PostgreSQL writes it.
    return SourceColumn(name, f"{quoted}::text", pa.string(), 4 * most if most > 0 else None)


def _finite(quoted: str, type: str) -> str:
    """A time, with the nearest ones that are safe in the place of infinities."""
    return (
        f"CASE WHEN {quoted} >= {type} '{_ENDLESS[type]}' THEN {type} '{_LAST_TIME}' "
        f"WHEN {quoted} = {type} '-infinity' THEN {type} '{_FIRST_TIME}' ELSE {quoted} END"
    )


def _fitting(found: pa.ChunkedArray, column: SourceColumn) -> pa.ChunkedArray:
    """The values in the column's type: another one than expected means another column.

    Texts become decimals, and integers stay what they are.
    """
    same = found.type == column.type or pa.types.is_string(found.type)
    if not same and not (pa.types.is_integer(found.type) and pa.types.is_integer(column.type)):
        raise UnfitValueError(column.name)
    try:
        return found.cast(column.type)
    except pa.ArrowException:
        # Not what Arrow says: it shows the value.
        raise UnfitValueError(column.name) from None


def _name(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _integer(value: int) -> str:
    # The lowest bigint cannot be written as a number: its sign is an operator.
    return f"'{value}'::bigint"
