"""`plan`: what a join will do, before anything is started."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from numbers import Real

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.algorithms.options import check_join, check_master, check_options
from semistream.algorithms.registry import needs_of
from semistream.budget import parse_memory
from semistream.cost.factors import CostFactors, MeasuredFactors, check_factors, known_factors
from semistream.cost.model import CostModel
from semistream.cost.popularity import key_count
from semistream.cost.prediction import Prediction
from semistream.cost.skew import Skew
from semistream.cost.skew_estimate import SkewEstimate, estimate_skew
from semistream.cost.tuner import Tuner
from semistream.errors import BudgetError, OptionError, RateError
from semistream.parts.join_shape import JoinShape, On
from semistream.plan import Expectation, JoinPlan
from semistream.relation import MasterTable

_CURVE = (0.25, 0.5, 1.0, 2.0, 4.0)
LEAST_SAMPLE = 100
"""Fewer tuples tell no skew."""
_PAYLOAD = 12
"""Bytes of a stream tuple beside an 8-byte key, when nothing is known: the papers have 20."""


def plan(
    master: MasterTable,
    *,
    memory: int | str | None = None,
    algorithm: str = "auto",
    skew: float | Skew | SkewEstimate | None = None,
    rate: float | None = None,
    stream: pa.Schema | pa.RecordBatch | pa.Table | None = None,
    on: On | None = None,
    how: str = "inner",
    columns: Sequence[str] | None = None,
    io: str = "buffered",
    factors: CostFactors | None = None,
    task_tuples: int | None = None,
    **options: int | str,
) -> JoinPlan:
    """The best plan for a master table: for so much memory, or the least memory for a rate.

    Args:
        master: the master table.
        memory: the budget, as bytes or "64MB"; without it, the least that reaches `rate`.
        algorithm: one of `ALGORITHMS`, or "auto" for the best of them.
        skew: the stream's Zipf exponent, a `Skew`, or an estimate; by default estimated from
            `stream` if that has tuples, else taken as 0, which is the slowest case.
        rate: stream tuples per second that must be reached.
        stream: what stream tuples look like: a schema, or better a sample. By default tuples of
            20 bytes.
        on: as in `engine`; by default the master's key columns.
        how: "inner" or "left".
        columns: the master's columns to add, by default all but its key.
        io: "buffered", "unmapped" or "direct", as in `engine`.
        factors: by default those measured on this machine, or shipped if none were.
        task_tuples: how many tuples a task of a micro-batch has. With it, the plan is what `join`
            runs on Spark with algorithm "auto", and what it expects of such a task. It needs
            `memory`, and takes no other `algorithm` and no `factors`.
        options: sizes that are fixed, as `engine` takes them.
    """
    if memory is None and task_tuples is not None:
        raise OptionError("Give a plan with task_tuples the memory of a task.")
    if memory is None and rate is None:
        raise OptionError("Give a plan the memory it may use, a rate it must reach, or both.")
    if stream is None and on is not None:
        raise OptionError("on names columns of the stream: give a plan its schema too, as stream.")
    if memory is not None:
        parse_memory(memory)
    check_master(master)
    if master.is_live:
        raise OptionError(
            f"{master.path} is in a database, whose costs are not known: a plan prices reads of "
            "files. Join with it as it is; algorithm='auto' asks for many keys at a time."
        )
    check_factors(factors)
    _check_rate(rate)
    _check_skew(skew)
    if how in ("semi", "anti"):
        raise OptionError(
            f"how={how!r} costs what an inner join without columns does: plan one with columns=[]."
        )
    check_join(how, io)
    check_options(algorithm, options)
    if not master.row_count:
        raise OptionError(
            f"The master table at {master.path} is empty: any algorithm joins nothing with it as "
            "fast as another, so there is nothing to plan."
        )
    shards = master.shard_count
    if shards > 1:
        # They are about as large as each other.
        master = master.shard(0)
    sample = as_sample(stream, master)
    shape = JoinShape(sample.schema, master, on or list(master.key), how, columns)
    if task_tuples is not None:
        if algorithm != "auto" or factors is not None:
            raise OptionError(
                "A task of a micro-batch chooses its algorithm by the factors of its machine: with "
                "task_tuples, leave algorithm and factors out."
            )
        best = _task_plan(master, shape, sample, memory, io, task_tuples, skew, options)
        _check_serves(best, rate)
        return _noted(best, shards)
    known = known_factors(io) if factors is None else MeasuredFactors(factors, "as given")
    found, told = resolved_skew(skew, sample, shape, master)
    tuner = Tuner(CostModel(master, shape, sample, found, known.factors, io), options)
    ranked = _ranked(tuner, algorithm, memory, rate)
    basis = [f"skew: {told}", f"cost factors: {known.source}"]
    if ranked[0].plan.in_place_rows:
        basis.append("pages: as if none were in memory; those that are, nobody waits for")
    if stream is None:
        basis.append(
            f"stream: not known, so tuples of {8 + _PAYLOAD} bytes; others may need more memory"
        )
    best = explained(tuner, ranked, tuple(basis))
    return _noted(_charted(best, partial(tuner.curve, best.algorithm)), shards)


def _noted(plan: JoinPlan, shards: int) -> JoinPlan:
    """The plan with a word on what it is for, if the master has several shards."""
    if shards == 1:
        return plan
    note = f"for one of {shards} shards: a task joins one, with its share of the stream"
    return replace(plan, notes=(*plan.notes, note))


def _check_serves(plan: JoinPlan, rate: float | None) -> None:
    """An error if a task is slower than it must be."""
    expected = plan.expected
    if rate is not None and expected is not None and expected.rate < rate:
        raise RateError(
            f"A task of so many tuples serves {expected.rate:,.0f} of them per second with "
            f"{plan.memory:,} bytes; {rate:,.0f} were asked for. Give it more memory, or more "
            "tuples at a time: they share reads."
        )


def _charted(
    plan: JoinPlan, rates_at: Callable[[Iterable[int]], Iterable[tuple[int, float]]]
) -> JoinPlan:
    """The plan, which can ask for the rates of other budgets."""
    if plan.expected is None:
        return plan
    return replace(plan, expected=replace(plan.expected, rates_at=rates_at))


def _task_plan(
    master: MasterTable,
    shape: JoinShape,
    sample: pa.RecordBatch,
    memory: int | str | None,
    io: str,
    task_tuples: int,
    skew: float | Skew | SkewEstimate | None,
    options: Mapping[str, int | str],
) -> JoinPlan:
    """What a task of so many tuples runs on Spark."""
    from semistream.cost.micro_batches import micro_batch_plan

    assert memory is not None
    if not 1 <= _number(task_tuples) < float("inf"):
        raise OptionError(f"task_tuples={task_tuples!r} must be a number of tuples, at least 1.")
    known = None if skew is None else resolved_skew(skew, sample, shape, master)[0]

    def planned(size: int) -> JoinPlan:
        return micro_batch_plan(master, shape, sample, size, io, task_tuples, known, options)

    def rates_at(sizes: Iterable[int]) -> Iterator[tuple[int, float]]:
        for size in sizes:
            with suppress(BudgetError):
                found = planned(size)
                if found.expected is not None:
                    yield size, found.expected.rate

    return _charted(planned(parse_memory(memory)), rates_at)


def _ranked(
    tuner: Tuner, algorithm: str, memory: int | str | None, rate: float | None
) -> list[Prediction]:
    """The plans to choose from, the best first."""
    if algorithm != "auto":
        needs_of(algorithm)
    if memory is None:
        assert rate is not None
        if algorithm == "auto":
            return [tuner.cheapest(rate)]
        return [tuner.least_memory(algorithm, rate)]
    size = parse_memory(memory)
    ranked = tuner.choose(size) if algorithm == "auto" else [tuner.best(algorithm, size)]
    if rate is not None and ranked[0].rate < rate:
        raise RateError(
            f"{size:,} bytes serve {ranked[0].rate:,.0f} tuples per second at best, with "
            f"{ranked[0].plan.algorithm}; {rate:,.0f} were asked for. {tuner.advice(rate)}"
        )
    return ranked


def explained(
    tuner: Tuner,
    ranked: list[Prediction],
    basis: tuple[str, ...],
    curve: tuple[float, ...] = _CURVE,
) -> JoinPlan:
    """The first of the plans with what is expected of it; `curve` are multiples of its memory."""
    best = ranked[0]
    others = [(other.plan.algorithm, other.rate) for other in ranked[1:]]
    sizes = [int(best.plan.memory * factor) for factor in curve]
    expected = Expectation(
        rate=best.rate,
        io_per_tuple=best.io_per_tuple,
        hit_share=best.hit_share,
        wait_seconds=best.wait_seconds,
        seconds=best.seconds_by_operation,
        rivals=tuple(sorted(others, key=lambda rival: -rival[1])),
        curve=tuple(tuner.curve(best.plan.algorithm, sizes)),
        basis=basis,
        exponent=tuner.model.skew.exponent,
    )
    return replace(best.plan, options=dict(best.options), expected=expected)


def resolved_skew(
    given: float | Skew | SkewEstimate | None,
    sample: pa.RecordBatch,
    shape: JoinShape,
    master: MasterTable,
) -> tuple[Skew, str]:
    """The skew to plan for, and where it comes from."""
    if given is None and sample.num_rows >= LEAST_SAMPLE:
        codes = keyed_codes(shape, sample)
        given = estimate_skew(codes, key_count(master)) if len(codes) >= LEAST_SAMPLE else None
    if given is None:
        return Skew(0.0), "not known, so for a uniform stream, which is the slowest"
    if isinstance(given, SkewEstimate):
        return replace(given.skew, keys=None), str(given)
    found = given if isinstance(given, Skew) else Skew(float(given))
    return found, f"exponent {found.exponent:g}, as given"


def keyed_codes(shape: JoinShape, batch: pa.RecordBatch) -> NDArray[np.int64]:
    """The codes of a batch's tuples that have a key."""
    codes, valid = shape.key_codes(shape.plain(batch))
    return codes if valid is None else codes[valid]


def as_sample(
    stream: pa.Schema | pa.RecordBatch | pa.Table | None, master: MasterTable
) -> pa.RecordBatch:
    """What is known of a stream as one batch, which is empty if only its columns are."""
    if isinstance(stream, pa.Table):
        batches = stream.combine_chunks().to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], stream.schema)
    if isinstance(stream, pa.RecordBatch):
        return stream
    if isinstance(stream, pa.Schema):
        return pa.RecordBatch.from_pylist([], stream)
    if stream is not None:
        raise OptionError(
            f"stream is a {type(stream).__name__}; it must be a pyarrow Schema, RecordBatch or "
            "Table."
        )
    fields = [master.schema.field(name) for name in master.key]
    rest = pa.field("__tuple", pa.binary(_PAYLOAD), nullable=False)
    return pa.RecordBatch.from_pylist([], pa.schema([*fields, rest]))


def _check_skew(skew: object) -> None:
    if skew is not None and not isinstance(skew, Real | Skew | SkewEstimate):
        raise OptionError(f"skew={skew!r} must be a Zipf exponent, a Skew or an estimate of one.")
    if isinstance(skew, Real):
        Skew(float(skew))


def _number(value: object) -> float:
    """A number as a float; anything else is NaN, and what is too large for a float is infinite."""
    if type(value) is bool or not isinstance(value, Real):
        return float("nan")
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def _check_rate(rate: float | None) -> None:
    if rate is not None and not (0 < _number(rate) < float("inf")):
        raise OptionError(f"rate={rate!r} must be stream tuples per second, more than 0.")
