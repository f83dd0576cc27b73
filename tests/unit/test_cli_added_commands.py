"""Commands that other packages add to `semistream`; one that is broken does not harm the rest."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints

import pytest
import typer
from typer.testing import CliRunner, Result

from semistream import cli
from semistream.cli import added_commands

greeting = typer.Typer(add_completion=False)


@greeting.command()
def greet(name: str) -> None:
    """Say hello."""
    typer.echo(f"hello {name}")


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two packages that add a command, one of them broken; the names of those that are loaded."""
    names: list[str] = []

    class Counted(EntryPoint):
        def load(self) -> object:
            names.append(self.name)
            if self.name == "greet":
                return greeting
            return super().load()

    points = [
        Counted(name, value, added_commands.GROUP)
        for name, value in (("greet", "greeting:app"), ("lost", "no_such_package:app"))
    ]
    monkeypatch.setattr(
        added_commands, "entry_points", lambda **wanted: EntryPoints(points).select(**wanted)
    )
    return names


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(cli.app, arguments)


def test_an_added_command_runs(loaded: list[str]) -> None:
    assert run("greet", "you").stdout == "hello you\n"
    assert loaded == ["greet"]


def test_no_other_command_loads_it(loaded: list[str]) -> None:
    assert run("--version").exit_code == 0
    assert run("master", "--help").exit_code == 0
    assert run("unheard-of").exit_code == 2
    assert loaded == []


@pytest.mark.usefixtures("loaded")
def test_help_lists_all_of_them_after_the_own_ones() -> None:
    shown = run("--help").stdout
    places = [shown.index(f" {name} ") for name in ("tune", "greet", "lost")]
    assert places == sorted(places)
    assert "Say hello." in shown


@pytest.mark.usefixtures("loaded")
def test_one_that_cannot_be_imported_says_so() -> None:
    result = run("lost", "--whatever", "it", "takes")
    assert result.exit_code == 1
    assert "semistream lost is not available" in result.stderr
    assert "no_such_package" in result.stderr
