r"""A table in MariaDB or MySQL, read as one text for many rows.

Their drivers for Python make an object of each value. So the server is asked to write all rows of
an answer as one CSV text, in one value, which Arrow parses:

    SELECT count(*), GROUP_CONCAT(CONCAT(id, ',', '"', name, '"', …) SEPARATOR '\n')

A value is cut where the server's max_allowed_packet ends, with no more than a warning. So warnings
are looked at, and rows that are too wide to be in one value come in one each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from semistream.arrow_arrays import no_rows
from semistream.errors import DatabaseError, InternalError
from semistream.keys import Codes
from semistream.relation.databases.address import Address
from semistream.relation.databases.faults import connection_error, lacks_driver, query_error
from semistream.relation.databases.source import (
    LostConnectionError,
    SourceColumn,
    TooManyBytesError,
    UnfitValueError,
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
_TEXT_PER_BYTE: Final = 6
"""Bytes of text for one of Arrow's, at most: those of floats, of 4 bytes and up to 24 letters."""
_SETTINGS: Final = (
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "SET SESSION sql_mode = '', time_zone = '+00:00'",
)
_REFUSED: Final = (1045, 1698, 1251, 2059)
_NO_DATABASE: Final = (1044, 1049)
_CHANGED: Final = (1054, 1146)
"""There is no such column, no such table."""
_CUT: Final = (1260, 1301)
"""A warning: a text was cut, or is null, because it is too long."""
_CSV_COLUMN: Final = re.compile(r"CSV column #(\d+)")
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
        self._table = ".".join(map(_name, address.names))
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
        ((packet,),) = self._run("SELECT @@max_allowed_packet")
        self._packet = int(packet)
        self._longest = 0
        """The longest text that the server may write, as it was told last."""
        self._in_order: str | None = None

    def shared(self) -> str | None:
        """None: its moments cannot be shared."""
        return None

    def begin(self, moment: str | None = None) -> None:
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
        self,
        columns: Sequence[SourceColumn],
        condition: str,
        most_bytes: int,
        limit: int = 0,
        offset: int | None = None,
    ) -> pa.RecordBatch:
        """The rows for which a condition holds."""
        # Null if one of them is, which is so only for a value that is too long.
        values = ", ',', ".join(column.sql for column in columns)
        line = f"CONCAT({values})"
        source = f"{self._table} WHERE {condition}"
        if limit:
            order = self._key if offset is None else self._stable_order
            source = (
                f"(SELECT * FROM {source} ORDER BY {order} LIMIT {limit} OFFSET {offset or 0}) "
                f"AS {_name('some')}"
            )
        count, text = self._text(line, source, _TEXT_PER_BYTE * most_bytes)
        schema = pa.schema([(column.name, column.type) for column in columns])
        if not count:
            return no_rows(schema)
        batch = self._parsed(text, schema)
        if batch.num_rows != count:
            raise InternalError("Rows of MariaDB were lost on the way. Please report this.")
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

    def count(self, condition: str) -> int:
        """For how many rows a condition holds."""
        ((count,),) = self._run(f"SELECT count(*) FROM {self._table} WHERE {condition}")
        return int(count)

    def _text(self, line: str, source: str, most: int) -> tuple[int, bytes]:
        """How many rows there are, and their lines, which have at most `most` bytes together."""
        longest = min(most, self._packet)
        if longest != self._longest:
            # So the server sends no more than there is room for.
            self._run(f"SET SESSION group_concat_max_len = {longest}")
            self._longest = longest
        together = f"CAST(GROUP_CONCAT({line} SEPARATOR '\n') AS BINARY)"
        (((count, text),), is_cut) = self._ran(f"SELECT count(*), {together} FROM {source}")
        if not is_cut:
            return count, text
        if most > self._packet:
            self._refuse_wider(line, source, most)
            lines = self._run(f"SELECT CAST({line} AS BINARY) FROM {source}")
            return len(lines), b"\n".join(text for (text,) in lines)
        raise TooManyBytesError

    def _refuse_wider(self, line: str, source: str, most: int) -> None:
        """`TooManyBytesError` unless each line has room in a packet, and all in `most` bytes."""
        ((without, size),) = self._run(
            f"SELECT count(*) - count({line}), sum(octet_length({line}) + 1) FROM {source}"
        )
        if without:
            raise TooManyBytesError(
                f"One has more text than the server's max_allowed_packet, {self._packet:,} bytes: "
                "set that higher, or leave out wide columns with columns=[…]."
            )
        if size > most:
            raise TooManyBytesError

    @property
    def _stable_order(self) -> str:
        """The columns of the primary key."""
        if self._in_order is None:
            found = self._run(
                f"SELECT column_name FROM information_schema.statistics WHERE {self._is_it} "
                "AND index_name = 'PRIMARY' ORDER BY seq_in_index"
            )
            self._in_order = ", ".join(_name(name) for (name,) in found)
        if not self._in_order:
            raise TooManyBytesError(
                "The table has no primary key, by which they could be read in lots: give it one, "
                "or open it with a larger page_bytes."
            )
        return self._in_order

    @property
    def _is_it(self) -> str:
        """The condition that something is of this table."""
        *schema, table = self._address.names
        owner = _literal(schema[0]) if schema else "DATABASE()"
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
            # Not what Arrow says: it shows the value.
            place = _CSV_COLUMN.search(str(error))
            if place is None:
                raise query_error(self._address, "its values cannot be parsed") from None
            raise UnfitValueError(schema.names[int(place[1])]) from None
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _run(self, sql: str) -> tuple[tuple[Any, ...], ...]:
        return self._ran(sql)[0]

    def _ran(self, sql: str) -> tuple[tuple[tuple[Any, ...], ...], bool]:
        """What a query finds, and whether a text in it was cut."""
        with self._faults(), self._connection.cursor() as cursor:
            cursor.execute(sql)
            found: tuple[tuple[Any, ...], ...] = cursor.fetchall()
            told = cursor.warning_count
            if not told:
                return found, False
            cursor.execute("SHOW WARNINGS")
            codes = [warning[1] for warning in cursor.fetchall()]
            # Of many warnings not all are kept.
            return found, len(codes) < told or any(code in _CUT for code in codes)

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except (self._error, OSError) as error:
            code, reason = (*error.args, "", "")[:2] if error.args else (0, "")
            if isinstance(error, OSError) or code in _LOST:
                raise LostConnectionError(str(reason) or "it is closed") from None
            raise query_error(self._address, str(reason), code in _CHANGED) from None


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
        # A zero date is how MySQL writes that there is none.
        text = f"CONVERT({quoted} USING utf8mb4)"
        return SourceColumn(
            name, f"IF({text} LIKE '0000-00-00%', '', {_number(quoted)})", _TIMES[kind]
        )
    if kind in _BYTES:
        return SourceColumn(
            name, _unless_null(quoted, f"CONCAT('\"', HEX({quoted}), '\"')"), pa.binary(), most
        )
    # What Arrow lacks comes as the server writes it.
    text = f"CONVERT({quoted} USING utf8mb4)"
    written = _unless_null(quoted, f"CONCAT('\"', REPLACE({text}, '\"', '\"\"'), '\"')")
    return SourceColumn(name, written, pa.string(), None if most is None else 4 * most)


def _unless_null(quoted: str, sql: str) -> str:
    # Not IFNULL: what is too long is null too.
    return f"IF({quoted} IS NULL, '', {sql})"


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
