"""Resident memory: what a way's Python workers hold, and the most of the JVM's heap it had."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

__all__ = ["Resident", "forget_peak", "resident"]


class Resident(NamedTuple):
    """Bytes of all processes of a session together."""

    workers: int
    """Of Python workers: memory of their own. Mapped files belong to the page cache."""
    heap: int
    """Of the JVM's heap, the most since `forget_peak`."""


def forget_peak(spark: SparkSession) -> None:
    """Begin to look for the most of the heap anew."""
    jvm = _jvm(spark)
    jvm.java.lang.System.gc()
    for pool in jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans():
        pool.resetPeakUsage()


def resident(spark: SparkSession) -> Resident:
    """As it is now."""
    jvm = _jvm(spark)
    pools = jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans()
    heap = sum(p.getPeakUsage().getUsed() for p in pools if str(p.getType()) == "Heap memory")
    java = int(jvm.java.lang.ProcessHandle.current().pid())
    return Resident(sum(map(_anonymous, _descendants(java))), int(heap))


def _jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm


def _descendants(process: int) -> list[int]:
    """The processes that it has started, and those that they have."""
    parents: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name, in brackets, may have spaces.
            parent = int(status.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        parents.setdefault(parent, []).append(int(status.parent.name))
    found, waiting = [], [process]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


def _anonymous(process: int) -> int:
    """Bytes that a process has for itself, a shared one in parts; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss_Anon:"))
