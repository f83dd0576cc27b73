"""The tables of docs/cluster.md are those of the committed results."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cluster.md").read_text("utf-8")


def after(mark: str) -> str:
    """The table that follows a mark in the page."""
    return PAGE.partition(f"<!-- {mark} -->\n\n")[2].partition("\n\n")[0]


def test_tables_are_those_of_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    # Last, so that a script named like an installed package does not hide it.
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "benchmarks")])
    import sizing

    assert after("sizing") == sizing.table(sizing.written())
    assert after("workers") == sizing.worker_table(sizing.written(sizing.WORKERS))
