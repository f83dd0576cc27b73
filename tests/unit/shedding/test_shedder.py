"""The shedder by itself: when it sheds, which tuples, how many, and when they come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.budget import MemoryBudget
from semistream.metrics import Recorder
from semistream.parts.join_shape import JoinShape
from semistream.parts.shedding import Shedder, Shedding
from semistream.parts.timed_stream import TimedArrivals, TimedStream
from semistream.testing import ManualClock

ROWS = 2000
SCHEMA = pa.schema({"id": pa.int64(), "sale": pa.int64()})


class Bench:
    """A shedder over a timed stream, with room, waiting tuples and finished ones set by hand."""

    def __init__(self, master: ss.MasterTable, shedding: Shedding) -> None:
        self.room = 0
        self.clock = ManualClock()
        self.recorder = Recorder(self.clock)
        shape = JoinShape(SCHEMA, master, "id", "left", None)
        self.pushed: list[tuple[float, pa.RecordBatch]] = []
        grant = MemoryBudget(1 << 20).grant("stream buffer")
        self._next = 0
        batches = TimedArrivals(self._arrivals())
        self.stream = TimedStream(batches, shape, 64, grant, self.recorder)
        self.file = shedding.open(0.0)
        self.shedder = Shedder(
            shedding, self.file, self.stream, self.recorder, None, lambda: self.room, lambda: 0
        )

    def _arrivals(self) -> Iterator[tuple[float, pa.RecordBatch]]:
        for second in range(100):
            ids = np.arange(self._next, self._next + 10)
            self._next += 10
            yield float(second), pa.record_batch({"id": ids % ROWS, "sale": ids})

    def finish(self, count: int) -> None:
        """An iteration read and finished so many."""
        self.stream.resume()
        read = sum(len(piece.codes) for piece in self.stream.read(count))
        self.recorder.joined += read

    def adjust_at(self, second: float) -> tuple[int, int, int]:
        self.clock.advance_to(second)
        self.shedder.adjust()
        return self.stream.size, len(self.file), self.stream.returned


@pytest.fixture
def bench_of(master: ss.MasterTable) -> Iterator[Callable[[Shedding], Bench]]:
    made: list[Bench] = []

    def make(shedding: Shedding) -> Bench:
        made.append(Bench(master, shedding))
        return made[-1]

    yield make
    for bench in made:
        bench.file.close()


def test_what_is_over_twice_the_last_iteration_is_shed(
    bench_of: Callable[[Shedding], Bench], tmp_path: Path
) -> None:
    """Algorithm 2: shed size - 2w; else bring back, until 2w are there."""
    bench = bench_of(Shedding("keep", tmp_path))
    bench.room = 100  # w is h_S at first: all slots are empty
    assert bench.adjust_at(9.0) == (100, 0, 0)
    bench.room = 0
    bench.finish(30)
    assert bench.adjust_at(9.0) == (60, 10, 0)
    bench.finish(20)
    assert bench.adjust_at(10.0) == (40, 20, 0)
    bench.finish(20)
    # 20 tuples are left, w is 20: 20 more may come, and come back ahead of the others.
    assert bench.adjust_at(10.0) == (40, 0, 20)
    bench.finish(40)
    assert bench.adjust_at(10.0) == (0, 0, 0)


def test_keep_sheds_the_newest_and_they_return_in_order(
    bench_of: Callable[[Shedding], Bench], tmp_path: Path, watched: Any
) -> None:
    bench = bench_of(Shedding("keep", tmp_path))
    bench.room = 5
    bench.adjust_at(2.0)
    assert watched.shed == list(range(10, 30))
    bench.room = 4
    bench.adjust_at(3.0)
    assert watched.shed == [*range(10, 30), 8, 9, *range(30, 40)]
    bench.room = 50
    bench.adjust_at(3.0)
    assert watched.back == watched.shed
    read = [n for piece in bench.stream.read(99) for n in piece.batch.column("sale").to_pylist()]
    assert read == watched.shed + list(range(8))


def test_tuples_that_came_back_cause_no_shedding(
    bench_of: Callable[[Shedding], Bench], tmp_path: Path
) -> None:
    bench = bench_of(Shedding("keep", tmp_path))
    bench.room = 5
    bench.adjust_at(2.0)
    bench.room = 15
    assert bench.adjust_at(2.0) == (30, 0, 20)
    bench.room = 5
    assert bench.adjust_at(2.0) == (30, 0, 20)


def test_shed_tuples_wait_from_their_arrival_on(
    bench_of: Callable[[Shedding], Bench], tmp_path: Path
) -> None:
    bench = bench_of(Shedding("keep", tmp_path))
    bench.room = 5
    bench.adjust_at(1.0)
    bench.room = 10
    bench.adjust_at(1.0)
    bench.clock.advance_to(1.5)
    # Ten tuples of second 1 that were shed, then ten of second 0.
    bench.finish(20)
    assert bench.recorder.waiting.snapshot().mean == (10 * 0.5 + 10 * 1.5) / 20


def test_random_sheds_every_arrival_with_the_same_probability(
    bench_of: Callable[[Shedding], Bench], tmp_path: Path, watched: Any
) -> None:
    bench = bench_of(Shedding("random", tmp_path, seed=4))
    for second in range(90):
        bench.room = 2
        bench.adjust_at(float(second))
        bench.finish(4)
    shed = np.bincount(np.array(watched.shed) % 10, minlength=10)
    # 10 arrive, 4 are kept each second, wherever in the batch they stand: 54 of 90 shed on
    # average, with a standard deviation below 5.
    assert abs(shed.mean() - 54) < 2
    assert shed.min() > 54 - 15
    assert shed.max() < 54 + 15
    again = bench_of(Shedding("random", tmp_path / "again", seed=4))
    again.room = 2
    again.adjust_at(0.0)
    assert watched.shed[-6:] == watched.shed[:6]
