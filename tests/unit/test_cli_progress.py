"""How long work shows how far it is."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console
from typer.testing import CliRunner

import semistream as ss
from semistream.cli import app
from semistream.cli.progress import Progress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def console(is_terminal: bool) -> tuple[Console, io.StringIO]:
    written = io.StringIO()
    return Console(file=written, force_terminal=is_terminal, width=80), written


def test_time_left_follows_from_the_share_that_is_done(clock: Clock) -> None:
    progress = Progress("Building", 200, clock=clock)
    clock.now = 30.0
    progress.to(50)
    assert progress.line().plain == "Building  25 %  30 s, 1 min 30 s left"
    progress.advance(200, "More than expected")
    assert progress.line().plain == "More than expected  100 %  30 s, 0 s left"


def test_without_a_total_only_the_time_is_told(clock: Clock) -> None:
    progress = Progress("Sorting", None, clock=clock)
    clock.now = 4000.0
    assert progress.line().plain == "Sorting  1 h 6 min"


def test_what_went_before_the_total_was_known_does_not_count_for_the_rest(clock: Clock) -> None:
    progress = Progress("Building", None, clock=clock)
    clock.now = 100.0
    progress.to(1, total=100)
    clock.now = 110.0
    progress.to(50, total=100)
    assert progress.line().plain == "Building  50 %  1 min 50 s, 10 s left"


def test_too_early_no_time_left_is_told(clock: Clock) -> None:
    progress = Progress("Building", 1000, clock=clock)
    clock.now = 5.0
    progress.to(1)
    assert progress.line().plain == "Building  0 %  5 s"


def test_elsewhere_than_on_a_terminal_plain_lines_come_now_and_then(clock: Clock) -> None:
    plain, written = console(is_terminal=False)
    with Progress("Building", 100, console=plain, clock=clock) as progress:
        for second in range(26):
            clock.now = float(second)
            progress.to(4 * second)
    assert written.getvalue().splitlines() == [
        "Building  40 %  10 s, 15 s left",
        "Building  80 %  20 s, 5 s left",
    ]


def test_quiet_is_quiet(clock: Clock) -> None:
    for is_terminal in (False, True):
        some, written = console(is_terminal)
        with Progress("Building", 100, quiet=True, console=some, clock=clock) as progress:
            clock.now += 60
            progress.to(50)
            progress.say("a line")
        assert written.getvalue() == ""


def test_on_a_terminal_a_bar_is_drawn_and_taken_away(clock: Clock) -> None:
    some, written = console(is_terminal=True)
    with Progress("Building", 4, console=some, clock=clock) as progress:
        clock.now = 6.0
        progress.to(1)
    assert "█████░░░░░░░░░░░░░░░" in written.getvalue()
    assert "18 s left" in written.getvalue()
    # The cursor is shown again, and the line is cleared.
    assert written.getvalue().rstrip().endswith("\x1b[2K")


def test_results_of_master_commands_as_json(tmp_path: Path) -> None:
    path = tmp_path / "goods.master"
    ss.MasterTable.from_arrow(pa.table({"id": range(50)}), path, key="id")

    def told(*arguments: str) -> object:
        result = CliRunner().invoke(app, ["master", arguments[0], str(path), *arguments[1:]])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    facts = told("compact", "--json", "--quiet")
    assert isinstance(facts, dict)
    assert (facts["version"], facts["rows"], facts["key"]) == (2, 50, ["id"])
    assert told("describe", "--json") == facts
    versions = told("history", "--json")
    assert isinstance(versions, list)
    assert [one["operation"] for one in versions] == ["build", "compact"]
    gone = told("vacuum", "--json", "--keep-versions", "1")
    assert isinstance(gone, dict)
    assert gone["versions"] == [1]
