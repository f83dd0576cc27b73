"""A database as its owner sees it, with tables of goods to join with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import numpy as np
import psycopg
import pyarrow as pa
import pymysql
import pytest

import semistream as ss

SECRETS = ("pa55", "w/rd", "w%2Frd")


class Shop:
    """One database, as its owner sees it."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        found = urlsplit(uri)
        self.system = found.scheme
        self.host, self.port = found.hostname, found.port
        self.user, self.password = found.username, unquote(found.password or "")
        self.url = f"{found.scheme}://{found.hostname}:{found.port}/shop"
        self.owner = self.connected()

    def connected(self) -> Any:
        if self.system == "postgresql":
            login = {"user": self.user, "password": self.password, "dbname": "shop"}
            return psycopg.connect(host=self.host, port=self.port, autocommit=True, **login)  # type: ignore[arg-type]
        return pymysql.connect(
            host=self.host,
            port=self.port or 0,
            user=self.user,
            password=self.password,
            database="shop",
            charset="utf8mb4",
            autocommit=True,
        )

    def run(self, sql: str, rows: list[tuple[Any, ...]] | None = None) -> list[tuple[Any, ...]]:
        with self.owner.cursor() as cursor:
            if rows is not None:
                cursor.executemany(sql, rows)
                return []
            cursor.execute(sql)
            return list(cursor.fetchall()) if cursor.description else []

    def table(self, columns: str, rows: list[tuple[Any, ...]]) -> str:
        """A table of its own with these rows."""
        name = f"goods_{uuid4().hex[:8]}"
        self.run(f"CREATE TABLE {name} ({columns})")
        if rows:
            marks = ", ".join(["%s"] * len(rows[0]))
            self.run(f"INSERT INTO {name} VALUES ({marks})", rows)
        return name

    def master(self, table: str, key: str = "id", **arguments: Any) -> ss.DatabaseMaster:
        return ss.DatabaseMaster(
            self.url, table=table, key=key, credentials="SHOP", **({"page_bytes": 2048} | arguments)
        )


@contextmanager
def opened_shop(service: str) -> Iterator[Shop]:
    """The shop in a service; the environment has its user and its password."""
    uri = os.environ.get(f"SEMISTREAM_TEST_{service}")
    if uri is None:
        pytest.fail(f"{service} does not run. Run these tests with: make services-test")
    with pytest.MonkeyPatch.context() as environment:
        found = Shop(uri)
        environment.setenv("SHOP_USER", str(found.user))
        environment.setenv("SHOP_PASSWORD", found.password)
        yield found
        found.owner.close()


GOODS = "id bigint PRIMARY KEY, name varchar(40), price decimal(9, 2), stock int, note text"


def goods(count: int = 300) -> pa.Table:
    """Rows for every third key, some of them without a value."""
    ids = np.arange(count) * 3 - 90
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "name": [None if i % 7 == 0 else f'n"{i}, ü\n' for i in range(count)],
            "price": pa.array([Decimal(i).scaleb(-2) for i in range(count)], pa.decimal128(9, 2)),
            "stock": pa.array([None if i % 5 == 0 else i for i in range(count)], pa.int32()),
            "note": ["" if i % 3 == 0 else "x" * (i % 60) for i in range(count)],
        }
    )


def as_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in table.to_pylist()]
