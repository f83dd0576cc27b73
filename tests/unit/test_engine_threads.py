"""One engine runs one stream at a time: whoever comes second is told so, and harms nobody.

An engine is taken from the moment its first batch is asked for, not from when that batch has
come: a source may block for hours, and what it does meanwhile must not start a second run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.errors import OptionError
from semistream.testing import ManualClock, Row, assert_same_rows, oracle_join, rows_of

ROWS = 300
PATIENCE = 20.0
"""Seconds after which a thread that should have been refused counts as stuck."""
REFUSED = r"(?s)running already.*[Ff]inish or close.*another engine"

Batches: TypeAlias = Iterable[pa.RecordBatch]
Start: TypeAlias = Callable[[ss.Engine, Batches], Iterator[pa.RecordBatch]]


def products() -> pa.Table:
    return pa.table({"id": np.arange(ROWS) * 2, "name": [f"product {i}" for i in range(ROWS)]})


def sales() -> list[pa.RecordBatch]:
    keys = np.random.default_rng(5).integers(-5, 2 * ROWS + 5, (8, 50))
    return [pa.record_batch({"id": ids, "n": np.arange(50) + 50 * i}) for i, ids in enumerate(keys)]


EXPECTED: list[Row] = oracle_join(sales(), products(), on="id", how="left").rows


def run(engine: ss.Engine, batches: Batches) -> Iterator[pa.RecordBatch]:
    return engine.run(batches)


def run_timed(engine: ss.Engine, batches: Batches) -> Iterator[pa.RecordBatch]:
    return engine.run_timed((0.0, batch) for batch in batches)


@pytest.fixture(params=[run, run_timed], ids=["run", "run_timed"])
def start(request: pytest.FixtureRequest) -> Start:
    """Both ways to start a run."""
    chosen: Start = request.param
    return chosen


@pytest.fixture(params=["hybridjoin", "meshjoin", "auto"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> ss.Engine:
    master = ss.MasterTable.from_arrow(products(), tmp_path / "r", key="id", page_bytes=4096)
    return ss.engine(
        master, on="id", how="left", memory="512KB", algorithm=request.param, clock=ManualClock()
    )


def test_of_many_threads_one_runs_and_the_others_are_told(engine: ss.Engine, start: Start) -> None:
    """The one that runs waits for its first batch until all others have been refused."""
    threads = 4
    together, all_refused = threading.Barrier(threads), threading.Event()
    refused: list[OptionError] = []

    def source() -> Iterator[pa.RecordBatch]:
        assert all_refused.wait(PATIENCE), "two runs were let in, and both wait for a batch"
        yield from sales()

    def join() -> list[Row] | None:
        together.wait(PATIENCE)
        try:
            return rows_of(start(engine, source()))
        except OptionError as error:
            refused.append(error)
            if len(refused) == threads - 1:
                all_refused.set()
            return None

    with ThreadPoolExecutor(threads) as pool:
        results = [future.result() for future in [pool.submit(join) for _ in range(threads)]]
    (found,) = [rows for rows in results if rows is not None]
    assert_same_rows(found, EXPECTED)
    for error in refused:
        with pytest.raises(OptionError, match=REFUSED):
            raise error
    assert_same_rows(rows_of(start(engine, sales())), EXPECTED)


def test_an_iterator_made_before_the_other_started_is_refused(
    engine: ss.Engine, start: Start
) -> None:
    """Making an iterator starts nothing; reading it does."""
    asked, go_on = threading.Event(), threading.Event()

    def source() -> Iterator[pa.RecordBatch]:
        asked.set()
        assert go_on.wait(PATIENCE)
        yield from sales()

    made_before = start(engine, sales())
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(lambda: rows_of(start(engine, source())))
        assert asked.wait(PATIENCE)
        with pytest.raises(OptionError, match=REFUSED):
            next(made_before)
        go_on.set()
        assert_same_rows(first.result(), EXPECTED)
    assert_same_rows(rows_of(start(engine, sales())), EXPECTED)


@pytest.mark.parametrize("second", [run, run_timed])
def test_a_source_that_starts_a_second_run_before_its_first_batch_is_refused(
    engine: ss.Engine, start: Start, second: Start
) -> None:
    def source() -> Iterator[pa.RecordBatch]:
        with pytest.raises(OptionError, match=REFUSED):
            list(second(engine, sales()))
        yield from sales()

    assert_same_rows(rows_of(start(engine, source())), EXPECTED)


def test_a_source_that_closes_the_engine_before_its_first_batch_is_refused(
    engine: ss.Engine, start: Start
) -> None:
    def source() -> Iterator[pa.RecordBatch]:
        with pytest.raises(OptionError, match=REFUSED):
            engine.close()
        yield from sales()

    assert_same_rows(rows_of(start(engine, source())), EXPECTED)


def test_an_iterator_that_nobody_reads_keeps_nobody_out(engine: ss.Engine, start: Start) -> None:
    unread = start(engine, sales())
    assert_same_rows(rows_of(start(engine, sales())), EXPECTED)
    assert_same_rows(rows_of(unread), EXPECTED)


def test_a_source_that_fails_before_its_first_batch_leaves_the_engine_free(
    engine: ss.Engine, start: Start
) -> None:
    class Broken:
        def __iter__(self) -> Iterator[pa.RecordBatch]:
            return self

        def __next__(self) -> pa.RecordBatch:
            raise ConnectionError("the source is gone")

    with pytest.raises(ConnectionError):
        list(start(engine, Broken()))
    assert_same_rows(rows_of(start(engine, sales())), EXPECTED)


def test_a_stream_without_batches_leaves_the_engine_free(engine: ss.Engine, start: Start) -> None:
    assert list(start(engine, [])) == []
    assert_same_rows(rows_of(start(engine, sales())), EXPECTED)
