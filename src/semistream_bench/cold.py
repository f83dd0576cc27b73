"""Cold tasks: what a join costs when nothing of R is in memory, without Spark around it.

Before each task every store is closed and the operating system is asked to forget its files.
Opening it again is not counted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa

import semistream as ss
from semistream.workload import ZipfKeys, sales
from semistream_bench.shop import KEY, Shop
from semistream_bench.turns import Seconds, in_turns
from semistream_bench.ways import OURS

__all__ = ["cold_seconds", "forget"]


def forget(files: list[Path]) -> None:
    """Ask the operating system to drop what it holds of these files."""
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def cold_seconds(
    shop: Shop, tuples: int, exponent: float, rounds: int, say: Callable[[str], None]
) -> Seconds:
    """Seconds of a task for each way that reads R from a disk."""
    keys = ZipfKeys(shop.rows, exponent, seed=shop.seed)
    tasks = [list(sales(tuples, keys, shop.rows, batch_rows=10_000)) for _ in range(rounds + 1)]
    ways: dict[str, Callable[[int], list[float]]] = {
        OURS: lambda number: [_ours(shop, tasks[number])]
    }
    for name in shop.stores:
        ways[name] = partial(_peer, shop, name, tasks)
    return in_turns(ways, rounds, say)


def _ours(shop: Shop, task: list[pa.RecordBatch]) -> float:
    forget(shop.files_of(OURS))
    with ss.engine(shop.master, on=KEY, how="left", memory=shop.memory) as joining:
        started = time.perf_counter()
        found = sum(batch.num_rows for batch in joining.run(iter(task)))
        seconds = time.perf_counter() - started
    return _checked(seconds, found, task)


def _peer(shop: Shop, name: str, tasks: list[list[pa.RecordBatch]], number: int) -> list[float]:
    store, task = shop.stores[name], tasks[number]
    store.close()
    forget(shop.files_of(name))
    store.open()
    started = time.perf_counter()
    found = sum(batch.num_rows for batch in store(iter(task)))
    seconds = time.perf_counter() - started
    store.close()
    return [_checked(seconds, found, task)]


def _checked(seconds: float, found: int, task: list[pa.RecordBatch]) -> float:
    wanted = sum(batch.num_rows for batch in task)
    if found != wanted:
        raise AssertionError(f"{found:,} rows came for {wanted:,} tuples.")
    return seconds
