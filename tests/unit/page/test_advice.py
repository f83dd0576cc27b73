"""What is said of a pipeline, in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from semistream.page.status import Watched
from semistream.spark.pipeline.batch_log import Outcome
from tests.unit.page.made_up import checkpoint, master, outcomes


def warnings(folder: Path, made: list[Outcome], **about: Any) -> list[str]:
    return [one["text"] for one in Watched(checkpoint(folder, made, **about)).status()["warnings"]]


def test_a_healthy_pipeline_has_no_warnings(tmp_path: Path) -> None:
    master(tmp_path / "goods.master", versions=4)
    assert warnings(tmp_path, outcomes(8), state="finished") == []


def test_a_killed_one_is_told(tmp_path: Path) -> None:
    assert "it was killed" in warnings(tmp_path, outcomes(8), state="running")[0]


def test_a_pipeline_without_room_is_told(tmp_path: Path) -> None:
    made = [replace(one, seconds=1.9) for one in outcomes(12)]
    said = "Batches take 95% of the time"
    assert any(said in text for text in warnings(tmp_path / "on", made))
    # One that ends with its source is to be busy.
    assert not any(said in text for text in warnings(tmp_path / "once", made, once=True))


def test_a_queue_that_grows_is_told(tmp_path: Path) -> None:
    made = [replace(one, waiting_deferred=100 * i) for i, one in enumerate(outcomes(12))]
    assert any("more with every batch" in text for text in warnings(tmp_path, made))


def test_batches_beyond_their_target_are_told(tmp_path: Path) -> None:
    found = warnings(tmp_path, outcomes(12), batch_target=0.25)
    assert any("batch_target is 250.0 ms" in text for text in found)


@pytest.mark.parametrize("name", ["unmatched", "rejected"])
def test_many_tuples_that_are_not_joined_are_told(tmp_path: Path, name: str) -> None:
    made = [replace(one, counts=replace(one.counts, **{name: 30_000})) for one in outcomes(6)]
    limit = {"unmatched": "have no master row", "rejected": "are rejected"}[name]
    assert any(limit in text for text in warnings(tmp_path, made))


def test_a_rate_far_below_the_plan_is_told(tmp_path: Path) -> None:
    made = [replace(one, engine={**one.engine, "task_seconds": 5.0}) for one in outcomes(6)]
    assert any("the plan expected 225,003" in text for text in warnings(tmp_path, made))


def test_a_master_that_is_gone_is_told(tmp_path: Path) -> None:
    assert any("cannot be looked at" in text for text in warnings(tmp_path, outcomes(6)))
