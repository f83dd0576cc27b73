"""Running a setting: a warm-up, then a stretch that is measured.

*Priced*: the engine joins a synthetic relation under a clock that its operations move, at the
prices of the paper's machine. Deterministic; no disk and no wall clock are involved.
*Measured*: the same engine on a real master table of this machine, read directly, three times.

A run ends without draining: like the papers, it measures the steady state.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from semistream.algorithms.engine import Engine
from semistream.cost.priced_clock import PricedClock
from semistream.parts.shedding import Shedding
from semistream_papers.runs.inputs import master_of, stored_master, tuples_of
from semistream_papers.runs.progress import Progress, run_result
from semistream_papers.runs.setting import Setting
from semistream_papers.runs.sized_engine import sized_engine
from semistream_papers.workloads.keyed_rows import KeyedTuples

__all__ = ["Result", "run"]

Result = dict[str, Any]
"""What a run gives, as it stands in a line of JSON."""

_REPEATS: Final = 3
_MEMORY_DISK: Final = Path("/dev/shm")


def run(setting: Setting, timing: str = "priced", folder: Path | None = None) -> Result:
    """Run a setting; `folder` has the master tables of measured runs."""
    if timing == "priced":
        return _priced(setting)
    assert folder is not None
    found = [_measured(setting, folder) for _ in range(_REPEATS)]
    rates = [one["rate"] for one in found]
    middle = found[rates.index(statistics.median_low(rates))]
    return middle | {"rates": rates, "spread": max(rates) / min(rates) - 1}


def _priced(setting: Setting) -> Result:
    clock = PricedClock(setting.priced_by.prices(setting.algorithm))
    if setting.shed_to_network:
        clock = PricedClock(replace(clock.factors, shed=0.0))
    return _run_grown(setting, lambda one: sized_engine(one, master_of(one), clock))


def _measured(setting: Setting, folder: Path) -> Result:
    def made(one: Setting) -> Engine:
        return sized_engine(one, stored_master(one, folder), time.perf_counter, io="direct")

    return _run_grown(setting, made)


def _run_grown(setting: Setting, made: Callable[[Setting], Engine]) -> Result:
    """Run a setting, and once more, from a cold start, if R is to grow."""
    before = _run_once(setting, made(setting))
    if setting.growth == 1.0:
        return before
    grown = setting.with_(rows=round(setting.rows * setting.growth))
    return _run_once(grown, made(grown), warm=False) | {"before": before}


def _run_once(setting: Setting, engine: Engine, warm: bool = True) -> Result:
    tuples = tuples_of(setting)
    plan = engine.planned(tuples_of(setting).batch(64))
    progress = Progress(setting, plan, engine.metrics, warm)
    with tempfile.TemporaryDirectory(dir=_shed_folder()) as shed:
        outputs = _outputs(setting, engine, tuples, progress, shed)
        while not progress.done and next(outputs, None) is not None:
            pass
        # Dropping the generator closes the engine's files, without draining what waits.
        del outputs
    return run_result(setting, plan, progress)


def _outputs(
    setting: Setting, engine: Engine, tuples: KeyedTuples, progress: Progress, folder: str
) -> Iterator[pa.RecordBatch]:
    if not setting.arrival_rate:
        return engine.run(_batches(tuples, progress))
    shedding = None
    if setting.shedding:
        position = setting.look_up_position
        shedding = Shedding(setting.shedding, folder, position, max_bytes="8GB")
    arrivals = _arrivals(tuples, progress, setting.arrival_rate)
    return engine.run_timed(arrivals, shedding=shedding)


def _batches(tuples: KeyedTuples, progress: Progress) -> Iterator[pa.RecordBatch]:
    while not progress.check():
        yield tuples.batch(progress.batch_rows)


def _arrivals(
    tuples: KeyedTuples, progress: Progress, rate: float
) -> Iterator[tuple[float, pa.RecordBatch]]:
    """A steady stream, in small batches, so that arrival times are close to those of tuples."""
    rows = max(1, min(progress.batch_rows, int(rate / 100)))
    given = 0
    while not progress.check():
        yield given / rate, tuples.batch(rows)
        given += rows


def _shed_folder() -> Path | None:
    """Where shed tuples go: in memory if possible, since prices include the time of a disk."""
    return _MEMORY_DISK if _MEMORY_DISK.is_dir() else None
