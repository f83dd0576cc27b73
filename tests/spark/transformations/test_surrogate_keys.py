"""`surrogate_keys` on Spark: against a dict and Spark SQL, under retries, copies and rivals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)

import semistream as ss
from semistream.errors import (
    BudgetError,
    ColumnClashError,
    KeyColumnError,
    KeyTypeError,
    OptionError,
    SemistreamError,
)
from semistream.relation.key_table import numbering_bytes, numbering_growth
from semistream.spark.transformations import surrogates
from semistream.spark.transformations.surrogates import KeyTask
from semistream.testing import Row, assert_same_rows, rows_of
from tests.spark.other_session import OtherSession

pytestmark = pytest.mark.service

KEY = {"source": "string", "product": "int64"}
ON = {"shop": "source", "item": "product"}
KEYS = 300


def made(folder: Path, name: str = "keys") -> ss.MasterTable:
    return ss.key_table(folder / name, key=KEY, surrogate="product_key", page_bytes=4096)


def sales(seed: int, rows: int) -> pa.Table:
    """Sales of two shops that share some item numbers; some have no shop, or no item."""
    random = np.random.default_rng(seed)
    shops = pa.array(
        [f"s{i}" for i in random.integers(0, 2, rows)], mask=random.random(rows) < 0.05
    )
    items = pa.array(random.integers(0, KEYS, rows), mask=random.random(rows) < 0.05)
    return pa.table({"n": range(rows), "shop": shops, "item": items, "note": ["x" * 20] * rows})


def frame_of(spark: SparkSession, table: pa.Table, partitions: int = 2) -> DataFrame:
    return spark.createDataFrame(table).repartition(partitions)


def check(given: pa.Table, found: list[Row], keys: ss.MasterTable) -> dict[Any, int]:
    """Check rows with surrogates against what a surrogate is; the surrogate of each key."""
    assert_same_rows([row[:-1] for row in found], given)
    surrogates: dict[Any, int] = {}
    for _, shop, item, _, number in found:
        if shop is None or item is None:
            assert number is None
        else:
            assert surrogates.setdefault((shop, item), number) == number
    assert None not in surrogates.values()
    assert len(set(surrogates.values())) == len(surrogates)
    wanted = set(rows_of(given.select(["shop", "item"])))
    assert set(surrogates) == {key for key in wanted if None not in key}
    newest = ss.MasterTable.open(keys.path)
    with ss.engine(newest, on=ON, memory="2MB", how="left") as join:
        looked_up = rows_of(join.run(given.to_batches()))
    assert_same_rows(found, looked_up)
    return surrogates


@pytest.mark.parametrize("memory", ["64MB", 900_000])
def test_a_batch(spark: SparkSession, tmp_path: Path, seed: int, memory: int | str) -> None:
    keys, given = made(tmp_path), sales(seed, 6000)
    out = ss.surrogate_keys(frame_of(spark, given), keys, on=ON, memory=memory)
    assert out.columns == [*given.column_names, "product_key"]
    first = check(given, rows_of(out.toArrow()), keys)
    newest = ss.MasterTable.open(keys.path)
    assert newest.row_count == len(first)
    # The same again, and others: what is known stays as it is, and Spark's own join agrees.
    assert check(given, rows_of(out.toArrow()), keys) == first
    assert ss.MasterTable.latest_version(str(keys.path)) == newest.version
    more = pa.concat_tables([given, sales(seed + 1, 500), sales(seed + 2, 500)])
    again = ss.surrogate_keys(frame_of(spark, more), keys, on=ON, memory=memory)
    later = check(more, rows_of(again.toArrow()), keys)
    assert first.items() <= later.items()
    mapping = spark.createDataFrame(
        [(*key, number) for key, number in later.items()],
        "shop string, item long, product_key long",
    )
    wanted = frame_of(spark, more).join(mapping, ["shop", "item"], "left")
    assert_same_rows(rows_of(again.toArrow()), wanted.select(again.columns).toArrow())


def test_unknown_keys_are_numbered_in_pieces(spark: SparkSession, tmp_path: Path) -> None:
    given = pa.table(
        {"n": range(5000), "shop": ["s"] * 5000, "item": range(5000), "note": ["x" * 50] * 5000}
    )
    keys = made(tmp_path)
    out = ss.surrogate_keys(frame_of(spark, given, 1), keys, on=ON, memory=1_000_000)
    check(given, rows_of(out.toArrow()), keys)
    # 5,000 tuples that take 400 bytes and more each, in pieces of about 200,000.
    assert ss.MasterTable.latest_version(str(keys.path)) > 5


def test_no_piece_takes_more_than_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few wide tuples among many narrow ones, in batches of all sizes; without Spark."""
    random = np.random.default_rng(5)
    keys = made(tmp_path)
    numbered: list[int] = []

    def counted(path: str, columns: list[pa.Array], *_: Any) -> Any:
        key_bytes = sum(column.nbytes for column in columns)
        numbered.append(len(columns[0]))
        taken = numbering_bytes(keys) + numbering_growth(len(columns[0]), key_bytes)
        assert taken + 2 * notes(columns[1]) <= room
        return np.arange(len(columns[0]))

    def notes(items: pa.Array) -> int:
        return sum(widths[item] for item in items.to_pylist())

    room = numbering_bytes(keys) + 100_000
    widths = np.where(random.random(3000) < 0.01, 20_000, 10).tolist()
    given = pa.table(
        {
            "shop": ["s"] * 3000,
            "item": range(3000),
            "note": ["x" * width for width in widths],
            "product_key": pa.nulls(3000, pa.int64()),
        }
    )
    task = KeyTask(_look_up(keys), ("shop", "item"), room, None)
    monkeypatch.setattr(surrogates, "assigned", counted)
    monkeypatch.setattr(type(task.look_up), "__call__", lambda _, batches: batches)
    for most in (1, 7, 3000):
        batches = given.to_batches(max_chunksize=most)[:700]
        rows = pa.Table.from_batches(task(iter(batches)))
        assert sorted(rows["item"].to_pylist()) == list(range(sum(b.num_rows for b in batches)))
    assert 1 < len(numbered) < 1000
    wide = given.set_column(2, "note", [["x" * 200_000] * 3000]).slice(0, 1)
    with pytest.raises(BudgetError, match="A tuple takes"):
        list(task(iter(wide.to_batches())))


def test_streams_and_two_queries_at_the_same_time(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    keys = made(tmp_path)
    tables = [[sales(seed + 10 * query + i, 400) for i in range(3)] for query in range(2)]
    running = []
    for query, files in enumerate(tables):
        folder = tmp_path / f"sales-{query}"
        folder.mkdir()
        for i, table in enumerate(files):
            pq.write_table(table, folder / f"{i}.parquet")
        stream = spark.readStream.schema("n long, shop string, item long, note string")
        stream_frame = stream.option("maxFilesPerTrigger", 1).parquet(str(folder))
        out = ss.surrogate_keys(stream_frame, keys, on=ON, memory="2MB")
        assert out.isStreaming
        writer = out.writeStream.format("memory").queryName(f"keyed_{query}")
        writer = writer.option("checkpointLocation", str(tmp_path / f"checkpoint-{query}"))
        running.append(writer.trigger(availableNow=True).start())
    found: list[Row] = []
    for started in running:
        started.awaitTermination()
        assert started.exception() is None
        found += rows_of(spark.table(str(started.name)).toArrow())
    check(pa.concat_tables([table for files in tables for table in files]), found, keys)


def test_two_tasks_bring_the_same_unknown_key(spark: SparkSession, tmp_path: Path) -> None:
    keys = made(tmp_path)
    given = pa.table({"n": range(40), "shop": ["s"] * 40, "item": [7] * 40, "note": ["x"] * 40})
    out = ss.surrogate_keys(frame_of(spark, given, 8), keys, on=ON, memory="2MB")
    assert set(check(given, rows_of(out.toArrow()), keys).values()) == {1}
    assert ss.MasterTable.open(keys.path).row_count == 1


def test_a_task_that_dies_after_its_commit_runs_again(
    failing: OtherSession, tmp_path: Path, seed: int
) -> None:
    keys, given = made(tmp_path), sales(seed, 600)
    pq.write_table(given, tmp_path / "sales.parquet")
    failing.run(DYING, tmp_path, keys.path)
    found = rows_of(pq.read_table(tmp_path / "out"))
    surrogates = check(given, found, keys)
    assert len(list(tmp_path.glob("died-*"))) >= 2
    # Every surrogate that was ever committed is in use: none was lost, none was given anew.
    assert ss.MasterTable.open(keys.path).row_count == len(surrogates)
    assert sorted(surrogates.values()) == list(range(1, len(surrogates) + 1))


DYING = """
import os, signal
from pathlib import Path
from pyspark import TaskContext

folder, path = map(Path, arguments)

def dying(batches):
    # By then the keys of the batch are committed, and nothing of it is written.
    for batch in batches:
        yield batch
    context = TaskContext.get()
    mark = folder / f"died-{context.partitionId()}"
    if context.attemptNumber() == 0:
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)

frame = spark.read.parquet(str(folder / "sales.parquet")).repartition(3)
on = {"shop": "source", "item": "product"}
out = ss.surrogate_keys(frame, ss.MasterTable.open(path), on=on, memory="2MB")
out.mapInArrow(dying, out.schema).write.parquet(str(folder / "out"))
"""


def test_a_speculative_copy_gives_the_same_rows(tmp_path: Path, seed: int) -> None:
    keys, given = made(tmp_path), sales(seed, 900)
    task = KeyTask(_look_up(keys), ("shop", "item"), numbering_bytes(keys) + 70_000, None)
    copies = [task(iter(given.to_batches(max_chunksize=100))) for _ in range(2)]
    found: list[list[Row]] = [[], []]
    # The copies advance in turns; the second one stops half-way.
    for _ in range(3):
        for rows, copy in zip(found, copies, strict=True):
            batch = next(copy, None)
            rows += [] if batch is None else rows_of(batch)
    copies[1].close()  # type: ignore[attr-defined]
    found[0] += [row for batch in copies[0] for row in rows_of(batch)]
    check(given, found[0], keys)
    assert set(found[1]) <= set(found[0])


def _look_up(keys: ss.MasterTable) -> Any:
    from semistream.spark.worker import JoinTask

    return JoinTask(
        path=keys.location,
        version=None,
        on=(("shop", "source"), ("item", "product")),
        how="left",
        algorithm="auto",
        memory=2_000_000,
        columns=("product_key",),
    )


def test_under_connect(connect: OtherSession, tmp_path: Path) -> None:
    keys = made(tmp_path)
    script = """
on = {"shop": "source", "item": "product"}
frame = spark.createDataFrame([("s", 1), ("t", 1), ("s", None)], "shop string, item long")
out = ss.surrogate_keys(frame, ss.MasterTable.open(arguments[0]), on=on)
answer = sorted([list(row) for row in out.collect()], key=str)
"""
    found = connect.run(script, keys.path)
    assert sorted(number for *_, number in found if number is not None) == [1, 2]
    assert found == connect.run(script, keys.path)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (lambda df: (df, {"on": "shop"}), KeyColumnError, "key"),
        (lambda df: (df.withColumn("product_key", F.lit(1)), {}), ColumnClashError, "product_key"),
        (lambda df: (df.withColumn("item", F.lit("x")), {}), KeyTypeError, "never match"),
        (lambda df: (df, {"memory": 10}), BudgetError, "memory"),
        (lambda df: (df, {"memory": "700kB"}), BudgetError, "to number keys of .* the least is"),
        (lambda df: (df, {"keep": "soon"}), OptionError, "keep="),
        (lambda df: (df, {"keys": "a path"}), OptionError, "must be a key table"),
    ],
)
def test_errors_before_anything_starts(
    spark: SparkSession,
    tmp_path: Path,
    change: Callable[[DataFrame], tuple[DataFrame, dict[str, Any]]],
    error: type[SemistreamError],
    match: str,
) -> None:
    frame, options = change(spark.createDataFrame(sales(1, 5)))
    arguments: dict[str, Any] = {"keys": made(tmp_path), "on": ON, "memory": "2MB"} | options
    with pytest.raises(error, match=match):
        ss.surrogate_keys(frame, **arguments)
