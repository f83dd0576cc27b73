"""Kill a Python worker of this process's own Spark, in the middle of a task.

    this process ─► Java ─► pyspark.daemon ─► workers

Only a process at the end of that chain is killed, by a handle that cannot mean another process. It
needs Linux: elsewhere there is no /proc.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["failed_tasks", "kill_busy_worker", "retries"]

_DAEMON: Final = b"pyspark.daemon"
_LOOK_SECONDS: Final = 0.03
_BUSY_TICKS: Final = 2
"""CPU time, in hundredths of a second, that a busy worker takes between two looks."""
_ON_A_CORE: Final = "R"
"""The state of a process that computes, and does not wait for its next task."""


class _Process(NamedTuple):
    pid: int
    parent: int
    ticks: int
    state: str

    @classmethod
    def of(cls, pid: int) -> _Process | None:
        """The process of this number as it is now; None if there is none."""
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        # The name before the last bracket may have blanks.
        numbers = text.rpartition(")")[2].split()
        return cls(pid, int(numbers[1]), int(numbers[11]) + int(numbers[12]), numbers[0])

    def children(self) -> list[_Process]:
        """The processes that it has started and that still run."""
        numbers = (int(path.name) for path in Path("/proc").glob("[0-9]*"))
        known = (_Process.of(number) for number in numbers)
        return [one for one in known if one is not None and one.parent == self.pid]


def retries(spark: SparkSession) -> bool:
    """Whether this Spark runs a failed task again: a local one does so only if it is told to."""
    master = str(spark.conf.get("spark.master"))
    return not master.startswith("local") or "," in master


def failed_tasks(spark: SparkSession) -> int:
    """How many tasks have failed so far, as Spark counts them."""
    executors = spark.sparkContext._jsc.sc().statusStore().executorList(False)
    return sum(executors.apply(i).failedTasks() for i in range(executors.size()))


def kill_busy_worker(spark: SparkSession, seconds: float) -> int | None:
    """Kill a worker that is at work, and return its process id; None if there was none so long."""
    jvm = spark._jvm
    assert jvm is not None
    java = int(jvm.java.lang.ProcessHandle.current().pid())
    before: dict[int, int] = {}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        workers = _workers(java)
        for one in workers:
            is_busy = one.ticks - before.get(one.pid, one.ticks) >= _BUSY_TICKS
            if is_busy and one.state == _ON_A_CORE and _killed(one):
                return one.pid
        before = {one.pid: one.ticks for one in workers}
        time.sleep(_LOOK_SECONDS)
    return None


def _workers(java: int) -> list[_Process]:
    """The Python workers of a Java process that this process has started."""
    process = _Process.of(java)
    if process is None or process.parent != os.getpid():
        return []
    daemons = [one for one in process.children() if _DAEMON in _command(one.pid)]
    return [worker for daemon in daemons for worker in daemon.children()]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _killed(worker: _Process) -> bool:
    """Kill it, unless the number belongs to another process by now."""
    try:
        handle = os.pidfd_open(worker.pid)
    except OSError:
        return False
    try:
        now = _Process.of(worker.pid)
        if now is None or now.parent != worker.parent:
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True
