"""Every test of the contract runs for every algorithm there is, those added later included."""

from __future__ import annotations

from pathlib import Path

import pytest

import semistream as ss
from tests.contract.harness import Contract


@pytest.fixture(params=ss.ALGORITHMS)
def algorithm(request: pytest.FixtureRequest) -> str:
    """Each algorithm; a test that needs an option is parametrised with `having` instead."""
    return str(request.param)


@pytest.fixture(params=["inner", "left"])
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def contract(algorithm: str, tmp_path: Path) -> Contract:
    return Contract(algorithm, tmp_path)
