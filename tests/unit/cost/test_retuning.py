"""A join that follows its stream: other plans when it drifts, nothing lost, nothing twice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain, pairwise
from pathlib import Path
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


def following(
    master: ss.MasterTable,
    memory: int | str,
    clock: Any = time.perf_counter,
    rate: float | str | None = None,
    algorithm: str = "auto",
) -> ss.Engine:
    """An engine that looks at its stream every 10,000 tuples."""
    retuning = ss.Retuning(rate=rate, check_every=10_000)
    return ss.engine(
        master,
        on="product_id",
        memory=memory,
        algorithm=algorithm,
        io="unmapped",
        clock=clock,
        retune=retuning,
    )


@pytest.mark.slow
@pytest.mark.usefixtures("slow_disk")
def test_a_stream_that_drifts_is_followed(masters: Masters, stream: Any) -> None:
    master = masters["key"]
    memory = int(master.pages.length.sum() * 0.2)
    tuned = following(master, memory)
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
    tuned = following(master, "64MB")
    joined = sum(batch.num_rows for batch in tuned.run(stream(0.5, 40_000, 2_500)))
    assert joined == 40_000
    (plan,) = tuned.plans
    assert plan.pinned_partitions * plan.partition_pages >= master.page_count
    assert tuned.metrics().front_hits == 40_000


def test_a_steady_stream_keeps_its_plan(masters: Masters, stream: Any) -> None:
    memory = int(masters["key"].pages.length.sum() * 0.2)
    tuned = following(masters["key"], memory)
    rows = sum(batch.num_rows for batch in tuned.run(stream(0.8, 60_000, 5_000)))
    assert (rows, len(tuned.plans)) == (60_000, 1)


def test_memory_is_given_back_when_less_serves_the_arrival_rate(
    masters: Masters, stream: Any
) -> None:
    memory = int(masters["key"].pages.length.sum() * 0.5)
    slow = following(masters["key"], memory, rate=20_000)
    assert sum(batch.num_rows for batch in slow.run(stream(1.0, 10_000, 5_000))) == 10_000
    assert slow.memory()["budget"] < memory / 2
    expected = slow.plans[-1].expected
    assert expected is not None
    assert expected.rate >= 20_000
    hopeless = following(masters["key"], memory, rate=1e12)
    assert sum(batch.num_rows for batch in hopeless.run(stream(1.0, 10_000, 5_000))) == 10_000
    assert hopeless.memory()["budget"] == memory


@pytest.mark.slow
def test_the_arrival_rate_is_measured_and_followed(masters: Masters, stream: Any) -> None:
    """A trickle gives memory back; a flood gets it again; nothing is lost on the way."""
    master = masters["key"]
    memory = int(master.pages.length.sum() * 0.5)
    clock = PricedClock(shipped_factors("unmapped").factors)
    tuned = following(master, memory, clock, rate="measured")
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
    # It may give back too much once, and take some steps down; it does not swing.
    assert len(tuned.plans) <= 6


@pytest.mark.parametrize("rate", [0, -1.0, "fast", float("nan")])
def test_rates_that_cannot_be_meant_are_refused(rate: Any) -> None:
    with pytest.raises(OptionError, match="tuples per second"):
        ss.Retuning(rate=rate)


def test_bad_options_are_refused(masters: Masters) -> None:
    with pytest.raises(OptionError, match="at least 1"):
        ss.Retuning(check_every=0)
    with pytest.raises(OptionError, match="retune='yes' must be"):
        ss.engine(masters["key"], on="product_id", io="unmapped", memory="1MB", retune="yes")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="No algorithm has an option 'pages'"):
        ss.engine(
            masters["key"], on="product_id", io="unmapped", memory="1MB", retune=True, pages=3
        )
    tuned = ss.engine(masters["key"], on="product_id", io="unmapped", memory="1MB", retune=True)
    assert list(tuned.run([])) == []
    assert (tuned.metrics().arrived, tuned.plan) == (0, None)


@pytest.mark.usefixtures("slow_disk")
def test_only_the_sizes_of_a_named_algorithm_are_chosen(masters: Masters, stream: Any) -> None:
    master = masters["key"]
    memory = int(master.pages.length.sum() * 0.2)
    with following(master, memory, algorithm="hybridjoin") as tuned:
        batches = drifting(stream, (0.0, 20_000), (1.2, 40_000))
        assert sum(batch.num_rows for batch in tuned.run(batches)) == 60_000
        assert {plan.algorithm for plan in tuned.plans} == {"hybridjoin"}


@pytest.mark.usefixtures("slow_disk")
@pytest.mark.parametrize("strategy", [None, "keep", "considering"])
def test_a_timed_stream_is_followed_too(
    masters: Masters, stream: Any, tmp_path: Path, strategy: str | None
) -> None:
    """Every tuple comes out once, whether or not it was shed, across changes of the plan."""
    master = masters["key"]
    memory = int(master.pages.length.sum() * 0.2)
    clock = PricedClock(shipped_factors().factors)
    shedding = None if strategy is None else ss.Shedding(strategy, tmp_path / "shed")
    batches = drifting(stream, (0.0, 20_000), (1.0, 40_000))
    with following(master, memory, clock) as tuned:
        arrivals = ((number * 0.01, batch) for number, batch in enumerate(batches))
        found = tuned.run_timed(arrivals, shedding=shedding)
        numbers = [n for batch in found for n in batch.column("number").to_pylist()]
        assert sorted(numbers) == list(range(60_000))
        assert len(tuned.plans) > 1
        metrics = tuned.metrics()
        assert (metrics.arrived, metrics.joined, metrics.deferred) == (60_000, 60_000, 0)
        assert (metrics.shed > 0) == (strategy is not None)


def test_a_measured_rate_is_not_for_timed_streams(masters: Masters, stream: Any) -> None:
    tuned = following(masters["key"], "1MB", rate="measured")
    with pytest.raises(OptionError, match="is for run"):
        list(tuned.run_timed([(0.0, batch) for batch in stream(0.0, 1_000, 500)]))


def test_asking_changes_nothing(masters: Masters, stream: Any) -> None:
    """Neither what a stream would give nor its plan is remembered."""
    tuned = ss.engine(masters["key"], on="product_id", io="unmapped", memory="1MB", retune=True)
    auto = ss.engine(masters["key"], on="product_id", io="unmapped", memory="1MB")
    (first,) = stream(1.0, 2_000, 2_000)
    for engine in (tuned, auto):
        before = repr(engine)
        planned = engine.planned(first)
        engine.shape(first.schema)
        assert (engine.plan, engine.metrics().algorithm) == (None, "auto")
        assert (repr(engine), engine.planned(first)) == (before, planned)
