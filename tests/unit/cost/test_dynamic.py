"""A join that follows its stream: other plans when it drifts, nothing lost, nothing twice."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, pairwise
from typing import Any

import pyarrow as pa
import pytest

import semistream as ss
from semistream.cost.factors import shipped_factors
from semistream.cost.priced_clock import PricedClock
from semistream.errors import OptionError

Masters = dict[str, ss.MasterTable]


@pytest.fixture(autouse=True)
def _no_measured_factors(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def drifting(stream: Any, *parts: tuple[float, int]) -> list[pa.RecordBatch]:
    """Parts of a stream, each an exponent and tuples; every tuple has a number of its own."""
    batches = chain.from_iterable(stream(exponent, tuples, 2_500) for exponent, tuples in parts)
    table = pa.Table.from_batches(batches).combine_chunks()
    numbered = table.append_column("number", pa.array(range(len(table))))
    found: list[pa.RecordBatch] = numbered.to_batches(max_chunksize=2_500)
    return found


@pytest.mark.usefixtures("slow_disk")
def test_a_stream_that_drifts_is_followed(masters: Masters, stream: Any) -> None:
    master = masters["key"]
    memory = int(master.pages.length.sum() * 0.2)
    tuned = ss.TunedEngine(master, on="product_id", memory=memory, check_every=10_000)
    batches = drifting(stream, (0.0, 20_000), (1.0, 40_000), (0.0, 30_000), (1.0, 60_000))
    hits: list[int] = []

    def feed() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number and number % 4 == 0:
                hits.append(tuned.metrics().front_hits)
            yield batch

    numbers = [
        number for batch in tuned.run(feed()) for number in batch.column("number").to_pylist()
    ]
    assert sorted(numbers) == list(range(150_000))
    # A uniform stream gets no front stage, a skewed one does.
    assert tuned.plans[0].front_rows == 0
    assert tuned.plans[-1].front_rows > 0
    assert len(tuned.plans) <= 4
    per_10_000 = [after - before for before, after in pairwise(hits)]
    assert per_10_000[0] == 0
    assert per_10_000[4] > 3_500
    assert max(per_10_000[7:8]) < 500
    assert per_10_000[-1] > 2_500
    metrics = tuned.metrics()
    assert metrics.arrived == metrics.joined == 150_000
    assert metrics.peak_memory <= memory
    tuned.close()


def test_a_master_that_fits_is_kept_in_memory(masters: Masters, stream: Any) -> None:
    master = masters["key"]
    tuned = ss.TunedEngine(master, on="product_id", memory="64MB", check_every=10_000)
    joined = sum(batch.num_rows for batch in tuned.run(stream(0.5, 40_000, 2_500)))
    assert joined == 40_000
    (plan,) = tuned.plans
    assert plan.pinned_partitions * plan.partition_pages >= master.page_count
    assert tuned.metrics().front_hits == 40_000


def test_a_steady_stream_keeps_its_plan(masters: Masters, stream: Any) -> None:
    memory = int(masters["key"].pages.length.sum() * 0.2)
    tuned = ss.TunedEngine(masters["key"], on="product_id", memory=memory, check_every=10_000)
    rows = sum(batch.num_rows for batch in tuned.run(stream(0.8, 60_000, 5_000)))
    assert (rows, len(tuned.plans)) == (60_000, 1)


def test_memory_is_given_back_when_less_serves_the_arrival_rate(
    masters: Masters, stream: Any
) -> None:
    memory = int(masters["key"].pages.length.sum() * 0.5)
    options: dict[str, Any] = {"on": "product_id", "memory": memory}
    slow = ss.TunedEngine(masters["key"], rate=20_000, **options)
    assert sum(batch.num_rows for batch in slow.run(stream(1.0, 10_000, 5_000))) == 10_000
    assert slow.memory()["budget"] < memory / 2
    expected = slow.plans[-1].expected
    assert expected is not None
    assert expected.rate >= 20_000
    hopeless = ss.TunedEngine(masters["key"], rate=1e12, **options)
    assert sum(batch.num_rows for batch in hopeless.run(stream(1.0, 10_000, 5_000))) == 10_000
    assert hopeless.memory()["budget"] == memory


def test_the_arrival_rate_is_measured_and_followed(masters: Masters, stream: Any) -> None:
    """A trickle gives memory back; a flood gets it again; nothing is lost on the way."""
    master = masters["key"]
    memory = int(master.pages.length.sum() * 0.5)
    clock = PricedClock(shipped_factors().factors)
    options: dict[str, Any] = {"rate": "measured", "check_every": 10_000, "clock": clock}
    tuned = ss.TunedEngine(master, on="product_id", memory=memory, **options)
    batches = drifting(stream, (1.0, 160_000))
    budgets: list[int] = []

    def feed() -> Iterator[pa.RecordBatch]:
        due = 0.0
        for number, batch in enumerate(batches):
            due = due + len(batch) / 20_000 if number > 16 else clock()
            if number < 40:
                clock.advance_to(due)
            if number:
                budgets.append(tuned.memory()["budget"])
            yield batch

    numbers = [n for batch in tuned.run(feed()) for n in batch.column("number").to_pylist()]
    assert sorted(numbers) == list(range(160_000))
    assert budgets[10] == memory
    assert min(budgets[24:40]) < memory / 2
    assert budgets[-1] == memory
    assert len(tuned.plans) <= 5


@pytest.mark.parametrize("rate", [0, -1.0, "fast", float("nan")])
def test_rates_that_cannot_be_meant_are_refused(masters: Masters, rate: Any) -> None:
    with pytest.raises(OptionError, match="tuples per second"):
        ss.TunedEngine(masters["key"], on="product_id", memory="1MB", rate=rate)


def test_bad_options_are_refused(masters: Masters) -> None:
    with pytest.raises(OptionError, match="at least 1"):
        ss.TunedEngine(masters["key"], on="product_id", memory="1MB", check_every=0)
    tuned = ss.TunedEngine(masters["key"], on="product_id", memory="1MB")
    assert list(tuned.run([])) == []
    with pytest.raises(OptionError, match="Nothing has run"):
        tuned.metrics()
