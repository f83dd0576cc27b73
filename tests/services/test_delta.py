"""A master follows a real Delta table, killed in between, and after its feed was vacuumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest

import semistream as ss
from semistream.spark.connectors import CONNECTORS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SCRIPT = Path(__file__).with_name("delta_sync_script.py")


def run(folder: Path, what: str, crash_at: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    if crash_at:
        environment["SEMISTREAM_CRASH_AT"] = crash_at
    command = [sys.executable, str(SCRIPT), str(folder), what]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=500
    )


def test_a_master_follows_a_delta_table_though_it_was_killed(tmp_path: Path) -> None:
    empty = pa.table({"id": pa.array([], pa.int64()), "name": pa.array([], pa.string())})
    ss.MasterTable.from_arrow(empty, tmp_path / "master", key="id")
    if not CONNECTORS["delta"].fits(pyspark.__version__):
        done = run(tmp_path, "follow")
        assert "There is no delta connector for Spark" in done.stderr
        return
    for point in ("sync.booked", "sync.committed"):
        assert run(tmp_path, "follow", point).returncode == -signal.SIGKILL, point
    done = run(tmp_path, "follow")
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["master"] == told["delta"]
    assert [row[0] for row in told["delta"]] == [2, 3, 5, 40]
    assert told["again"] == 0
    (vacuumed,) = [t for t in run(tmp_path, "vacuum").stdout.splitlines() if "Error" in t]
    assert vacuumed.startswith("SourceError The source no longer has changes that the master at ")
    assert "build the master anew" in vacuumed
    assert ".java:" not in vacuumed
