"""The hand-written peers of the benchmarks give the rows of an independent join."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pytest

from semistream.workload import products

pytest.importorskip("lmdb")
pytest.importorskip("rocksdict")
pytest.importorskip("duckdb")

from semistream_bench.peers import duckdb_rows, lmdb_rows, rocksdb_rows

Peer: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
BUILD: dict[str, Callable[[pa.Table, Path], Peer]] = {
    "lmdb": lambda table, path: lmdb_rows.build(table, path, "product_id"),
    "rocksdb": lambda table, path: rocksdb_rows.build(table, path, "product_id", 1 << 20),
    "duckdb": lambda table, path: duckdb_rows.build(table, path, "product_id", "30MB"),
    "duckdb with a primary key": lambda table, path: duckdb_rows.build(
        table, path, "product_id", "30MB", primary_key=True
    ),
}


@pytest.fixture(params=list(BUILD))
def build(request: pytest.FixtureRequest) -> Callable[[pa.Table, Path], Peer]:
    return BUILD[request.param]


def stream(keys: list[int]) -> list[pa.RecordBatch]:
    """Numbered tuples in two batches, with an empty one between them."""
    batch = pa.record_batch({"product_id": pa.array(keys, pa.int64()), "n": range(len(keys))})
    half = len(keys) // 2
    return [batch.slice(0, half), batch.slice(0, 0), batch.slice(half)]


def left_join(table: pa.Table, batches: list[pa.RecordBatch]) -> list[dict[str, object]]:
    """Row by row, with a dict."""
    payload = [name for name in table.column_names if name != "product_id"]
    rows = {row.pop("product_id"): row for row in table.to_pylist()}
    nothing = dict.fromkeys(payload)
    given = [tuple_ for batch in batches for tuple_ in batch.to_pylist()]
    return [tuple_ | rows.get(tuple_["product_id"], nothing) for tuple_ in given]


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[dict[str, object]]:
    found = [row for batch in batches for row in batch.to_pylist()]
    return sorted(found, key=lambda row: row["n"])


@pytest.mark.parametrize("missing", [0, 1, 300], ids=["all found", "one missing", "none found"])
def test_a_peer_joins_as_a_dict_does(
    build: Callable[[pa.Table, Path], Peer], tmp_path: Path, seed: int, missing: int
) -> None:
    # Ids from 0 up in steps of 3: the keys in between are not in R.
    every = products(3_000, seed)
    table = every.take(pa.array(range(0, 3_000, 3)))
    keys = np.random.default_rng(seed).integers(0, 1_000, 300) * 3
    keys[:missing] += 1
    # Spark ships a peer as a pickle.
    peer = pickle.loads(pickle.dumps(build(table, tmp_path / "store")))
    batches = stream(keys.tolist())
    assert rows_of(peer(iter(batches))) == left_join(table, batches)
    # A second task finds the store open.
    assert rows_of(peer(iter(batches[:1]))) == left_join(table, batches[:1])
    assert list(peer(iter([]))) == []
