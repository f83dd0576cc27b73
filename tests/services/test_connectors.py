"""The table of connectors is true: each is resolved from its coordinates, and used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services.conftest import Topics

SCRIPT = Path(__file__).with_name("connectors_script.py")


@pytest.mark.connectors
@pytest.mark.timeout(900)
def test_every_connector_that_fits_this_spark_is_resolved_and_works(
    topics: Topics, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path)],
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["worked"] == told["fit"]
    assert {"kafka", "postgresql", "mariadb"} <= set(told["fit"])
