"""Pushed streams: what has arrived by now, how long it waited, and what happens in a pause."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.budget import MemoryBudget
from semistream.cost.factors import CostFactors
from semistream.cost.priced_clock import PricedClock
from semistream.errors import ArrivalOrderError, OptionError, StreamSchemaError
from semistream.metrics import Recorder
from semistream.parts import timed_stream
from semistream.parts.join_shape import JoinShape
from semistream.parts.timed_stream import TimedArrivals, TimedStream
from semistream.testing import ManualClock, assert_same_rows, oracle_join, rows_of

ROWS = 40


def products() -> pa.Table:
    """Rows so wide that each has a page of its own."""
    return pa.table({"id": np.arange(ROWS), "name": [f"{i:04}" * 700 for i in range(ROWS)]})


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> ss.MasterTable:
    path = tmp_path_factory.mktemp("timed") / "products.master"
    built = ss.MasterTable.from_arrow(products(), path, key="id", page_bytes=4096)
    assert built.page_count == ROWS
    return built


def sales(*keys: int | None) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(keys, pa.int64()), "sale": np.arange(len(keys))})


def stream_of(
    master: ss.MasterTable, arrivals: list[tuple[float, pa.RecordBatch]], clock: ManualClock
) -> tuple[TimedStream, Recorder]:
    schema = arrivals[0][1].schema
    shape, recorder = JoinShape(schema, master, "id", "left", None), Recorder(clock)
    grant = MemoryBudget(1 << 20).grant("stream buffer")
    return TimedStream(TimedArrivals(arrivals), shape, 64, grant, recorder), recorder


def read(stream: TimedStream, limit: int) -> list[int]:
    stream.resume()
    return [code for arrivals in stream.read(limit) for code in arrivals.codes.tolist()]


def test_only_what_has_arrived_is_given(master: ss.MasterTable) -> None:
    clock = ManualClock()
    arrivals = [(1.0, sales(1, 2, 3)), (2.0, sales(4, 5)), (2.0, sales(6)), (9.0, sales(7))]
    stream, recorder = stream_of(master, arrivals, clock)
    assert read(stream, 10) == []
    assert stream.paused
    assert (stream.size, stream.next_arrival, recorder.arrived) == (0, 1.0, 0)
    clock.advance_to(2.0)
    assert read(stream, 4) == [1, 2, 3, 4]
    assert (stream.size, stream.next_arrival, recorder.arrived) == (2, 9.0, 6)
    assert read(stream, 10) == [5, 6]
    assert (stream.paused, stream.ended) == (True, False)
    clock.advance_to(9.0)
    assert read(stream, 10) == [7]
    assert read(stream, 10) == []
    assert stream.ended
    assert stream.next_arrival is None
    stream.check()


def test_a_tuple_waits_from_its_arrival_on(master: ss.MasterTable) -> None:
    clock = ManualClock()
    stream, recorder = stream_of(master, [(1.0, sales(1, 2, 3)), (2.0, sales(4, 5))], clock)
    clock.advance_to(5.0)
    read(stream, 4)
    clock.advance_to(7.0)
    read(stream, 4)
    waited = [4.0, 4.0, 4.0, 3.0, 5.0]
    assert recorder.waiting.snapshot().mean == sum(waited) / len(waited)


def test_tuples_put_back_are_in_the_stream_buffer(master: ss.MasterTable) -> None:
    stream, recorder = stream_of(master, [(0.0, sales(1, 2, 3))], ManualClock())
    assert read(stream, 3) == [1, 2, 3]
    stream.put_back(2)
    assert (stream.size, recorder.stream_reads) == (2, 1)
    assert read(stream, 3) == [2, 3]


def test_tuples_that_came_back_go_before_new_arrivals(master: ss.MasterTable) -> None:
    stream, _ = stream_of(master, [(0.0, sales(1, 2))], ManualClock())
    stream.arrive()
    stream.come_back([timed_stream.Timed(0.0, sales(8, 9))])
    assert (stream.size, stream.returned, stream.pending) == (4, 2, 2)
    assert read(stream, 4) == [8, 9, 1, 2]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (0.5, r"follows one at 1\.0 s"),
        *[(wrong, "finite number") for wrong in (float("nan"), float("inf"), None, "2")],
    ],
)
def test_times_that_cannot_be_meant_are_refused(
    master: ss.MasterTable, second: Any, message: str
) -> None:
    engine = ss.engine(
        master, algorithm="hybridjoin", io="unmapped", on="id", memory="1MB", clock=ManualClock()
    )
    with pytest.raises(ArrivalOrderError, match=message):
        list(engine.run_timed([(1.0, sales(1)), (second, sales(2))]))


@pytest.mark.parametrize(
    ("arrivals", "message"),
    [
        ([sales(1)], "pairs of an arrival time"),
        ([(0.0, pa.table({"id": [1]}))], "to_batches"),
        ([(0.0, sales(1)), (1.0, pa.record_batch({"id": ["a"]}))], "schema"),
    ],
)
def test_what_is_no_timed_batch_is_refused(
    master: ss.MasterTable, arrivals: Any, message: str
) -> None:
    engine = ss.engine(
        master, algorithm="hybridjoin", io="unmapped", on="id", memory="1MB", clock=ManualClock()
    )
    with pytest.raises(StreamSchemaError, match=message):
        list(engine.run_timed(arrivals))


def test_waiting_times_of_bursts_are_exact(master: ss.MasterTable) -> None:
    """Two slots, a page per key, a second per step: one more tuple can be read each second."""
    clock = PricedClock(CostFactors(iteration=1.0))
    sizes: dict[str, Any] = {"stream_slots": 2, "partition_pages": 1, "look_ups": 0}
    engine = ss.engine(
        master, algorithm="hybridjoin", io="unmapped", on="id", memory="1MB", clock=clock, **sizes
    )
    bursts = [(10.0, sales(0, 1, 2, 3, 4, 5)), (1000.0, sales(6, 7, 8)), (5000.0, sales(9))]
    list(engine.run_timed(bursts))
    waited = [*(0, 0, 1, 2, 3, 4), *(0, 0, 1), 0]
    assert engine.metrics().waiting_time.mean == sum(waited) / len(waited)
    assert engine.metrics().pages_read == 10
    # Gaps cost nothing but time: the last burst is done a step or two after it came.
    assert 5000.0 < engine.metrics().seconds <= 5002.0


def test_arrivals_during_a_step_are_read_in_the_next(master: ss.MasterTable) -> None:
    """A pause lasts only until the next step: the join does not finish all that waits first."""
    clock = PricedClock(CostFactors(iteration=1.0))
    sizes: dict[str, Any] = {"partition_pages": 1, "look_ups": 0}
    engine = ss.engine(
        master, algorithm="hybridjoin", io="unmapped", on="id", memory="1MB", clock=clock, **sizes
    )
    list(engine.run_timed([(0.0, sales(*range(20))), (3.5, sales(30, 31))]))
    # Read at 4 s, while most of the first twenty still waited.
    assert engine.metrics().waiting_time.mean == pytest.approx(2 * 0.5 / 22)


@pytest.mark.parametrize("algorithm", ss.ALGORITHMS)
@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_timed_run_joins_all(master: ss.MasterTable, algorithm: str, how: str) -> None:
    rng = np.random.default_rng(5)
    keys = rng.integers(-3, ROWS + 3, (30, 12))
    empty, nulls = sales(), sales(1, None, 2, None)
    batches = [sales(*row.tolist()) for row in keys] + [empty, nulls]
    times = np.cumsum(rng.choice([0.0, 0.01, 50.0], len(batches))).tolist()
    clock = PricedClock(CostFactors(page_read=0.02, iteration=0.001))
    engine = ss.engine(
        master, algorithm=algorithm, io="unmapped", on="id", how=how, memory="1MB", clock=clock
    )
    found = []
    for batch in engine.run_timed(zip(times, batches, strict=True)):
        engine.check()
        found.append(batch)
    expected = oracle_join(batches, products(), on="id", how=how)
    assert_same_rows(found, expected.rows)
    metrics = engine.metrics()
    assert (metrics.joined, metrics.unmatched) == (expected.joined, expected.unmatched)
    assert metrics.seconds >= times[-1]
    assert metrics.shed == metrics.returned == metrics.deferred == 0


def test_results_are_handed_out_before_time_passes(master: ss.MasterTable) -> None:
    clock = ManualClock()
    engine = ss.engine(
        master, algorithm="chybridjoin", io="unmapped", on="id", memory="1MB", clock=clock
    )
    seen = []
    for batch in engine.run_timed([(1.0, sales(1)), (60.0, sales(2, 3))]):
        seen.append((clock.now, [row[0] for row in rows_of(batch)]))
    assert [at for at, _ in seen] == [1.0, 60.0]
    assert [sorted(keys) for _, keys in seen] == [[1], [2, 3]]


def test_a_stream_without_arrivals_gives_nothing(master: ss.MasterTable) -> None:
    engine = ss.engine(
        master, algorithm="hybridjoin", io="unmapped", on="id", memory="1MB", clock=ManualClock()
    )
    assert list(engine.run_timed([])) == []
    assert engine.metrics().arrived == 0


def test_two_runs_count_the_same(master: ss.MasterTable) -> None:
    def once() -> ss.Metrics:
        clock = PricedClock(CostFactors(page_read=0.1, probe=0.01))
        engine = ss.engine(
            master, algorithm="hybridjoin", io="unmapped", on="id", memory="1MB", clock=clock
        )
        list(engine.run_timed((i / 2, sales(i % 7, i % 11)) for i in range(60)))
        return engine.metrics()

    assert once() == once()


class RealClock:
    """A clock without `advance_to`; the test's sleep moves it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds / 2 if len(self.slept) == 1 else seconds


def test_a_real_clock_is_slept_for(master: ss.MasterTable, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = RealClock()
    monkeypatch.setattr(time, "sleep", clock.sleep)
    engine = ss.engine(
        master, algorithm="hybridjoin", io="unmapped", on="id", memory="1MB", clock=clock
    )
    rows = rows_of(engine.run_timed([(50.0, sales(1)), (108.0, sales(2))]))
    assert [row[0] for row in rows] == [1, 2]
    assert clock.slept == [8.0, 4.0]


def test_a_clock_that_stands_still_is_an_error(
    master: ss.MasterTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    engine = ss.engine(
        master, algorithm="hybridjoin", io="unmapped", on="id", memory="1MB", clock=lambda: 0.0
    )
    with pytest.raises(OptionError, match="advance_to"):
        list(engine.run_timed([(1.0, sales(1))]))


def test_a_priced_clock_adds_up_and_never_goes_back() -> None:
    clock = PricedClock(CostFactors(page_read=2.0, probe=0.5), now=7.0)
    first = Recorder(clock)
    clock.bind(first)
    first.pages_read += 1
    first.probes += 2
    assert clock() == 10.0
    clock.advance_to(12.0)
    clock.advance_to(11.0)
    assert clock() == 12.0
    second = Recorder(clock)
    clock.bind(second)
    assert clock() == 12.0
    second.pages_read += 1
    first.pages_read += 100
    assert clock() == 14.0


def test_an_endless_timed_stream_can_be_left(master: ss.MasterTable) -> None:
    def endless() -> Iterator[tuple[float, pa.RecordBatch]]:
        at = 0
        while True:
            yield float(at), sales(*np.arange(at, at + 30) % ROWS)
            at += 1

    engine = ss.engine(
        master, algorithm="hybridjoin", io="unmapped", on="id", memory="1MB", clock=ManualClock()
    )
    run = engine.run_timed(endless())
    assert next(run).num_rows
    run.close()
    assert engine.metrics().outputs > 0


def test_a_path_is_not_needed_without_shedding(master: ss.MasterTable, tmp_path: Path) -> None:
    engine = ss.engine(
        master, algorithm="meshjoin", io="unmapped", on="id", memory="1MB", clock=ManualClock()
    )
    list(engine.run_timed([(0.0, sales(1))]))
    assert list(tmp_path.iterdir()) == []
