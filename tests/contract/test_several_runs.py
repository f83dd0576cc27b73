"""One engine, several runs: each exact and counted by itself, the front stage kept between them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.testing import assert_same_rows, checked_run, oracle_join
from tests.contract.harness import Contract, having

ROWS = 400


def products() -> pa.Table:
    names = [f"product number {i}, as it is called" for i in range(ROWS)]
    return pa.table({"id": pa.array(range(0, 2 * ROWS, 2), pa.int64()), "name": names})


def sales(seed: int, count: int = 900, note: str = "n") -> list[pa.RecordBatch]:
    """Mostly a few keys, some keys that are not there, some nulls."""
    random = np.random.default_rng(seed)
    hot = random.integers(0, 12, count) * 2
    keys = np.where(random.random(count) < 0.8, hot, random.integers(0, 2 * ROWS, count))
    columns = {
        "id": pa.array(keys, mask=random.random(count) < 0.02),
        "sale": pa.array(range(count), pa.int32()),
        "note": pa.array([note * (i % 5) for i in range(count)]),
    }
    batches: list[pa.RecordBatch] = pa.table(columns).to_batches(max_chunksize=100)
    return batches


@pytest.mark.parametrize("layout", ["key", "given"])
def test_every_run_is_exact(contract: Contract, layout: str) -> None:
    engine = contract.engine(contract.master(products(), layout=layout), memory="256KB")
    for seed in range(4):
        batches = sales(seed)
        found = checked_run(engine, batches)
        expected = oracle_join(batches, products(), on="id", how="left")
        assert_same_rows(found, expected.rows)
        metrics = engine.metrics()
        assert (metrics.joined, metrics.unmatched) == (expected.joined, expected.unmatched)
        assert metrics.peak_memory <= metrics.budget


def test_a_run_may_be_left_and_another_begun(contract: Contract) -> None:
    engine = contract.engine(contract.master(products()), memory="256KB")
    for stop in (0, 1, 3):
        left = engine.run(sales(1))
        for _ in range(stop):
            next(left)
        left.close()
        assert_same_rows(
            checked_run(engine, sales(2)),
            oracle_join(sales(2), products(), on="id", how="left").rows,
        )


def test_a_stream_of_another_schema_or_of_wider_tuples(contract: Contract) -> None:
    """Nothing of the last run gets in the way."""
    engine = contract.engine(contract.master(products()), memory="256KB")
    wide = sales(3, note="a long note " * 20)
    narrow = [batch.drop_columns(["note"]) for batch in sales(4)]
    for batches in (sales(2), wide, narrow, sales(2)):
        found = checked_run(engine, batches)
        assert_same_rows(found, oracle_join(batches, products(), on="id", how="left").rows)


def test_close_gives_everything_back(contract: Contract) -> None:
    engine = contract.engine(contract.master(products()), memory="256KB")
    checked_run(engine, sales(1))
    assert engine.memory().keys() > {"index", "disk buffer"}
    engine.close()
    assert engine.memory().keys() == {"peak", "budget"}
    found = checked_run(engine, sales(2))
    assert_same_rows(found, oracle_join(sales(2), products(), on="id", how="left").rows)


@pytest.mark.parametrize("algorithm", having("front_rows"))
def test_the_front_stage_remembers(contract: Contract) -> None:
    """What one run has learned, the next one's first tuples find."""
    engine: ss.Engine = contract.engine(contract.master(products()), memory="256KB")
    hits = []
    for _ in range(3):
        checked_run(engine, sales(5, 300))
        hits.append(engine.metrics().front_hits)
    assert hits[1] > 1.2 * hits[0]
    assert hits[2] >= 200
