"""Sales for a topic, a master of products, pipeline files, and what is in a warehouse."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import semistream as ss
from tests.services.conftest import where
from tests.services.databases import USER
from tests.services.jars import jar_files

PRODUCTS = 2_000
Row = tuple[object, ...]


def master(folder: Path) -> dict[int, float]:
    """A master table of even product numbers; its prices."""
    ids = np.arange(0, PRODUCTS, 2)
    prices = ids * 0.5
    table = pa.table({"product_id": ids, "price": prices})
    ss.MasterTable.from_arrow(table, folder / "products.master", key="product_id")
    return dict(zip(ids.tolist(), prices.tolist(), strict=True))


def sales(name: str, count: int, seed: int = 1) -> list[dict[str, object]]:
    """Sales with a number each; half of their products are in the master."""
    ids = np.random.default_rng(seed).integers(0, PRODUCTS, count).tolist()
    return [
        {"sale": f"{name}-{n}", "product_id": one, "quantity": n % 7} for n, one in enumerate(ids)
    ]


def as_json(records: Sequence[dict[str, object]]) -> list[bytes]:
    return [json.dumps(one).encode() for one in records]


def rows(folder: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = pq.read_table(folder).to_pylist() if folder.exists() else []
    return found


def some(row: dict[str, object], *names: str) -> Row:
    return tuple(row[name] for name in names)


SCHEMA = "sale string, product_id long, quantity int"


def pipeline_file(
    folder: Path,
    server: str,
    subscribe: str,
    *,
    sink: str = "",
    value: str = "json",
    schema: str = SCHEMA,
    more: str = "",
    how: str = "left",
    per_batch: int = 3_000,
    connectors: Sequence[str] = ("kafka",),
) -> Path:
    """A pipeline file with a Kafka source."""
    file = folder / "pipeline.toml"
    sink = sink or f'[sink]\npath = "{folder}/out"'
    file.write_text(
        f"""
[source]
format = "kafka"
value = "{value}"
schema = \'\'\'{schema}\'\'\'
keep = ["topic"]
[source.options]
"kafka.bootstrap.servers" = "{server}"
subscribe = "{subscribe}"
startingOffsets = "earliest"
maxOffsetsPerTrigger = {per_batch}
[master]
path = "{folder}/products.master"
[join]
on = "product_id"
memory = "4MB"
how = "{how}"
{sink}
[rejected]
path = "{folder}/rejected"
[pipeline]
checkpoint = "{folder}/checkpoint"
{more}
[spark]
connectors = {json.dumps(connectors)}
"spark.jars" = "{jar_files("kafka-connector")}"
"spark.sql.shuffle.partitions" = "2"
"spark.databricks.delta.snapshotPartitions" = "2"
"spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1"
"spark.master" = "local[2]"
"""
    )
    return file


def postgres_sink(table: str) -> str:
    """A sink whose password is in the environment."""
    parts = urlsplit(where("POSTGRES"))
    url = f"postgresql://{USER}:${{SHOP_PASSWORD}}@{parts.hostname}:{parts.port}{parts.path}"
    return f'[sink]\nformat = "postgresql"\nurl = "{url}"\ntable = "{table}"\n'
