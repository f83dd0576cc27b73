"""A few cases of each attack, and that the harness sees what it should."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from tests.chaos import registry
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
    assert [(number, kind) for number, kind, _ in verdicts] == [(0, FINE), (1, CRASHED), (2, FINE)]
    assert asked == [["0", "3"], ["2", "3"]]


def test_rows_are_judged() -> None:
    rows: list[tuple[object, ...]] = [(1, "a"), (2, "b")]
    assert differs(rows[::-1], rows) == FINE
    assert differs(rows[:1], rows) == LOST
    assert differs([*rows, rows[0]], rows) == TWICE
    assert differs([*rows, (3, "c")], rows) == WRONG
