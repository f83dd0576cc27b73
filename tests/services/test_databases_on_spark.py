"""A master in a database, joined on Spark: by `ss.join`, in a star, and by a pipeline file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import semistream as ss
from semistream.cli.file_tables import FileTable, read_file
from semistream.cli.pipeline_file import MasterRef
from tests.services.shop import GOODS, SECRETS, Shop, as_rows, goods, opened_shop


@pytest.fixture(scope="module", params=["POSTGRES", "MARIADB"])
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    with opened_shop(request.param) as found:
        yield found


@dataclass(frozen=True)
class MasterFile(FileTable):
    """A file with nothing but `[master]`."""

    master: MasterRef


@pytest.fixture(scope="module")
def spark(shop: Shop) -> Iterator[SparkSession]:
    """A session whose workers have the credentials of the shop: it starts after they are set."""
    session = ss.local_session(2, **{"spark.sql.shuffle.partitions": "2"})
    yield session
    session.stop()


def prices() -> dict[int, object]:
    return dict(zip(goods()["id"].to_pylist(), goods()["price"].to_pylist(), strict=True))


def test_frames_are_joined_and_no_plan_shows_credentials(
    shop: Shop, spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    table = shop.table(GOODS, as_rows(goods()))
    master = shop.master(table)
    sales = spark.range(0, 600, 1, 2).selectExpr("id AS product_id", "id * 2 AS sale")
    for algorithm in ("meshjoin", "auto"):
        joined = ss.join(
            sales,
            master,
            on={"product_id": "id"},
            how="left",
            memory="2MB",
            algorithm=algorithm,
            columns=["price"],
        )
        wanted = {(i, 2 * i, prices().get(i)) for i in range(600)}
        assert {tuple(row) for row in joined.collect()} == wanted
        # A worker goes on with its engine, and sees what was committed since.
    shop.run(f"UPDATE {table} SET price = 7")
    assert {row.price for row in joined.collect()} == {None, 7}
    joined.explain(True)
    assert not any(secret in capfd.readouterr().out for secret in SECRETS)
    twice = ss.join_star(
        sales,
        [
            ss.Lookup(master, on={"product_id": "id"}, columns=["price"], name="one"),
            ss.Lookup(
                master, on={"product_id": "id"}, columns=["price"], prefix="other_", name="two"
            ),
        ],
        memory="4MB",
    )
    rows = twice.collect()
    assert len(rows) == sum(0 <= key < 600 for key in prices())
    assert {tuple(row)[2:] for row in rows} == {(7, 7)}


def test_all_tasks_of_a_batch_see_one_moment(
    shop: Shop, spark: SparkSession, tmp_path: Path
) -> None:
    """The table changes when two tasks are at their ends, so before the third begins."""
    if shop.system != "postgresql":
        return  # It cannot share a moment.
    table, marker, uri = shop.table(GOODS, as_rows(goods(40))), str(tmp_path / "changed"), shop.uri

    def changing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import time

        import psycopg
        from pyspark import TaskContext

        yield from batches
        task = TaskContext.get()
        assert task is not None
        if task.partitionId() == 0:
            with psycopg.connect(uri, autocommit=True) as connection:
                connection.execute(f"UPDATE {table} SET stock = 7777")
            open(marker, "w").close()
        while not os.path.exists(marker):
            time.sleep(0.05)

    (tmp_path / "in").mkdir()
    ids = goods(40)["id"]
    pq.write_table(pa.table({"id": ids}), tmp_path / "in" / "1.parquet")
    stream = spark.readStream.schema("id long").parquet(str(tmp_path / "in"))
    stream = stream.repartition(3).mapInArrow(changing, "id long")
    pipeline = ss.Pipeline(
        stream,
        shop.master(table),
        on="id",
        memory="2MB",
        sink=tmp_path / "out",
        checkpoint=tmp_path / "checkpoint",
        trigger="availableNow",
    )
    pipeline.start().await_termination()
    found = pq.read_table(tmp_path / "out").select(["id", "stock"]).to_pylist()
    stocks = dict(zip(ids.to_pylist(), goods(40)["stock"].to_pylist(), strict=True))
    assert {row["id"]: row["stock"] for row in found} == stocks
    assert shop.run(f"SELECT count(*) FROM {table} WHERE stock = 7777") == [(40,)]


def test_a_pipeline_sees_new_rows_and_late_tuples_find_theirs(
    shop: Shop, spark: SparkSession, tmp_path: Path
) -> None:
    table = shop.table(GOODS, as_rows(goods(40)))
    file = tmp_path / "master.toml"
    file.write_text(
        f"""
[master]
database = "{shop.url}"
table = "{table}"
key = "id"
credentials = "SHOP"
"""
    )
    master = read_file(MasterFile, file).master.opened()
    (tmp_path / "in").mkdir()

    def run(number: int, ids: list[int]) -> None:
        sales = pa.table({"id": pa.array(ids, pa.int64()), "sale": pa.array(ids, pa.int64())})
        pq.write_table(sales, tmp_path / "in" / f"{number}.parquet")
        stream = spark.readStream.schema("id long, sale long").parquet(str(tmp_path / "in"))
        pipeline = ss.Pipeline(
            stream,
            master,
            on="id",
            memory="2MB",
            sink=tmp_path / "out",
            checkpoint=tmp_path / "checkpoint",
            unmatched=ss.Retry(backoff="1ms"),
            trigger="availableNow",
        )
        pipeline.start().await_termination()

    run(1, [0, 3, 4000])
    shop.run(f"INSERT INTO {table} VALUES (4000, 'late', 1, 1, '')")
    run(2, [6])
    found = pq.read_table(tmp_path / "out").select(["id", "name"]).to_pylist()
    assert {row["id"] for row in found} == {0, 3, 6, 4000}
    for file in (tmp_path / "checkpoint").rglob("*"):
        if file.is_file():
            assert not any(secret.encode() in file.read_bytes() for secret in SECRETS)
