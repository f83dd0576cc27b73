"""Where a table is and how it is read, as one text that opens it in any process.

    postgresql://host:5432/shop?table=products&key=id

It goes into plans and to workers, so it has no password: each process takes that from its own
environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from semistream.errors import OptionError
from semistream.relation.storage import is_database, without_secrets

__all__ = ["MYSQL", "Address", "Credentials", "table_names"]

POSTGRESQL, MYSQL = "postgresql", "mysql"
_SCHEMES: Final = {
    "postgresql": POSTGRESQL,
    "postgres": POSTGRESQL,
    "mysql": MYSQL,
    "mariadb": MYSQL,
}
_PORTS: Final = {POSTGRESQL: 5432, MYSQL: 3306}
_VARIABLES: Final = {
    POSTGRESQL: ("PGUSER", "PGPASSWORD"),
    MYSQL: ("MYSQL_USER", "MYSQL_PWD"),
}
_SETTINGS: Final = {
    POSTGRESQL: ("sslmode", "sslrootcert", "connect_timeout", "application_name"),
    MYSQL: ("ssl_ca", "connect_timeout"),
}
"""What a URL may say beside the place: nothing that can be a secret."""
_OWN: Final = ("table", "key", "columns", "page_bytes", "credentials")
_LEAST_PAGE: Final = 1024
_NAME: Final = re.compile(r"""\s*(?:"((?:[^"]|"")+)"|`((?:[^`]|``)+)`|([^."`]+))\s*(?:\.(?=.)|$)""")
"""A name and the dot behind it; a quoted name may have dots, and its quotes twice."""


@dataclass(frozen=True)
class Credentials:
    """A user and a password; never shown."""

    user: str | None
    password: str | None

    def __repr__(self) -> str:
        return "Credentials(…)"


@dataclass(frozen=True)
class Address:
    """A table in a database."""

    system: str
    """"postgresql" or "mysql"."""
    host: str
    port: int
    database: str
    user: str | None
    settings: tuple[tuple[str, str], ...]
    table: str
    key: str
    columns: tuple[str, ...] | None
    page_bytes: int
    credentials: str | None

    @classmethod
    def of(
        cls,
        url: str,
        table: str,
        key: str | Sequence[str],
        columns: Sequence[str] | None,
        page_bytes: int,
        credentials: str | None,
    ) -> Address:
        """From what a user gives; `OptionError` for what cannot be."""
        if not is_database(url):
            raise OptionError(
                f"{without_secrets(url)!r} is no database. Give a URL as "
                '"postgresql://host/database" or "mysql://host/database".'
            )
        try:
            parts = urlsplit(url)
        except ValueError:
            raise OptionError(
                f"The URL {without_secrets(url)} cannot be read. Write it as //host:5432/shop, and "
                "an address of numbers and colons in square brackets."
            ) from None
        system = _SCHEMES[parts.scheme]
        _refuse_secrets(url, system, parts.password)
        settings = dict(parse_qsl(parts.query, keep_blank_values=True))
        unknown = sorted(settings.keys() - set(_SETTINGS[system]))
        database = unquote(parts.path.strip("/"))
        shown = without_secrets(url)
        if unknown:
            raise OptionError(
                f"The URL {shown} has settings that are not known: {', '.join(unknown)}. Known are "
                f"{', '.join(_SETTINGS[system])}; users and passwords come from the environment."
            )
        if not parts.hostname or not database or "/" in database:
            raise OptionError(f"The URL {shown} must have a host and a database, as //host/shop.")
        try:
            port = parts.port or _PORTS[system]
        except ValueError:
            raise OptionError(f"The URL {shown} has a port that is no number.") from None
        user = None if parts.username is None else unquote(parts.username)
        one = _one_key(key)
        given: tuple[object, object] = (table, page_bytes)
        if not isinstance(given[0], str) or not given[0]:
            raise OptionError(f"table={table!r} must be the name of a table, as table='products'.")
        table_names(table)
        if not isinstance(given[1], int) or page_bytes < _LEAST_PAGE:
            raise OptionError(f"page_bytes={page_bytes!r} must be at least {_LEAST_PAGE:,}.")
        chosen = None if columns is None else tuple(dict.fromkeys([one, *columns]))
        pairs = tuple(sorted(settings.items()))
        return cls(
            system,
            parts.hostname,
            port,
            database,
            user,
            pairs,
            table,
            one,
            chosen,
            page_bytes,
            credentials,
        )

    @classmethod
    def parse(cls, location: str) -> Address:
        """From the text that `location` gives, or that a user has written in its way."""
        url, _, query = location.partition("?")
        given = dict(parse_qsl(query, keep_blank_values=True))
        own = {name: given.pop(name) for name in _OWN if name in given}
        if "table" not in own or "key" not in own:
            raise OptionError(
                f"{without_secrets(location)} names a database, but not the table in it: add "
                '"?table=products&key=id", or use ss.DatabaseMaster(url, table=…, key=…).'
            )
        if not own.get("page_bytes", "1").isdigit():
            raise OptionError(f"page_bytes={own['page_bytes']!r} must be a number of bytes.")
        columns = own.get("columns")
        return cls.of(
            f"{url}?{urlencode(given)}" if given else url,
            own["table"],
            own["key"],
            None if columns is None else [unquote(one) for one in columns.split(",")],
            int(own.get("page_bytes", 65536)),
            own.get("credentials"),
        )

    @property
    def location(self) -> str:
        """The text that `parse` reads: it opens the table in another process."""
        own = {"table": self.table, "key": self.key, "page_bytes": str(self.page_bytes)}
        if self.columns is not None:
            own["columns"] = ",".join(quote(name, safe="") for name in self.columns)
        if self.credentials is not None:
            own["credentials"] = self.credentials
        user = "" if self.user is None else f"{quote(self.user, safe='')}@"
        place = f"{self.system}://{user}{self._host}:{self.port}/{quote(self.database, safe='')}"
        return f"{place}?{urlencode([*self.settings, *own.items()])}"

    @property
    def names(self) -> tuple[str, ...]:
        """The table's name, behind that of its schema if that is given."""
        return table_names(self.table)

    @property
    def server(self) -> str:
        """The database, for messages: without user and settings."""
        return f"{self.system}://{self._host}:{self.port}/{self.database}"

    @property
    def shown(self) -> str:
        """The table, for messages."""
        return f"{self.server}/{self.table}"

    @property
    def variables(self) -> tuple[str, str]:
        """The names of the environment variables for user and password."""
        if self.credentials is None:
            return _VARIABLES[self.system]
        return f"{self.credentials}_USER", f"{self.credentials}_PASSWORD"

    def taken_from(self, environment: Mapping[str, str] = os.environ) -> Credentials:
        """User and password, from the environment of this process."""
        user, password = self.variables
        return Credentials(self.user or environment.get(user), environment.get(password))

    @property
    def _host(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


def table_names(table: str) -> tuple[str, ...]:
    """The name of a table, behind that of its schema if it is given; quotes keep dots.

    >>> table_names("products"), table_names("sales.products"), table_names('"my.shop"."a.b"')
    (('products',), ('sales', 'products'), ('my.shop', 'a.b'))
    """
    names: list[str] = []
    place = 0
    while place < len(table) and (found := _NAME.match(table, place)):
        double, back, plain = found.groups()
        names.append(
            double.replace('""', '"') if double else back.replace("``", "`") if back else plain
        )
        place = found.end()
    if place < len(table) or len(names) not in (1, 2):
        raise OptionError(
            f"table={table!r} must be a table, as 'products', or a schema and a table, as "
            "'sales.products'. Names with a dot have quotes, as '\"my.sales\".products'."
        )
    return tuple(names)


def _refuse_secrets(url: str, system: str, password: str | None) -> None:
    names = {name.lower() for name, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True)}
    if password is not None or names & {"password", "user", "passfile", "sslpassword"}:
        user, secret = _VARIABLES[system]
        raise OptionError(
            f"The URL for {without_secrets(url)} has a user with a password, and would be seen in "
            f"plans and logs. Leave them out of it: they are taken from the environment, from "
            f"{user} and {secret}, or with credentials='SHOP' from SHOP_USER and SHOP_PASSWORD."
        )


def _one_key(key: str | Sequence[str]) -> str:
    names: list[object] = [key] if isinstance(key, str) else list(key)
    if len(names) != 1 or not isinstance(names[0], str) or not names[0]:
        raise OptionError(
            f"key={key!r}: a master in a database has one key column, of integers. For other keys "
            "copy the table with MasterTable.build, and let sync follow it."
        )
    return names[0]
