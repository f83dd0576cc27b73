"""Sizes for micro-batches: what a task on Spark runs, and when it changes its mind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import semistream as ss
from semistream.cost.auto import IN_MEMORY
from semistream.cost.factors import CostFactors
from semistream.cost.micro_batches import (
    MicroBatchEngine,
    MicroBatchPlanner,
    micro_batch_engine,
)
from semistream.errors import BudgetError, OptionError, RateError
from semistream.testing import assert_same_rows, oracle_join
from semistream.workload import ZipfKeys, products, sales

ROWS = 20_000
Masters = dict[str, ss.MasterTable]


@pytest.fixture(autouse=True)
def _no_measured_factors(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def tasks(count: int, tuples: int, exponent: float = 1.0, seed: int = 3) -> list[pa.RecordBatch]:
    """A stream batch for each task."""
    keys = ZipfKeys(ROWS, exponent, seed=seed)
    return list(sales(count * tuples, keys, ROWS, batch_rows=tuples))


def engine(master: ss.MasterTable, memory: int, io: str = "unmapped") -> MicroBatchEngine:
    return micro_batch_engine(master, on="product_id", memory=memory, how="left", io=io)


def joined(some: ss.Engine, task: pa.RecordBatch) -> int:
    return sum(batch.num_rows for batch in some.run([task]))


def planned(
    master: ss.MasterTable, memory: int, tuples: int, exponent: float, io: str = "unmapped"
) -> ss.JoinPlan:
    sample = tasks(1, 2_000, exponent)[0]
    return ss.plan(master, task_tuples=tuples, memory=memory, io=io, stream=sample)


@pytest.mark.parametrize("exponent", [0.0, 1.0])
@pytest.mark.parametrize("tuples", [300, 3_000, 30_000])
@pytest.mark.parametrize("memory", [200_000, 800_000])
def test_a_task_reads_about_as_many_pages_as_expected(
    masters: Masters, memory: int, tuples: int, exponent: float
) -> None:
    plan = planned(masters["key"], memory, tuples, exponent)
    assert plan.expected is not None
    options = {"memory": memory, "io": "unmapped", "on": "product_id", **plan.options}
    with ss.engine(masters["key"], algorithm=plan.algorithm, **options) as some:
        for task in tasks(6, tuples, exponent):
            joined(some, task)
        read = some.metrics().pages_read
    assert read == pytest.approx(plan.expected.io_per_tuple * tuples, rel=0.35, abs=10)


def test_short_tasks_read_single_pages_and_long_ones_more_at_a_time(tmp_path: Path) -> None:
    usual = ss.MasterTable.from_arrow(products(100_000, seed=20), tmp_path / "r", key="product_id")
    short, long = (planned(usual, 2_000_000, n, 0.0) for n in (30, 100_000))
    assert short.partition_pages == 1 < long.partition_pages
    # Where many tuples wait for each page, it is joined as a whole.
    assert short.look_ups > 0 == long.look_ups


def test_a_front_stage_is_for_keys_that_come_again(masters: Masters) -> None:
    uniform = planned(masters["key"], 800_000, 1_000, 0.0, "direct")
    skewed = planned(masters["key"], 800_000, 100, 1.5, "direct")
    assert (uniform.algorithm, skewed.algorithm) == ("hybridjoin", "chybridjoin")


def test_sizes_follow_the_length_of_tasks_but_not_each_of_them(masters: Masters) -> None:
    short, long = tasks(12, 50, 0.0), tasks(12, 8_000, 0.0)
    with engine(masters["key"], 1_000_000, "direct") as some:
        for task in long[:3]:
            joined(some, task)
        for pair in zip(short[:4], long[3:7], strict=True):
            for task in pair:
                joined(some, task)
        assert len(some.plans) == 1
        for task in short[4:]:
            joined(some, task)
        first, second = (plan.partition_pages for plan in some.plans)
        assert first > second


def test_the_first_task_corrects_a_guess(masters: Masters) -> None:
    """Its first batch is as large as Spark's are, so it did not show that no other follows."""
    with engine(masters["key"], 400_000) as some:
        guessed, *others = tasks(1, 10_000, 0.0), *tasks(2, 20, 0.0)
        joined(some, guessed[0])
        assert len(some.plans) == 1
        for task in others:
            joined(some, task)
            joined(some, task)
        assert len(some.plans) <= 2


def test_results_are_right_through_a_change(masters: Masters) -> None:
    goods = products(ROWS, seed=20)
    stream = [*tasks(2, 8_000, 0.0), *tasks(6, 50, 0.0, seed=4)]
    with engine(masters["key"], 1_000_000, "direct") as some:
        found = [row for task in stream for b in some.run([task]) for row in rows_of(b)]
        assert len(some.plans) > 1
    assert_same_rows(found, oracle_join(stream, goods, on="product_id", how="left").rows)


def test_what_was_learned_outlives_a_change(
    masters: Masters, monkeypatch: pytest.MonkeyPatch
) -> None:
    *earlier, last = tasks(12, 100, 1.5)
    with engine(masters["key"], 800_000, "direct") as some:
        for task in earlier:
            joined(some, task)
        monkeypatch.setattr(MicroBatchPlanner, "outgrown", lambda planner, plan: True)
        joined(some, last)
        assert [plan.algorithm for plan in some.plans] == ["chybridjoin"] * 2
        hits = some.metrics().front_hits
    with engine(masters["key"], 800_000, "direct") as fresh:
        joined(fresh, last)
        assert hits > fresh.metrics().front_hits + 20


def rows_of(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def test_a_plan_says_what_a_task_runs_and_why(masters: Masters) -> None:
    sample = tasks(1, 2_000, 1.0)[0]
    plan = ss.plan(
        masters["key"], memory="400KB", task_tuples=2_000, stream=sample, how="left", io="unmapped"
    )
    assert engine(masters["key"], 400 << 10).planned(sample) == plan
    text = plan.explain()
    assert text.startswith(plan.algorithm)
    assert "for tasks of 2,000 tuples" in text
    assert "skew: exponent" in text


def test_all_of_r_is_kept_if_it_fits(masters: Masters) -> None:
    assert ss.plan(masters["key"], memory="64MB", task_tuples=3_000).algorithm == IN_MEMORY


@pytest.mark.parametrize("io", ["buffered", "unmapped"])
def test_a_task_keeps_all_of_r_if_it_fits_its_memory(masters: Masters, io: str) -> None:
    """All of it if there are tuples to look at; half if pages are searched in place otherwise."""
    task, sizes = tasks(1, 3_000)[0], range(2_000_000, 12_000_000, 500_000)
    plans = {size: engine(masters["key"], size, io).planned(task) for size in sizes}
    kept = [size for size, plan in plans.items() if plan.algorithm == IN_MEMORY]
    assert kept
    assert kept == [size for size in sizes if size >= kept[0]]
    fits = kept[0]
    assert "all of R fits" in plans[fits].explain()
    schema = ss.plan(masters["key"], memory=fits, task_tuples=9, stream=task.schema, io=io)
    assert (schema.algorithm == IN_MEMORY) == (io == "buffered")
    with engine(masters["key"], fits, io) as some:
        assert joined(some, task) == task.num_rows
        assert some.memory()["peak"] <= fits


def test_pages_in_memory_leave_little_to_size_for(masters: Masters) -> None:
    sample = tasks(1, 2_000, 1.0)[0]
    text = engine(masters["key"], 800_000, "buffered").planned(sample).explain()
    assert "100% of R is in memory and searched in place" in text


@pytest.mark.parametrize("layout", ["key", "given"])
@pytest.mark.parametrize("options", [{}, {"front_percent": 30}, {"look_ups": 0}])
def test_fixed_sizes_stay(masters: Masters, layout: str, options: dict[str, Any]) -> None:
    master, task = masters[layout], tasks(1, 3_000)[0]
    some = micro_batch_engine(master, on="product_id", memory=400_000, io="unmapped", **options)
    assert joined(some, task) == task.num_rows
    assert some.plan is not None
    assert some.plan.options.items() >= options.items()
    assert (some.plan.algorithm == "chybridjoin") or "front_percent" not in options


def test_what_is_refused(masters: Masters) -> None:
    with pytest.raises(BudgetError, match="the least is"):
        engine(masters["key"], 10_000).shape(tasks(1, 10)[0].schema)
    for wrong in (0, "many", True, float("inf"), 10**400):
        with pytest.raises(OptionError, match="task_tuples"):
            ss.plan(masters["key"], memory="1MB", task_tuples=wrong)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="memory of a task"):
        ss.plan(masters["key"], rate=1.0, task_tuples=10)
    for given in ({"algorithm": "chybridjoin"}, {"factors": CostFactors()}):
        with pytest.raises(OptionError, match="leave algorithm and factors out"):
            ss.plan(masters["key"], memory="1MB", task_tuples=10, **given)
    sizes: dict[str, Any] = {"pinned_partitions": 3}
    with pytest.raises(OptionError, match="no option 'pinned_partitions'"):
        ss.plan(masters["key"], memory="1MB", task_tuples=10, **sizes)
    with pytest.raises(OptionError, match="no option 'pinned_partitions'"):
        micro_batch_engine(masters["key"], on="product_id", memory="1MB", **sizes)


def test_what_lies_in_memory_is_looked_at_with_and_without_a_sample(masters: Masters) -> None:
    sample = tasks(1, 2_000)[0]
    terms: dict[str, Any] = {"memory": "400KB", "task_tuples": 2_000, "skew": 1.0}
    with_sample = ss.plan(masters["key"], stream=sample, **terms)
    without = ss.plan(masters["key"], stream=sample.schema, **terms)
    assert with_sample.expected is not None
    assert without.expected is not None
    assert "100% of R is in memory and searched in place" in with_sample.expected.basis
    assert without.expected.basis[1] == with_sample.expected.basis[1]


def test_a_task_must_reach_the_rate(masters: Masters) -> None:
    plan = ss.plan(masters["key"], memory="1MB", task_tuples=1_000, rate=1.0)
    assert plan == ss.plan(masters["key"], memory="1MB", task_tuples=1_000)
    with pytest.raises(RateError, match="1,000,000,000,000 were asked for"):
        ss.plan(masters["key"], memory="1MB", task_tuples=1_000, rate=1e12)
