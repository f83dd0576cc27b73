"""A backlog so large that the master is built anew, killed in the middle of that."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from tests.differential.change_replay import Change, newest, stored
from tests.differential.test_following import as_changes, follow, random_changes

pytestmark = [pytest.mark.slow, pytest.mark.service, pytest.mark.timeout(1800)]

SCRIPT = Path(__file__).with_name("rebuild_script.py")


def run(folder: Path, most: int, crash_at: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    if crash_at:
        environment["SEMISTREAM_CRASH_AT"] = crash_at
    return subprocess.run(
        [sys.executable, str(SCRIPT), str(folder), str(most)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )


def add(folder: Path, name: str, changes: Sequence[Change]) -> None:
    """A file of changes in the words of Delta's feed."""
    lines = [
        {
            "id": one.key,
            "value": one.value,
            "_change_type": "delete" if one.value is None else "insert",
            "_commit_version": one.sequence,
        }
        for one in changes
    ]
    (folder / "feed").mkdir(exist_ok=True)
    (folder / "feed" / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


def rows_in(folder: Path) -> dict[int, str]:
    found = stored(ss.MasterTable.open(folder / "master"))
    return dict(zip(*(column.to_pylist() for column in found.columns), strict=True))


def test_a_rebuild_that_is_killed_is_done_again_from_where_the_master_was(tmp_path: Path) -> None:
    changes = random_changes(np.random.default_rng(4), 400, 60)
    empty = pa.table({"id": pa.array([], pa.int64()), "value": pa.array([], pa.string())})
    ss.MasterTable.from_arrow(empty, tmp_path / "master", key="id")
    known = replace(as_changes(changes[:100]), sequence_by=("_commit_version",))
    follow(tmp_path / "master", known)
    add(tmp_path, "1.json", changes[50:])
    # The book is built, the master is not; its files are there, its manifest is not.
    for point in ("sync.booked", "job.swept:2"):
        assert run(tmp_path, 5, point).returncode == -signal.SIGKILL, point
        assert rows_in(tmp_path) == newest(changes[:100])
    assert run(tmp_path, 5, "sync.committed").returncode == -signal.SIGKILL
    assert rows_in(tmp_path) == newest(changes)
    # Spark does not know that the batch is done; the master does. Then it is merged as ever.
    more = [Change(key, 1000, "new") for key in range(3)]
    add(tmp_path, "2.json", [*more, *changes[200:]])
    done = run(tmp_path, 1000)
    assert done.returncode == 0, done.stderr[-3000:]
    assert rows_in(tmp_path) == newest([*changes, *more])
    operations = [one.operation for one in ss.MasterTable.open(tmp_path / "master").history()]
    assert operations[1].startswith("sync ")
    assert operations[2:] == ["sync, all rows", "sync 3 keys"]
