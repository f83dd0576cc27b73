"""A master in a database: many keys in a round trip, beside one query per tuple.

    python -m tests.services run --only postgres --only mariadb -- \
        python benchmarks/database.py [--rows 100000] [--tuples 50000] …

The servers run on loopback. The ways take turns in one process, a task of so many tuples each; a
task sees a moment of its own, so what its engine has learned are keys, not rows:

    one by one      a query for each tuple, with the driver that people use (psycopg, PyMySQL)
    inlj, …         semistream's algorithms on the same table

"skewed" streams are Zipf's with exponent 1. In a "uniform" one hardly any key comes twice: what is
gained there is gained by round trips alone. A rate is that of the best turn. Writes a JSON line for
each way, with what a tuple took in each turn, to benchmarks/results/database.jsonl.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg
import pyarrow as pa
import pymysql

import semistream as ss
from results import machine, write_results
from semistream.workload import ZipfKeys, products, sales

RESULTS = Path(__file__).parent / "results"
SEED = 5
TABLE = "bench_products"
TYPES = {"int64": "bigint", "int32": "int", "string": "varchar(80)", "double": "double precision"}
ALGORITHMS = ("inlj", "hybridjoin", "meshjoin", "auto")


def connected(uri: str) -> Any:
    """A connection of the usual driver."""
    place = urlsplit(uri)
    if place.scheme == "postgresql":
        return psycopg.connect(uri, autocommit=True)
    return pymysql.connect(
        host=place.hostname,
        port=place.port or 3306,
        user=place.username,
        password=unquote(place.password or ""),
        database=place.path.strip("/"),
        autocommit=True,
    )


def filled(uri: str, table: pa.Table) -> None:
    """Make the table anew, with these rows."""
    columns = ", ".join(
        f"{field.name} {TYPES.get(str(field.type), 'varchar(200)')}"
        + (" PRIMARY KEY" if field.name == "product_id" else "")
        for field in table.schema
    )
    rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    with connected(uri) as connection, connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS {TABLE}")
        cursor.execute(f"CREATE TABLE {TABLE} ({columns})")
        if uri.startswith("postgresql"):
            with cursor.copy(f"COPY {TABLE} FROM STDIN") as copying:
                for row in rows:
                    copying.write_row(row)
            cursor.execute(f"VACUUM ANALYZE {TABLE}")
        else:
            marks = ", ".join(["%s"] * len(table.columns))
            for at in range(0, len(rows), 10_000):
                some = rows[at : at + 10_000]
                cursor.executemany(f"INSERT INTO {TABLE} VALUES ({marks})", some)


def one_by_one(uri: str) -> Callable[[list[pa.RecordBatch]], int]:
    """A query for each tuple; psycopg prepares it."""
    connection = connected(uri)

    def run(stream: list[pa.RecordBatch]) -> int:
        count = 0
        with connection.cursor() as cursor:
            for batch in stream:
                for key in batch.column("product_id").to_pylist():
                    cursor.execute(f"SELECT * FROM {TABLE} WHERE product_id = %s", (key,))
                    cursor.fetchall()
                    count += 1
        return count

    return run


def joined(master: ss.MasterTable, memory: str, algorithm: str) -> Callable[..., int]:
    """The same as a join, with an engine that stays."""
    engine = ss.engine(master, on="product_id", how="left", memory=memory, algorithm=algorithm)
    return lambda stream: sum(batch.num_rows for batch in engine.run(iter(stream)))


def measured(uri: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    """The rates of all ways on one database."""
    place = urlsplit(uri)
    os.environ["BENCH_USER"] = place.username or ""
    os.environ["BENCH_PASSWORD"] = unquote(place.password or "")
    url = f"{place.scheme}://{place.hostname}:{place.port}{place.path}"
    filled(uri, products(given.rows, seed=SEED))
    master = ss.DatabaseMaster(url, table=TABLE, key="product_id", credentials="BENCH")
    lines = []
    for name, exponent in (("skewed", 1.0), ("uniform", 0.0)):
        keys = ZipfKeys(given.rows, exponent=exponent, seed=SEED)
        stream = list(sales(given.tuples, keys, given.rows, batch_rows=10_000))
        few = [stream[0].slice(0, given.few)]
        ways = {"one by one": (one_by_one(uri), few)} | {
            algorithm: (joined(master, given.memory, algorithm), stream) for algorithm in ALGORITHMS
        }
        taken: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(given.repeat + 1):
            for way, (run, tuples) in ways.items():
                started = time.perf_counter()
                count = run(tuples)
                if turn:
                    taken[way].append((time.perf_counter() - started) / count)
        # The best of several: other work on the machine only adds.
        single = min(taken["one by one"])
        for way, times in taken.items():
            spent = min(times)
            print(
                f"{place.scheme:>10} {name:>8} {way:>11} {1 / spent:>10,.0f} tuples/s "
                f"{single / spent:>7.1f} times one by one"
            )
            turns = [round(1e6 * one, 2) for one in times]
            line = {"database": place.scheme, "stream": name, "way": way, "microseconds": turns}
            lines.append(
                line | {"tuples_per_second": round(1 / spent, 1), "times": round(single / spent, 1)}
            )
    master.close()
    return lines


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--tuples", type=int, default=50_000)
    parser.add_argument("--few", type=int, default=3_000)
    parser.add_argument("--memory", default="16MB")
    parser.add_argument("--repeat", type=int, default=5)
    given = parser.parse_args()
    found = [os.environ.get(f"SEMISTREAM_TEST_{name}") for name in ("POSTGRES", "MARIADB")]
    uris = [uri for uri in found if uri is not None]
    if not uris:
        parser.error("No database runs: call it as the first lines of this file say.")
    lines = [line for uri in uris for line in measured(uri, given)]
    settings = {name: getattr(given, name) for name in ("rows", "tuples", "memory", "repeat")}
    packages = ("psycopg", "PyMySQL", "adbc-driver-postgresql")
    write_results(
        RESULTS / "database.jsonl",
        [{**line, **settings, "seed": SEED} for line in lines],
        machine(ss.__version__) | {package: version(package) for package in packages},
    )


if __name__ == "__main__":
    main()
