"""Masters that stay in a real PostgreSQL or MariaDB: joins, changes, errors, secrets."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import semistream as ss
from semistream.cli import app
from semistream.errors import DatabaseError, KeyColumnError, KeyTypeError, OptionError
from semistream.testing import assert_same_rows, checked_run, oracle_join, rows_of
from tests.services.shop import GOODS, SECRETS, Shop, as_rows, goods, opened_shop


@pytest.fixture(scope="module", params=["POSTGRES", "MARIADB"])
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    with opened_shop(request.param) as found:
        yield found


def stream(count: int = 600, seed: int = 5) -> list[pa.RecordBatch]:
    """Keys that are there, that are not, at both ends, and null."""
    rng = np.random.default_rng(seed)
    keys = rng.integers(-120, 900, count)
    keys[rng.integers(0, count, count // 3)] = rng.integers(0, 9, count // 3)
    keys[:2] = [-(2**63), 2**63 - 1]
    ids = pa.array(keys, pa.int64(), mask=rng.random(count) < 0.05)
    whole = pa.record_batch({"id": ids, "sale": pa.array(np.arange(count))})
    return [whole.slice(at, 200) for at in range(0, count, 200)]


def sale(*keys: int | None) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(keys, pa.int64())})


@pytest.fixture(scope="module")
def filled(shop: Shop) -> str:
    return shop.table(GOODS, as_rows(goods()))


@pytest.mark.parametrize("algorithm", [*ss.ALGORITHMS, "auto"])
def test_every_algorithm_gives_what_the_oracle_gives(
    shop: Shop, filled: str, algorithm: str
) -> None:
    master = shop.master(filled)
    assert master.page_count > 10
    expected = oracle_join(stream(), goods(), on="id", how="left")
    for memory in ("300KB", "2MB"):
        with ss.engine(master, on="id", how="left", memory=memory, algorithm=algorithm) as engine:
            for _ in range(2):  # The second run begins with what the first has learned.
                assert_same_rows(checked_run(engine, stream()), expected.rows)
                told = engine.metrics()
                assert (told.joined, told.unmatched) == (expected.joined, expected.unmatched)
                assert engine.memory()["peak"] <= engine.memory()["budget"]
    master.close()


def test_look_ups_ask_for_many_keys_in_a_round_trip(shop: Shop, filled: str) -> None:
    master = shop.master(filled)
    for algorithm in ("inlj", "hybridjoin", "chybridjoin", "auto"):
        with ss.engine(master, on="id", memory="4MB", algorithm=algorithm) as engine:
            list(engine.run(stream()))
            assert engine.metrics().partitions_read <= 6


@pytest.mark.parametrize("algorithm", ["inlj", "meshjoin", "hybridjoin", "chybridjoin"])
def test_a_run_sees_one_moment_and_the_next_run_another(shop: Shop, algorithm: str) -> None:
    before = goods(80)
    table = shop.table(GOODS, as_rows(before))
    master = shop.master(table)
    sales = stream(400)
    pieces = [sales[0], sales[0].slice(0, 0), *sales[1:]]

    def changing() -> Iterator[pa.RecordBatch]:
        """The table is changed after the first tuples were joined."""
        for number, batch in enumerate(pieces):
            yield batch
            if number == 1:
                shop.run(f"UPDATE {table} SET stock = -5")
                shop.run(f"DELETE FROM {table} WHERE id < 30")
                shop.run(f"INSERT INTO {table} VALUES (10, 'new', 1, 1, 'y')")

    after = oracle_join(sales, before, on="id", how="left")
    with ss.engine(master, on="id", how="left", memory="600KB", algorithm=algorithm) as engine:
        assert_same_rows(list(engine.run(changing())), after.rows)
        now = pa.Table.from_pylist(
            [{**row, "stock": -5} for row in before.to_pylist() if row["id"] >= 30]
            + [{"id": 10, "name": "new", "price": Decimal("1.00"), "stock": 1, "note": "y"}],
            schema=before.schema,
        )
        expected = oracle_join(sales, now, on="id", how="left")
        assert_same_rows(list(engine.run(sales)), expected.rows)


def test_rounds_of_a_join_on_terms_and_a_star_see_one_moment(shop: Shop) -> None:
    table = shop.table(GOODS, as_rows(goods(80)))
    master = shop.master(table)
    sales = stream(400)

    def changing() -> Iterator[pa.RecordBatch]:
        for batch in sales:
            yield batch
            yield batch.slice(0, 0)
            shop.run(f"UPDATE {table} SET stock = stock + 1000")

    semi = oracle_join(sales, goods(80), on="id", how="inner")
    with ss.engine(master, on="id", how="semi", where="stock < 900", memory="1MB") as engine:
        found = rows_of(list(engine.run(changing())))
    assert len(found) == sum(row[4] is not None for row in semi.rows)
    shop.run(f"UPDATE {table} SET stock = stock - 1000 * (stock / 1000)")
    lookups = [
        ss.Lookup(master, on="id", how="left", columns=["stock"], name="one"),
        ss.Lookup(master, on="id", how="left", columns=["stock"], prefix="other_"),
    ]
    with ss.star_engine(lookups, memory="4MB") as star:
        for row in rows_of(list(star.run(changing()))):
            assert row[2] == row[3]


def test_a_join_on_a_condition_scans_the_table_at_each_new_moment(shop: Shop) -> None:
    table = shop.table(GOODS, as_rows(goods(80)))
    sales = pa.record_batch({"wanted": pa.array([0, 3, 79], pa.int64())})
    with ss.engine(shop.master(table), on=ss.at_most("wanted", "stock"), memory="2MB") as engine:
        for more in (0, 1):
            stocks = [None if i % 5 == 0 else i + more for i in range(80)]
            found = [(row[0], row[4]) for row in rows_of(list(engine.run([sales])))]
            wanted = [(w, s) for w in (0, 3, 79) for s in stocks if s is not None and w <= s]
            assert sorted(found) == sorted(wanted)
            shop.run(f"UPDATE {table} SET stock = stock + 1")


def test_pages_that_grew_are_divided_anew_by_the_next_run(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = shop.table(GOODS, as_rows(goods(40)))
    master = shop.master(table, page_bytes=4096)
    pages = master.page_count
    with ss.engine(master, on="id", memory="600KB", algorithm="meshjoin") as engine:
        added = [(10_000 + i, "late", 1, 1, "z" * 40) for i in range(400)]
        shop.run(f"INSERT INTO {table} VALUES (%s, %s, %s, %s, %s)", added)
        monkeypatch.setattr("semistream.relation.databases.master._DIVISION_SHARE", 1e12)
        with pytest.raises(
            DatabaseError, match=r"440 rows .* than there is room for.* run it again"
        ):
            list(engine.run([sale(10_399)]))
        found = rows_of(list(engine.run([sale(10_399)])))
        assert found == [(10_399, "late", Decimal("1.00"), 1, "z" * 40)]
        assert master.page_count > pages


def test_a_row_wider_than_a_page_is_refused_with_what_to_do(shop: Shop) -> None:
    table = shop.table(GOODS, [*as_rows(goods(40)), (5000, "wide", 1, 1, "w" * 9000)])
    master = shop.master(table)
    for algorithm in ("inlj", "meshjoin", "hybridjoin"):
        with (
            ss.engine(master, on="id", memory="4MB", algorithm=algorithm) as engine,
            pytest.raises(
                DatabaseError,
                match=r"page_bytes=\d+, or more if rows are wider there, or",
            ),
        ):
            list(engine.run([sale(5000)]))
    narrow = shop.master(table, columns=["name"])
    with ss.engine(narrow, on="id", memory="4MB") as engine:
        assert rows_of(list(engine.run([sale(5000)]))) == [(5000, "wide")]


@pytest.mark.parametrize("algorithm", ["inlj", "hybridjoin", "chybridjoin"])
def test_rows_far_wider_than_others_are_asked_for_in_smaller_lots(
    shop: Shop, algorithm: str
) -> None:
    wide = [(5000 + i, "wide", 1, 1, "w" * 3000) for i in range(60)]
    table = shop.table(GOODS, [*as_rows(goods(1500)), *wide])
    master = shop.master(table, page_bytes=8192)
    with ss.engine(master, on="id", memory="2MB", algorithm=algorithm) as engine:
        found = rows_of(list(engine.run([sale(*range(5000, 5060))])))
    assert sorted(found) == [(i, name, Decimal("1.00"), 1, note) for i, name, _, _, note in wide]


def test_empty_tables_null_keys_and_several_rows_of_a_key(shop: Shop) -> None:
    empty = shop.table("id int PRIMARY KEY, name varchar(9)", [])
    master = shop.master(empty)
    sales = [sale(1, 2, None)]
    for algorithm in ("inlj", "meshjoin", "hybridjoin", "auto"):
        with ss.engine(master, on="id", how="left", memory="1MB", algorithm=algorithm) as engine:
            assert_same_rows(list(engine.run(sales)), [(1, None), (2, None), (None, None)])
    shop.run(f"INSERT INTO {empty} VALUES (2, 'late')")
    with ss.engine(master, on="id", memory="1MB") as engine:
        assert rows_of(list(engine.run(sales))) == [(2, "late")]
    several = shop.table(
        "id smallint, name varchar(9)", [(1, "a"), (1, "b"), (None, "c"), (2, "d")]
    )
    shop.run(f"CREATE INDEX i_{several} ON {several} (id)")
    master = shop.master(several)
    for algorithm in (*ss.ALGORITHMS, "auto"):
        with ss.engine(master, on="id", memory="1MB", algorithm=algorithm) as engine:
            assert_same_rows(list(engine.run(sales)), [(1, "a"), (1, "b"), (2, "d")])


def test_what_types_become(shop: Shop) -> None:
    if shop.system == "postgresql":
        columns = (
            "id int PRIMARY KEY, a real, b double precision, c boolean, d bytea, e date, "
            "f timestamp, g timestamptz, h uuid, i numeric, j jsonb, k int[], l bigint"
        )
        row = (
            "1, 0.1, 0.1, true, '\\x00ff', '2024-02-29', '2024-02-29 01:02:03.000004', "
            "'2024-02-29 01:02:03+02', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 1.50, "
            """'{"x": 1}', '{1,2}', -9223372036854775808"""
        )
        wanted = ["float", "double", "bool", "binary", "date32[day]", "timestamp[us]"]
        wanted += ["timestamp[us, tz=UTC]", *["string"] * 4, "int64"]
    else:
        columns = (
            "id int PRIMARY KEY, a float, b double, c tinyint(1), d varbinary(9), e date, "
            "f datetime(6), g timestamp, h time, i decimal(40, 1), j json, k enum('p', 'q'), "
            "l bigint, m bigint unsigned, n bit(3), o year"
        )
        row = (
            "1, 0.1, 0.1, 1, x'00ff', '2024-02-29', '2024-02-29 01:02:03.000004', "
            "'2024-02-29 01:02:03', '-30:00:00', 1.5, '{\"x\": 1}', 'q', -9223372036854775808, "
            "18446744073709551615, b'101', 2024"
        )
        wanted = ["float", "double", "int32", "binary", "date32[day]", "timestamp[us]"]
        wanted += ["timestamp[us, tz=UTC]", *["string"] * 4, "int64", "uint64", "uint64", "int32"]
    table = shop.table(columns, [])
    shop.run(f"INSERT INTO {table} VALUES ({row})")
    shop.run(f"INSERT INTO {table} (id) VALUES (2)")
    master = shop.master(table)
    assert [str(kind) for kind in master.schema.types[1:]] == wanted
    with ss.engine(master, on="id", memory="1MB", algorithm="inlj") as engine:
        first, second = sorted(rows_of(list(engine.run([sale(1, 2)]))))
    assert second[1:7] == (None,) * 6
    assert first[1] == pytest.approx(0.1)
    assert first[2] == 0.1
    assert first[4] == b"\x00\xff"
    assert first[12] == -(2**63)


def test_integer_keys_only_and_an_index_are_asked_for(shop: Shop) -> None:
    table = shop.table("id int, name varchar(9), other int", [(1, "a", 1)])
    with pytest.raises(DatabaseError, match="has no index on 'id'"):
        shop.master(table)
    with pytest.raises(KeyTypeError, match="has no integers"):
        shop.master(table, key="name")
    with pytest.raises(KeyColumnError, match=r"has no column 'nope'. It has id, name, other."):
        shop.master(table, key="nope")
    with pytest.raises(DatabaseError, match="has no table 'nope'"):
        shop.master("nope")
    with pytest.raises(OptionError, match="one key column, of integers"):
        shop.master(table, key=["id", "name"])  # type: ignore[arg-type]


def test_a_table_that_lost_its_index_or_is_gone(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = shop.table("id int, name varchar(9)", [(1, "a")])
    shop.run(f"CREATE INDEX i_{table} ON {table} (id)")
    master = shop.master(table)
    monkeypatch.setattr("semistream.relation.databases.master._DIVISION_SHARE", -1)
    lost = {
        f"DROP INDEX i_{table}" + ("" if shop.system == "postgresql" else f" ON {table}"): (
            "has no index on 'id'"
        ),
        f"DROP TABLE {table}": "has no index|cannot be read",
    }
    with ss.engine(master, on="id", memory="1MB") as engine:
        assert len(rows_of(list(engine.run([sale(1)])))) == 1
        for change, message in lost.items():
            shop.run(change)
            with pytest.raises(DatabaseError, match=message) as told:
                list(engine.run([sale(1)]))
            assert "\n" not in str(told.value)


def test_keys_of_64_bits_without_a_sign(shop: Shop) -> None:
    if shop.system == "postgresql":
        return  # It has no such type.
    table = shop.table(
        "id bigint unsigned PRIMARY KEY, name varchar(9)", [(0, "a"), (2**63 - 1, "b")]
    )
    with ss.engine(shop.master(table), on="id", memory="1MB", algorithm="meshjoin") as engine:
        assert len(rows_of(list(engine.run([sale(0, 2**63 - 1)])))) == 2
    shop.run(f"INSERT INTO {table} VALUES (9223372036854775808, 'c')")
    with pytest.raises(KeyTypeError, match="more than 64 bits with a sign hold"):
        shop.master(table)


def test_a_lost_connection_ends_the_run_and_the_next_one_works(shop: Shop) -> None:
    table = shop.table(GOODS, as_rows(goods(40)))
    master = shop.master(table)

    def cut() -> None:
        if shop.system == "postgresql":
            shop.run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'semistream'"
            )
            return
        for (number,) in shop.run(
            "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() "
            "AND user = 'shop'"
        ):
            shop.run(f"KILL {number}")

    def cutting() -> Iterator[pa.RecordBatch]:
        for batch in stream():
            yield batch
            yield batch.slice(0, 0)
            cut()

    expected = oracle_join(stream(), goods(40), on="id")
    with ss.engine(master, on="id", memory="1MB", algorithm="hybridjoin") as engine:
        with pytest.raises(DatabaseError, match=r"connection to .* was lost .*run it again"):
            list(engine.run(cutting()))
        assert_same_rows(list(engine.run(stream())), expected.rows)
        cut()  # Between two runs nothing is lost.
        assert_same_rows(list(engine.run(stream())), expected.rows)


def test_refused_credentials_and_servers_that_are_down(
    shop: Shop, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "wrong-one")
    with pytest.raises(DatabaseError, match="set SHOP_USER and SHOP_PASSWORD") as told:
        shop.master(filled)
    assert "wrong-one" not in str(told.value)
    assert told.value.__cause__ is None
    assert told.value.__suppress_context__
    with pytest.raises(DatabaseError, match="does not answer"):
        ss.DatabaseMaster(f"{shop.system}://127.0.0.1:1/shop", table="t", key="id")
    monkeypatch.setenv("SHOP_PASSWORD", shop.password)
    shop.url, url = shop.url.replace("/shop", "/nowhere"), shop.url
    try:
        with pytest.raises(DatabaseError, match="There is no such database"):
            shop.master(filled)
    finally:
        shop.url = url


def test_no_secret_is_in_what_is_shown_or_shipped(shop: Shop, filled: str) -> None:
    master = shop.master(filled)
    shipped = pickle.dumps(master)
    engine = ss.engine(master, on="id", memory="1MB")
    list(engine.run(stream()))
    assert engine.plan is not None
    shown = [repr(master), master.describe(), str(master.path), master.location, repr(engine)]
    shown += [engine.plan.explain(), shipped.decode("latin-1"), repr(vars(master))]
    for text in shown:
        assert not any(secret in text for secret in SECRETS), text
    again = pickle.loads(shipped)
    assert again.schema.equals(master.schema)
    assert ss.MasterTable.open(master.location) is again


def test_the_command_describes_it(shop: Shop, filled: str) -> None:
    master = shop.master(filled)
    done = CliRunner().invoke(app, ["master", "describe", master.location])
    assert done.exit_code == 0, done.output
    assert done.stdout == master.describe() + "\n"


def test_what_only_files_can_do_is_refused(shop: Shop, filled: str) -> None:
    master = shop.master(filled)
    for refused in (
        master.compact,
        master.history,
        master.vacuum,
        lambda: master.upsert(goods(1)),
        lambda: master.delete([1]),
        lambda: master.cached("/tmp", "1GB"),
        lambda: master.sync(None),
        lambda: ss.plan(master, memory="1MB"),
        lambda: ss.engine(master, on="id", memory="1MB", retune=True),
    ):
        with pytest.raises(OptionError, match="database"):
            refused()
