"""Results that wait: in order, inside their memory, and no file is left."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from semistream.budget import MemoryBudget
from semistream.matching.held_results import HeldResults


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary files go; at the end there is none, with a name or open."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = _open_files()
    yield tmp_path
    assert list(tmp_path.iterdir()) == []
    assert _open_files() <= before


def _open_files() -> set[str]:
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            continue
    return {path for path in found if "semistream-" in path or "(deleted)" in path}


def batches(seed: int, count: int, rows: int) -> list[pa.RecordBatch]:
    rng = np.random.default_rng(seed)
    found, value = [], 0
    for _ in range(count):
        numbers = rng.integers(0, 300, rows).astype(np.int32)
        values = np.arange(value, value + rows)
        value += rows
        texts = ["x" * int(n) for n in rng.integers(0, 50, rows)]
        found.append(pa.record_batch({"n": numbers, "value": values, "text": texts}))
    return found


@pytest.mark.parametrize(("limit", "spills"), [(1 << 20, False), (40_000, True), (6_000, True)])
def test_rows_come_in_order_and_inside_the_memory(
    folder: Path, limit: int, spills: bool, seed: int
) -> None:
    given = batches(seed, 40, 50)
    budget = MemoryBudget(limit)
    held = HeldResults(budget.grant("results"), limit, "n", ordered=True)
    for batch in given:
        held.add(batch)
    found = pa.Table.from_batches(list(held.rows()))
    assert (held.spilled > 0) == spills
    held.close()
    numbers = found.column("n").to_pylist()
    assert numbers == sorted(numbers)
    expected = pa.Table.from_batches(given)
    for name in ("n", "text"):
        assert found.sort_by("value").column(name).equals(expected.column(name))
    assert budget.used == 0
    assert 0 < budget.peak <= limit


def test_files_are_closed_when_reading_stops_half_way(folder: Path) -> None:
    budget = MemoryBudget(6_000)
    held = HeldResults(budget.grant("results"), 6_000, "n", ordered=True)
    for batch in batches(1, 10, 50):
        held.add(batch)
    rows = held.rows()
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    held.close()
    assert budget.used == 0


def test_what_is_of_no_use_is_not_written(folder: Path) -> None:
    budget = MemoryBudget(20_000)

    def few(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.slice(0, 1)

    held = HeldResults(budget.grant("results"), 20_000, "n", ordered=False, still_wanted=few)
    for batch in batches(1, 40, 50):
        held.add(batch)
    assert held.spilled == 0
    assert sum(few(batch).num_rows for batch in held.rows()) < 40 * 50
    held.close()


@pytest.mark.parametrize("arrival", ["in order", "shuffled", "one tuple"])
def test_what_is_written_grows_with_n_log_n(folder: Path, arrival: str) -> None:
    limit, given = 6_000, batches(3, 200, 50)
    if arrival != "shuffled":
        numbers = np.arange(10_000, dtype=np.int32) if arrival == "in order" else np.zeros(10_000)
        parts = numbers.astype(np.int32).reshape(200, 50)
        given = [b.set_column(0, "n", pa.array(p)) for b, p in zip(given, parts, strict=True)]
    held = HeldResults(MemoryBudget(limit).grant("results"), limit, "n", ordered=True)
    for batch in given:
        held.add(batch)
    numbers = pa.Table.from_batches(list(held.rows())).column("n").to_numpy()
    assert len(numbers) == 10_000
    assert (np.diff(numbers) >= 0).all()
    size = sum(batch.nbytes for batch in given)
    # Of runs that fill half of the memory, four are merged at a time.
    levels = np.log(2 * size / limit) / np.log(4)
    assert held.spilled <= 1.1 * size * (1 if arrival != "shuffled" else 2 + levels)
    held.close()


def test_rows_in_no_order_are_written_once(folder: Path) -> None:
    held = HeldResults(MemoryBudget(6_000).grant("results"), 6_000, "n", ordered=False)
    given = batches(3, 200, 50)
    for batch in given:
        held.add(batch)
    assert sum(batch.num_rows for batch in held.rows()) == 10_000
    assert held.spilled <= 1.1 * sum(batch.nbytes for batch in given)
    held.close()
