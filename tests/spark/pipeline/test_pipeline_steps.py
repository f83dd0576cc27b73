"""Steps before the join: surrogate keys and others, exactly once, whatever stops the batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)

import semistream as ss
from semistream.errors import OptionError
from semistream.spark.pipeline.batch_log import BatchLog
from semistream.spark.pipeline.batch_run import BatchRun
from semistream.spark.pipeline.folders import Folder
from semistream.spark.pipeline.staging import Staging
from semistream.testing import rows_of
from tests.spark.pipeline.conftest import Shop
from tests.spark.pipeline.test_pipeline_replay import CrashError, crash

pytestmark = pytest.mark.service

SCHEMA = "shop string, item long, n long, quantity int, price double"


def key_table(shop: Shop) -> ss.MasterTable:
    key = {"shop": "string", "item": "int64"}
    return ss.key_table(shop.folder / "keys", key=key, surrogate="id", page_bytes=4096)


def sales(shop: Shop, rows: int) -> pa.Table:
    """Sales of two shops; some of a batch are there twice."""
    random = np.random.default_rng(shop.seed + shop.sold)
    table = pa.table(
        {
            "shop": [f"s{i}" for i in random.integers(0, 2, rows)],
            "item": pa.array(random.integers(0, 40, rows), mask=random.random(rows) < 0.05),
            "n": range(shop.sold, shop.sold + rows),
            "quantity": pa.array(random.integers(1, 9, rows), pa.int32()),
            "price": random.integers(1, 9, rows) / 4,
        }
    )
    return pa.concat_tables([table, table.slice(0, rows // 4)])


def with_total(frame: DataFrame) -> DataFrame:
    return frame.withColumn("total", F.col("quantity") * F.col("price"))


def run(shop: Shop, name: str = "out", **options: Any) -> ss.Pipeline:
    """A pipeline with three steps; the master is what is known of goods by their surrogates."""
    keys, seen = key_table(shop), shop.folder / "seen"
    wanted: dict[str, Any] = {
        "sink": str(shop.folder / name),
        "checkpoint": shop.folder / f"checkpoint-{name}",
        "steps": [
            partial(ss.surrogate_keys, keys=keys, on=["shop", "item"], memory="2MB"),
            with_total,
            lambda frame: ss.deduplicate(frame, ss.MasterTable.open(seen), on="n", memory="2MB"),
        ],
    }
    return shop.pipeline(shop.stream(SCHEMA), **(wanted | options)).start()


def prepared(shop: Shop, *sizes: int) -> list[pa.Table]:
    shop.master()
    # Sales that were loaded before are not to be loaded again.
    ss.MasterTable.from_arrow(pa.table({"n": range(10)}), shop.folder / "seen", key="n")
    tables = []
    for size in sizes:
        tables.append(sales(shop, size))
        shop.sell(tables[-1])
        # `sell` has counted the rows that are there twice too.
        shop.sold -= size // 4
    return tables


COLUMNS = ("shop", "item", "n", "quantity", "price", "id", "total", "name")


def check(shop: Shop, tables: list[pa.Table], *names: str) -> None:
    """Every sale once in each warehouse, with the one surrogate of its key, its total and name."""
    given = {row["n"]: row for table in tables for row in table.to_pylist() if row["n"] >= 10}
    surrogates: dict[Any, int | None] = {}
    for name in names:
        found = shop.rows(name, *COLUMNS)
        assert sorted(row[2] for row in found) == sorted(given)
        for store, item, n, quantity, price, number, total, label in found:
            sale = given[n]
            assert (store, item) == (sale["shop"], sale["item"])
            assert total == quantity * price == sale["quantity"] * sale["price"]
            assert surrogates.setdefault((store, item), number) == number
            assert (number is None) == (item is None)
            assert label == (None if number is None else shop.goods["name"].to_pylist()[number])
    known = [number for number in surrogates.values() if number is not None]
    assert len(set(known)) == len(known)
    # Each key has a number, and no number went astray.
    keys = {row[:2] for table in tables for row in rows_of(table) if row[1] is not None}
    assert ss.MasterTable.open(shop.folder / "keys").row_count == len(keys) >= len(known)


POINTS = [
    (Staging, "by_route", True),
    (Folder, "become", False),
    (BatchLog, "finish", False),
    (BatchRun, "clean", True),
]


@pytest.mark.parametrize(("owner", "name", "after"), POINTS)
def test_a_crash_changes_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, after: bool
) -> None:
    tables = prepared(shop, 60, 60, 60)
    with monkeypatch.context() as patch:
        crash(patch, owner, name, 2, after)
        with pytest.raises(CrashError):
            run(shop).await_termination()
    assert run(shop).await_termination()
    check(shop, tables, "out")


def test_a_crash_between_assigning_and_staging(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = prepared(shop, 60, 60)
    with monkeypatch.context() as patch:
        # After the job of the second batch, whose tasks have committed keys.
        crash(patch, Folder, "row_count", 2, False)
        with pytest.raises(CrashError):
            run(shop).await_termination()
    version = ss.MasterTable.latest_version(shop.folder / "keys")
    assert run(shop).await_termination()
    assert ss.MasterTable.latest_version(shop.folder / "keys") == version
    check(shop, tables, "out")


def test_two_pipelines_share_a_key_table(shop: Shop) -> None:
    tables = prepared(shop, 60, 60, 60)
    running = [run(shop, name) for name in ("one", "two")]
    assert all(pipeline.await_termination() for pipeline in running)
    check(shop, tables, "one", "two")


@pytest.mark.parametrize(
    ("steps", "match"),
    [
        (with_total, "list of functions"),
        ([None], "list of functions"),
        ([lambda frame: None], "Step 1, <lambda>, gives None for a streaming"),
    ],
)
def test_bad_steps(shop: Shop, steps: Any, match: str) -> None:
    prepared(shop, 10)
    with pytest.raises(OptionError, match=match):
        run(shop, steps=steps)


def test_steps_that_give_other_columns_for_a_batch(shop: Shop) -> None:
    prepared(shop, 20)
    step: Callable[[DataFrame], DataFrame] = lambda frame: (  # noqa: E731
        frame.withColumn("id", F.col("item"))
        if frame.isStreaming
        else frame.withColumns({"id": F.col("item"), "more": F.lit(1)})
    )
    with pytest.raises(OptionError, match="must be the same"):
        run(shop, steps=[step]).await_termination()
