"""The files of examples/compose, as they are, with a real broker and a real database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pyarrow.dataset as ds
import pytest

from semistream.workload import products
from tests.services.conftest import Topics, where
from tests.services.databases import PASSWORD, USER

FILES = Path(__file__).parents[2] / "examples" / "compose"
TOPIC, PRODUCTS = "shop-sales", 100_000
Row = tuple[Any, ...]


@pytest.fixture
def warehouse() -> Iterator[psycopg.Connection[Row]]:
    with psycopg.connect(where("POSTGRES"), autocommit=True) as connection:
        connection.execute((FILES / "tables.sql").read_bytes())
        yield connection
        connection.execute("DROP TABLE shop_sales")


@pytest.fixture
def place(folder: Path, topics: Topics) -> Iterator[Path]:
    """Where the containers would run; the topic goes at the end."""
    yield folder
    topics.delete(TOPIC)


def run(folder: Path, *order: str) -> None:
    database = urlsplit(where("POSTGRES"))
    variables = {
        "KAFKA": where("KAFKA"),
        "SHOP_HOST": str(database.hostname),
        "SHOP_PORT": str(database.port),
        "SHOP_USER": USER,
        "SHOP_PASSWORD": PASSWORD,
    }
    done = subprocess.run(
        [sys.executable, *order],
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def expected(messages: list[bytes]) -> tuple[set[Row], int]:
    """The rows that these messages make, and how many are broken."""
    catalogue = products(PRODUCTS, seed=1).select(["name", "brand", "price"]).to_pylist()
    rows, broken = set(), 0
    for message in messages:
        try:
            sale = json.loads(message)
        except json.JSONDecodeError:
            broken += 1
            continue
        if sale["quantity"] <= 0:
            broken += 1
            continue
        known = sale["product_id"] < PRODUCTS
        product = catalogue[sale["product_id"]].values() if known else (None, None, None)
        rows.add((*sale.values(), *product))
    return rows, broken


def test_each_sale_of_the_shop_is_in_the_warehouse_once(
    place: Path, topics: Topics, warehouse: psycopg.Connection[Row]
) -> None:
    producer = str(FILES / "producer.py")
    run(place, producer, "prepare")
    run(place, producer, "prepare")  # as when the containers start again
    run(place, producer, "sell", "--rate", "3000", "--number", "3000")
    run(place, producer, "sell", "--rate", "2000", "--number", "2000")
    run(place, "-m", "semistream", "run", str(FILES / "pipeline.toml"), "--once")

    messages = [message.value() or b"" for message in topics.read(TOPIC)]
    rows, broken = expected(messages)
    assert (len(messages), broken, len(rows)) == (5_000, 10, 4_990)
    assert any(row[3] is None for row in rows), "some products are unknown"
    columns = "sale_id, product_id, quantity, name, brand, price"
    found = warehouse.execute(f"SELECT {columns} FROM shop_sales").fetchall()
    assert len(found) == len(rows)
    assert set(found) == rows
    rejected = ds.dataset(place / "rejected", partitioning="hive").to_table()
    assert rejected.num_rows == broken
