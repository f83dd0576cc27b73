"""On executors of their own, as on a cluster, every algorithm gives what Spark's join gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import semistream as ss

SCRIPT = Path(__file__).with_name("cluster_script.py")


@pytest.mark.service
def test_joins_on_executors_of_their_own(tmp_path: Path, seed: int) -> None:
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path), str(seed)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=570,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    told = json.loads(ran.stdout.splitlines()[-1])
    assert told["differing"] == []
    # Each algorithm, and for other keys two of them; "auto" with both joins; a stream.
    assert told["done"] == len(ss.ALGORITHMS) + 2 * 2 + 3 * (2 + 1)
