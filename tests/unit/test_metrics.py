"""Counters, durations and the clock that they are measured with."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import semistream as ss
from semistream.cost.prediction import Operations
from semistream.metrics import DurationHistogram, Durations, Metrics, Recorder
from semistream.relation import Frame, PageReader
from semistream.testing import ManualClock


def recorded(recorder: Recorder) -> Metrics:
    return recorder.snapshot("inlj", peak_memory=10, budget=20)


def test_nothing_took_no_time() -> None:
    assert DurationHistogram().snapshot() == Durations(0.0, 0.0, 0.0)
    metrics = recorded(Recorder(ManualClock()))
    assert (metrics.service_rate, metrics.matches_per_partition) == (0.0, 0.0)


@given(st.lists(st.tuples(st.integers(2, 10**9), st.integers(1, 1000)), min_size=1, max_size=30))
def test_the_mean_is_exact_and_quantiles_are_right_to_four_percent(
    durations: list[tuple[int, int]],
) -> None:
    histogram = DurationHistogram()
    for micros, count in durations:
        histogram.add((micros + 0.5) / 1e6, count)
    found = histogram.snapshot()
    everything = np.sort(np.repeat(*np.array(durations).T))
    assert found.mean == pytest.approx(everything.mean() / 1e6)
    for share, value in ((0.50, found.p50), (0.99, found.p99)):
        exact = everything[int(np.ceil(share * len(everything))) - 1] / 1e6
        assert value == pytest.approx(exact, rel=0.04)


def test_durations_that_no_bin_is_for_go_into_the_last() -> None:
    histogram = DurationHistogram()
    histogram.add(1e9, 3)
    found = histogram.snapshot()
    assert found.mean == pytest.approx(1e9)
    assert found.p50 == found.p99 > 3600


def test_a_snapshot_is_frozen_and_later_counts_do_not_reach_it() -> None:
    recorder = Recorder(ManualClock())
    before = recorded(recorder)
    recorder.arrived += 5
    recorder.processing.add(1.0, 1)
    assert (before.arrived, before.processing_time.mean) == (0, 0.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.arrived = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.seconds = 1.0


def test_every_counter_is_in_the_snapshot() -> None:
    recorder = Recorder(ManualClock())
    counters = list(recorder.counts())
    assert {"arrived", "joined", "unmatched", "outputs", "pages_read"} <= set(counters)
    for number, name in enumerate(counters):
        setattr(recorder, name, number + 1)
    metrics = recorded(recorder)
    assert metrics.counts() == {name: number + 1 for number, name in enumerate(counters)}
    assert metrics.since(recorded(Recorder(ManualClock()))) == metrics.counts()
    assert (metrics.algorithm, metrics.peak_memory, metrics.budget) == ("inlj", 10, 20)


def test_only_the_table_has_counters() -> None:
    """What a recorder or a snapshot has besides is no count."""
    for kind in (Recorder, Metrics):
        own = {f.name for f in dataclasses.fields(kind)} - set(Recorder(ManualClock()).counts())
        assert own <= {
            *("clock", "processing", "waiting"),
            *("algorithm", "seconds", "processing_time", "waiting_time", "peak_memory", "budget"),
        }
    assert Operations().counts() == dict.fromkeys(Recorder(ManualClock()).counts(), 0)
    assert {f.name for f in dataclasses.fields(Operations)} == set(Operations().counts())


@given(st.lists(st.lists(st.integers(0, 10**9), max_size=20), min_size=1, max_size=5))
def test_merged_runs_are_as_one_run_that_did_it_all(runs: list[list[int]]) -> None:
    everything, merged = Recorder(ManualClock()), []
    for number, durations in enumerate(runs):
        some = Recorder(ManualClock(), pages_read=number, joined=len(durations))
        for recorder in (some, everything):
            for micros in durations:
                recorder.processing.add((micros + 0.5) / 1e6, 2)
                recorder.waiting.add((micros // 2 + 0.5) / 1e6, 1)
        everything.pages_read += number
        everything.joined += len(durations)
        metrics = some.snapshot(f"run {number}", peak_memory=10 - number, budget=20 + number)
        merged.append(dataclasses.replace(metrics, seconds=2.0))
    last = len(runs) - 1
    expected = everything.snapshot(f"run {last}", peak_memory=10, budget=20 + last)
    found = Metrics.merge(merged)
    assert found == dataclasses.replace(expected, seconds=2.0 * len(runs))


def test_metrics_come_back_from_json() -> None:
    recorder = Recorder(ManualClock(), arrived=4, joined=3)
    for seconds in (0.0, 0.001, 2.5):
        recorder.processing.add(seconds, 1)
    metrics = recorded(recorder)
    record = json.loads(json.dumps({**dataclasses.asdict(metrics), "partition": 3}))
    assert Metrics.of(record) == metrics


def test_rates_are_per_second_of_the_injected_clock() -> None:
    clock = ManualClock(now=100.0)
    recorder = Recorder(clock)
    recorder.joined, recorder.unmatched = 300, 100
    recorder.matches, recorder.partitions_read = 30, 12
    clock.advance(8.0)
    assert recorded(recorder).seconds == 8.0
    assert recorded(recorder).service_rate == 50.0
    assert recorded(recorder).matches_per_partition == 2.5
    recorder.stop()
    clock.advance(100.0)
    assert recorded(recorder).seconds == 8.0


def test_microseconds_are_even_and_wrap() -> None:
    clock = ManualClock()
    recorder = Recorder(clock)
    for seconds, micros in ((0.000003, 2), (1.0, 10**6), (2**32 / 1e6 + 0.00001, 10)):
        clock.now = seconds
        assert recorder.micros() == micros


@pytest.fixture
def master(tmp_path: Path) -> ss.MasterTable:
    table = pa.table({"id": np.arange(100), "name": [f"{i}" for i in range(100)]})
    return ss.MasterTable.from_arrow(table, tmp_path / "r", key="id", page_bytes=4096)


def timed_stream(clock: ManualClock, seconds: float, batches: int) -> Iterator[pa.RecordBatch]:
    """Batches of ten, each `seconds` after the one before."""
    for number in range(batches):
        if number:
            clock.advance(seconds)
        yield pa.record_batch({"id": np.arange(10) + number * 10})


@pytest.mark.parametrize("algorithm", ["hybridjoin", "xhybridjoin", "oxhybridjoin"])
@pytest.mark.parametrize("start", [0.0, 2**32 / 1e6 - 1.0])
def test_processing_time_is_from_entering_the_table_to_being_finished(
    master: ss.MasterTable, algorithm: str, start: float
) -> None:
    """All tuples fit, so they wait until the stream has ended: the first 4 s, the last 0 s.

    Also when the clock's microseconds pass 2**32 meanwhile.
    """
    clock = ManualClock(now=start)
    options: dict[str, Any] = {} if algorithm == "hybridjoin" else {"pinned_partitions": 0}
    engine = ss.engine(
        master, algorithm=algorithm, io="unmapped", on="id", memory="1MB", clock=clock, **options
    )
    list(engine.run(timed_stream(clock, 1.0, 5)))
    metrics = engine.metrics()
    assert metrics.seconds == pytest.approx(4.0)
    assert metrics.processing_time.mean == pytest.approx(2.0, abs=1e-5)
    assert metrics.processing_time.p50 == pytest.approx(2.0, rel=0.04)
    assert metrics.processing_time.p99 == pytest.approx(4.0, rel=0.04)
    assert metrics.service_rate == pytest.approx(50 / 4.0)


def test_times_of_a_join_worked_out_by_hand(tmp_path: Path) -> None:
    """HYBRIDJOIN with five slots; ten tuples arrive at once, each on a page of its own.

    Decoding a page takes a second. The first five tuples enter at 0 s; each page read lets one
    tuple go and another enter. So the waits in the stream buffer are 0 0 0 0 0 1 2 3 4 5 s, and
    the times from entering to being finished are 1 2 3 4 5 5 5 5 5 5 s.
    """
    table = pa.table({"id": np.arange(20), "padding": ["p" * 1600] * 20})
    master = ss.MasterTable.from_arrow(table, tmp_path / "r", key="id", page_bytes=4096)
    assert master.page_count == 10
    clock, decode = ManualClock(), PageReader.decode

    def slow(reader: PageReader, first: int, count: int, frame: Frame) -> list[pa.RecordBatch]:
        clock.advance(1.0)
        return decode(reader, first, count, frame)

    sizes: dict[str, Any] = {"stream_slots": 5, "partition_pages": 1, "look_ups": 0}
    engine = ss.engine(
        master, algorithm="hybridjoin", io="unmapped", on="id", memory="1MB", clock=clock, **sizes
    )
    with mock.patch.object(PageReader, "decode", slow):
        # A column of varying size: else pages are not decoded, and the clock would stand still.
        sold = pa.record_batch({"id": np.arange(0, 20, 2), "note": ["a note"] * 10})
        list(engine.run([sold]))
    metrics = engine.metrics()
    assert metrics.seconds == 10.0
    assert metrics.waiting_time.mean == pytest.approx(1.5)
    assert metrics.waiting_time.p99 == pytest.approx(5.0, rel=0.04)
    assert metrics.processing_time.mean == pytest.approx(4.0)
    assert metrics.processing_time.p50 == pytest.approx(5.0, rel=0.04)
    assert metrics.matches_per_partition == 1.0


def test_tuples_for_which_there_was_no_room_wait_once(tmp_path: Path) -> None:
    """Strings fill the heap before the slots, so tuples are put back and read again.

    Each is still one tuple with one wait: the histogram must not count it twice.
    """
    table = pa.table({"id": np.arange(100), "name": ["n" * 30] * 100})
    master = ss.MasterTable.from_arrow(table, tmp_path / "r", key="id", page_bytes=4096)
    stream = [
        pa.record_batch({"id": np.arange(64) % 100, "text": ["t" * (3 + 40 * (n > 0))] * 64})
        for n in range(6)
    ]
    clock = ManualClock(tick=0.001)
    engine = ss.engine(
        master, algorithm="hybridjoin", io="unmapped", on="id", memory=60_000, clock=clock
    )
    list(engine.run(stream))
    counted = int(engine._recorder.waiting.bins.sum())
    assert counted == engine.metrics().arrived == 384
