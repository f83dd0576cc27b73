"""`deduplicate`: against plain Python and Spark SQL; in memory and through files."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)

import semistream as ss
from semistream import keys as key_codes
from semistream.errors import KeyColumnError, OptionError
from semistream.spark.transformations import duplicates
from semistream.spark.transformations.duplicates import Firsts
from semistream.testing import Row, assert_same_rows, rows_of
from tests.spark.conftest import Build

SCHEMA = "n long, shop string, item long, at double"
KEYS = 60


def sales(seed: int, rows: int, keys: int = KEYS) -> pa.Table:
    random = np.random.default_rng(seed)
    return pa.table(
        {
            "n": range(rows),
            "shop": pa.array(["s", "t", None]).take(random.choice(3, rows, p=[0.5, 0.45, 0.05])),
            "item": pa.array(random.integers(0, keys, rows), mask=random.random(rows) < 0.05),
            "at": pa.array(random.integers(0, 9, rows) / 2, mask=random.random(rows) < 0.1),
        }
    )


def known(seed: int) -> pa.Table:
    """Master rows, some keys with several; columns are called as the stream's."""
    random = np.random.default_rng(seed)
    items = random.integers(0, KEYS, 40)
    return pa.table({"shop": ["s", "t"] * 20, "item": items, "at": items * 1.0, "more": items})


def check(given: pa.Table, found: list[Row], master: pa.Table, timed: bool = True) -> None:
    """Check what is left of one batch, by rules in plain Python."""
    in_master = {(shop, item) for shop, item, *_ in rows_of(master)}
    by_key: dict[Any, list[Row]] = defaultdict(list)
    unkeyed = []
    for row in rows_of(given):
        key = row[1:3]
        if None in key:
            unkeyed.append(row)
        elif key not in in_master:
            by_key[key].append(row)
    assert Counter(row for row in found if None in row[1:3]) == Counter(unkeyed)
    keyed = [row for row in found if None not in row[1:3]]
    assert sorted(row[1:3] for row in keyed) == sorted(by_key)
    for row in keyed:
        rivals = by_key[row[1:3]]
        assert row in rivals
        if timed:
            times = [rival[3] for rival in rivals if rival[3] is not None]
            assert row[3] == (min(times) if times else None)


@pytest.mark.service
@pytest.mark.parametrize("first_by", [None, "at"])
def test_a_batch(spark: SparkSession, build: Build, seed: int, first_by: str | None) -> None:
    given, stored = sales(seed, 3000), known(seed)
    master = build(stored, key=["shop", "item"])
    frame = spark.createDataFrame(given).repartition(3)
    out = ss.deduplicate(frame, master, on=["shop", "item"], first_by=first_by, memory="2MB")
    assert out.columns == frame.columns
    found = rows_of(out.toArrow())
    check(given, found, stored, timed=first_by is not None)
    # Spark SQL leaves the same keys, and with an order the same times.
    rank = "row_number() over (partition by shop, item order by at asc nulls last)"
    frame.createOrReplaceTempView("given")
    spark.createDataFrame(stored).createOrReplaceTempView("stored")
    wanted = spark.sql(
        f"select shop, item, at from (select *, {rank} as r from given left anti join stored "
        "using (shop, item)) where r = 1 or shop is null or item is null"
    )
    left = 3 if first_by else 2
    assert_same_rows(
        [row[1 : 1 + left] for row in found], [row[:left] for row in rows_of(wanted.toArrow())]
    )


@pytest.mark.service
def test_a_stream_is_deduplicated_by_micro_batch(
    spark: SparkSession, build: Build, tmp_path: Path, seed: int
) -> None:
    stored = known(seed)
    master = build(stored, key=["shop", "item"])
    tables = [sales(seed + i, 300) for i in range(2)]
    (tmp_path / "sales").mkdir()
    for i, table in enumerate(tables):
        named = table.set_column(0, "n", pa.array([1000 * i + n for n in range(300)]))
        tables[i] = named
        pq.write_table(named, tmp_path / "sales" / f"{i}.parquet")
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    frame = stream.parquet(str(tmp_path / "sales"))
    out = ss.deduplicate(frame, master, on=["shop", "item"], first_by="at", memory="2MB")
    found = written(out, tmp_path)
    for i, table in enumerate(tables):
        check(table, [row for row in found if row[0] // 1000 == i], stored)


@pytest.mark.service
def test_the_newest_version_counts(spark: SparkSession, build: Build, tmp_path: Path) -> None:
    master = build(pa.table({"id": [1], "name": ["a"]}))
    frame = spark.createDataFrame([(1, "x"), (2, "y"), (3, "z"), (3, "z")], "id long, name string")
    pinned = ss.deduplicate(frame, master, on="id")
    latest = ss.deduplicate(frame, master, on="id", freshness="latest")
    master.upsert(pa.table({"id": [2], "name": ["b"]}))
    assert_same_rows(rows_of(pinned.toArrow()), [(2, "y"), (3, "z")])
    assert_same_rows(rows_of(latest.toArrow()), [(3, "z")])


def written(out: DataFrame, folder: Path) -> list[Row]:
    writer = out.writeStream.format("memory").queryName("deduplicated")
    query = writer.option("checkpointLocation", str(folder / "checkpoint"))
    started = query.trigger(availableNow=True).start()
    started.awaitTermination()
    assert started.exception() is None
    return rows_of(out.sparkSession.table("deduplicated").toArrow())


@pytest.mark.parametrize("mask", [-1, 3], ids=["", "keys share codes"])
@pytest.mark.parametrize("most", [300, 3_000, 10**9])
def test_firsts_through_files(
    most: int, mask: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_codes, "_HASH_MASK", mask)
    used: list[int] = []
    real = duplicates._Files.append

    def append(files: Any, number: int, rows: pa.RecordBatch) -> None:
        used.append(number)
        real(files, number, rows)

    monkeypatch.setattr(duplicates._Files, "append", append)
    given = sales(seed, 1500, keys=400)
    firsts = Firsts(("shop", "item"), "at", most)
    found = [row for batch in firsts(iter(given.to_batches(100))) for row in rows_of(batch)]
    check(given, found, pa.table({"shop": ["s"], "item": [-1]}))
    assert bool(used) == (most < 10**9)


@pytest.mark.service
@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"on": "nothing"}, KeyColumnError, "no column"),
        ({"first_by": "nothing"}, OptionError, "first_by='nothing' is not a column"),
        ({"first_by": "list"}, OptionError, "has no order"),
        ({"freshness": "old"}, OptionError, "freshness"),
    ],
)
def test_errors_before_anything_starts(
    spark: SparkSession, build: Build, options: dict[str, Any], error: type[Exception], match: str
) -> None:
    frame = spark.createDataFrame([(1,)], "id long").withColumn("list", F.array(F.lit(1)))
    arguments: dict[str, Any] = {"on": "id"} | options
    with pytest.raises(error, match=match):
        ss.deduplicate(frame, build(pa.table({"id": [1]})), **arguments)
