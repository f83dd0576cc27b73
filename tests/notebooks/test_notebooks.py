"""The notebooks run from top to bottom. What must hold is asserted inside them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.notebooks.running import FOLDER

IN_SERVICES = {"sales-from-kafka"}
"""Those that need a service: tests/services runs them."""
NAMES = sorted({path.stem for path in FOLDER.glob("*.ipynb")} - IN_SERVICES)


@pytest.mark.service
@pytest.mark.parametrize("name", NAMES)
def test_it_runs_from_top_to_bottom(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.notebooks", name],
        cwd=FOLDER.parents[1],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
