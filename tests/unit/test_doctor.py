"""What `semistream doctor` finds, on this machine and on one that lacks things."""

from __future__ import annotations

import json
import resource
import shutil
import sys
from pathlib import Path

import pyspark
import pytest
from typer.testing import CliRunner

from semistream.cli import app
from semistream.cli.doctor import BAD, GOOD, NOTE, Finding, findings

# The package's name `doctor` is the command.
module = sys.modules[findings.__module__]


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


def named(what: str) -> Finding:
    return next(one for one in findings() if one.what == what)


def test_a_small_disk_little_memory_and_few_files_are_noted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    few = shutil.disk_usage(tmp_path)._replace(free=100 << 20)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda folder: few)
    monkeypatch.setattr(module, "_container_limits", lambda: [1 << 30])
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 256))
    for what, advice in (
        ("temporary files", "TMPDIR"),
        ("memory", "local_session(memory='1g')"),
        ("open files", "ulimit -n"),
    ):
        found = named(what)
        assert found.verdict == NOTE
        assert advice in found.advice


def test_a_spark_that_is_too_old_or_another_one_in_spark_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert named("Spark").verdict in (GOOD, NOTE)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert named("Spark").verdict == BAD
    assert "unset SPARK_HOME" in named("Spark").advice
    monkeypatch.setattr(pyspark, "__version__", "3.5.4")
    assert "pyspark==4.2" in named("Spark").advice


def test_a_check_that_fails_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(folder: str) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(module.shutil, "disk_usage", broken)
    assert named("disk").verdict == BAD
    assert "the disk is gone" in named("disk").found
    assert named("kernels").found
