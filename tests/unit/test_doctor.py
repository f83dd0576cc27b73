"""What `semistream doctor` finds, on this machine and on one that lacks things."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from semistream.cli import app
from semistream.cli.doctor import BAD, findings


def test_each_check_gives_a_finding() -> None:
    names = [one.what for one in findings()]
    assert names[:4] == ["semistream", "Java", "Spark", "connectors"]
    assert {"memory", "open files", "kernels"} <= set(names)


def test_a_machine_without_java_gets_advice_and_the_exit_code_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    java = next(one for one in findings() if one.what == "Java")
    assert java.verdict == BAD
    assert "JAVA_HOME" in java.advice
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout.splitlines()[1])["what"] == "Java"
