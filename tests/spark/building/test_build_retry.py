"""Builds whose tasks die and are tried again, and builds under Spark Connect."""

from __future__ import annotations

from pathlib import Path

import pytest

import semistream as ss
from tests.spark.other_session import OtherSession

pytestmark = [pytest.mark.service, pytest.mark.slow]

_RETRY = """
root = arguments[0]

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
answer = {"died": died, "rows": master.row_count}
"""

_COPIES = """
root = arguments[0]

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
answer = {"rows": master.row_count}
"""

_CONNECT = """
import os

root = arguments[0]
df = spark.range(2000).selectExpr("CAST(id AS string) AS id", "id AS n", "repeat('x', 60) AS text")
plain = ss.MasterTable.build(df, os.path.join(root, "plain"), key="id", shards=2, filter_bits=8)
given = ss.MasterTable.build(df, os.path.join(root, "given"), key="id", order_by="n")
newer = given.upsert(df.limit(10)).delete(df.limit(3).select("id"))
answer = [plain.row_count, given.row_count, newer.row_count]
"""


def test_copies_of_tasks_leave_no_page_twice_and_no_file_behind(
    failing: OtherSession, tmp_path: Path
) -> None:
    """As speculation does it: two attempts end, and Spark takes one's word.

    A copy by Spark itself needs a second machine: it makes none on the host of the first attempt.
    """
    assert failing.run(_COPIES, tmp_path) == {"rows": 3000}
    master = ss.MasterTable.open(tmp_path / "r")
    assert master.pages.first[0] == 0
    assert (master.pages.first[1:] == master.pages.last[:-1] + 1).all()
    named = {file.name for file in master.manifest.data_files}
    written = {name for path in tmp_path.glob("copies-*") for name in path.read_text().split()}
    assert written - named, "the copies wrote nothing"
    assert {path.name for path in (tmp_path / "r" / "data").iterdir()} == named


def test_tasks_that_die_leave_no_page_twice_and_no_file_behind(
    failing: OtherSession, tmp_path: Path
) -> None:
    told = failing.run(_RETRY, tmp_path)
    assert told == {"died": ["died-0", "died-1", "died-2"], "rows": 3000}
    master = ss.MasterTable.open(tmp_path / "r")
    begun = (tmp_path / "died-1").read_text().split()
    assert any("-00001-" in name for name in begun), "the task died before it had a file"
    assert master.pages.first[0] == 0
    assert (master.pages.first[1:] == master.pages.last[:-1] + 1).all()
    named = {file.name for file in master.manifest.data_files}
    assert {path.name for path in (tmp_path / "r" / "data").iterdir()} == named


def test_a_build_under_spark_connect(connect: OtherSession, tmp_path: Path) -> None:
    assert connect.run(_CONNECT, tmp_path) == [2000, 2000, 1997]
    assert ss.MasterTable.open(tmp_path / "plain").shard_count == 2
