"""Values, widths and changes that a master in a real database bears, or refuses clearly."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.errors import DatabaseError, RowRoomError
from semistream.relation.databases import seeing
from semistream.testing import rows_of
from tests.services.shop import Shop, opened_shop

POSTGRES = "postgresql"


@pytest.fixture(scope="module")
def postgres() -> Iterator[Shop]:
    with opened_shop("POSTGRES") as found:
        yield found


@pytest.fixture(scope="module")
def mariadb() -> Iterator[Shop]:
    with opened_shop("MARIADB") as found:
        yield found


@pytest.fixture(scope="module", params=["postgres", "mariadb"])
def shop(request: pytest.FixtureRequest) -> Shop:
    found: Shop = request.getfixturevalue(request.param)
    return found


def sale(*keys: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(keys, pa.int64())})


def joined(master: ss.MasterTable, *keys: int, memory: str = "2MB", **how: Any) -> list[Any]:
    with ss.engine(master, on="id", memory=memory, **how) as engine:
        found = sorted(rows_of(list(engine.run([sale(*keys)]))))
        assert engine.memory()["peak"] <= engine.memory()["budget"]
        return list(found)


def test_infinity_is_a_time_after_or_before_all_others(postgres: Shop) -> None:
    table = postgres.table(
        "id int PRIMARY KEY, d date, a timestamp, b timestamptz, c timestamp(3)", []
    )
    for number, time in enumerate(["'infinity'", "'-infinity'", "'2024-02-29'", "null"]):
        postgres.run(f"INSERT INTO {table} VALUES ({number}, {', '.join([time] * 4)})")
    utc = dt.UTC
    found = joined(postgres.master(table), 0, 1, 2, 3)
    times = [dt.datetime(9999, 12, 31), dt.datetime(1, 1, 1), dt.datetime(2024, 2, 29)]
    assert found == [
        *((n, t.date(), t, t.replace(tzinfo=utc), t) for n, t in enumerate(times)),
        (3, None, None, None, None),
    ]
    postgres.run(f"INSERT INTO {table} (id, a) VALUES (4, '294276-12-31')")
    assert joined(postgres.master(table), 4) == [(4, None, times[0], None, None)]


def test_rows_that_are_valid_until_infinity_are_found(postgres: Shop) -> None:
    columns = "id int, price int, since timestamptz, until timestamptz"
    table = postgres.table(columns, [])
    postgres.run(f"CREATE INDEX i_{table} ON {table} (id)")
    postgres.run(f"INSERT INTO {table} VALUES (1, 10, '-infinity', '2024-01-01+00')")
    postgres.run(f"INSERT INTO {table} VALUES (1, 20, '2024-01-01+00', 'infinity')")
    at = pa.array([dt.datetime(2023, 5, 5), dt.datetime(2024, 5, 5)], pa.timestamp("us", "UTC"))
    sales = pa.record_batch({"id": pa.array([1, 1], pa.int64()), "at": at})
    terms: dict[str, Any] = {"valid": ("at", "since", "until"), "columns": ["price"]}
    for algorithm in ("inlj", "meshjoin", "auto"):
        how = terms | {"memory": "2MB", "algorithm": algorithm}
        with ss.engine(postgres.master(table), on="id", **how) as engine:
            assert sorted(row[2] for row in rows_of(list(engine.run([sales])))) == [10, 20]


def test_a_zero_date_is_no_date(mariadb: Shop) -> None:
    mariadb.run("SET sql_mode = ''")
    table = mariadb.table("id int PRIMARY KEY, a date, b datetime(6), c timestamp NULL", [])
    mariadb.run(f"INSERT INTO {table} VALUES (1, 0, 0, 0), (2, '2024-01-02', '2024-01-02', NULL)")
    assert joined(mariadb.master(table), 1, 2) == [
        (1, None, None, None),
        (2, dt.date(2024, 1, 2), dt.datetime(2024, 1, 2), None),
    ]


def test_a_value_without_a_place_names_its_column_and_not_itself(shop: Shop) -> None:
    if shop.system == POSTGRES:
        table = shop.table("id int PRIMARY KEY, name text, odd numeric(9, 2)", [])
        shop.run(f"INSERT INTO {table} VALUES (1, 'a', 'NaN')")
    else:
        shop.run("SET sql_mode = ''")
        table = shop.table("id int PRIMARY KEY, name text, odd date", [])
        shop.run(f"INSERT INTO {table} VALUES (1, 'a', '2024-00-00')")
    with pytest.raises(DatabaseError, match=r"column 'odd' of .* cannot hold.* columns=") as told:
        shop.master(table)
    assert "2024-" not in str(told.value)
    assert joined(shop.master(table, columns=["name"]), 1) == [(1, "a")]


def test_a_column_that_was_changed_is_told_to_be_opened_again(shop: Shop) -> None:
    table = shop.table("id int PRIMARY KEY, n int, m int", [(1, 1, 1), (2, 2, 2)])
    master = shop.master(table)
    location = master.location
    shared = ss.MasterTable.open(location)
    change = "ALTER COLUMN n TYPE bigint" if shop.system == POSTGRES else "MODIFY n bigint"
    shop.run(f"ALTER TABLE {table} {change}")
    shop.run(f"UPDATE {table} SET n = 5000000000")
    for stale in (master, shared):
        with pytest.raises(DatabaseError, match=r"n was int32 and is int64\. Open it again"):
            joined(stale, 1)
    again = ss.MasterTable.open(location)
    assert joined(again, 1) == [(1, 5_000_000_000, 1)]
    shop.run(f"ALTER TABLE {table} DROP COLUMN m")
    with pytest.raises(DatabaseError, match=r"If the table was changed, open it again"):
        joined(again, 1)


@pytest.mark.parametrize(
    ("before", "after", "value"),
    [("date", "timestamp", "'2024-01-02 10:11:12'"), ("boolean", "int", "5"),
     ("int", "date", "'2024-01-02'"), ("timestamp", "bigint", "5")],
)  # fmt: skip
def test_a_column_of_another_type_is_never_read_as_the_old_one(
    postgres: Shop, before: str, after: str, value: str
) -> None:
    table = postgres.table(f"id int PRIMARY KEY, n {before}", [])
    postgres.run(f"INSERT INTO {table} VALUES (1, NULL)")
    master = postgres.master(table)
    postgres.run(f"ALTER TABLE {table} DROP n, ADD n {after} DEFAULT {value}")
    with pytest.raises(DatabaseError, match=r"(?i)open it again"):
        joined(master, 1)


@pytest.mark.parametrize("algorithm", ["inlj", "hybridjoin", "chybridjoin", "auto"])
def test_a_key_with_many_rows_is_read_in_lots(shop: Shop, algorithm: str) -> None:
    table = shop.table("n int PRIMARY KEY, id int, note varchar(200)", [])
    shop.run(f"CREATE INDEX i_{table} ON {table} (id)")
    rows = [(n, 7 if n < 5000 else n, "x" * 80 + str(n)) for n in range(5400)]
    values = ", ".join(str(row) for row in rows)
    shop.run(f"INSERT INTO {table} VALUES {values}")
    master = shop.master(table, page_bytes=16384)
    found = joined(master, 7, 5001, 7, 99, memory="1500KB", algorithm=algorithm)
    wanted = [(7, n, note) for n, key, note in rows if key == 7] * 2
    assert found == sorted([*wanted, (5001, 5001, rows[5001][2])])


def test_a_range_without_room_says_how_large_pages_must_be(shop: Shop) -> None:
    table = shop.table("n int PRIMARY KEY, id int, note varchar(200)", [])
    shop.run(f"CREATE INDEX i_{table} ON {table} (id)")
    values = ", ".join(f"({n}, 7, '{'x' * 80}')" for n in range(5000))
    shop.run(f"INSERT INTO {table} VALUES {values}")
    with pytest.raises(RowRoomError, match=r"the 5,000 rows of .*page_bytes=1048576,"):
        joined(shop.master(table, page_bytes=65536), 7, memory="8MB", algorithm="meshjoin")
    wide = shop.master(table, page_bytes=1048576)
    assert len(joined(wide, 7, memory="16MB", algorithm="meshjoin")) == 5000


def test_without_a_primary_key_mariadb_cannot_tell_lots_apart(mariadb: Shop) -> None:
    table = mariadb.table("id int, note varchar(200)", [])
    mariadb.run(f"CREATE INDEX i_{table} ON {table} (id)")
    values = ", ".join(f"({min(n, 5)}, '{'x' * 80}')" for n in range(2000))
    mariadb.run(f"INSERT INTO {table} VALUES {values}")
    master = mariadb.master(table, page_bytes=8192)
    assert len(joined(master, 0, 1, 2)) == 3
    with pytest.raises(RowRoomError, match="has no primary key"):
        joined(master, 5)


def test_values_are_whole_or_refused_where_a_packet_ends(mariadb: Shop) -> None:
    """Two rows have more text than a packet, and one has so alone."""
    table = mariadb.table("id int PRIMARY KEY, note longtext, raw longblob", [])
    for number, width in enumerate((2_300_000, 2_400_000)):
        mariadb.run(f"INSERT INTO {table} VALUES ({number}, REPEAT('{number}', {width}), 'z')")
    master = mariadb.master(table, page_bytes=8 << 20)
    for algorithm in ("inlj", "meshjoin", "hybridjoin", "auto"):
        found = joined(master, 0, 1, memory="200MB", algorithm=algorithm)
        assert [(row[0], len(row[1]), set(row[1])) for row in found] == [
            (0, 2_300_000, {"0"}),
            (1, 2_400_000, {"1"}),
        ]
    mariadb.run(f"INSERT INTO {table} VALUES (2, 'short', REPEAT('s3cret', 400000))")
    for algorithm in ("inlj", "meshjoin", "hybridjoin"):
        with pytest.raises(RowRoomError, match="max_allowed_packet, 4,194,304 bytes") as told:
            joined(master, 2, memory="200MB", algorithm=algorithm)
        assert len(str(told.value)) < 600
        assert "s3cret" not in str(told.value)


OPENING = """
import resource, sys
import semistream as ss
ss.DatabaseMaster(sys.argv[1], table=sys.argv[2], key="id", credentials="SHOP", columns=["n"])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
master = ss.DatabaseMaster(sys.argv[1], table=sys.argv[2], key="id", credentials="SHOP")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, master.page_count)
"""


def test_a_table_of_wide_rows_is_opened_in_little_memory(shop: Shop) -> None:
    table = shop.table(
        f"id int PRIMARY KEY, n int, note {'text' * (shop.system == POSTGRES) or 'longtext'}", []
    )
    shop.run(f"INSERT INTO {table} VALUES (0, 0, REPEAT('s3cret', 160000))")
    for bit in range(6):
        shop.run(f"INSERT INTO {table} SELECT id + {1 << bit}, n, note FROM {table}")
    done = subprocess.run(
        [sys.executable, "-c", OPENING, shop.url, table], capture_output=True, text=True, check=True
    )
    kilobytes, pages = map(int, done.stdout.split())
    assert kilobytes < 24_000  # All that is looked at would take 61,000.
    assert pages == 64
    with pytest.raises(RowRoomError, match=r"page_bytes=\d+") as told:
        joined(shop.master(table), 5)
    assert "s3cret" not in str(told.value)


def test_names_with_a_dot_are_quoted(shop: Shop) -> None:
    quote = '"' if shop.system == POSTGRES else "`"
    shop.run(f"CREATE TABLE {quote}goods.of ours{quote} (id int PRIMARY KEY, n int)")
    try:
        shop.run(f"INSERT INTO {quote}goods.of ours{quote} VALUES (1, 2)")
        for table in ('"goods.of ours"', f"{quote}goods.of ours{quote}"):
            master = shop.master(table)
            assert joined(master, 1) == [(1, 2)]
            assert joined(ss.MasterTable.open(master.location), 1) == [(1, 2)]
    finally:
        shop.run(f"DROP TABLE {quote}goods.of ours{quote}")


def test_all_floats_have_room(shop: Shop) -> None:
    """As text they take six times their bytes."""
    kind = "real" if shop.system == POSTGRES else "float"
    names = [f"f{number}" for number in range(20)]
    table = shop.table(f"id int PRIMARY KEY, {', '.join(f'{name} {kind}' for name in names)}", [])
    values = np.random.default_rng(3).random((40, 20)).astype(np.float32)
    rows = ", ".join(
        f"({number}, {', '.join(map(repr, row))})" for number, row in enumerate(values.tolist())
    )
    shop.run(f"INSERT INTO {table} VALUES {rows}")
    master, keys = shop.master(table), np.arange(40)
    wanted = master.rows_among(keys, 1 << 20)
    assert rows_of(wanted) == [(n, *row) for n, row in enumerate(values.tolist())]
    assert master.rows_among(keys, wanted.nbytes).equals(wanted)


def test_a_moment_is_shared_as_long_as_it_is_held(postgres: Shop) -> None:
    table = postgres.table("id int PRIMARY KEY, n int", [(1, 1)])
    master = postgres.master(table)
    with master.shared() as moment:
        assert moment is not None
        postgres.run(f"UPDATE {table} SET n = 2")
        for _ in range(2):
            with seeing({master.location: moment}):
                assert joined(master, 1) == [(1, 1)]
            assert joined(master, 1) == [(1, 2)]
    with (
        seeing({master.location: moment}),
        pytest.raises(DatabaseError, match=r"that all tasks .* share in .* is gone: .*start again"),
    ):
        joined(master, 1)
    assert joined(master, 1) == [(1, 2)]


def test_mariadb_shares_no_moment(mariadb: Shop) -> None:
    master = mariadb.master(mariadb.table("id int PRIMARY KEY, n int", [(1, 1)]))
    with master.shared() as moment:
        assert moment is None
