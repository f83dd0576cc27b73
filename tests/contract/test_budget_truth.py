"""Whether the budget tells the truth: what a run really allocates, measured.

`tracemalloc` sees NumPy's arrays (and every Python object), a proxy memory pool sees Arrow's
buffers, and frames are counted as they are made. Their peaks are taken apart and added, which
is an upper bound of the true peak: they need not fall on the same moment.

Not the join's own are the input batches, which exist before, and the batch just handed out,
which is its taker's. What remains may pass the budget by one part in `ALLOWED` only: Python
objects, the dispatchers of kernels, the thread that reads ahead. A share finds what a constant
does not: scratch memory that grows with the parts and belongs to no grant.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.algorithms.registry import needs_of
from semistream.relation import Frame
from tests.contract.harness import Contract

ALLOWED = 50

_POOLS: list[pa.MemoryPool] = []
"""A buffer that outlives its pool would crash the process: pools are kept."""


@dataclass
class Measured:
    """The peaks of one run, in bytes above what was there before."""

    arrow: int = 0
    python: int = 0
    frames: int = 0
    handed_out: int = 0
    sizes: list[int] = field(default_factory=list)

    @property
    def own(self) -> int:
        return self.arrow + self.python + self.frames - self.handed_out


@contextmanager
def measuring() -> Iterator[Measured]:
    measured = Measured()
    make_frame = Frame.__init__

    def counted(frame: Frame, nbytes: int) -> None:
        make_frame(frame, nbytes)
        measured.frames += frame.nbytes

    gc.collect()
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    _POOLS.append(pool)
    tracemalloc.start()
    pa.set_memory_pool(pool)
    try:
        base = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        with mock.patch.object(Frame, "__init__", counted):
            yield measured
        measured.python = tracemalloc.get_traced_memory()[1] - base
        measured.arrow = pool.max_memory()
    finally:
        pa.set_memory_pool(before)
        tracemalloc.stop()
    measured.handed_out = max(measured.sizes, default=0)


class Sized(NamedTuple):
    """A budget, a master whose rows fill every part, and a stream that fills the stream table."""

    memory: int
    master: ss.MasterTable
    batch: pa.RecordBatch
    """The stream is this batch, again and again."""
    batches: int


def keys(count: int, rows: int) -> np.ndarray[Any, Any]:
    """Popular ones and others, one in six absent."""
    rng = np.random.default_rng(1)
    return (rng.random(count) ** 3 * rows * 1.2).astype(np.int64)


def texts(count: int, longest: int) -> pa.Array:
    every = pa.array(["x" * length for length in range(longest)])
    return every.take(pa.array(np.random.default_rng(2).integers(0, longest, count)))


def fixed(rows: int, tuples: int) -> tuple[pa.Table, pa.Table]:
    table = pa.table({"id": np.arange(rows), "a": np.arange(rows) / 3, "b": np.arange(rows)})
    sales = {"id": keys(tuples, rows), "n": np.arange(tuples), "m": np.arange(tuples) / 7}
    return table, pa.table(sales)


def strings(rows: int, tuples: int) -> tuple[pa.Table, pa.Table]:
    table = pa.table({"id": np.arange(rows), "name": texts(rows, 120), "b": np.arange(rows)})
    return table, pa.table({"id": keys(tuples, rows), "note": texts(tuples, 60)})


DATA = {"fixed": fixed, "strings": strings}
SIZES = [(4, "key"), (4, "given"), (64, "key")]
"""Megabytes, and the master's layout."""


@pytest.fixture(scope="module", params=DATA)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=SIZES, ids=lambda size: f"{size[0]}MB-{size[1]}")
def sized(
    request: pytest.FixtureRequest, kind: str, tmp_path_factory: pytest.TempPathFactory
) -> Sized:
    megabytes, layout = request.param
    memory, batch_rows = megabytes << 20, 2_000 * megabytes
    table, sales = DATA[kind](memory // 200, batch_rows)
    master = ss.MasterTable.from_arrow(
        table, tmp_path_factory.mktemp("sized") / "r", key="id", layout=layout, page_bytes=16384
    )
    bytes_per_slot = 48 if kind == "fixed" else 96
    (batch,) = sales.combine_chunks().to_batches()
    return Sized(memory, master, batch, memory // bytes_per_slot // batch_rows + 1)


def stream_for(algorithm: str, sized: Sized) -> list[pa.RecordBatch]:
    """As many tuples as can wait; where none do, and each is a read of its own, a few."""
    if needs_of(algorithm).waiting:
        return [sized.batch] * sized.batches
    return [sized.batch.slice(0, 1_000)] * 3


def test_the_budget_is_what_is_allocated(contract: Contract, sized: Sized) -> None:
    stream = stream_for(contract.algorithm, sized)
    # Compiling a kernel takes memory; the first run does that. With little memory it must meet all
    # of them, those that move rows and memory too.
    first = stream if sized.memory <= 4 << 20 else [sized.batch.slice(0, 1_000)]
    list(contract.engine(sized.master, memory=sized.memory).run(first))
    engine = contract.engine(sized.master, memory=sized.memory)
    with measuring() as measured:
        for batch in engine.run(stream):
            measured.sizes.append(batch.nbytes)
            del batch
    metrics = engine.metrics()
    assert metrics.arrived == sum(batch.num_rows for batch in stream)
    over = measured.own - metrics.budget
    assert over <= metrics.budget // ALLOWED, (
        f"{over:,} bytes over {metrics.budget:,}: Arrow {measured.arrow:,}, NumPy and Python "
        f"{measured.python:,}, frames {measured.frames:,}, the batch handed out "
        f"{measured.handed_out:,}; granted {engine.memory()}"
    )
