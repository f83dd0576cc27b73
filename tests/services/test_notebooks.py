"""The notebook that needs a broker, with a real one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.services.conftest import where

ROOT = Path(__file__).parents[2]


def test_sales_from_kafka_are_in_the_warehouse_once() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.notebooks", "sales-from-kafka"],
        cwd=ROOT,
        env=os.environ | {"KAFKA": where("KAFKA")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
