"""A pipeline is killed at each crash point that only Spark's drivers and tasks reach."""

from __future__ import annotations

import random
from collections import Counter
from itertools import zip_longest
from pathlib import Path

import pytest

from tests.chaos import pipelines
from tests.chaos.attack import FINE
from tests.chaos.crashes import CASES

# Nine pipelines, one after the other.
pytestmark = [pytest.mark.slow, pytest.mark.service, pytest.mark.timeout(1800)]

ELSEWHERE = {point for *_, point in CASES}
"""Points where tests/chaos/test_chaos.py kills, without Spark."""


def test_a_kill_at_each_crash_point_of_a_pipeline_changes_nothing(
    tmp_path: Path, seed: int
) -> None:
    (tmp_path / "shop").mkdir()
    shop = pipelines.opened(tmp_path / "shop", seed)
    rejected = tmp_path / "rejected"
    killed = pipelines.Killed(shop, random.Random(seed), "local[2,12]", rejected, tmp_path)
    points = [point for point in pipelines.POINTS if point not in ELSEWHERE]
    of_tasks = [point for point in points if point in pipelines.IN_TASKS]
    of_drivers = [point for point in points if point not in pipelines.IN_TASKS]
    # A task that dies runs again, so that the driver gets to a point of its own.
    assert (of_tasks, of_drivers[:2]) == (["task.pages", "task.files"], ["job.swept", "stage.told"])
    for task, driver in zip_longest(of_tasks, of_drivers, fillvalue=""):
        assert not killed.run(task, driver=driver), (task, driver)
    assert killed.kills == Counter(points), killed.told
    assert killed.run()
    assert pipelines.judged(killed) == (FINE, "")
