"""Databases that rows are written to: how each is reached, and how it takes many rows at once.

Both drivers are Python's usual ones (PEP 249). Rows go from Arrow to text in Arrow's own kernels;
the server reads the text as the types that its table has.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from semistream.environment import filled_url
from semistream.errors import ConnectorError, OptionError
from semistream.relation.storage import without_secrets

__all__ = ["Database", "MariaDB", "PostgreSQL", "database_of"]

_STATEMENT_BYTES: Final = 1 << 20
"""Of one INSERT; servers take 16 MB, and more does not make it faster."""
_CONNECT_SECONDS: Final = 10
_MARIADB_LOST: Final = (1044, 1045, 1049, 1053, 1205, 1213, 1927)
"""Not let in, three kinds; shuts down; two kinds of locks; killed. From 2000 on: not reached."""
_WHOLE: Final = ("tinyint", "smallint", "mediumint", "int", "integer", "bigint")
_BINARY_DIGITS: Final = {"real": 24, "float": 24, "double precision": 53, "double": 53}
"""How many binary digits columns hold exactly."""
_HEX: Final = np.array([f"{byte:02x}".encode() for byte in range(256)], "S2")


class Database(ABC):
    """A database at a URL."""

    name: str
    quote: str
    """What names of tables and columns are quoted with."""
    unless_there: str
    """What INSERT ends with, so that a row that is there stays."""
    here: str
    """SQL for the schema that a table is in if its name does not say so."""
    plain_tables: str = ""
    """A query that finds a table if that has no transactions."""
    with_transactions: str = ""
    """What CREATE TABLE ends with, so that it has some."""
    driver: str

    def __init__(self, parts: SplitResult) -> None:
        self._parts = parts
        self.shown = without_secrets(parts._replace(query="").geturl())

    @abstractmethod
    def connect(self) -> Any:
        """A new connection, with a transaction for what is executed first."""

    @abstractmethod
    def is_lost(self, error: Exception) -> bool:
        """Whether the server, or the way to it, is gone; it may be back soon."""

    @abstractmethod
    def put(self, cursor: Any, table: str, columns: Sequence[str], rows: pa.RecordBatch) -> None:
        """Add rows to a table; names are quoted already."""

    def loses(self, kind: pa.DataType, column: str) -> bool:
        """Whether a column of this type would take less than the whole value, without a word."""
        if column in _WHOLE:
            has_fractions = pa.types.is_decimal(kind) and kind.scale > 0
            return bool(pa.types.is_floating(kind) or has_fractions)
        if column in _BINARY_DIGITS:
            return _binary_digits(kind) > _BINARY_DIGITS[column]
        has_no_day = column.startswith("time ") or column == "time"
        return bool(pa.types.is_timestamp(kind)) and (column == "date" or has_no_day)

    def lacks(self, values: pa.Array) -> bool:
        """Whether it has no such values at all."""
        return False

    def quoted(self, name: str) -> str:
        """A name as SQL has it."""
        return f"{self.quote}{name.replace(self.quote, self.quote * 2)}{self.quote}"

    def is_drivers(self, error: Exception) -> bool:
        """Whether the driver raised it."""
        return isinstance(error, self._module().Error)

    def without_password(self, text: str) -> str:
        """A message of the driver in one line, without the password."""
        secret = unquote(self._parts.password or "")
        line = " ".join(text.split())
        return line.replace(secret, "…") if secret else line

    def _module(self) -> Any:
        import importlib

        try:
            return importlib.import_module(self.driver)
        except ImportError as error:
            raise ConnectorError(
                f"Writing to {self.name} needs {self.driver}: pip install 'semistream[databases]'"
            ) from error

    def _arguments(self, user: str, database: str) -> dict[str, Any]:
        """Arguments of `connect` that the URL has; its options too."""
        parts = self._parts
        found: dict[str, Any] = {
            "host": parts.hostname,
            "port": parts.port,
            user: None if parts.username is None else unquote(parts.username),
            "password": None if parts.password is None else unquote(parts.password),
            database: unquote(parts.path.lstrip("/")) or None,
        }
        options = dict(parse_qsl(parts.query))
        return {name: value for name, value in found.items() if value is not None} | options


class PostgreSQL(Database):
    """PostgreSQL, by psycopg; rows go by COPY."""

    name = "PostgreSQL"
    quote = '"'
    unless_there = " ON CONFLICT DO NOTHING"
    here = "current_schema()"
    driver = "psycopg"

    def connect(self) -> Any:
        """A connection; what the URL does not say, libpq finds (PGUSER, PGPASSWORD, .pgpass)."""
        # Times without a zone are UTC, whatever zone the user has there.
        arguments = {
            "connect_timeout": _CONNECT_SECONDS,
            "application_name": "semistream",
            "options": "-c timezone=UTC",
        }
        return self._module().connect(**arguments | self._arguments("user", "dbname"))

    def is_lost(self, error: Exception) -> bool:
        """Whether the server has stopped, starts, or does not answer."""
        module = self._module()
        return isinstance(error, module.OperationalError | module.InterfaceError)

    def put(self, cursor: Any, table: str, columns: Sequence[str], rows: pa.RecordBatch) -> None:
        """Copy the rows as CSV."""
        texts = [
            _joined("\\x", _hexed(one)) if _is_binary(one.type) else one for one in rows.columns
        ]
        buffer = io.BytesIO()
        # Strings are quoted and nulls are not, which is how PostgreSQL tells "" from null.
        options = pa_csv.WriteOptions(include_header=False, quoting_style="needed")
        pa_csv.write_csv(pa.record_batch(texts, names=columns), buffer, options)
        with cursor.copy(f"COPY {table} ({', '.join(columns)}) FROM STDIN (FORMAT csv)") as copy:
            copy.write(buffer.getbuffer())


class MariaDB(Database):
    """MariaDB and MySQL, by PyMySQL; rows go by INSERT with many rows each."""

    name = "MariaDB"
    quote = "`"
    unless_there = " ON DUPLICATE KEY UPDATE writer = writer"
    here = "DATABASE()"
    plain_tables = (
        "SELECT t.engine FROM information_schema.tables AS t JOIN information_schema.engines AS e "
        "ON e.engine = t.engine AND e.transactions <> 'YES'"
    )
    with_transactions = " ENGINE = InnoDB"
    driver = "pymysql"

    def connect(self) -> Any:
        """A connection that reads text and times as they are written here."""
        given = self._arguments("user", "database")
        given["port"] = int(given.get("port", 3306))
        # Strict, so that a value that does not fit is an error; times are UTC.
        first = "SET sql_mode = 'STRICT_ALL_TABLES', time_zone = '+00:00'"
        return self._module().connect(
            charset="utf8mb4", connect_timeout=_CONNECT_SECONDS, init_command=first, **given
        )

    def is_lost(self, error: Exception) -> bool:
        """Whether the server has stopped, or does not let us in."""
        module = self._module()
        if isinstance(error, module.err.InterfaceError):
            return True
        code = error.args[0] if error.args else 0
        is_lost = code in _MARIADB_LOST or (isinstance(code, int) and 2000 <= code < 3000)
        return isinstance(error, module.err.OperationalError) and is_lost

    def loses(self, kind: pa.DataType, column: str) -> bool:
        """As others do, and texts are rounded too."""
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        return super().loses(kind, column) or (column in _WHOLE and is_text)

    def lacks(self, values: pa.Array) -> bool:
        """Whether there is an infinity, or what is no number."""
        return pa.types.is_floating(values.type) and pc.all(pc.is_finite(values)).as_py() is False

    def put(self, cursor: Any, table: str, columns: Sequence[str], rows: pa.RecordBatch) -> None:
        """Insert the rows, a statement for about a megabyte of them."""
        literals = _joined(*map(_literals, rows.columns), by=",")
        tuples = _joined("(", literals, ")")
        ends = np.cumsum(pc.binary_length(tuples).to_numpy())
        begin = 0
        while begin < rows.num_rows:
            most = (ends[begin - 1] if begin else 0) + _STATEMENT_BYTES
            stop = max(begin + 1, int(np.searchsorted(ends, most, side="right")))
            some = ",".join(tuples.slice(begin, stop - begin).to_pylist())
            cursor.execute(f"INSERT INTO {table} ({', '.join(columns)}) VALUES {some}")
            begin = stop


def _binary_digits(kind: pa.DataType) -> int:
    """The digits that numbers of a type may have; decimals are rounded as databases do."""
    if pa.types.is_integer(kind):
        return int(kind.bit_width)
    return {pa.float64(): 53, pa.float32(): 24}.get(kind, 0)


_BY_SCHEME: Final[dict[str, type[Database]]] = {
    "postgresql": PostgreSQL,
    "postgres": PostgreSQL,
    "mariadb": MariaDB,
    "mysql": MariaDB,
}


def database_of(url: str) -> Database:
    """The database at a URL, whose variables are filled from the environment."""
    whole = filled_url(url)
    try:
        parts = urlsplit(whole)
        parts.port  # noqa: B018 (asking for it makes Python look)
    except ValueError:
        raise OptionError(_no_url(url)) from None
    if parts.scheme not in _BY_SCHEME or not parts.path.strip("/"):
        raise OptionError(_no_url(url))
    if urlsplit(url).password is not None and "${" not in str(urlsplit(url).password):
        raise OptionError(
            f"{without_secrets(url)} is given with a password. Keep it in the environment, and "
            'name its variable: "postgresql://${DB_USER}:${DB_PASSWORD}@host/database".'
        )
    return _BY_SCHEME[parts.scheme](parts)


def _no_url(url: str) -> str:
    return (
        f"url={without_secrets(url)!r} names no database. Write it as postgresql://host/database "
        "or mariadb://host/database, with ${NAME} for what is in the environment."
    )


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def _literals(column: pa.Array) -> pa.Array:
    """The values of a column as MariaDB reads them in a statement."""
    kind = column.type
    if _is_binary(kind):
        texts = _joined("x'", _hexed(column), "'")
    elif pa.types.is_boolean(kind):
        texts = column.cast(pa.int8()).cast(pa.large_string())
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        texts = column.cast(pa.large_string())
    else:
        if pa.types.is_timestamp(kind):
            column = column.cast(pa.timestamp("us"))
        texts = column.cast(pa.large_string())
        texts = pc.replace_substring(texts, "\\", "\\\\")
        texts = pc.replace_substring(texts, "'", "''")
        texts = _joined("'", texts, "'")
    return pc.fill_null(texts, "NULL")


def _joined(*parts: pa.Array | str, by: str = "") -> pa.Array:
    """Texts side by side; null if one of them is."""
    texts = [pa.scalar(one, pa.large_string()) if isinstance(one, str) else one for one in parts]
    return pc.binary_join_element_wise(*texts, pa.scalar(by, pa.large_string()))


def _hexed(column: pa.Array) -> pa.Array:
    """Bytes as text in base 16."""
    flat = column.cast(pa.large_binary())
    _, ends, data = flat.buffers()
    ends = np.frombuffer(ends, np.int64)[flat.offset : flat.offset + len(flat) + 1]
    held = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]] if data else np.empty(0, np.uint8)
    text = pa.LargeStringArray.from_buffers(
        len(flat), pa.py_buffer((ends - ends[0]) * 2), pa.py_buffer(_HEX[held].tobytes())
    )
    return pc.if_else(flat.is_valid(), text, pa.scalar(None, text.type))
