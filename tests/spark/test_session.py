"""`local_session`: what it sets up, what it leaves alone, and what it says of Java."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from semistream.errors import JavaError
from semistream.spark.java import check_java
from semistream.spark.session import _java_output_to, local_session

pytestmark = pytest.mark.service


def fake_java(folder: Path, text: str, code: int = 0) -> str:
    """A home of Java whose `java -version` says `text`."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit {code}\n")
    java.chmod(0o755)
    return str(folder)


def test_a_new_session_is_local_quiet_and_in_utc(spark: SparkSession) -> None:
    conf = spark.conf
    assert conf.get("spark.driver.host") == conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert conf.get("spark.ui.enabled") == "false"
    assert conf.get("spark.sql.session.timeZone") == "UTC"
    assert conf.get("spark.sql.execution.arrow.pyspark.enabled") == "true"


def test_workers_run_this_interpreter(spark: SparkSession) -> None:
    def version(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.from_pydict({"python": [sys.executable] * batch.num_rows})

    found = spark.range(2).mapInArrow(version, "python string").distinct().collect()
    assert [row.python for row in found] == [sys.executable]


def test_given_settings_win(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_an_active_session_is_returned_unaltered(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "mine")
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    before = dict(spark.conf.getAll)
    again = local_session(7, "9g", **{"spark.sql.shuffle.partitions": "77"})
    assert again is spark
    assert dict(spark.conf.getAll) == before
    assert os.environ["PYSPARK_PYTHON"] == "mine"
    assert "SPARK_LOCAL_IP" not in os.environ


@pytest.mark.parametrize("text", ['openjdk version "17.0.15" 2025-04-15', 'java version "21"'])
def test_java_of_today_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("JAVA_HOME", fake_java(tmp_path / "java", text))
    check_java()


@pytest.mark.parametrize(
    "text", ['java version "1.8.0_402"', 'openjdk version "11.0.2" 2019-01-15', "something else"]
)
def test_old_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("JAVA_HOME", fake_java(tmp_path / "java", text))
    with pytest.raises(JavaError, match="Java 17 or newer") as caught:
        check_java()
    assert text in str(caught.value)


def test_java_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", fake_java(tmp_path / "java", "broken", code=3))
    with pytest.raises(JavaError, match="does not start"):
        check_java()


def test_a_home_without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaError, match="JAVA_HOME is"):
        check_java()


def test_no_java_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaError, match="No java is on the PATH"):
        check_java()


def test_what_java_prints_goes_to_the_log_only(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "spark.log"
    with _java_output_to(log):
        subprocess.run(["sh", "-c", "echo jars; echo warnings >&2"], check=True)
    subprocess.run(["echo", "mine"], check=True)
    assert log.read_text() == "jars\nwarnings\n"
    assert capfd.readouterr() == ("mine\n", "")


INTERRUPTED = """
import os, signal, threading, time
from semistream.spark.session import _OF_JAVA, _children, local_session

def told(pid, what):
    try:
        return open(f"/proc/{pid}/{what}", "rb").read()
    except OSError:
        return b""  # It has ended: Spark's scripts start others that live shortly.

def of_java():
    marked = [pid for pid in _children() if _OF_JAVA in told(pid, "environ")]
    return [pid for pid in marked if b"SparkSubmit" in told(pid, "cmdline")]

def interrupt():
    while not of_java():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Thread(target=interrupt, daemon=True).start()
try:
    local_session()
except KeyboardInterrupt:
    print(os.wait()[1])
"""


def test_java_does_not_outlive_a_start_that_is_interrupted() -> None:
    """It has not told Python how it is reached, so nothing else would end it."""
    command = [sys.executable, "-c", INTERRUPTED]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    # Java ends by itself when it is told to, or is killed before it can.
    assert int(ended.stdout) in (signal.SIGTERM, (128 + signal.SIGTERM) << 8)
