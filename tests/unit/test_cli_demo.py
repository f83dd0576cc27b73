"""The parts of `semistream demo`: its count, its display, its comparison, and whom it may kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from semistream import workload
from semistream.cli.demo import workers
from semistream.cli.demo.comparison import OURS, THEIRS, bars, verdict
from semistream.cli.demo.counted import counted
from semistream.cli.demo.scene import Scene
from semistream.cli.demo.view import Backlog
from semistream.spark.sales import SourceOptions


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path, products=100, rate=50, seconds=4, memory=1 << 20, seed=1, tasks=2)


PRODUCT = 7
DEARER = {2: (np.array([PRODUCT]), np.array([12345.0]))}
"""A product costs more from version 2 on."""


@pytest.fixture
def rows(scene: Scene) -> pa.Table:
    """What the warehouse must hold: two batches, the second with version 2 of the master."""
    products = workload.products(scene.products, scene.seed)
    pq.write_table(products, scene.table)
    ids = np.arange(scene.tuples) % scene.products
    batch = (np.arange(scene.tuples) >= scene.tuples // 2).astype(np.int32)
    prices = products["price"].to_numpy()[ids]
    prices[(batch == 1) & (ids == PRODUCT)] = 12345.0
    lines = [{"batch": 0, "master_version": 1}, {"batch": 1, "master_version": 2}]
    scene.metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    columns = {
        "product_id": ids,
        "quantity": np.ones(scene.tuples, np.int32),
        "sold_at": np.arange(scene.tuples).astype("M8[us]"),
    }
    sold = pa.table(columns)
    return (
        sold.append_column("name", products["name"].take(ids))
        .append_column("price", pa.array(prices))
        .append_column("batch", pa.array(batch))
    )


@pytest.fixture(autouse=True)
def sold(rows: pa.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sales that are made again; that they are the source's is what the whole demo shows."""
    sales = rows.select(["product_id", "quantity", "sold_at"])
    monkeypatch.setattr("semistream.cli.demo.counted._sold", lambda scene: sales)


def store(scene: Scene, rows: pa.Table) -> None:
    ds.write_dataset(
        rows, scene.warehouse, format="parquet", partitioning=["batch"],
        partitioning_flavor="hive",
    )  # fmt: skip


def test_a_right_warehouse_counts_as_right(scene: Scene, rows: pa.Table) -> None:
    store(scene, rows)
    found = counted(scene, DEARER)
    assert found.is_right, found
    assert (found.sold, found.stored, found.versions) == (200, 200, (1, 2))


def changed(rows: pa.Table, column: str, row: int, value: object) -> pa.Table:
    values = rows[column].to_pylist()
    values[row] = value
    place = rows.schema.get_field_index(column)
    return rows.set_column(place, column, pa.array(values, rows.schema.field(column).type))


@pytest.mark.parametrize(
    ("wrong", "count"),
    [
        (lambda rows: rows.slice(1), "wrong_sales"),
        (lambda rows: pa.concat_tables([rows, rows.slice(9, 1)]), "wrong_sales"),
        (lambda rows: pa.concat_tables([rows.slice(1), rows.slice(9, 1)]), "wrong_sales"),
        (lambda rows: changed(rows, "quantity", 3, 2), "wrong_sales"),
        (lambda rows: changed(rows, "name", 3, "another"), "wrong_names"),
        (lambda rows: changed(rows, "name", 3, None), "wrong_names"),
        (lambda rows: changed(rows, "price", PRODUCT, 12345.0), "wrong_prices"),
        (lambda rows: changed(rows, "price", 100 + PRODUCT, 1.0), "wrong_prices"),
    ],
    ids=["lost", "doubled", "both", "quantity", "name", "no name", "too early", "too late"],
)  # fmt: skip
def test_what_is_wrong_is_found(scene: Scene, rows: pa.Table, wrong: object, count: str) -> None:
    assert callable(wrong)
    store(scene, wrong(rows))
    found = counted(scene, DEARER)
    assert not found.is_right
    assert getattr(found, count) > 0


def test_the_queue_is_what_has_arrived_and_is_not_done() -> None:
    now = 1000.0
    arrivals = SourceOptions(rate=100.0, rows=1000)
    backlog = Backlog(arrivals, clock=lambda: now)
    assert (backlog.waiting, backlog.rate) == (0, 0)
    # A batch that began at 1000 took 200 tuples: the stream began two seconds before.
    backlog.note(1000.0, 200)
    now = 1003.0
    assert (backlog.waiting, backlog.rate) == (300, 100)
    backlog.note(1003.0, 300)
    assert backlog.waiting == 0
    assert backlog.done_rate == 100
    now = 1100.0
    assert (backlog.waiting, backlog.rate) == (500, 0)
    backlog.note(1100.0, 500)
    assert backlog.waiting == 0


def test_the_verdict_is_true_whichever_is_faster(scene: Scene) -> None:
    ahead = verdict({OURS: 80.0, THEIRS: 10.0}, scene)
    assert "semistream was 8.0 times as fast" in ahead
    assert "fall behind" in ahead
    assert "fall behind" not in verdict({OURS: 800.0, THEIRS: 100.0}, scene)
    assert "fall behind" not in verdict({OURS: 40.0, THEIRS: 10.0}, scene)
    behind = verdict({OURS: 10.0, THEIRS: 25.0}, scene)
    assert "Spark's own join was 2.5 times as fast as semistream" in behind
    assert "about as fast" in verdict({OURS: 100.0, THEIRS: 105.0}, scene)


def test_bars_are_as_long_as_the_rates_and_fit_a_terminal() -> None:
    lines = bars({OURS: 123_456.0, THEIRS: 30_864.0}).plain.splitlines()
    assert [line.count("█") for line in lines] == [36, 9]
    assert "123,000 sales/s" in lines[0]
    assert max(map(len, lines)) <= 80


def test_only_workers_below_this_process_are_found() -> None:
    # A parent that is not ours: no worker of it may be touched.
    assert workers._workers(os.getppid()) == []
    script = "import subprocess, sys; subprocess.run(['sleep', '60'])"
    with subprocess.Popen([sys.executable, "-c", script]) as child:
        try:
            # A child of ours, but with no daemon of Spark's below it.
            assert workers._workers(child.pid) == []
        finally:
            for below in workers._Process(child.pid, 0, 0, "S").children():
                assert workers._killed(below)
            child.kill()


def test_a_process_with_another_parent_by_now_is_left_alone() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            assert not workers._killed(workers._Process(child.pid, os.getpid() + 1, 0, "R"))
            assert child.poll() is None
        finally:
            child.kill()
