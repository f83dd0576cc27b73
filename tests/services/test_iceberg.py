"""A master follows a real Iceberg table by its changelog views."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest

import semistream as ss
from semistream.spark.connectors import CONNECTORS
from tests.differential.change_replay import stored

pytestmark = pytest.mark.timeout(1800)

SCRIPT = Path(__file__).with_name("iceberg_script.py")


@pytest.mark.iceberg
def test_a_master_follows_changelog_views(tmp_path: Path) -> None:
    empty = pa.table({"id": pa.array([], pa.int64()), "name": pa.array([], pa.string())})
    for name in ("plain", "named"):
        ss.MasterTable.from_arrow(empty, tmp_path / name, key="id")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    if not CONNECTORS["iceberg"].fits(pyspark.__version__):
        assert "There is no iceberg connector for Spark" in done.stderr
        return
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert [row[0] for row in told["steps"][-1]["iceberg"]] == [2, 3, 5, 40]
    for step in told["steps"]:
        for name, version in step["version"].items():
            master = ss.MasterTable.open(tmp_path / name, version)
            rows = [list(row.values()) for row in stored(master).to_pylist()]
            assert sorted(rows) == step["iceberg"], name
    assert told["again"] == {"plain": 0, "named": 0}
