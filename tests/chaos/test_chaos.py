"""A few cases of each attack, and that the harness sees what it should."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from semistream import crash_points
from tests.chaos import crashes, pipelines, registry
from tests.chaos.__main__ import run_batch
from tests.chaos.attack import CRASHED, FINE, LOST, TWICE, UNCLEAR, WRONG, Attack, Verdict, differs
from tests.chaos.child import judged


@pytest.mark.parametrize("name", registry.ATTACKS)
def test_a_few_cases_of_each_attack(name: str, tmp_path: Path) -> None:
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        verdict = judged(registry.ATTACKS[name], 5, number, folder)
        assert verdict.kind == FINE, (name, number, verdict)


FIRST_CASES = {point: number for number, (*_, point) in reversed([*enumerate(crashes.CASES)])}


@pytest.mark.parametrize("point", FIRST_CASES)
def test_a_kill_at_each_crash_point_changes_nothing(point: str, tmp_path: Path) -> None:
    verdict = crashes.struck(random.Random(7), tmp_path, FIRST_CASES[point])
    assert (verdict.kind, verdict.struck > 0) == (FINE, True), verdict


def test_every_crash_point_is_attacked_and_is_in_the_code() -> None:
    source = Path(crash_points.__file__).parent
    named = [
        name
        for path in source.rglob("*.py")
        for name in re.findall(r'^ +reached\("([a-z.]+)"\)', path.read_text(), re.MULTILINE)
    ]
    assert {*named} == {*crash_points.POINTS}
    assert {*FIRST_CASES} | {*pipelines.POINTS} == {*crash_points.POINTS}


def test_no_crash_point_ends_a_process_unless_asked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="names no crash point"):
        crash_points.arm("nowhere")
    program = "from semistream.crash_points import reached\nfor _ in range(3): reached('log.begun')"
    ends = []
    for at in (None, "log.begun:4", "log.begun:3", "log.begun", "log.begun"):
        environment = os.environ | {"SEMISTREAM_CRASH_MARK": str(tmp_path / "mark")}
        if at is not None:
            environment["SEMISTREAM_CRASH_AT"] = at
        command = [sys.executable, "-c", program]
        ends.append(subprocess.run(command, env=environment, check=False).returncode)
    # Once the mark is there, no process ends.
    assert ends == [0, 0, -signal.SIGKILL, 0, 0]


def test_a_raw_error_is_unclear(tmp_path: Path) -> None:
    def case(rng: random.Random, folder: Path) -> Verdict:
        raise KeyError("raw")

    assert judged(Attack("bad", case), 1, 0, tmp_path).kind == UNCLEAR


def test_a_crash_is_seen_and_the_other_cases_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        asked.append(command[-2:])
        if len(asked) == 1:
            return subprocess.CompletedProcess(command, -11, '[0, "fine", ""]\n', "dead")
        return subprocess.CompletedProcess(command, 0, '[2, "fine", ""]\n', "")

    monkeypatch.setattr(subprocess, "run", run)
    verdicts = run_batch(next(iter(registry.ATTACKS.values())), 1, 0, 3)
    assert [(number, kind) for number, kind, *_ in verdicts] == [(0, FINE), (1, CRASHED), (2, FINE)]
    assert asked == [["0", "3"], ["2", "3"]]


def test_rows_are_judged() -> None:
    rows: list[tuple[object, ...]] = [(1, "a"), (2, "b")]
    assert differs(rows[::-1], rows) == FINE
    assert differs(rows[:1], rows) == LOST
    assert differs([*rows, rows[0]], rows) == TWICE
    assert differs([*rows, (3, "c")], rows) == WRONG
