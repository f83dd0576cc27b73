"""A few cases of each attack, and that the harness sees what it should."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from semistream import crash_points
from tests.chaos import crashes, pipelines, registry, small_disk, soak
from tests.chaos.__main__ import run_batch
from tests.chaos.attack import (
    CRASHED,
    FAULTS,
    FINE,
    LOST,
    TWICE,
    UNCLEAR,
    WRONG,
    Attack,
    Verdict,
    differs,
)
from tests.chaos.child import judged
from tests.chaos.results import Group, table


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, one in registry.ATTACKS.items() if one.quick])
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
    # These need a database.
    services = (Path(__file__).parents[1] / "services" / "test_database_sink.py").read_text()
    of_services = re.findall(r'"(database[.][a-z]+)"', services)
    assert {*FIRST_CASES, *pipelines.POINTS, *of_services} == {*crash_points.POINTS}


def test_no_crash_point_ends_a_process_unless_asked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="names no crash point"):
        crash_points.arm("nowhere")
    # Alone: all of semistream would take a second to import.
    program = Path(crash_points.__file__).read_text() + "\nfor _ in range(3): reached('log.begun')"
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


def test_without_a_small_disk_the_size_of_files_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with small_disk.small_disk(tmp_path / "disk", 1 << 20) as disk:
        disk.fill(1000)
        with pytest.raises(OSError, match="File too large"):
            (disk.folder / "file").write_bytes(bytes(2000))
        disk.empty()
        (disk.folder / "file").write_bytes(bytes(2000))


@pytest.mark.parametrize("names", ["*.jsonl", "*-long.jsonl"])
def test_the_tables_of_the_docs_are_those_of_the_results(names: str) -> None:
    here = Path(__file__)
    groups = Group.read(sorted((here.parent / "results").glob(names)))
    assert groups
    assert table(groups) in (here.parents[2] / "docs" / "reliability.md").read_text()


def test_a_table_has_a_line_for_each_attack_and_their_sum() -> None:
    none = dict.fromkeys(FAULTS, 0)
    groups = [
        Group("a", 1, 0, 10, 30, 60.0, none),
        Group("b", 1, 0, 5, 5, 6.0, none | {"lost": 1}, ["3 lost: x"]),
        Group("a", 1, 10, 10, 1000, 60.0, none),
    ]
    assert [Group(**json.loads(group.line())) for group in groups] == groups
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table(groups).splitlines()]
    assert rows[0] == ["attack", "cases", "struck", *FAULTS, "minutes"]
    assert rows[2:] == [
        ["a", "20", "1,030", "0", "0", "0", "0", "0", "2"],
        ["b", "5", "5", "1", "0", "0", "0", "0", "0"],
        ["all", "25", "1,035", "1", "0", "0", "0", "0", "2"],
    ]


def test_a_soak_sees_what_grows_after_it_is_warm() -> None:
    def sample(minute: int, leak: float) -> soak.Sample:
        # It doubles while it warms up, and then goes up and down.
        steady = min(minute, 30) * 10 + minute % 2
        return soak.Sample(minute, minute, 50, 20, 100 + leak * minute, steady, 9, 9, 5)

    assert soak.too_much([sample(minute, 0.0) for minute in range(100)]) == {}
    leaking = soak.too_much([sample(minute, 0.5) for minute in range(100)])
    assert leaking == {"driver_mb": pytest.approx(0.5 * 59, abs=1)}
