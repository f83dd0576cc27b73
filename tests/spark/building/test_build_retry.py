"""Builds whose tasks die and are tried again, and builds under Spark Connect.

Each runs in a process of its own: it needs a session of another kind than the other tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import semistream as ss

pytestmark = [pytest.mark.service, pytest.mark.slow]

_SESSION = """
import json, os, sys
from pyspark.sql import SparkSession
import semistream as ss
from semistream.spark.building import job

root = sys.argv[1]
spark = (
    SparkSession.builder.master("local[2,3]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.sql.shuffle.partitions", "3")
    .config("spark.sql.adaptive.enabled", "false")
    .config("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
    .getOrCreate()
)
real = job.WriteTask
"""

_RETRY = """

def dying(*arguments):
    task = real(*arguments)

    def deadly(batches):
        # Dies once in every task that writes pages, after some of them are written.
        from pyspark import TaskContext

        number = TaskContext.get().partitionId()
        for count, batch in enumerate(batches):
            marker = os.path.join(root, f"died-{number}")
            if count == 10 and not os.path.exists(marker):
                with open(marker, "w") as file:
                    file.write(" ".join(os.listdir(os.path.join(root, "r", "data"))))
                if number == 1:
                    os._exit(9)  # as if killed: nothing is cleaned up
                raise RuntimeError("died half-way")
            yield batch

    def call(batches):
        yield from task(deadly(batches))

    return call


job.WriteTask = dying
df = spark.range(3000).selectExpr("id", "repeat('x', 60) AS text")
master = ss.MasterTable.build(df, os.path.join(root, "r"), key="id", page_bytes=4096, filter_bits=8)
died = sorted(name for name in os.listdir(root) if name.startswith("died-"))
print(json.dumps({"died": died, "rows": master.row_count}))
spark.stop()
"""

_COPIES = """

def copied(*arguments):
    task = real(*arguments)

    def call(batches):
        # A copy of the task ends first, but nobody takes what it tells; then the task itself.
        given = list(batches)
        list(task(iter(given)))
        with open(os.path.join(root, f"copies-{os.getpid()}"), "a") as file:
            file.write(" ".join(os.listdir(os.path.join(root, "r", "data"))))
        yield from task(iter(given))

    return call


job.WriteTask = copied
df = spark.range(3000).selectExpr("id", "repeat('x', 60) AS text")
master = ss.MasterTable.build(df, os.path.join(root, "r"), key="id", page_bytes=4096, filter_bits=8)
print(json.dumps({"rows": master.row_count}))
spark.stop()
"""

_CONNECT = """
import json, os, sys
from pyspark.sql import SparkSession
import semistream as ss

root = sys.argv[1]
builder = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
spark = builder.config("spark.connect.grpc.binding.address", "127.0.0.1").getOrCreate()
spark.conf.set("spark.sql.shuffle.partitions", "2")
df = spark.range(2000).selectExpr("CAST(id AS string) AS id", "id AS n", "repeat('x', 60) AS text")
plain = ss.MasterTable.build(df, os.path.join(root, "plain"), key="id", shards=2, filter_bits=8)
given = ss.MasterTable.build(df, os.path.join(root, "given"), key="id", order_by="n")
newer = given.upsert(df.limit(10)).delete(df.limit(3).select("id"))
print(json.dumps({"rows": [plain.row_count, given.row_count, newer.row_count]}))
spark.stop()
"""


def run(script: str, root: Path) -> dict[str, Any]:
    quiet = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(root)],
        env={**os.environ, **quiet},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    told: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return told


def test_copies_of_tasks_leave_no_page_twice_and_no_file_behind(tmp_path: Path) -> None:
    """As speculation does it: two attempts end, and Spark takes one's word.

    A copy by Spark itself needs a second machine: it makes none on the host of the first attempt.
    """
    assert run(_SESSION + _COPIES, tmp_path) == {"rows": 3000}
    master = ss.MasterTable.open(tmp_path / "r")
    assert master.pages.first[0] == 0
    assert (master.pages.first[1:] == master.pages.last[:-1] + 1).all()
    named = {file.name for file in master.manifest.data_files}
    written = {name for path in tmp_path.glob("copies-*") for name in path.read_text().split()}
    assert written - named, "the copies wrote nothing"
    assert {path.name for path in (tmp_path / "r" / "data").iterdir()} == named


def test_tasks_that_die_leave_no_page_twice_and_no_file_behind(tmp_path: Path) -> None:
    told = run(_SESSION + _RETRY, tmp_path)
    assert told == {"died": ["died-0", "died-1", "died-2"], "rows": 3000}
    master = ss.MasterTable.open(tmp_path / "r")
    begun = (tmp_path / "died-1").read_text().split()
    assert any("-00001-" in name for name in begun), "the task died before it had a file"
    assert master.pages.first[0] == 0
    assert (master.pages.first[1:] == master.pages.last[:-1] + 1).all()
    named = {file.name for file in master.manifest.data_files}
    assert {path.name for path in (tmp_path / "r" / "data").iterdir()} == named


def test_a_build_under_spark_connect(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    assert run(_CONNECT, tmp_path) == {"rows": [2000, 2000, 1997]}
    assert ss.MasterTable.open(tmp_path / "plain").shard_count == 2
