"""Processes are killed at random moments; the warehouse must not show it.

A pipeline of more than twelve micro-batches, with a retry queue, a deferred queue and rejected
tuples, while the master changes. It tells its steps, and kills happen at steps drawn from the
seed, in the middle of what the step does.
"""

from __future__ import annotations

import pytest

from tests.recovery.conftest import Shop

pytestmark = [pytest.mark.slow, pytest.mark.service]


def test_the_driver_is_killed(shop: Shop) -> None:
    for _ in range(2):
        moment = int(shop.random.integers(8, 45))
        shop.run("local[2]", {moment: type(shop).kill_driver})
        assert not shop.is_done
    shop.run("local[2]")
    assert shop.is_done
    shop.check()


def test_python_workers_are_killed(shop: Shop) -> None:
    moments = shop.random.choice(range(5, 70), 8, replace=False).tolist()
    # Spark tries a task four times.
    shop.run("local[2,4]", dict.fromkeys(moments, type(shop).kill_worker))
    assert shop.killed >= 4
    assert shop.is_done
    shop.check()


def test_executors_are_killed(shop: Shop) -> None:
    moments = shop.random.choice(range(5, 70), 3, replace=False).tolist()
    shop.run("local-cluster[2,1,1024]", dict.fromkeys(moments, type(shop).kill_executor))
    assert shop.killed == 3
    assert shop.is_done
    shop.check()
