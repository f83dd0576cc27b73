"""Rows of batches in real databases: once, as they were, through kills and restarts."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pyarrow as pa
import pymysql
import pytest
from pyspark.sql import DataFrame

import semistream as ss
from semistream.errors import OptionError, SinkError
from tests.services.conftest import where
from tests.services.databases import PASSWORD, USER, Postgres

Query = Callable[[str], list[tuple[Any, ...]]]

ROWS = pa.table(
    {
        "n": pa.array([1, 2, None], pa.int64()),
        "word": ['it\'s \\ "q",\n\t€', "", None],
        "price": pa.array([Decimal("1.50"), None, Decimal("-0.01")], pa.decimal128(10, 2)),
        "share": [0.1, None, 1e300],
        "is_new": [True, False, None],
        "day": [dt.date(2026, 2, 28), None, dt.date(1969, 12, 31)],
        "at": pa.array(
            [dt.datetime(2026, 1, 2, 3, 4, 5, 678901), None, None], pa.timestamp("us", "UTC")
        ),
        "raw": [b"\x00\xff'", b"", None],
    }
)
COLUMNS = {
    "postgresql": "n int, word text, price numeric(10,2), share float8, is_new boolean, day date, "
    '"at" timestamp, raw bytea, seen timestamptz default now()',
    "mysql": "n int, word text, price decimal(10,2), share double, is_new boolean, day date, "
    "`at` datetime(6), raw blob, seen timestamp default now()",
}


def postgres(uri: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(uri, autocommit=True) as connection:
        done = connection.execute(query)
        return done.fetchall() if done.description else []


def mariadb(uri: str, query: str) -> list[tuple[Any, ...]]:
    parts = urlsplit(uri)
    connection = pymysql.connect(
        host=str(parts.hostname),
        port=int(parts.port or 0),
        user=USER,
        password=PASSWORD,
        database=parts.path[1:],
        autocommit=True,
    )
    with connection, connection.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())


@pytest.fixture(params=["POSTGRES", "MARIADB"])
def asked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Query]:
    """A URL without the password, and a way to ask the database that is not ours."""
    uri = where(request.param)
    parts = urlsplit(uri)
    monkeypatch.setenv("SHOP_PASSWORD", PASSWORD)
    url = f"{parts.scheme}://{USER}:${{SHOP_PASSWORD}}@{parts.hostname}:{parts.port}{parts.path}"
    ask = postgres if request.param == "POSTGRES" else mariadb
    return url, lambda query: ask(uri, query)


def fresh(asked: tuple[str, Query], table: str, columns: str = "n int") -> ss.DatabaseSink:
    asked[1](f"DROP TABLE IF EXISTS {table}")
    asked[1](f"CREATE TABLE {table} ({columns})")
    return ss.DatabaseSink(table, asked[0], patience="2s")


def writer() -> str:
    return f"{uuid4()}/sink"


def numbers(*given: int) -> Callable[[], Iterator[pa.RecordBatch]]:
    return lambda: iter([pa.record_batch({"n": pa.array([one], pa.int64())}) for one in given])


def test_rows_of_very_different_widths_go_in(asked: tuple[str, Query]) -> None:
    """A statement has about a megabyte of them, however wide each is."""
    sink = fresh(asked, "widths", f"word {'text' if 'postgres' in asked[0] else 'longtext'}")
    words = ["y"] * 40_000 + ["z" * 900_000] * 20
    sink.load(lambda: [pa.record_batch({"word": words})], 0, writer())
    assert asked[1]("SELECT count(*), sum(length(word)) FROM widths") == [(40_020, 18_040_000)]


def test_times_without_a_zone_are_utc_whatever_the_users_is(asked: tuple[str, Query]) -> None:
    is_postgres = "postgres" in asked[0]
    sink = fresh(asked, "zones", f"seen {'timestamptz' if is_postgres else 'timestamp'}")
    if is_postgres:
        asked[1]("ALTER ROLE CURRENT_USER SET timezone = 'Asia/Tokyo'")
    noon = pa.array([dt.datetime(2026, 1, 2, 12)], pa.timestamp("us"))
    try:
        sink.load(lambda: [pa.record_batch({"seen": noon})], 0, writer())
    finally:
        if is_postgres:
            asked[1]("ALTER ROLE CURRENT_USER RESET timezone")
    at = "extract(hour from seen at time zone 'UTC')" if is_postgres else "hour(seen)"
    zone = "" if is_postgres else "SET STATEMENT time_zone = '+00:00' FOR "
    assert int(asked[1](f"{zone}SELECT {at} FROM zones")[0][0]) == 12


def test_every_type_is_there_as_it_was(asked: tuple[str, Query]) -> None:
    sink = fresh(asked, "types", COLUMNS[asked[0].partition(":")[0]])
    sink.check(ROWS.schema.names)
    sink.load(ROWS.to_batches, 0, writer())
    names = [
        n if n != "at" else ('"at"' if "postgres" in asked[0] else "`at`")
        for n in ROWS.schema.names
    ]
    found = asked[1](f"SELECT {', '.join(names)} FROM types ORDER BY coalesce(n, 9)")
    plain = ROWS.set_column(6, "at", ROWS["at"].cast(pa.timestamp("us")))
    expected = [tuple(row.values()) for row in plain.to_pylist()]
    assert [tuple(map(bytes_of, row)) for row in found] == expected


TIME = dt.datetime(2026, 1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("n int", pa.array([1.7]), "double in n, but the table has int"),
        (
            "n bigint",
            pa.array([Decimal("1.7")]),
            r"decimal128\(2, 1\) in n, but the table has bigint",
        ),
        ("n date", pa.array([TIME], pa.timestamp("us")), r"timestamp\[us\] in n, but .* has date"),
        ("n time", pa.array([TIME], pa.timestamp("us")), r"timestamp\[us\] in n, but .* has time"),
        ("n double precision", pa.array([2**53 + 1]), "int64 in n, but the table has double"),
        ("n real", pa.array([2**24 + 1]), "int64 in n, but the table has (real|double)"),
        ("n double precision", pa.array([0.1]), None),
        ("n int", pa.array([5], pa.int64()), None),
        ("n int", pa.array([Decimal(5)], pa.decimal128(10, 0)), None),
        ("n int", pa.array([None], pa.int64()), None),
    ],
)
def test_what_a_column_would_round_is_refused_before_it_is_written(
    asked: tuple[str, Query], column: str, values: pa.Array, said: str | None
) -> None:
    sink = fresh(asked, "whole", column)
    if said is None:
        sink.load(lambda: [pa.record_batch({"n": values})], 0, writer())
        assert asked[1]("SELECT n FROM whole") == [tuple(values.to_pylist())]
        return
    with pytest.raises(SinkError, match=rf"{said}.* Cast it in a step, or change the column"):
        sink.load(lambda: [pa.record_batch({"n": values})], 0, writer())
    assert asked[1]("SELECT n FROM whole") == []


def test_what_mariadb_rounds_or_lacks_is_refused(asked: tuple[str, Query]) -> None:
    is_postgres = "postgres" in asked[0]
    sink = fresh(asked, "numbers", "n int, x double precision")
    some = pa.record_batch({"n": pa.array([1, 2, 3]), "x": [1.0, float("nan"), float("-inf")]})
    text = pa.record_batch({"n": ["1.7"]})
    if is_postgres:
        sink.load(lambda: [some], 0, writer())
        found = asked[1]("SELECT x FROM numbers ORDER BY n")
        assert str(found) == "[(1.0,), (nan,), (-inf,)]"
        with pytest.raises(SinkError, match="has refused rows"):
            sink.load(lambda: [text], 0, writer())
        return
    with pytest.raises(SinkError, match="NaN or an infinity in x, and MariaDB has neither"):
        sink.load(lambda: [some], 0, writer())
    with pytest.raises(SinkError, match="string in n, but the table has int"):
        sink.load(lambda: [text], 0, writer())
    assert asked[1]("SELECT n FROM numbers") == []


def test_a_table_whose_name_has_a_dot(asked: tuple[str, Query]) -> None:
    quote = '"' if "postgres" in asked[0] else "`"
    sink = fresh(asked, f"{quote}sales.of us{quote}")
    for name in (sink.table, '"sales.of us"'):
        ss.DatabaseSink(name, asked[0]).load(numbers(1), 0, writer())
    assert asked[1](f"SELECT n FROM {sink.table}") == [(1,), (1,)]


def bytes_of(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview) else value


def test_a_batch_is_written_once_and_each_writer_has_its_own(asked: tuple[str, Query]) -> None:
    sink = fresh(asked, "once")
    for name in (writer(), writer()):
        for batch, rows in ((0, numbers(1)), (0, numbers(1))):
            sink.load(rows, batch, name)
        # As the rows of any other sink come.
        frame = SimpleNamespace(toArrow=lambda: pa.table({"n": [2, 3]}))
        sink.write(cast(DataFrame, frame), 1, name)
    assert sorted(asked[1]("SELECT n FROM once")) == [(1,), (1,), (2,), (2,), (3,), (3,)]


def test_a_batch_that_fails_leaves_nothing_and_can_run_again(asked: tuple[str, Query]) -> None:
    sink = fresh(asked, "strict", "n int CHECK (n < 5)")
    with pytest.raises(SinkError, match="has refused rows for strict") as refused:
        sink.load(numbers(1, 2, 7), 0, writer())
    assert PASSWORD not in str(refused.value)
    assert "\n" not in str(refused.value)
    assert asked[1]("SELECT n FROM strict") == []
    sink.load(numbers(1, 2), 0, writer())
    assert len(asked[1]("SELECT n FROM strict")) == 2


@pytest.mark.parametrize("asked", ["POSTGRES"], indirect=True)
def test_two_processes_may_both_be_the_first(
    asked: tuple[str, Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second looks for the writer's line before the first has committed it."""
    sink, name, looked = fresh(asked, "first"), writer(), threading.Event()
    last = ss.DatabaseSink._last

    def look(*arguments: Any) -> int | None:
        found = last(*arguments)
        if threading.current_thread() is second:
            looked.set()
        return found

    def rows() -> Iterator[pa.RecordBatch]:
        second.start()
        assert looked.wait(20)
        yield from numbers(1)()

    errors: list[BaseException] = []

    def load_too() -> None:
        try:
            sink.load(numbers(1), 0, name)
        except BaseException as error:
            errors.append(error)

    second = threading.Thread(target=load_too)
    monkeypatch.setattr(ss.DatabaseSink, "_last", look)
    sink.load(rows, 0, name)
    second.join()
    assert errors == []
    assert asked[1]("SELECT n FROM first") == [(1,)]


def test_two_processes_that_write_one_batch_write_it_once(asked: tuple[str, Query]) -> None:
    sink = fresh(asked, "race")
    name = writer()
    sink.load(numbers(0), 0, name)
    begun, errors = threading.Barrier(3), []

    def slow() -> Iterator[pa.RecordBatch]:
        yield from numbers(1)()
        begun.wait(20)
        yield from numbers(2)()

    def load(rows: Callable[[], Iterator[pa.RecordBatch]]) -> None:
        try:
            sink.load(rows, 1, name)
        except BaseException as error:
            errors.append(error)

    first = threading.Thread(target=load, args=[slow])

    def load_too() -> None:
        begun.wait(20)
        load(numbers(1, 2))

    second = threading.Thread(target=load_too)
    first.start()
    second.start()
    begun.wait(20)
    first.join()
    second.join()
    assert errors == []
    assert sorted(asked[1]("SELECT n FROM race")) == [(0,), (1,), (2,)]


@pytest.mark.parametrize(("point", "kept"), [("database.rows", 0), ("database.committed", 2)])
def test_a_kill_leaves_the_whole_batch_or_nothing(
    asked: tuple[str, Query], point: str, kept: int
) -> None:
    sink = fresh(asked, "killed")
    name = writer()
    script = (
        "import pyarrow as pa, semistream as ss\n"
        "rows = lambda: [pa.record_batch({'n': pa.array([n], pa.int64())}) for n in (1, 2)]\n"
        f"ss.DatabaseSink('killed', {asked[0]!r}).load(rows, 0, {name!r})\n"
    )
    environment = os.environ | {"SEMISTREAM_CRASH_AT": point}
    done = subprocess.run([sys.executable, "-c", script], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(asked[1]("SELECT n FROM killed")) == kept
    sink.load(numbers(1, 2), 0, name)
    assert sorted(asked[1]("SELECT n FROM killed")) == [(1,), (2,)]


def test_what_is_wrong_is_said_before_a_batch_runs(
    asked: tuple[str, Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = asked[0]
    fresh(asked, "narrow")
    mistakes: Sequence[tuple[str, str, str]] = [
        ("nowhere", url, "There is no table nowhere in .* Make it, with the columns n, price"),
        ("narrow", url, "has no column price; it has n. Add the column"),
        ("narrow", url.replace("SHOP_PASSWORD", "LACKING"), "no variable LACKING. Set it"),
        ("narrow", url.replace("${SHOP_PASSWORD}", "open"), "is given with a password. Keep it"),
        ("narrow", url.partition(":")[0] + "://127.0.0.1:1/shop", "does not take a connection"),
        ("narrow", "oracle://host/shop", "names no database"),
    ]
    for table, wrong, said in mistakes:
        with pytest.raises((SinkError, OptionError), match=said):
            ss.DatabaseSink(table, wrong).check(["n", "price"])
    if "mysql" in url:
        asked[1]("ALTER TABLE narrow ENGINE = MyISAM")
        with pytest.raises(SinkError, match="has no transactions"):
            ss.DatabaseSink("narrow", url).check(["n"])
        # In a schema of its own: other tests need theirs.
        asked[1]("CREATE DATABASE plain")
        asked[1]("CREATE TABLE plain.narrow (n int) ENGINE = InnoDB")
        columns = "writer varchar(200) NOT NULL PRIMARY KEY, batch bigint NOT NULL"
        asked[1](f"CREATE TABLE plain.semistream_batches ({columns}) ENGINE = MyISAM")
        with pytest.raises(SinkError, match=r"semistream_batches in .* has no transactions"):
            ss.DatabaseSink("plain.narrow", url).check(["n"])
    monkeypatch.setenv("SHOP_PASSWORD", "another secret")
    with pytest.raises(SinkError) as refused:
        ss.DatabaseSink("narrow", url).check(["n"])
    assert "assword" in str(refused.value)
    assert "another secret" not in str(refused.value) + repr(refused.value.__cause__)
    assert len(str(refused.value).splitlines()) == 1


def test_a_restart_of_postgresql_in_the_middle_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    # Not pytest's folder: the server runs as another user, who could not enter that.
    folder = Path(tempfile.mkdtemp(prefix="semistream-services-"))
    folder.chmod(0o755)
    server = Postgres(folder)
    server.start()
    try:
        uri = server.environment()["SEMISTREAM_TEST_POSTGRES"]
        monkeypatch.setenv("SHOP_DATABASE", uri)
        sink = ss.DatabaseSink("sales", "${SHOP_DATABASE}", patience="60s")
        postgres(uri, "CREATE TABLE sales (n int)")
        sink.load(numbers(1), 0, "a/sink")
        restarts = 0

        def rows() -> Iterator[pa.RecordBatch]:
            nonlocal restarts
            yield from numbers(2)()
            if not restarts:
                restarts += 1
                server.kill()
                threading.Timer(2, server.start).start()
            yield from numbers(3)()

        sink.load(rows, 1, "a/sink")
        assert sorted(postgres(uri, "SELECT n FROM sales")) == [(1,), (2,), (3,)]
        server.kill()
        impatient = ss.DatabaseSink("sales", "${SHOP_DATABASE}", patience="1s")
        with pytest.raises(SinkError, match="nothing is lost: see to server, user and password"):
            impatient.load(numbers(4), 2, "a/sink")
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
