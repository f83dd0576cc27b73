"""The ways to join a stream of sales with R on Spark: ours, Spark's own, by hand; and limits."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)
from pyspark.sql.types import StructType

import semistream as ss
from semistream_bench.peers.all_in_memory import AllInMemory
from semistream_bench.peers.wide_identity import WideIdentity
from semistream_bench.shop import KEY, OURS, PACKED, Shop

__all__ = ["OURS", "PACKED", "STORES", "WAYS", "Kind", "Way", "identity", "ways"]

_BUCKETED = "products_in_buckets"


class Kind(StrEnum):
    """What a way stands for."""

    ours = "ours"
    spark = "Spark's own"
    by_hand = "by hand"
    limit = "limit"


@dataclass(frozen=True)
class Way:
    """One way; `join` is called with the stream, or `by_batch` with each micro-batch."""

    kind: Kind
    join: Callable[[DataFrame], DataFrame]
    by_batch: bool = False
    gives_rows: bool = True
    """Whether its result is that of the join; an identity's is not."""


WAYS = {
    OURS: "ss.join, with a share of R as memory for each task",
    PACKED: "the same, from a master whose pages are packed",
    "stream-static": "Spark's join of the stream with R as Parquet, in no order",
    "stream-static, sorted": "the same with R sorted by key",
    "stream-static, bucketed": "the same with R as a bucketed, sorted table",
    "broadcast": "the same with R broadcast to all executors",
    "foreachBatch": "by hand: broadcast a batch's keys, semi-join R with them, then left join",
    "LMDB": "by hand in mapInArrow: a get for each distinct key",
    "RocksDB": "by hand in mapInArrow: a multi-get of the distinct keys",
    "DuckDB": "by hand in mapInArrow: a semi-join with the distinct keys",
    "R in memory": "limit: all of R in every Python worker",
    "wide identity": "limit: no join, but columns as wide as R's are added",
    "identity": "limit: batches are handed on as they are",
}
"""All ways, and what each does."""
STORES = {"LMDB": "lmdb", "RocksDB": "rocksdict", "DuckDB": "duckdb"}
"""Those that keep R in a store of their own, and the package that each needs."""


def identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Hand the batches on: what Spark and Python cost without a join."""
    yield from batches


def ways(shop: Shop, spark: SparkSession, cores: int, names: list[str]) -> dict[str, Way]:
    """The ways of these names, in a session."""
    static = spark.read.parquet(str(shop.scattered))
    in_order = spark.read.parquet(str(shop.in_order))
    added = [field for field in static.schema.fields if field.name != KEY]

    def mapped(function: Any) -> Callable[[DataFrame], DataFrame]:
        """A function of Arrow batches that adds the master's columns."""
        return lambda df: df.mapInArrow(function, StructType([*df.schema.fields, *added]))

    def with_master(packed: bool) -> Callable[[DataFrame], DataFrame]:
        master = shop.packed if packed else shop.master
        return lambda df: ss.join(df, master, on=KEY, how="left", memory=shop.memory)

    def by_keys(batch: DataFrame) -> DataFrame:
        batch = batch.persist()
        keys = F.broadcast(batch.select(KEY).distinct())
        found = static.join(keys, KEY, "left_semi")
        return batch.join(F.broadcast(found), KEY, "left")

    def in_buckets(df: DataFrame) -> DataFrame:
        return df.join(_bucketed(static, shop.warehouse, cores), KEY, "left")

    def joined_with(other: DataFrame) -> Callable[[DataFrame], DataFrame]:
        return lambda df: df.join(other, KEY, "left")

    memory = AllInMemory(str(shop.in_order), KEY)
    known = {
        OURS: Way(Kind.ours, with_master(packed=False)),
        PACKED: Way(Kind.ours, with_master(packed=True)),
        "stream-static": Way(Kind.spark, joined_with(static)),
        "stream-static, sorted": Way(Kind.spark, joined_with(in_order)),
        "stream-static, bucketed": Way(Kind.spark, in_buckets),
        "broadcast": Way(Kind.spark, joined_with(F.broadcast(static))),
        "foreachBatch": Way(Kind.by_hand, by_keys, by_batch=True),
        "R in memory": Way(Kind.limit, mapped(memory)),
        "wide identity": Way(Kind.limit, mapped(WideIdentity(shop.seed)), gives_rows=False),
        "identity": Way(
            Kind.limit, lambda df: df.mapInArrow(identity, df.schema), gives_rows=False
        ),
    }
    known |= {name: Way(Kind.by_hand, mapped(store)) for name, store in shop.stores.items()}
    return {name: known[name] for name in names}


def _bucketed(static: DataFrame, warehouse: Path, buckets: int) -> DataFrame:
    """R as a table whose files are divided and sorted by key; written when first asked for."""
    spark = static.sparkSession
    if not spark.catalog.tableExists(_BUCKETED):
        # An earlier session, whose tables are forgotten, may have left its files.
        shutil.rmtree(warehouse / _BUCKETED, ignore_errors=True)
        writer = static.repartition(buckets, KEY).write.mode("overwrite")
        writer.bucketBy(buckets, KEY).sortBy(KEY).saveAsTable(_BUCKETED)
    return spark.table(_BUCKETED)
