"""`semistream master …` on tables made from Arrow data; what needs Spark is tested there."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

import semistream as ss
from semistream import cli
from semistream.cli.frames import file_format
from semistream.relation.following import Changes, Following, applied

Invoke = Callable[..., Result]


@pytest.fixture
def run() -> Invoke:
    def invoke(*arguments: object) -> Result:
        runner = CliRunner(env={"COLUMNS": "80", "FORCE_COLOR": None})
        return runner.invoke(cli.app, ["master", *map(str, arguments)])

    return invoke


@pytest.fixture
def master(tmp_path: Path) -> ss.MasterTable:
    """Three versions: a build of 100 rows, one row changed, ten removed."""
    table = pa.table({"id": range(100), "name": [f"name {i}" for i in range(100)]})
    built = ss.MasterTable.from_arrow(table, tmp_path / "m.master", key="id")
    return built.upsert(pa.table({"id": [5], "name": ["new"]})).delete(list(range(10, 20)))


def versions(path: Path | str) -> list[int]:
    return [one.version for one in ss.MasterTable.open(path).history()]


def test_history_has_a_row_for_each_version(run: Invoke, master: ss.MasterTable) -> None:
    result = run("history", master.path)
    assert result.exit_code == 0, result.output
    rows = [re.split(r"\s{2,}", line.strip()) for line in result.stdout.splitlines()]
    told = {row[0]: (row[1], row[3]) for row in rows if row[0].isdigit()}
    assert told == {
        "1": ("100", "build"),
        "2": ("100", "upsert 1 key"),
        "3": ("90", "delete 10 keys"),
    }
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_describe_says_how_far_a_master_has_come_with_its_source(
    run: Invoke, master: ss.MasterTable
) -> None:
    assert "follows" not in run("describe", master.path).stdout
    rows = pa.table({"id": [1, 2], "name": ["a", None]})
    deleted, order = np.array([False, True]), pa.array([7, 8])
    changes = Changes(rows, deleted, [order], ("source.lsn",))
    applied(master, changes, Following("scd1", time.time() - 90, "a stream", 1234))
    told = run("describe", master.path).stdout.splitlines()[-1]
    begin = "It follows a source by source.lsn: up to batch 1,234 of it, committed at "
    assert told.startswith(begin), told
    assert re.search(r"\+00:00, 9\d seconds behind\.$", told), told


def test_compact_makes_a_version_with_the_same_rows(run: Invoke, master: ss.MasterTable) -> None:
    result = run("compact", master.path)
    assert result.exit_code == 0, result.output
    assert "version 4 (compact), 90 rows" in result.stdout
    assert ss.MasterTable.open(master.path).row_count == 90


def test_vacuum_keeps_the_newest(run: Invoke, master: ss.MasterTable) -> None:
    result = run("vacuum", master.path, "--keep-versions", "1", "--grace", "1ms")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("Versions removed: 1, 2. Files removed: ")
    assert versions(master.path) == [3]


def test_vacuum_keeps_what_a_pipeline_may_ask_for(
    run: Invoke, master: ss.MasterTable, tmp_path: Path
) -> None:
    batches = tmp_path / "checkpoint" / "semistream" / "batches"
    batches.mkdir(parents=True)
    (batches / "00000000.json").write_text(json.dumps({"format": 1, "version": 1}))
    pinned = ["--pinned-by", tmp_path / "checkpoint"]
    result = run("vacuum", master.path, "--keep-versions", "1", *pinned)
    assert result.exit_code == 0, result.output
    assert "Pinned: 1." in result.stdout
    assert versions(master.path) == [1, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--grace", "soon"], "--grace"),
        (["--keep-versions", "0"], "keep_versions=0 must be"),
        (["--pinned-by", "no/such"], "no pipeline has run a batch with that checkpoint"),
    ],
)
def test_a_vacuum_that_is_asked_for_wrongly_removes_nothing(
    run: Invoke, master: ss.MasterTable, arguments: list[str], message: str
) -> None:
    result = run("vacuum", master.path, *arguments)
    assert result.exit_code == 1
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert versions(master.path) == [1, 2, 3]


@pytest.mark.parametrize("command", ["describe", "compact", "vacuum", "history"])
def test_no_master_is_one_line(run: Invoke, tmp_path: Path, command: str) -> None:
    result = run(command, tmp_path / "nothing")
    assert result.exit_code == 1
    assert result.stderr.startswith("There is no master table at ")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["upsert", "delete"])
def test_no_master_is_found_before_spark_starts(
    run: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(cli.master, "read_frame", lambda _: pytest.fail("the source was read"))
    result = run(command, tmp_path / "nothing", tmp_path / "rows.parquet")
    assert result.exit_code == 1
    assert result.stderr.startswith("There is no master table at ")


def test_a_suffix_that_stands_for_no_format(run: Invoke, tmp_path: Path) -> None:
    result = run("build", "rows.xlsx", tmp_path / "m", "--key", "id")
    assert result.exit_code == 1
    assert "rows.xlsx ends in '.xlsx'" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("a/b.parquet", "parquet"),
        ("s3://bucket/b.CSV", "csv"),
        ("b.json.gz", "json"),
        ("b.jsonl", "json"),
        ("folder/", "parquet"),
        ("a.b/folder", "parquet"),
    ],
)
def test_formats_by_suffix(path: str, form: str) -> None:
    assert file_format(path) == form
