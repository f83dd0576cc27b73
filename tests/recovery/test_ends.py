"""How a pipeline ends: by Ctrl-C, by an error, by the death of Java. A user must not be frightened.

Each pipeline runs in a process of its own, whose terminal is read.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import semistream as ss
from semistream import cli
from tests.recovery.conftest import Process

pytestmark = [pytest.mark.slow, pytest.mark.service]

FILE = """
[source]
format = "rate"
options = {{ rowsPerSecond = 200 }}
select = ["value % 5 as id", "value"]
[master]
path = "{folder}/goods.master"
[join]
on = "id"
memory = "1MB"
[sink]
path = "{folder}/out"
[pipeline]
checkpoint = "{folder}/checkpoint"
name = "shop"
{more}
"""
_FRIGHTENING = ("\tat ", " at org.apache", "Traceback", "ERROR")
SCRIPT = """
import sys, semistream as ss
from semistream.errors import SparkLostError
spark = ss.local_session(1, "1g", log=sys.argv[1] + "/spark.log")
source = spark.readStream.format("rate").option("rowsPerSecond", 200).load()
pipeline = ss.Pipeline(
    source.selectExpr("value % 5 as id", "value"), sys.argv[1] + "/goods.master", on="id",
    sink=sys.argv[1] + "/out", checkpoint=sys.argv[1] + "/checkpoint", memory="1MB", name="shop",
).start()
print("up", flush=True)
try:
    pipeline.await_termination()
except SparkLostError as error:
    print("told:", error)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    ss.MasterTable.from_arrow(pa.table({"id": range(5)}), tmp_path / "goods.master", key="id")
    return tmp_path


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for one in started:
        root = Process.of(one.pid)
        for process in [*(root.below() if root else []), *([root] if root else [])]:
            process.kill()
        one.wait()


def launched(command: list[str], processes: list[subprocess.Popen[str]]) -> subprocess.Popen[str]:
    environment = {**os.environ, "TERM": "dumb", "COLUMNS": "200"}
    one = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    processes.append(one)
    return one


def run_file(
    folder: Path, processes: list[subprocess.Popen[str]], more: str = ""
) -> subprocess.Popen[str]:
    path = folder / "pipeline.toml"
    path.write_text(FILE.format(folder=folder, more=more))
    return launched([sys.executable, "-m", "semistream", "run", str(path)], processes)


def wait_for_output(folder: Path, count: int = 1) -> None:
    for _ in range(1200):
        if batches(folder) >= count:
            return
        time.sleep(0.1)
    raise AssertionError("No batch came.")


def batches(folder: Path) -> int:
    return len(list((folder / "out").glob("batch=*")))


def killed(one: subprocess.Popen[str], command: str) -> None:
    root = Process.of(one.pid)
    for process in root.below(command) if root else []:
        process.kill()


def says_one_line(folder: Path, one: subprocess.Popen[str], command: str, said: str) -> None:
    """Kill the processes of this command until the pipeline ends, and read its terminal."""
    for _ in range(600):
        killed(one, command)
        if one.poll() is not None:
            break
        time.sleep(0.1)
    told = one.communicate(timeout=120)[0]
    assert one.returncode == 1
    assert said in told
    assert f"Spark's own messages are in {folder}" in told
    for word in _FRIGHTENING:
        assert word not in told


def test_a_known_error_says_one_line_that_names_the_log(
    folder: Path, processes: list[subprocess.Popen[str]]
) -> None:
    one = run_file(folder, processes, more='trigger = "2s"')
    wait_for_output(folder, 1)
    shutil.rmtree(folder / "goods.master")
    told = one.communicate(timeout=120)[0]
    assert one.returncode == 1
    assert str(folder / "goods.master") in told
    log = folder / "checkpoint" / "semistream" / "spark.log"
    assert f"Spark's own messages are in {log}." in told
    assert log.stat().st_size
    for word in _FRIGHTENING:
        assert word not in told


def test_a_killed_worker_says_one_line_that_names_the_log(
    folder: Path, processes: list[subprocess.Popen[str]]
) -> None:
    one = run_file(folder, processes)
    wait_for_output(folder, 1)
    said = "A worker process of Spark has ended while the pipeline shop ran. It"
    says_one_line(folder, one, "pyspark.daemon", said)


def test_a_dead_java_process_is_one_clear_line_and_nothing_is_lost(
    folder: Path, processes: list[subprocess.Popen[str]]
) -> None:
    """It dies under the command, then under a program, and then the command goes on."""
    java = "org.apache.spark.deploy.SparkSubmit"
    one = run_file(folder, processes)
    wait_for_output(folder, 1)
    says_one_line(folder, one, java, "Spark's Java process has ended")
    script = folder / "script.py"
    script.write_text(SCRIPT)
    two = launched([sys.executable, str(script), str(folder)], processes)
    wait_for_output(folder, batches(folder) + 1)
    killed(two, java)
    told = two.communicate(timeout=120)[0]
    assert "told: Spark's Java process has ended while the pipeline shop ran" in told
    for word in _FRIGHTENING:
        assert word not in told
    assert "Traceback" in (folder / "spark.log").read_text()
    again = run_file(folder, processes)
    wait_for_output(folder, batches(folder) + 1)
    again.send_signal(signal.SIGINT)
    told = again.communicate(timeout=120)[0]
    assert again.returncode == 0
    assert "Stopped. To go on: semistream run" in told
    for word in ("Exception", "\tat ", "Traceback", "ERROR"):
        assert word not in told
    values = [
        value
        for path in (folder / "out").glob("batch=*")
        for value in pq.read_table(path, columns=["value"])["value"].to_pylist()
    ]
    assert len(values) == len(set(values))
    assert sorted(values) == list(range(len(values)))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ('memory = "much"', "[join] memory='much' is not a size"),
        ('memory = "1KB"', "1,024 bytes"),
        ('memory = "1MB"\nalgorithm = "nosuch"', "nosuch"),
        ('memory = "1MB"\ncolumns = ["nosuch"]', "nosuch"),
        ('memory = "1MB"\nhow = "outer"', "outer"),
    ],
)
def test_a_bad_join_is_told_before_spark_starts(
    folder: Path, given: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "pipeline.toml"
    path.write_text(FILE.format(folder=folder, more="").replace('memory = "1MB"', given))
    monkeypatch.setattr("semistream.cli.run.spark_session", None)
    told = CliRunner(env={"COLUMNS": "200"}).invoke(cli.app, ["run", str(path)])
    assert told.exit_code == 1
    assert said in told.stderr
    assert len(told.stderr.splitlines()) == 1
