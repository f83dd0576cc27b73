"""Rows 4 to 8: ss.join on Spark against what users could pick instead.

Every way gets the same micro-batches and writes to the noop sink. Whole triggers are timed, Spark's
planning and logs included. All ways share two Python workers, which keep their engines and open
stores from round to round.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)
from pyspark.sql.types import StructType

import semistream as ss
from measures.findings import LEAST_MEMORY, Finding, Seconds, in_turns, say
from measures.triggers import StreamFiles, Way
from peers.wide_identity import WideIdentity
from semistream.workload import ZipfKeys, products
from spark import identity

KEY = "product_id"
_PEER_MEMORY = 30_000_000
_OURS, _IDENTITY, _WIDE = "semistream", "identity", "wide identity"
_STATIC, _BROADCAST = "stream-static", "broadcast"
_NO_JOIN = (_IDENTITY, _WIDE)


@dataclass(frozen=True)
class SparkMeasures:
    """Spark's rows. R of 5 million rows has `rows`; the others are in proportion."""

    spark: SparkSession
    rows: int
    rounds: int
    seed: int
    folder: Path
    share: float
    cores: int

    def findings(self, wanted: set[int], large: bool) -> Iterator[Finding]:
        """The rows that are wanted; with `large`, row 6 has R four times as large too."""
        if wanted & {4, 5, 6}:
            yield from self._full_size(wanted)
        if wanted & {7, 8}:
            yield from self._small(wanted)
        if 6 in wanted and large:
            shop = self._shop(4 * self.rows)
            seconds = self._seconds(shop, [_OURS, _STATIC], 100_000, batches=3)
            yield self._finding(6, shop, 60, seconds, _STATIC, 100_000)

    def _full_size(self, wanted: set[int]) -> Iterator[Finding]:
        shop = self._shop(self.rows)
        if 5 in wanted:
            shop.add_peers()
        names = [_OURS]
        names += [_WIDE] if 4 in wanted else []
        names += shop.peers if 5 in wanted else []
        names += [_STATIC] if 6 in wanted else []
        seconds = self._seconds(shop, names, 100_000, batches=5)
        if 4 in wanted:
            yield self._finding(4, shop, 0.75, seconds, _WIDE, 100_000)
        if 5 in wanted:
            for peer in shop.peers:
                yield self._finding(5, shop, 1.6, seconds, peer, 100_000)
                if 4 in wanted:
                    say(f"  a join that took no time: {_most(seconds, peer):.2f} of {peer}")
        if 6 in wanted:
            yield self._finding(6, shop, 20, seconds, _STATIC, 100_000)

    def _small(self, wanted: set[int]) -> Iterator[Finding]:
        shop = self._shop(self.rows // 10)
        if 7 in wanted:
            for tuples in (50_000, 100_000):
                seconds = self._seconds(shop, [_OURS, _STATIC, _BROADCAST], tuples, batches=5)
                for other in (_STATIC, _BROADCAST):
                    yield self._finding(7, shop, 1.5, seconds, other, tuples)
        if 8 in wanted:
            seconds = self._seconds(shop, [_OURS, _IDENTITY, _WIDE], 3_000, batches=15)
            for other in (_IDENTITY, _WIDE):
                yield self._finding(8, shop, 1.4, seconds, other, 3_000, inverse=True)

    def _shop(self, rows: int) -> _Shop:
        say(f"R of {rows:,} rows for Spark …")
        return _Shop(self.spark, self.folder / str(rows), rows, self.seed, self.share)

    def _seconds(self, shop: _Shop, names: list[str], tuples: int, batches: int) -> Seconds:
        say(f"R {shop.rows:,}, {tuples:,} a batch: {'; '.join(names)} …")
        keys = ZipfKeys(shop.rows, 1.0, seed=self.seed)
        warm = 2
        files = StreamFiles(
            shop.folder / f"sales-{tuples}", keys, tuples, self.rounds, warm + batches
        )
        ways = {name: shop.ways[name] for name in names}
        _check_alike(ways, files.first(self.spark))
        timed = {
            name: partial(_trigger_seconds, files, self.spark, way, warm, self.cores)
            for name, way in ways.items()
        }
        return in_turns(timed, self.rounds)

    def _finding(
        self,
        row: int,
        shop: _Shop,
        bound: float,
        seconds: Seconds,
        other: str,
        tuples: int,
        inverse: bool = False,
    ) -> Finding:
        what = f"{_OURS} over {other}" if inverse else f"/ {other}"
        text = f"Spark, R {shop.rows:,}, {tuples:,} a batch{':' if inverse else ''} {what}"
        parameters = {"rows": shop.rows, "seed": self.seed, "share": self.share}
        parameters |= {"budget": shop.budget, "cores": self.cores}
        return Finding(row, text, bound, seconds, _OURS, other, tuples, parameters, inverse)


def _most(seconds: Seconds, peer: str) -> float:
    """What a join could come to against a peer: only Spark and the transfer of columns are left."""
    peer_time, rest = (statistics.median(chain(*seconds[way])) for way in (peer, _WIDE))
    return peer_time / rest


class _Shop:
    """R in all the forms that the ways need, and the ways themselves."""

    def __init__(
        self, spark: SparkSession, folder: Path, rows: int, seed: int, share: float
    ) -> None:
        self.folder = folder
        self.rows = rows
        self.peers: list[str] = []
        self._spark = spark
        folder.mkdir()
        self._table = products(rows, seed)
        # In no order, as a table of a warehouse is.
        scattered = self._table.take(np.random.default_rng(seed).permutation(rows))
        pq.write_table(scattered, folder / "products.parquet", row_group_size=500_000)
        master = ss.MasterTable.from_arrow(self._table, folder / "products.master", key=KEY)
        self.budget = max(int(master.pages.length.sum() * share), LEAST_MEMORY)
        static = spark.read.parquet(str(folder / "products.parquet"))
        self._added = [field for field in static.schema.fields if field.name != KEY]
        self.ways: dict[str, Way] = {
            _OURS: lambda df: ss.join(df, master, on=KEY, how="left", memory=self.budget),
            _IDENTITY: lambda df: df.mapInArrow(identity, df.schema),
            _WIDE: partial(self._mapped, WideIdentity(seed)),
            _STATIC: lambda df: df.join(static, KEY, "left"),
            _BROADCAST: lambda df: df.join(F.broadcast(static), KEY, "left"),
        }

    def add_peers(self) -> None:
        """Build the stores of all peers, and add their ways."""
        # They need packages that the other rows do without.
        from peers import duckdb_rows, lmdb_rows, rocksdb_rows

        table, folder = self._table, self.folder
        stores: dict[str, Any] = {}
        say("LMDB, RocksDB, DuckDB …")
        stores["LMDB"] = lmdb_rows.build(table, folder / "lmdb", KEY)
        stores["RocksDB (30 MB)"] = rocksdb_rows.build(table, folder / "rocksdb", KEY, _PEER_MEMORY)
        stores["DuckDB (30 MB)"] = duckdb_rows.build(table, folder / "sorted.duckdb", KEY, "30MB")
        stores["DuckDB (1 GB, primary key)"] = duckdb_rows.build(
            table, folder / "keyed.duckdb", KEY, "1GB", primary_key=True
        )
        self.ways |= {name: partial(self._mapped, store) for name, store in stores.items()}
        self.peers = list(stores)

    def _mapped(self, function: Any, df: DataFrame) -> DataFrame:
        """A function of Arrow batches that adds the master's columns."""
        return df.mapInArrow(function, StructType([*df.schema.fields, *self._added]))


def _trigger_seconds(
    files: StreamFiles, spark: SparkSession, way: Way, warm: int, cores: int, number: int
) -> list[float]:
    return files.trigger_seconds(spark, way, number, warm, cores)


def _check_alike(ways: Mapping[str, Way], batch: DataFrame) -> None:
    """Raise unless all joins give the same rows for a batch, and the others as many."""
    sums: dict[str, tuple[int, Decimal]] = {}
    for name, way in ways.items():
        joined = way(batch)
        hashes = F.xxhash64(*sorted(joined.columns)).cast("decimal(38)")
        sums[name] = tuple(joined.agg(F.count("*"), F.sum(hashes)).first() or ())
    joins = {found for name, found in sums.items() if name not in _NO_JOIN}
    counts = {count for count, _ in sums.values()}
    assert len(joins) == len(counts) == 1, f"rows and checksums differ: {sums}"
