"""Empirical tuning: run joins of several sizes, and compare with what the model predicts.

The papers tune both ways, too. The stream is made from R's own keys, after Zipf's law.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.algorithms import Engine, fixed_engine
from semistream.cost.prediction import Operations, Prediction
from semistream.cost.pricing import priced_seconds
from semistream.cost.tuner import Tuner
from semistream.metrics import Metrics
from semistream.plan import JoinPlan
from semistream.relation import MasterTable
from semistream.relation.stored_rows import pages_of, row_codes
from semistream.workload import ZipfKeys
from semistream.workload.zipf import scattered

_SEED = 20
BATCHES = 24
_WARM = 8
_AROUND = (0.5, 1.0, 2.0)


@dataclass(frozen=True)
class Measured:
    """One point of the grid."""

    options: dict[str, Any]
    predicted: float
    priced: float
    """The rate by counters and cost factors."""
    measured: float
    """The rate by the clock."""


def zipf_stream(
    master: MasterTable, exponent: float, tuples: int, by_frequency: bool
) -> list[pa.RecordBatch]:
    """Stream tuples with keys of R; the most frequent are the first ones, or scattered."""
    names, batches = list(master.key), []
    last: int | None = None
    with master.reader() as reader:
        for _, batch in pages_of(reader, np.arange(master.page_count)):
            codes = row_codes(master, batch)
            begins = np.append(codes[0] != last, codes[1:] != codes[:-1])
            # A copy: the page's memory is read into again.
            batches.append(batch.select(names).take(np.flatnonzero(begins)))
            last = int(codes[-1])
    keys = pa.Table.from_batches(batches).combine_chunks()
    ranks = ZipfKeys(len(keys), exponent, _SEED).ranks(tuples)
    places = ranks if by_frequency else scattered(ranks, len(keys), _SEED)
    chosen = keys.take(pa.array(places)).append_column(
        "__tuple", pa.array(np.zeros(tuples, "V12").view("S12"), pa.binary(12))
    )
    batches_: list[pa.RecordBatch] = chosen.combine_chunks().to_batches(
        max_chunksize=-(-tuples // BATCHES)
    )
    return batches_


def measure_grid(
    tuner: Tuner, algorithm: str, memory: int, batches: list[pa.RecordBatch]
) -> Iterator[Measured]:
    """The tuned sizes, then those around them, each predicted, counted and timed.

    As for the tuner, a front stage that will be made smaller is no choice: it ends as another.
    The model's io must not be "buffered": pages that are searched in place are not what it plans.
    """
    best = tuner.best(algorithm, memory)
    seen: list[JoinPlan] = []
    for options in [dict(best.options), *_around(best)]:
        prediction = tuner.tried(algorithm, memory, options)
        if prediction is None or prediction.plan in seen or (seen and prediction.shrinks):
            continue
        seen.append(prediction.plan)
        yield _run(tuner, algorithm, memory, prediction, batches)


def _around(best: Prediction) -> Iterator[dict[str, Any]]:
    """Half, once and twice of every size that was tuned, in all combinations."""
    names = [name for name, value in best.options.items() if isinstance(value, int) and value]
    for factors in product(_AROUND, repeat=len(names)):
        changed = {
            name: max(1, round(best.options[name] * factor))
            for name, factor in zip(names, factors, strict=True)
        }
        changed = {n: min(v, 90) if n == "front_percent" else v for n, v in changed.items()}
        yield {**best.options, **changed}


def _run(
    tuner: Tuner,
    algorithm: str,
    memory: int,
    prediction: Prediction,
    batches: list[pa.RecordBatch],
) -> Measured:
    shape, master = tuner.model.shape, tuner.model.master
    on = dict(zip(shape.stream_key, master.key, strict=True))
    options, io = dict(prediction.options), tuner.model.io
    some = fixed_engine(master, algorithm=algorithm, on=on, memory=memory, io=io, **options)
    counted, measured = steady_run(some, batches, _WARM)
    priced = 1 / priced_seconds(counted, tuner.model.factors)
    return Measured(options, prediction.rate, priced, measured)


def steady_run(
    some: Engine, batches: Iterable[pa.RecordBatch], warm: int
) -> tuple[Operations, float]:
    """Operations per tuple and tuples per second, from batch `warm` to the last arrival."""
    first, last = _steady(some, batches, warm)
    tuples = last.arrived - first.arrived
    counted = Operations(**{name: n / tuples for name, n in last.since(first).items()})
    return counted, tuples / max(last.seconds - first.seconds, 1e-9)


def _steady(some: Engine, batches: Iterable[pa.RecordBatch], warm: int) -> tuple[Metrics, Metrics]:
    """The metrics when it is warm, and when the last tuple has arrived."""
    seen: list[Metrics] = []

    def feed() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == warm:
                seen.append(some.metrics())
            yield batch
        seen.append(some.metrics())

    run = some.run(feed())
    for _ in run:
        if len(seen) == 2:
            break
    close = getattr(run, "close", None)
    if close is not None:
        close()
    return seen[0], seen[1]
