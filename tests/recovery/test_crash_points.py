"""A pipeline is killed at each crash point that only Spark's drivers and tasks reach."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.chaos import pipelines
from tests.chaos.attack import FINE
from tests.chaos.crashes import CASES

# Eleven pipelines, one after the other.
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
    for point in pipelines.POINTS:
        if point in ELSEWHERE:
            continue
        # The task runs again, and the driver would go on to the end.
        then = {9: "driver"} if point in pipelines.IN_TASKS else {}
        assert not killed.run(point, then), point
        assert killed.kills[point] == 1, (point, killed.told)
    assert killed.run()
    assert pipelines.judged(killed) == (FINE, "")
