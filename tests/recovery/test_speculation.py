"""Speculative copies of a build's tasks: whichever ends first counts, and nothing stays behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import semistream as ss

SCRIPT = Path(__file__).with_name("speculation_script.py")


@pytest.mark.service
def test_a_copied_task_leaves_no_page_twice_and_no_file_behind(tmp_path: Path) -> None:
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    told = json.loads(ran.stdout.splitlines()[-1])
    assert {"attempt-1-0", "attempt-1-1"} <= set(told["attempts"]), "Spark made no copy"
    assert not told["waited"], "the build waited for the slow attempt"
    master = ss.MasterTable.open(tmp_path / "r")
    assert master.row_count == told["rows"] == 4000
    assert master.pages.first[0] == 0
    assert (master.pages.first[1:] == master.pages.last[:-1] + 1).all()
    named = {file.name for file in master.manifest.data_files}
    assert {path.name for path in (tmp_path / "r" / "data").iterdir()} == named
