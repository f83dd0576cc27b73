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
