"""What the operating system counts: a join grows a process by little more than its budget."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

import semistream as ss
from semistream.parts import spare_memory

BUDGET = 32 << 20

SCRIPT = """
import sys, threading, time
import numpy as np, pyarrow as pa
import semistream as ss
from semistream.workload import products

def anonymous():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(l.split()[1]) * 1024 for l in lines if l.startswith("RssAnon"))

def run(master, memory, batches):
    engine = ss.engine(master, on="product_id", memory=memory, algorithm=sys.argv[2], io="unmapped")
    rng = np.random.default_rng(1)
    stream = (
        pa.record_batch({"product_id": rng.integers(0, 400_000, 20_000), "n": np.arange(20_000)})
        for _ in range(batches)
    )
    for batch in engine.run(stream):
        del batch
    engine.close()

few = ss.MasterTable.from_arrow(products(20_000, 1), sys.argv[1] + "/few", key="product_id")
many = ss.MasterTable.from_arrow(products(400_000, 1), sys.argv[1] + "/many", key="product_id")
run(few, 4 << 20, 3)
pa.default_memory_pool().release_unused()
before = peak = anonymous()
done = False

def watch():
    global peak
    while not done:
        peak = max(peak, anonymous())
        time.sleep(0.002)

watcher = threading.Thread(target=watch)
watcher.start()
run(many, int(sys.argv[3]), 30)
done = True
watcher.join()
print(peak - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
@pytest.mark.parametrize("algorithm", ["meshjoin", "hybridjoin"])
def test_a_join_grows_the_process_by_little_more_than_its_budget(
    tmp_path: Path, algorithm: str
) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), algorithm, str(BUDGET)]
    grown = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert grown <= 1.25 * BUDGET + (16 << 20)


def test_freed_memory_is_given_back_while_a_join_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, released = [0.0], []

    class Pool:
        def release_unused(self) -> None:
            released.append(now[0])

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(pa, "default_memory_pool", Pool)
    spare = spare_memory.SpareMemory()
    for now[0] in (0.0, 0.019, 0.021, 0.03, 0.04, 0.042):
        spare.give_back()
    assert released == [0.021, 0.042]


def test_a_run_asks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(spare_memory.SpareMemory, "give_back", lambda spare: asked.append(1))
    table = pa.table({"id": range(5000), "v": range(5000)})
    master = ss.MasterTable.from_arrow(table, tmp_path / "r", key="id")
    stream = pa.record_batch({"id": range(5000)})
    for algorithm in ("meshjoin", "hybridjoin"):
        asked.clear()
        list(ss.engine(master, on="id", memory="1MB", algorithm=algorithm).run([stream]))
        assert asked
