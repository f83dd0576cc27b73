"""The shop: R, a shop's products, in all the forms that the ways need; and its sales."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import semistream as ss
from semistream.workload import products

__all__ = ["KEY", "OURS", "PACKED", "Shop"]

KEY = "product_id"
OURS, PACKED = "semistream", "semistream, packed"
"""Our ways: with plain pages, and with packed ones."""
_LEAST_MEMORY = 1 << 20
_LEAST_DUCKDB = 30_000_000
_ROW_GROUP = 500_000


@dataclass
class Shop:
    """R of so many rows in a folder, and the memory that a join gets: a share of R's bytes."""

    folder: Path
    rows: int
    share: float
    seed: int
    say: Callable[[str], None] = lambda _: None
    stores: dict[str, Any] = field(default_factory=dict)
    """The peers' look-ups, by name."""

    def __post_init__(self) -> None:
        """Write R as Parquet, in key order and in none, and as master tables."""
        self.say(f"R of {self.rows:,} rows …")
        self.folder.mkdir(parents=True, exist_ok=True)
        table = self.table()
        self.schema = table.schema
        pq.write_table(table, self.in_order, row_group_size=_ROW_GROUP)
        # In no order, as a table of a warehouse is.
        scattered = table.take(np.random.default_rng(self.seed).permutation(self.rows))
        pq.write_table(scattered, self.scattered, row_group_size=_ROW_GROUP)
        master = ss.MasterTable.from_arrow(table, self.folder / "products.master", key=KEY)
        ss.MasterTable.from_arrow(
            table, self.folder / "packed.master", key=KEY, compression="packed"
        )
        self.master_bytes = int(master.pages.length.sum())
        self.memory = max(int(self.master_bytes * self.share), _LEAST_MEMORY)

    @property
    def in_order(self) -> Path:
        """R as Parquet, sorted by key."""
        return self.folder / "in-order.parquet"

    @property
    def scattered(self) -> Path:
        """R as Parquet, in no order."""
        return self.folder / "products.parquet"

    @property
    def warehouse(self) -> Path:
        """Where Spark keeps its tables."""
        return self.folder / "warehouse"

    @property
    def master(self) -> ss.MasterTable:
        """R as a master table, opened anew."""
        return ss.MasterTable.open(self.folder / "products.master")

    @property
    def packed(self) -> ss.MasterTable:
        """The same with packed pages."""
        return ss.MasterTable.open(self.folder / "packed.master")

    def table(self) -> pa.Table:
        """R, sorted by key."""
        return products(self.rows, self.seed)

    def add_stores(self, names: Sequence[str]) -> None:
        """Build the stores of these peers, with as much memory as our join.

        LMDB has no such limit, and DuckDB gets 30 MB at least: it fails with less.
        """
        # Each needs a package of the extra "bench".
        table, folder = self.table(), self.folder
        if "LMDB" in names:
            from semistream_bench.peers import lmdb_rows

            self.stores["LMDB"] = lmdb_rows.build(table, folder / "lmdb", KEY)
        if "RocksDB" in names:
            from semistream_bench.peers import rocksdb_rows

            self.stores["RocksDB"] = rocksdb_rows.build(table, folder / "rocksdb", KEY, self.memory)
        if "DuckDB" in names:
            from semistream_bench.peers import duckdb_rows

            limit = f"{max(self.memory, _LEAST_DUCKDB) / 1e6:.0f}MB"
            self.stores["DuckDB"] = duckdb_rows.build(table, folder / "sorted.duckdb", KEY, limit)

    def allowed(self, way: str) -> int | None:
        """Bytes of memory that a task of this way may take; None without a limit."""
        least = {OURS: 0, PACKED: 0, "RocksDB": 0, "DuckDB": _LEAST_DUCKDB}.get(way)
        return None if least is None else max(self.memory, least)

    def files_of(self, store: str) -> list[Path]:
        """The files of a peer's store, or of one of the master tables."""
        places = {
            "LMDB": "lmdb",
            "RocksDB": "rocksdb",
            "DuckDB": "sorted.duckdb",
            OURS: "products.master",
            PACKED: "packed.master",
        }
        place = self.folder / places[store]
        return [place] if place.is_file() else [p for p in place.rglob("*") if p.is_file()]
