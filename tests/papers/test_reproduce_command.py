"""`semistream reproduce`: found by its entry point, and clear about what it needs."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import semistream.cli
from semistream_papers import cli
from semistream_papers.cli import app

SOURCE = Path(cli.__file__).parents[1]
INSTALL = 'pip install "semistream[reproduce]"'


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_it_lists_draws_and_complains(tmp_path: Path) -> None:
    assert "skewed-9f" in invoke().stdout
    wrong = invoke("nothing")
    assert wrong.exit_code == 1
    assert "There is no figure" in wrong.stderr
    made = invoke("meshjoin-5a", "--folder", str(tmp_path))
    assert made.exit_code == 0, made.output
    report = Path(tmp_path / "report-priced-laptop.html").read_text()
    assert not re.search(r'(src|href)="(?!#|data:)', report), "the report must work offline"
    assert "Memory that a given rate takes" in report


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "find_spec", lambda name: None)
    result = invoke("meshjoin-5a")
    assert result.exit_code == 1
    assert INSTALL in result.stderr
    assert not result.stdout


def test_the_installed_command_has_it() -> None:
    """Fails where the distribution was installed before the entry point: install it again."""
    (point,) = entry_points(group="semistream.commands", name="reproduce")
    assert point.load() is app
    listed = CliRunner().invoke(semistream.cli.app, ["reproduce"])
    assert listed.exit_code == 0
    assert "skewed-9f" in listed.stdout


def test_help_draws_nothing() -> None:
    program = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from semistream_papers.cli import app\n"
        "assert 'FIGURE' in CliRunner().invoke(app, ['--help']).stdout\n"
        "print(*(name for name in sys.modules if name.startswith(('matplotlib', 'semistream_'))))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.split() == ["semistream_papers", "semistream_papers.cli"]
