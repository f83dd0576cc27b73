"""A master table that is a table in a database, read where it is.

It has no versions. Each run of a join, and on Spark each task of a micro-batch, sees the table as
of one moment; the next sees what has been committed since.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, NoReturn, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa

from semistream.errors import DatabaseError, KeyColumnError, KeyTypeError, OptionError, RowRoomError
from semistream.keys import Codes
from semistream.relation.databases.address import Address
from semistream.relation.databases.division import KeyRanges, divided
from semistream.relation.databases.faults import unfit_value
from semistream.relation.databases.reader import NOWHERE, DatabaseReader, in_order
from semistream.relation.databases.session import Session
from semistream.relation.databases.source import (
    Source,
    SourceColumn,
    TooManyBytesError,
    UnfitValueError,
)
from semistream.relation.master_table import MasterTable
from semistream.relation.reader import IO_MODES, PageReader
from semistream.relation.storage import Location, is_database, without_secrets
from semistream.relation.updates.change import Change
from semistream.relation.versions.manifest import Manifest, encode_schema
from semistream.relation.versions.vacuum import Vacuumed, VersionInfo
from semistream.row_bytes import widest_row

__all__ = ["DatabaseMaster"]

_T = TypeVar("_T")
_DIVISION_SHARE: Final = 20
"""Dividing the table anew takes at most one part in so many of the time."""


class DatabaseMaster(MasterTable):
    """A table in PostgreSQL, MariaDB or MySQL as a master, read in place.

    For tables that are too small or change too often to be copied. The key is a column of integers
    with an index, best a unique one; rows whose key is null are never found.
    """

    def __init__(
        self,
        url: str,
        *,
        table: str,
        key: str | Sequence[str],
        columns: Sequence[str] | None = None,
        page_bytes: int = 65536,
        credentials: str | None = None,
    ) -> None:
        """Connect, look at the table, and divide it into ranges of keys: a walk along its index.

        Args:
            url: the database, as "postgresql://host:5432/shop" or "mysql://host/shop", without a
                password.
            table: the table, or a materialized view; with its schema as "sales.products". A name
                with a dot in it has quotes, as '"my.sales".products'.
            key: the key column.
            columns: the columns to read beside the key, by default all.
            page_bytes: the room for a range of keys; ranges are planned to fill half of it.
            credentials: with "SHOP", user and password come from the environment variables
                SHOP_USER and SHOP_PASSWORD; by default from PGUSER and PGPASSWORD, or MYSQL_USER
                and MYSQL_PWD.
        """
        self._open(Address.of(url, table, key, columns, page_bytes, credentials))

    @classmethod
    def at(cls, location: str) -> DatabaseMaster:
        """The table at a location, as `location` gives it.

        All who open it so in one process share a connection, and the moment that they see.
        """
        known = (os.getpid(), location)
        master = _OPEN.get(known)
        if master is None:
            master = object.__new__(cls)
            master._open(Address.parse(location))
            _OPEN[known] = master
        return master

    @classmethod
    def open(cls, path: Location, version: int | None = None) -> MasterTable:
        """The table at the URL of a database, as `location` gives it."""
        if not is_database(path):
            raise OptionError(
                f"{without_secrets(path)!r} is no database. Open a master table of files with "
                "MasterTable.open."
            )
        return super().open(path, version)

    @classmethod
    def build(cls, *_: Any, **__: Any) -> NoReturn:
        """Refused: the database has the table already."""
        raise OptionError(
            "A DatabaseMaster reads a table that its database has already, so it builds none. Open "
            "it with ss.DatabaseMaster(url, table=…, key=…), or build files with MasterTable.build."
        )

    @classmethod
    def from_arrow(cls, *_: Any, **__: Any) -> NoReturn:
        """Refused, as `build` is."""
        cls.build()

    def _open(self, address: Address) -> None:
        self._address = address
        self._session = Session(address)
        self._sharing: Session | None = None
        """The connection that holds a moment for other processes."""
        self._found_columns: list[SourceColumn] = []
        self._read_columns: list[SourceColumn] = []
        self._divided_at = self._division_seconds = 0.0
        with self._session.held(self._look):
            ranges = self._divided()
        # Whoever opens it, as the driver of Spark, may never run a join.
        self._session.close()
        columns = self._read_columns
        schema = pa.schema(
            [pa.field(c.name, c.type, nullable=c.name != address.key) for c in columns]
        )
        manifest = Manifest(
            version=1,
            key=(address.key,),
            layout="key",
            row_count=ranges.row_count,
            page_count=len(ranges),
            rows_without_key=0,
            page_bytes=address.page_bytes,
            widest_row=_widest(columns, address.page_bytes),
            schema=encode_schema(schema),
            code_column=None,
            files={},
            page_files=(),
            shard_starts=(0, len(ranges)),
        )
        super().__init__(NOWHERE, manifest, ranges)

    @property
    def path(self) -> str:
        """The table, for people to read: a URL without user and settings."""
        return self._address.shown

    @property
    def location(self) -> str:
        """The URL that opens it again in any process that has the credentials; it has none."""
        return self._address.location

    @property
    def is_live(self) -> bool:
        """True: others change its rows."""
        return True

    @property
    def moment(self) -> int:
        """The number of the moment that is, or was last, seen."""
        return self._session.moment

    @property
    def is_far(self) -> bool:
        """False: there are no files to have many reads of under way."""
        return False

    @property
    def can_be_mapped(self) -> bool:
        """False: there are no files."""
        return False

    def held(self) -> AbstractContextManager[None]:
        """See the table as of one moment until the block ends."""
        return self._session.held(self._renew)

    @contextmanager
    def shared(self) -> Iterator[str | None]:
        """The name of a moment that other processes can see; None in MariaDB and MySQL."""
        if self._sharing is None:
            self._sharing = Session(self._address)
        with self._sharing.held(_nothing):
            yield self._sharing.read(lambda source: source.shared())

    def reader(self, io: str = "buffered") -> PageReader:
        """A reader of ranges of keys."""
        if io not in IO_MODES:
            raise OptionError(f"io={io!r} is not known. Use one of {', '.join(IO_MODES)}.")
        return DatabaseReader(self, self.pages, self.stored_schema)

    def rows_between(self, low: int, high: int, most_bytes: int) -> pa.RecordBatch:
        """The rows whose keys are in low..high, by key."""
        try:
            return self._rows(lambda source: source.between(low, high), most_bytes)
        except TooManyBytesError as error:
            # The next moment begins with another division.
            self._divided_at = -float("inf")
            with self.held():
                rows = self._session.read(lambda source: source.count(source.between(low, high)))
            raise self._too_wide(
                f"the {rows:,} rows of the keys {low} to {high}", rows, error
            ) from None

    def rows_among(self, codes: Codes, most_bytes: int) -> pa.RecordBatch:
        """The rows with these keys, by key."""
        try:
            return self._rows(lambda source: source.among(codes), most_bytes)
        except TooManyBytesError as error:
            raise self._too_wide(f"the rows of {len(codes):,} keys", 1, error) from None

    def rows_in_lots(self, code: int, most_bytes: int) -> Iterator[pa.RecordBatch]:
        """The rows with this key, as many at a time as there is room for."""
        one, rows = np.array([code], np.int64), 0
        limit, offset = 0, None
        while True:
            try:
                batch = self._rows(lambda source: source.among(one), most_bytes, limit, offset)
            except TooManyBytesError as error:
                if limit == 1 or (limit and str(error)):
                    raise self._too_wide(f"rows of the key {code}", 1, error) from None
                fitting = int(most_bytes / 2 / max(1.0, self._row_bytes))
                limit, offset = max(1, limit // 4 or fitting), rows
                continue
            yield batch
            rows += batch.num_rows
            if batch.num_rows < limit or not limit:
                return
            offset = rows

    def at_version(self, version: int) -> MasterTable:
        """The same: a database keeps no versions."""
        return self

    def shard(self, number: int) -> DatabaseMaster:
        """The table itself: it has no shards but the one that is all of it."""
        return self if number == 0 else self._refuse("has no shards")

    def cached(self, folder: Location, limit: int | str) -> NoReturn:
        """Refused: its rows may change, so no copies of them are kept."""
        self._refuse("may change, so no copies of its pages are kept")

    def history(self) -> list[VersionInfo]:
        """Refused: there are no versions."""
        self._refuse("has no versions")

    def vacuum(self, *_: Any, **__: Any) -> Vacuumed:
        """Refused: there are no versions."""
        self._refuse("has no versions")

    def sync(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: it is the source itself."""
        self._refuse("is the source itself, so it follows none")

    def describe(self) -> str:
        """What the table looks like now, for people to read."""
        lines = {
            "key": self._address.key,
            "rows": f"about {self.row_count:,}",
            "pages": f"{self.page_count:,} ranges of keys, each with room for "
            f"{self.page_bytes:,} bytes",
            "columns": ", ".join(f"{field.name} {field.type}" for field in self.schema),
        }
        body = "\n".join(f"  {name:<7}  {text}" for name, text in lines.items())
        return f"master in a database {self.path}\n{body}"

    def close(self) -> None:
        """Close the connection; the next run makes another."""
        self._session.close()
        if self._sharing is not None:
            self._sharing.close()

    def __repr__(self) -> str:
        return (
            f"DatabaseMaster({self._address.server!r}, table={self._address.table!r}, "
            f"key={self._address.key!r}, rows≈{self.row_count}, pages={self.page_count})"
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled as its location, without credentials; unpickling connects again."""
        return DatabaseMaster.at, (self.location,)

    def _look(self) -> None:
        """Look which columns and which index the table has."""
        self._found_columns = self._session.read(lambda source: source.columns())
        self._read_columns = _chosen(self._address, self._found_columns)
        self._check_index()

    def _check_index(self) -> None:
        if not self._session.read(lambda source: source.has_index()):
            raise DatabaseError(
                f"{self._address.shown} has no index on {self._address.key!r}, so each page would "
                "read the whole table: CREATE UNIQUE INDEX … on it, or copy the table with "
                "MasterTable.build."
            )

    def _renew(self) -> None:
        """Divide anew if that is cheap beside what has been done since."""
        if time.monotonic() - self._divided_at > _DIVISION_SHARE * self._division_seconds:
            self._check_index()
            self._pages = self._divided()

    def _divided(self) -> KeyRanges:
        started = time.monotonic()
        address, columns = self._address, self._read_columns
        (key,) = (column.type for column in columns if column.name == address.key)
        ranges = self._asked(lambda source: divided(source, columns, key, address.page_bytes))
        self._divided_at = time.monotonic()
        self._division_seconds = self._divided_at - started
        return ranges

    def _rows(
        self,
        condition: Callable[[Source], str],
        most_bytes: int,
        limit: int = 0,
        offset: int | None = None,
    ) -> pa.RecordBatch:
        def query(source: Source) -> pa.RecordBatch:
            return source.rows(self._read_columns, condition(source), most_bytes, limit, offset)

        with self.held():
            found = self._asked(query)
        batch = pa.RecordBatch.from_arrays(found.columns, schema=self.stored_schema)
        if batch.nbytes > self.widest_row and widest_row(batch) > self.widest_row:
            raise TooManyBytesError
        return in_order(batch, self._row_codes(batch))

    def _asked(self, query: Callable[[Source], _T]) -> _T:
        """What a query finds; `DatabaseError` for values that have no place in their types."""
        try:
            return self._session.read(query)
        except UnfitValueError as error:
            now = self._session.read(lambda source: source.columns())
            # Whoever opens it again gets the table as it is.
            _OPEN.pop((os.getpid(), self.location), None)
            raise unfit_value(self._address, str(error), self._found_columns, now) from None

    @property
    def _row_bytes(self) -> float:
        """How wide a row is on average, as far as that is known."""
        return float(self.pages.length.sum()) / max(self.pages.row_count, 1)

    def _too_wide(self, asked: str, rows: int, reason: TooManyBytesError) -> RowRoomError:
        """What to do when `asked`, of so many rows, has no room."""
        needed = max(2 * self.page_bytes, int(2 * rows * self._row_bytes))
        advice = str(reason) or (
            f"Open the table with page_bytes={1 << (needed - 1).bit_length()}, or more if rows are "
            "wider there, or leave out wide columns with columns=[…]. If many rows were added "
            "meanwhile, run it again."
        )
        return RowRoomError(
            f"In {self.path} {asked} have more bytes than there is room for. {advice}"
        )

    def _updated(self, change: Change, everything: bool = False) -> MasterTable:
        self._refuse("is read only here")

    def _refuse(self, why: str) -> NoReturn:
        raise OptionError(
            f"{self.path} stays in its database and {why}. Copy it with MasterTable.build to have "
            "a master table of files."
        )


def _chosen(address: Address, found: Sequence[SourceColumn]) -> list[SourceColumn]:
    """The columns to read; raises if one is missing, or the key has no integers."""
    known = {column.name: column for column in found}
    names = list(known) if address.columns is None else list(address.columns)
    missing = [name for name in dict.fromkeys([address.key, *names]) if name not in known]
    if missing:
        raise KeyColumnError(
            f"{address.shown} has no column {', '.join(map(repr, missing))}. It has "
            f"{', '.join(known)}."
        )
    key = known[address.key]
    if not key.is_integer:
        raise KeyTypeError(
            f"The key column {key.name!r} of {address.shown} has no integers (it becomes "
            f"{key.type}): a database has its own order of other values, so ranges of them are not "
            "safe. Use a key of integers, or copy the table with MasterTable.build, which takes "
            "keys of any type."
        )
    # Codes of columns with other widths are not looked up in compiled code.
    wide = {pa.int16(): pa.int32(), pa.uint64(): pa.int64()}
    known[key.name] = key._replace(type=wide.get(key.type, key.type))
    return [known[name] for name in names]


def _widest(columns: Sequence[SourceColumn], page_bytes: int) -> int:
    """The most bytes of a row in Arrow memory: no row may be wider than the room for a page."""
    total = 0
    for column in columns:
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            total += 5 + (page_bytes if column.widest is None else column.widest)
        else:
            total += 1 + -(-column.type.bit_width // 8)
    return min(total, page_bytes)


def _nothing() -> None:
    """Nothing is looked at in a moment that is held for others."""


_OPEN: WeakValueDictionary[tuple[int, str], DatabaseMaster] = WeakValueDictionary()
"""By process and location: workers of Spark open the same table for each join."""
