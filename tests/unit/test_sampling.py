"""Samples and what is estimated from them: who is chosen, how many, and how well it is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.errors import OptionError
from semistream.sampling import chosen
from semistream.testing import assert_same_rows, checked_run, rows_of

SEEDS = 400


@pytest.fixture
def master(tmp_path: Path) -> ss.MasterTable:
    """Product 0 has no row, 1 to 9 have as many as their number."""
    ids = np.repeat(np.arange(10), np.arange(10))
    table = pa.table({"id": ids, "price": np.arange(len(ids)) * 1.5, "home": ids % 2})
    return ss.MasterTable.from_arrow(table, tmp_path / "r", key="id")


def sales(rows: int = 3_000) -> pa.Table:
    """One sale in ten is there twice, column for column."""
    number = np.arange(rows) - (np.arange(rows) % 10 == 9)
    return pa.table({"number": number, "id": number * 7 % 11})


def joined(master: ss.MasterTable, **terms: Any) -> tuple[pa.Table, ss.Metrics]:
    engine = ss.engine(master, on="id", how="left", memory="1MB", **terms)
    return pa.Table.from_batches(checked_run(engine, sales())), engine.metrics()


def chosen_rows(batch: pa.RecordBatch, share: float, seed: int = 0) -> list[int]:
    sample = ss.Sample(share, seed).of_columns(batch.schema)
    return np.flatnonzero(chosen(batch, sample)).tolist()


@pytest.mark.parametrize("algorithm", ["auto", "hybridjoin", "meshjoin"])
def test_the_join_of_a_sample_is_the_sample_of_the_join(
    master: ss.MasterTable, algorithm: str
) -> None:
    (batch,) = sales().to_batches()
    numbers = {batch["number"][i].as_py() for i in chosen_rows(batch, 0.2, 5)}
    whole, _ = joined(master)
    part, metrics = joined(master, sample=ss.Sample(0.2, seed=5), algorithm=algorithm)
    assert_same_rows(part, [row for row in rows_of(whole) if row[0] in numbers])
    assert metrics.arrived == 3_000
    assert metrics.left_out == 3_000 - metrics.joined - metrics.unmatched
    assert 2_300 < metrics.left_out < 2_500


def test_a_condition_has_samples_too(master: ss.MasterTable) -> None:
    terms: dict[str, Any] = {"on": ss.below("number", "id"), "memory": "1MB", "columns": []}
    engine = ss.engine(master, sample=0.5, **terms)
    stream = sales().select(["number"])
    found = pa.Table.from_batches(checked_run(engine, stream))
    whole = pa.Table.from_batches(checked_run(ss.engine(master, **terms), stream))
    kept = {stream["number"][i].as_py() for i in chosen_rows(stream.to_batches()[0], 0.5)}
    assert_same_rows(found, [row for row in rows_of(whole) if row[0] in kept])


def test_the_choice_depends_on_content_alone() -> None:
    rng = np.random.default_rng(1)
    table = pa.table(
        {
            "id": np.arange(500),
            "x": pa.array(rng.random(500), mask=rng.random(500) < 0.2),
            "s": pa.array([f"s{i % 7}" for i in range(500)], mask=rng.random(500) < 0.2),
            "inside": [[i] for i in range(500)],
        }
    )
    whole = {*chosen_rows(table.to_batches()[0], 0.3)}
    order = rng.permutation(500)
    mixed = table.take(order)
    encoded = mixed.set_column(2, "s", mixed["s"].combine_chunks().dictionary_encode())
    place = 0
    for batch in encoded.to_batches(max_chunksize=37):
        found = {int(order[place + i]) for i in chosen_rows(batch, 0.3)}
        assert found == whole & {*order[place : place + batch.num_rows].tolist()}
        place += batch.num_rows


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9])
def test_the_share_and_the_independence_of_choices(share: float) -> None:
    batch = pa.record_batch({"id": np.arange(100_000)})
    masks = [chosen(batch, ss.Sample(share, seed, ["id"])) for seed in range(4)]
    error = np.sqrt(share * (1 - share) / 100_000)
    for mask in masks:
        assert abs(mask.mean() - share) < 5 * error
        # A tuple's choice says nothing about its neighbour's.
        assert abs((mask[1:] & mask[:-1]).mean() - share**2) < 6 * share * np.sqrt(1 / 100_000)
    assert abs((masks[0] & masks[1]).mean() - share**2) < 5 * error


def test_a_seed_is_no_value() -> None:
    """Whether value c is chosen by seed s says nothing of whether value s is by seed c."""
    batch = pa.record_batch({"id": np.arange(200)})
    grid = np.array([chosen(batch, ss.Sample(0.5, seed, ["id"])) for seed in range(200)])
    above = np.triu_indices(200, 1)
    assert abs((grid[above] == grid.T[above]).mean() - 0.5) < 0.03


def test_all_and_smaller_samples() -> None:
    batch = pa.record_batch({"id": np.arange(1_000)})
    assert chosen_rows(batch, 1) == list(range(1_000))
    assert {*chosen_rows(batch, 0.1)} < {*chosen_rows(batch, 0.2)}
    assert chosen_rows(batch, 0.2, seed=1) != chosen_rows(batch, 0.2, seed=2)


def test_estimates_are_unbiased_and_their_intervals_hold(master: ss.MasterTable) -> None:
    """Over many seeds: means within 4 standard errors, 95 % intervals right 92 to 98 times."""
    whole, _ = joined(master)
    truth = ss.estimate(whole, 1.0, column="price", by=["number", "id"])
    assert isinstance(truth, ss.Estimates)
    numbers = whole["number"].to_numpy()
    estimates = []
    for seed in range(SEEDS):
        sample = ss.Sample(0.1, seed, ["number", "id"])
        (batch,) = whole.combine_chunks().to_batches()
        part = pa.Table.from_batches([batch.filter(pa.array(chosen(batch, sample)))])
        estimates.append(ss.estimate(part, sample, column="price"))
    assert len(numbers) == truth.count.value
    for name in ("count", "sum", "mean"):
        found = [getattr(one, name) for one in estimates]
        true = getattr(truth, name).value
        values = np.array([one.value for one in found])
        assert abs(values.mean() - true) < 4 * values.std() / np.sqrt(SEEDS), name
        held = np.mean([one.low <= true <= one.high for one in found])
        assert 0.92 <= held <= 0.98, (name, held)


def test_groups_and_a_sample_of_everything(master: ss.MasterTable) -> None:
    whole, _ = joined(master)
    by = ["number", "id"]
    found = ss.estimate(whole, 1.0, column="price", by=by, group_by="home")
    assert isinstance(found, dict)
    for home, one in found.items():
        prices = [row["price"] for row in whole.to_pylist() if row["home"] == home]
        known = [price for price in prices if price is not None]
        assert one.count == ss.Estimate(len(prices), len(prices), len(prices), 0.0)
        assert one.sum is not None
        assert one.sum.value == pytest.approx(sum(known))
        if known:
            assert one.mean is not None
            assert one.mean.value == pytest.approx(np.mean(known))
        else:
            assert one.mean is None
    several = ss.estimate(whole, 1.0, by=by, group_by=["home", "id"])
    assert (0, 2) in several  # type: ignore[operator]


@pytest.mark.parametrize("share", [0, -1, 1.5, True, "0.1"])
def test_what_is_no_share_is_refused(master: ss.MasterTable, share: Any) -> None:
    with pytest.raises(OptionError, match="must be a share"):
        ss.engine(master, on="id", memory="1MB", sample=share)


def test_what_has_no_totals_is_refused() -> None:
    frame = pa.table({"id": [1], "n": [1]}).to_pandas()
    with pytest.raises(ss.OptionError, match="rows is a DataFrame; give the result of a join"):
        ss.estimate(frame, 0.5, by=["id"])


def test_columns_that_cannot_decide_are_refused(master: ss.MasterTable) -> None:
    engine = ss.engine(master, on="id", memory="1MB", sample=ss.Sample(0.1, by=["nothing"]))
    with pytest.raises(OptionError, match="nothing"):
        list(engine.run(sales()))
    with pytest.raises(OptionError, match=r"by=\[…\] must name"):
        ss.estimate(sales(), 0.1)
    with pytest.raises(OptionError, match="timed stream"):
        engine.run_timed([])
