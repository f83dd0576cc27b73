"""Sales for a topic, a master of products, and what is in a warehouse."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import semistream as ss

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
