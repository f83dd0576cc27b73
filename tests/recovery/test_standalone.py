"""On a standalone cluster: shards on several executors, one of them killed, the same rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.chaos.cluster import Cluster
from tests.recovery.conftest import Process

WORKERS = 3
ROOT = Path(__file__).parents[2]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    (tmp_path / "cluster").mkdir()
    cluster = Cluster(tmp_path / "cluster", WORKERS)
    yield cluster
    cluster.close()


def sell(folder: Path, seed: int) -> None:
    """Goods, and sales in files that are a micro-batch each: of a hot key, and of absent ones."""
    random = np.random.default_rng(seed)
    ids = np.arange(0, 3_000, 2)
    pq.write_table(
        pa.table({"id": ids, "name": [f"good {i}" for i in ids]}), folder / "goods.parquet"
    )
    (folder / "sales").mkdir()
    for file in range(6):
        keys = np.where(random.random(400) < 0.3, 42, random.integers(0, 3_000, 400))
        numbers = np.arange(400) + 400 * file
        pq.write_table(pa.table({"id": keys, "n": numbers}), folder / "sales" / f"{file}.parquet")


def executors_of(cluster: Cluster) -> list[Process]:
    return [
        one for worker in cluster.workers for one in worker.below("CoarseGrainedExecutorBackend")
    ]


@pytest.mark.service
def test_joins_and_a_pipeline_on_three_executors_of_which_one_is_killed(
    tmp_path: Path, cluster: Cluster, seed: int
) -> None:
    sell(tmp_path, seed)
    script = "tests.recovery.standalone_script"
    command = [sys.executable, "-m", script, str(tmp_path), cluster.url, str(WORKERS)]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    killed: list[Process] = []
    with open(tmp_path / "log", "wb") as log:
        driver = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable},
        )
    try:
        while driver.poll() is None:
            batches = list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
            if len(batches) >= 2 and not killed:
                killed = executors_of(cluster)[:1]
                for victim in killed:
                    victim.kill()
            time.sleep(0.05)
        assert driver.stdout is not None
        said = driver.stdout.read().decode()
    finally:
        driver.kill()
        driver.communicate()
    assert driver.returncode == 0, (tmp_path / "log").read_text()[-3000:]
    assert killed
    assert json.loads(said.splitlines()[-1]) == {
        "executors": WORKERS,
        "shards": WORKERS,
        "divided": True,
        "as it is": True,
        "places": WORKERS,
        "pipeline": True,
    }
