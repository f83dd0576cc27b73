"""Join plans: what a budget is divided into."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss

STREAM = [pa.record_batch({"id": np.arange(100), "text": ["t" * (i % 20) for i in range(100)]})]


@pytest.fixture
def master(tmp_path: Path) -> ss.MasterTable:
    table = pa.table({"id": np.arange(3000), "name": ["n" * (i % 60) for i in range(3000)]})
    return ss.MasterTable.from_arrow(table, tmp_path / "r", key="id", page_bytes=4096)


def planned(
    algorithm: str, master: ss.MasterTable, memory: int | str = "256KB", **options: Any
) -> tuple[ss.JoinPlan, ss.Engine]:
    engine = ss.engine(master, algorithm=algorithm, on="id", memory=memory, **options)
    before = engine.plan
    list(engine.run(STREAM))
    assert before is None
    assert engine.plan is not None
    return engine.plan, engine


@pytest.mark.parametrize("memory", [150_000, 400_000, 3_000_000])
@pytest.mark.parametrize("algorithm", ss.ALGORITHMS)
def test_the_parts_are_within_the_budget_and_are_what_is_granted(
    algorithm: str, master: ss.MasterTable, memory: int
) -> None:
    plan, engine = planned(algorithm, master, memory)
    assert (plan.algorithm, plan.memory) == (algorithm, memory)
    assert sum(plan.parts.values()) <= memory
    granted = engine.memory()
    assert granted["budget"] == memory
    assert granted["peak"] <= memory
    assert sum(plan.parts.values()) <= granted["peak"] <= memory, "a part without its grant"


@pytest.mark.parametrize("algorithm", ss.ALGORITHMS)
def test_more_memory_waits_for_more_tuples(algorithm: str, master: ss.MasterTable) -> None:
    sizes = [planned(algorithm, master, memory)[0] for memory in (200_000, 800_000, 3_200_000)]
    slots = [plan.stream_slots for plan in sizes]
    assert slots == sorted(slots)
    assert all(plan.partition_pages >= 1 for plan in sizes)


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("meshjoin", {"partition_pages": 3, "chunk_tuples": 5, "stream_slots": 500}),
        ("rmeshjoin", {"partition_pages": 5, "stream_slots": 77}),
        ("hybridjoin", {"partition_pages": 2, "stream_slots": 100}),
        ("xhybridjoin", {"partition_pages": 2, "stream_slots": 100, "pinned_partitions": 3}),
        ("oxhybridjoin", {"partition_pages": 1, "stream_slots": 10, "pinned_partitions": 2}),
    ],
)
def test_options_fix_sizes(algorithm: str, options: dict[str, int], master: ss.MasterTable) -> None:
    plan, _ = planned(algorithm, master, "1MB", **options)
    assert {name: getattr(plan, name) for name in options} == options


def test_a_partition_is_never_larger_than_the_master(master: ss.MasterTable) -> None:
    plan, _ = planned("hybridjoin", master, "4MB", partition_pages=10**6)
    assert plan.partition_pages == master.page_count


@pytest.mark.parametrize("algorithm", ss.ALGORITHMS)
def test_explain_names_every_part_and_its_bytes(algorithm: str, master: ss.MasterTable) -> None:
    plan, _ = planned(algorithm, master)
    first, *rest = plan.explain().splitlines()
    assert first.startswith(f"{algorithm} in 262,144 bytes: partition {plan.partition_pages} pages")
    assert (f"{plan.stream_slots:,} waiting tuples" in first) == (plan.stream_slots > 0)
    assert ("tuples per iteration" in first) == (plan.chunk_tuples > 0)
    assert ("pinned partitions" in first) == (plan.pinned_partitions > 0)
    shown = {line[:17].strip(): int(line[17:].strip().replace(",", "")) for line in rest}
    assert shown == plan.parts


def test_a_plan_is_frozen(master: ss.MasterTable) -> None:
    plan, _ = planned("inlj", master)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.memory = 1  # type: ignore[misc]
