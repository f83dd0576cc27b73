r"""A table in MariaDB or MySQL, read as one text for many rows.

Their drivers for Python make an object of each value. So the server is asked to write all rows of
an answer as one CSV text, in one value, which Arrow parses:

    SELECT count(*), GROUP_CONCAT(CONCAT_WS(',', id, '"' || name || '"', …) SEPARATOR '\n')
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from semistream.arrow_arrays import no_rows
from semistream.errors import DatabaseError
from semistream.keys import Codes
from semistream.relation.databases.address import Address
from semistream.relation.databases.faults import connection_error, lacks_driver, query_error
from semistream.relation.databases.source import (
    LostConnectionError,
    SourceColumn,
    TooManyBytesError,
    listed,
)

__all__ = ["MySQL"]

_INTEGERS: Final = {
    "tinyint": (pa.int32(), pa.int32()),
    "smallint": (pa.int32(), pa.int32()),
    "mediumint": (pa.int32(), pa.int32()),
    "int": (pa.int32(), pa.int64()),
    "bigint": (pa.int64(), pa.uint64()),
    "year": (pa.int32(), pa.int32()),
}
"""Their types in Arrow, signed and unsigned."""
_BYTES: Final = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_TIMES: Final = {
    "date": pa.date32(),
    "datetime": pa.timestamp("us"),
    "timestamp": pa.timestamp("us", "UTC"),
}
_MOST_DIGITS: Final = 38
_TEXT_PER_BYTE: Final = 4
"""Bytes of text for one of Arrow's, at most: those of bytes as hexadecimal numbers, about."""
_SETTINGS: Final = (
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "SET SESSION sql_mode = '', time_zone = '+00:00', group_concat_max_len = 1073741824",
)
_REFUSED: Final = (1045, 1698, 1251, 2059)
_NO_DATABASE: Final = (1044, 1049)
_LOST: Final = (0, 1053, 1927, 2006, 2013, 2055, 4031)


class MySQL:
    """A connection to one table."""

    def __init__(self, address: Address) -> None:
        """Connect; `DatabaseError` says what is wrong."""
        try:
            import pymysql
        except ImportError:
            raise lacks_driver("PyMySQL") from None
        self._address = address
        self._error: type[Exception] = pymysql.MySQLError
        self._table = ".".join(_name(part) for part in address.table.split("."))
        self._key = _name(address.key)
        login, settings = address.taken_from(), dict(address.settings)
        try:
            self._connection: Any = pymysql.connect(
                host=address.host,
                port=address.port,
                user=login.user,
                password=login.password or "",
                database=address.database,
                charset="utf8mb4",
                autocommit=True,
                connect_timeout=int(settings.get("connect_timeout", 10)),
                ssl={"ca": settings["ssl_ca"]} if "ssl_ca" in settings else None,
            )
        except (pymysql.MySQLError, RuntimeError, OSError) as error:
            # Not "from error": what the driver says may name the user.
            code = error.args[0] if error.args else 0
            raise connection_error(address, code in _REFUSED, code in _NO_DATABASE) from None
        for setting in _SETTINGS:
            self._run(setting)

    def begin(self) -> None:
        """Begin a transaction that reads the table as it is now."""
        self._run("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")

    def end(self) -> None:
        """End the transaction."""
        self._run("ROLLBACK")

    def close(self) -> None:
        """Close the connection."""
        if self._connection.open:
            self._connection.close()

    def columns(self) -> list[SourceColumn]:
        """The columns of the table, in its order."""
        found = self._run(
            "SELECT column_name, data_type, column_type, numeric_precision, numeric_scale, "
            f"character_maximum_length FROM information_schema.columns WHERE {self._is_it} "
            "ORDER BY ordinal_position"
        )
        if not found:
            raise DatabaseError(
                f"{self._address.server} has no table {self._address.table!r}. Name one as "
                "table='products', or with its database as table='sales.products'."
            )
        self._refuse_without_snapshots()
        return [_column(*row) for row in found]

    def has_index(self) -> bool:
        """Whether a b-tree index has the key first."""
        return bool(
            self._run(
                f"SELECT 1 FROM information_schema.statistics WHERE {self._is_it} AND "
                f"seq_in_index = 1 AND index_type = 'BTREE' AND sub_part IS NULL AND "
                f"column_name = {_literal(self._address.key)} LIMIT 1"
            )
        )

    def between(self, low: int, high: int) -> str:
        """The condition that the key is in low..high."""
        return f"{self._key} BETWEEN {low} AND {high}"

    def among(self, codes: Codes) -> str:
        """The condition that the key is one of these."""
        return f"{self._key} IN ({listed(codes)})"

    def rows(
        self, columns: Sequence[SourceColumn], condition: str, most_bytes: int, limit: int = 0
    ) -> pa.RecordBatch:
        """The rows for which a condition holds."""
        line = f"CONCAT_WS(',', {', '.join(column.sql for column in columns)})"
        source = f"{self._table} WHERE {condition}"
        if limit:
            source = (
                f"(SELECT * FROM {source} ORDER BY {self._key} LIMIT {limit}) AS {_name('first')}"
            )
        ((count, text),) = self._run(
            f"SELECT count(*), CAST(GROUP_CONCAT({line} SEPARATOR '\n') AS BINARY) FROM {source}"
        )
        schema = pa.schema([(column.name, column.type) for column in columns])
        if not count:
            return no_rows(schema)
        if len(text) > _TEXT_PER_BYTE * most_bytes:
            raise TooManyBytesError
        batch = self._parsed(text, schema)
        if batch.num_rows != count:
            # The server cuts a value at its max_allowed_packet.
            raise TooManyBytesError
        if batch.nbytes > most_bytes:
            raise TooManyBytesError
        return batch

    def bounds(self) -> tuple[int, int] | None:
        """The lowest and the highest key."""
        ((low, high),) = self._run(f"SELECT min({self._key}), max({self._key}) FROM {self._table}")
        return None if low is None else (int(low), int(high))

    def every(self, rows: int) -> NDArray[np.int64]:
        """The lowest key, and every so many rows the next one: hops along the index.

        One recursive query for all of them takes the server a hundred times as long.
        """
        bounds = self.bounds()
        starts = [] if bounds is None else [bounds[0]]
        while starts:
            found = self._run(
                f"SELECT {self._key} FROM {self._table} WHERE {self._key} > {starts[-1]} "
                f"ORDER BY {self._key} LIMIT 1 OFFSET {rows - 1}"
            )
            if not found:
                break
            starts.append(int(found[0][0]))
        return np.array(starts, np.int64)

    def count_from(self, low: int) -> int:
        """How many rows have a key that is not below `low`."""
        ((count,),) = self._run(f"SELECT count(*) FROM {self._table} WHERE {self._key} >= {low}")
        return int(count)

    @property
    def _is_it(self) -> str:
        """The condition that something is of this table."""
        schema, _, table = self._address.table.rpartition(".")
        owner = _literal(schema) if schema else "DATABASE()"
        return f"table_schema = {owner} AND table_name = {_literal(table)}"

    def _refuse_without_snapshots(self) -> None:
        """An engine without transactions shows changes while they happen."""
        found = self._run(f"SELECT engine FROM information_schema.tables WHERE {self._is_it}")
        if found and found[0][0] not in (None, "InnoDB"):
            raise DatabaseError(
                f"{self._address.shown} is a table of {found[0][0]}, which cannot be read as of "
                "one moment: ALTER TABLE … ENGINE=InnoDB, or copy it with MasterTable.build."
            )

    def _parsed(self, text: bytes, schema: pa.Schema) -> pa.RecordBatch:
        kinds = {field.name: _written_as(field.type) for field in schema}
        try:
            table = pa.csv.read_csv(
                pa.BufferReader(text),
                pa.csv.ReadOptions(
                    use_threads=False, block_size=len(text) + 1, column_names=schema.names
                ),
                pa.csv.ParseOptions(newlines_in_values=True),
                pa.csv.ConvertOptions(
                    column_types=kinds,
                    null_values=[""],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                    check_utf8=False,
                ),
            ).combine_chunks()
            (batch,) = table.to_batches()
            arrays = [
                _from_hexadecimal(column) if pa.types.is_binary(kind) else column.cast(kind)
                for column, kind in zip(batch.columns, schema.types, strict=True)
            ]
        except pa.ArrowException as error:
            raise query_error(self._address, f"a value has no place in Arrow: {error}") from None
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _run(self, sql: str) -> tuple[tuple[Any, ...], ...]:
        with self._faults(), self._connection.cursor() as cursor:
            cursor.execute(sql)
            found: tuple[tuple[Any, ...], ...] = cursor.fetchall()
            return found

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except (self._error, OSError) as error:
            code, reason = (*error.args, "", "")[:2] if error.args else (0, "")
            if isinstance(error, OSError) or code in _LOST:
                raise LostConnectionError(str(reason) or "it is closed") from None
            raise query_error(self._address, str(reason)) from None


def _column(
    name: str, kind: str, declared: str, digits: int | None, scale: int | None, most: int | None
) -> SourceColumn:
    quoted = _name(name)
    if kind in _INTEGERS:
        unsigned = "unsigned" in declared
        return SourceColumn(name, _number(quoted), _INTEGERS[kind][unsigned], is_integer=True)
    if kind == "bit":
        return SourceColumn(name, _number(f"({quoted} + 0)"), pa.uint64())
    if kind == "float":
        # As it is written, a float has six digits only.
        return SourceColumn(name, _number(f"CAST({quoted} AS DOUBLE)"), pa.float32())
    if kind == "double":
        return SourceColumn(name, _number(quoted), pa.float64())
    if kind == "decimal" and digits is not None and digits <= _MOST_DIGITS:
        return SourceColumn(name, _number(quoted), pa.decimal128(digits, scale or 0))
    if kind in _TIMES:
        return SourceColumn(name, _number(quoted), _TIMES[kind])
    if kind in _BYTES:
        return SourceColumn(
            name, f"IFNULL(CONCAT('\"', HEX({quoted}), '\"'), '')", pa.binary(), most
        )
    # What Arrow lacks comes as the server writes it.
    text = f"CONVERT({quoted} USING utf8mb4)"
    written = f"IFNULL(CONCAT('\"', REPLACE({text}, '\"', '\"\"'), '\"'), '')"
    return SourceColumn(name, written, pa.string(), None if most is None else 4 * most)


def _number(sql: str) -> str:
    return f"IFNULL(CONVERT({sql} USING utf8mb4), '')"


def _written_as(kind: pa.DataType) -> pa.DataType:
    """The type that a column is parsed as."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us")
    if pa.types.is_binary(kind):
        return pa.string()
    return pa.float64() if kind == pa.float32() else kind


def _from_hexadecimal(column: pa.Array) -> pa.Array:
    """Bytes that are written as hexadecimal numbers, all of a column at once."""
    valid, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32, len(column) + 1, 4 * column.offset)
    text = b"" if data is None else data.to_pybytes()[ends[0] : ends[-1]]
    halves = ((ends - ends[0]) // 2).astype(np.int32)
    if column.null_count and column.offset:
        valid = pa.concat_arrays([column, column.slice(0, 0)]).buffers()[0]
    return pa.Array.from_buffers(
        pa.binary(),
        len(column),
        [
            valid if column.null_count else None,
            pa.py_buffer(halves),
            pa.py_buffer(bytes.fromhex(text.decode())),
        ],
    )


def _name(text: str) -> str:
    return "`" + text.replace("`", "``") + "`"


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
