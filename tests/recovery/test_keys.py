"""Two pipelines assign surrogate keys and are killed just after keys were committed.

One joins with a master, the other with two at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import semistream as ss
from tests.recovery.conftest import Process

pytestmark = [pytest.mark.slow, pytest.mark.service, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
FILES, ROWS = 6, 200
KILLS = ["worker", "driver"]
NAMES = {i: f"name {i}" for i in range(100)}
KINDS = {i: f"kind {i % 7}" for i in range(0, 200, 2)}


def test_keys_survive_kills(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    sold = _prepare(tmp_path, random)
    kills = iter(KILLS)
    # Each driver's death ends a process; the last one runs to its end.
    for _ in range(KILLS.count("driver") + 1):
        is_done = _run(tmp_path, kills, random)
    assert is_done
    assert next(kills, None) is None
    keys = ss.MasterTable.open(tmp_path / "keys")
    surrogates: dict[int, int] = {}
    one, two, unmatched = (_rows(tmp_path / name) for name in ("one", "two", "two-unmatched"))
    for row in one + two:
        assert row["name"] == NAMES.get(row["id"])
    for row in two + unmatched:
        assert row.get("kind") == KINDS.get(row["id"])
    assert not [row for row in two if row["kind"] is None]
    for rows in (one, two + unmatched):
        # None lost, none twice.
        assert sorted(row["n"] for row in rows) == sorted(sold)
        for row in rows:
            assert row["id"] == sold[row["n"]]
            if row["id"] is None:
                assert row["k"] is None
            else:
                assert surrogates.setdefault(row["id"], row["k"]) == row["k"]
    assert None not in surrogates.values()
    assert len(set(surrogates.values())) == len(surrogates) == keys.row_count


def _rows(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ds.dataset(folder, partitioning="hive").to_table().to_pylist()
    return found


def _prepare(folder: Path, random: np.random.Generator) -> dict[int, int | None]:
    """Sales with new keys in every file, a small master, an empty key table; the sales."""
    sold: dict[int, int | None] = {}
    (folder / "sales").mkdir()
    for i in range(FILES):
        ids = pa.array(random.integers(0, 40 * (i + 1), ROWS), mask=random.random(ROWS) < 0.02)
        numbers = range(len(sold), len(sold) + ROWS)
        path = folder / "sales" / f"{i:04d}.parquet"
        pq.write_table(pa.table({"id": ids, "n": numbers}), path)
        os.utime(path, (1_700_000_000 + i, 1_700_000_000 + i))
        sold |= dict(zip(numbers, ids.to_pylist(), strict=True))
    for master, column, values in (("goods", "name", NAMES), ("kinds", "kind", KINDS)):
        table = pa.table({"id": list(values), column: list(values.values())})
        ss.MasterTable.from_arrow(table, folder / f"{master}.master", key="id")
    ss.key_table(folder / "keys", key={"id": "int64"}, surrogate="k", page_bytes=4096)
    return sold


def _run(folder: Path, kills: Iterator[str], random: np.random.Generator) -> bool:
    """The pipelines, up to their end or the death of their driver; whether they have ended."""
    script = str(Path(__file__).with_name("keys_script.py"))
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TMPDIR": str(folder),
    }
    with (
        open(folder / "log", "ab") as log,
        subprocess.Popen(
            [sys.executable, script, str(folder)],
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            cwd=folder,
        ) as started,
    ):
        root = Process.of(started.pid)
        assert root is not None
        family = [root]
        try:
            return _follow(folder, started, root, family, kills, random)
        finally:
            for process in (*family, *root.below()):
                process.kill()


def _follow(
    folder: Path,
    started: subprocess.Popen[bytes],
    root: Process,
    family: list[Process],
    kills: Iterator[str],
    random: np.random.Generator,
) -> bool:
    for kind in kills:
        version = ss.MasterTable.latest_version(folder / "keys")
        while ss.MasterTable.latest_version(folder / "keys") < version + 2:
            assert started.poll() is None, (folder / "log").read_text()[-3000:]
            time.sleep(random.uniform(0.0, 0.01))
        # Keys of some batch are committed now, and its rows are not written.
        family += root.below()
        if kind == "worker":
            _kill_workers(root)
            continue
        for java in root.below("org.apache.spark.deploy.SparkSubmit"):
            java.kill()
        root.kill()
        started.wait()
        return False
    assert started.stdout is not None
    return b"done" in started.stdout.read()


def _kill_workers(root: Process) -> None:
    daemons = root.below("pyspark.daemon")
    above = {daemon.pid for daemon in daemons}
    for worker in daemons:
        if worker.parent in above:
            worker.kill()
