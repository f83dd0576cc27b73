"""Cold tasks: what a join costs when R must come from the disk, without Spark around it.

Before each task the operating system is asked to forget the files. What a way keeps in memory of
its own stays from task to task, as it would in a worker of Spark: our front stage, the caches of
RocksDB and DuckDB. LMDB has none; it is opened anew, since pages that are mapped are not forgotten.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pyarrow as pa

import semistream as ss
from semistream.cost.micro_batches import micro_batch_engine
from semistream.workload import ZipfKeys, sales
from semistream_bench.shop import KEY, Shop
from semistream_bench.turns import Seconds, in_turns
from semistream_bench.ways import PACKED

__all__ = ["cold_seconds", "forget"]

Join = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


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
    shop: Shop,
    ours: list[str],
    tuples: int,
    exponent: float,
    rounds: int,
    say: Callable[[str], None],
) -> Seconds:
    """Seconds of a task for each way that reads R from a disk: some of ours, and all stores."""
    keys = ZipfKeys(shop.rows, exponent, seed=shop.seed)
    tasks = [list(sales(tuples, keys, shop.rows, batch_rows=10_000)) for _ in range(rounds + 1)]
    ways: dict[str, Callable[[int], list[float]]] = {}
    with ExitStack() as opened:
        for name in ours:
            master = shop.packed if name == PACKED else shop.master
            # As a worker of Spark makes it.
            engine = micro_batch_engine(master, on=KEY, how="left", memory=shop.memory)
            ways[name] = partial(_ours, shop, name, opened.enter_context(engine), tasks)
        for name, store in shop.stores.items():
            ways[name] = partial(_peer, shop, name, tasks)
            opened.callback(store.close)
        return in_turns(ways, rounds, say)


def _ours(
    shop: Shop, name: str, engine: ss.Engine, tasks: list[list[pa.RecordBatch]], number: int
) -> list[float]:
    return [_timed(engine.run, shop.files_of(name), tasks[number])]


def _peer(shop: Shop, name: str, tasks: list[list[pa.RecordBatch]], number: int) -> list[float]:
    store = shop.stores[name]
    if name == "LMDB":
        store.close()
    store.open()
    return [_timed(store, shop.files_of(name), tasks[number])]


def _timed(join: Join, files: list[Path], task: list[pa.RecordBatch]) -> float:
    """Seconds that a task takes when nothing of the files is in memory."""
    forget(files)
    started = time.perf_counter()
    found = sum(batch.num_rows for batch in join(iter(task)))
    seconds = time.perf_counter() - started
    wanted = sum(batch.num_rows for batch in task)
    if found != wanted:
        raise AssertionError(f"{found:,} rows came for {wanted:,} tuples.")
    return seconds
