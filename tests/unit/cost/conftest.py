"""Small masters in both layouts, and runs of which the steady state is counted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.cost import CostFactors
from semistream.cost.empirical import steady_run
from semistream.cost.factors import factors_path, shipped_factors
from semistream.cost.prediction import Operations
from semistream.workload import ZipfKeys, products, sales
from semistream.workload.zipf import scattered

ROWS = 20_000
SEED = 20


@pytest.fixture(scope="session")
def masters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ss.MasterTable]:
    """R in key order, its frequent keys scattered; and in the order of frequency."""
    folder: Path = tmp_path_factory.mktemp("masters")
    table = products(ROWS, seed=SEED)
    by_rank = table.take(pa.array(scattered(np.arange(ROWS), ROWS, SEED)))
    options: dict[str, Any] = {"key": "product_id", "page_bytes": 8192}
    return {
        "key": ss.MasterTable.from_arrow(table, folder / "key", **options),
        "given": ss.MasterTable.from_arrow(by_rank, folder / "given", layout="given", **options),
    }


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CostFactors:
    """The factors of a machine where a read takes 5 ms, as if they had been measured."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    reads = dict.fromkeys(("partition_read", "sequential_read", "batched_read"), 5e-3)
    factors = replace(shipped_factors().factors, **reads)
    path = factors_path("buffered")
    path.parent.mkdir()
    path.write_text(json.dumps({"source": "a slow disk", "factors": asdict(factors)}))
    return factors


Stream = Callable[..., Iterator[pa.RecordBatch]]
Counted = Callable[[ss.Engine, Iterator[pa.RecordBatch], int], Operations]


@pytest.fixture(scope="session")
def stream() -> Stream:
    return _stream


@pytest.fixture(scope="session")
def counted() -> Counted:
    return _counted


def _stream(exponent: float, tuples: int, batch_rows: int = 20_000) -> Iterator[pa.RecordBatch]:
    """Sales after Zipf's law, scattered as the masters have it."""
    return sales(tuples, ZipfKeys(ROWS, exponent, seed=SEED), ROWS, batch_rows=batch_rows)


def _counted(engine: ss.Engine, batches: Iterator[pa.RecordBatch], warm: int) -> Operations:
    return steady_run(engine, batches, warm)[0]
