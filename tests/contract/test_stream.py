"""How a run behaves while the stream goes on: endless, pausing, cut short, repeated."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from semistream.errors import OptionError, StreamSchemaError
from semistream.testing import ManualClock, assert_same_rows, checked_run, oracle_join, rows_of
from tests.contract.harness import Contract

ROWS = 300


def products() -> pa.Table:
    keys = np.random.default_rng(3).permutation(ROWS) * 2
    return pa.table({"id": keys, "name": [f"the product with key {key}" for key in keys]})


def batch_of(number: int, size: int = 50) -> pa.RecordBatch:
    rng = np.random.default_rng(number)
    keys = rng.integers(-5, 2 * ROWS + 5, size)
    return pa.record_batch({"id": keys, "sale": np.arange(size) + number * size})


EMPTY = batch_of(0, 0)


class Source:
    """An iterator that notes how often it was asked."""

    def __init__(self, batches: Iterator[pa.RecordBatch] | list[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self.asked = 0

    def __iter__(self) -> Source:
        return self

    def __next__(self) -> pa.RecordBatch:
        self.asked += 1
        return next(self._batches)


def test_an_endless_stream_gives_output_before_it_ends(contract: Contract, how: str) -> None:
    source = Source(batch_of(n) for n in itertools.count())
    engine = contract.engine(contract.master(products()), how=how)
    run = engine.run(source)
    for _ in itertools.islice(run, 6):
        engine.check()
    metrics = engine.metrics()
    assert metrics.arrived == 50 * source.asked
    assert metrics.joined + metrics.unmatched <= metrics.arrived
    assert metrics.outputs > 0
    run.close()


def test_an_endless_stream_waits_only_as_far_as_the_budget_goes(contract: Contract) -> None:
    """The input is ahead of the output by the tuples that wait, and each takes its bytes."""
    master = contract.master(products())
    memory = contract.least(master, [batch_of(0)])
    engine = contract.engine(master, memory=memory)
    behind = []
    for _ in itertools.islice(engine.run(batch_of(n) for n in itertools.count()), 200):
        metrics = engine.metrics()
        behind.append(metrics.arrived - metrics.joined - metrics.unmatched)
    bytes_per_tuple = 24  # the least that a slot of the stream table takes
    assert max(behind) <= memory // bytes_per_tuple + 2 * 50


@pytest.mark.parametrize("pauses", [1, 2])
def test_a_pause_hands_out_all_results_before_the_stream_is_asked_again(
    contract: Contract, how: str, pauses: int
) -> None:
    """An empty batch says that nothing more has arrived for now (`Engine.run`)."""
    table = products()
    engine = contract.engine(contract.master(table), how=how)
    handed_out: list[tuple[Any, ...]] = []
    so_far: list[pa.RecordBatch] = []
    seen_at_pause: list[int] = []

    def source() -> Iterator[pa.RecordBatch]:
        for number in range(4):
            so_far.append(batch_of(number))
            yield so_far[-1]
            for _ in range(pauses):
                yield EMPTY
                # Asked again: what came before the pause must have left.
                expected = oracle_join(so_far, table, on="id", how=how).rows
                seen_at_pause.append(len(expected) - len(handed_out))

    for batch in engine.run(source()):
        engine.check()
        handed_out += rows_of(batch)
    assert_same_rows(handed_out, oracle_join(so_far, table, on="id", how=how).rows)
    assert seen_at_pause == [0] * len(seen_at_pause)


def test_no_tuple_waits_in_the_join_while_the_stream_pauses(contract: Contract) -> None:
    """Inside the join: when it asks again after a pause, every tuple has been finished."""
    engine = contract.engine(contract.master(products()))
    waiting = []

    def source() -> Iterator[pa.RecordBatch]:
        for number in range(4):
            yield batch_of(number)
            yield EMPTY
            metrics = engine.metrics()
            waiting.append(metrics.arrived - metrics.joined - metrics.unmatched)

    for _ in engine.run(source()):
        pass
    assert waiting == [0, 0, 0, 0]


def test_a_stream_without_batches_gives_nothing(contract: Contract, how: str) -> None:
    engine = contract.engine(contract.master(products()), how=how)
    assert checked_run(engine, []) == []
    assert engine.metrics().arrived == 0


def test_a_table_and_a_reader_are_streams_too(contract: Contract, how: str) -> None:
    table, engine = products(), contract.engine(contract.master(products()), how=how)
    sales = pa.Table.from_batches([batch_of(1), batch_of(2)])
    expected = oracle_join(sales, table, on="id", how=how).rows
    assert_same_rows(checked_run(engine, sales), expected)
    reader = pa.RecordBatchReader.from_batches(sales.schema, sales.to_batches())
    assert_same_rows(checked_run(engine, reader), expected)


def test_an_engine_runs_again_from_the_start(contract: Contract, how: str) -> None:
    table, engine = products(), contract.engine(contract.master(products()), how=how)
    for start in (0, 5, 5):
        stream = [batch_of(start), batch_of(start + 1)]
        found = checked_run(engine, stream)
        assert_same_rows(found, oracle_join(stream, table, on="id", how=how).rows)
        assert engine.metrics().arrived == 100
    other = [batch.rename_columns(["id", "receipt"]) for batch in stream]
    assert_same_rows(checked_run(engine, other), oracle_join(other, table, on="id", how=how).rows)


def test_a_run_closed_early_leaves_the_engine_ready(contract: Contract, how: str) -> None:
    table, engine = products(), contract.engine(contract.master(products()), how=how)
    run = engine.run(batch_of(n) for n in itertools.count())
    next(run)
    run.close()
    engine.check()
    stream = [batch_of(7)]
    found = checked_run(engine, stream)
    assert_same_rows(found, oracle_join(stream, table, on="id", how=how).rows)


def test_a_run_that_failed_leaves_the_engine_ready(contract: Contract) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield batch_of(1)
        raise ConnectionError("the source is gone")

    table, engine = products(), contract.engine(contract.master(products()))
    with pytest.raises(ConnectionError):
        list(engine.run(broken()))
    stream = [batch_of(7)]
    assert_same_rows(
        checked_run(engine, stream), oracle_join(stream, table, on="id", how="left").rows
    )


def test_two_runs_at_once_are_refused(contract: Contract) -> None:
    engine = contract.engine(contract.master(products()))
    first = engine.run(batch_of(n) for n in itertools.count())
    next(first)
    with pytest.raises(OptionError, match=r"running already.*another engine"):
        engine.run([batch_of(1)])
    next(first)
    engine.check()
    first.close()


def test_two_runs_begun_before_either_is_read_are_refused_too(contract: Contract) -> None:
    """The first to be read runs; the other is told so, and the first is not disturbed."""
    table, stream = products(), [batch_of(n) for n in range(60)]
    engine = contract.engine(contract.master(table))
    first, second = engine.run(iter(stream)), engine.run(iter(stream))
    found = [next(first)]
    with pytest.raises(OptionError, match="running already"):
        next(second)
    found += list(first)
    assert_same_rows(found, oracle_join(stream, table, on="id", how="left").rows)


@pytest.mark.parametrize(
    "other",
    [
        batch_of(1).rename_columns(["id", "receipt"]),
        batch_of(1).select(["sale", "id"]),
        batch_of(1).select(["id"]),
        pa.record_batch({"id": pa.array([1], pa.int32()), "sale": [1]}),
    ],
    ids=["name", "order", "number", "type"],
)
def test_a_batch_of_another_schema_is_refused(contract: Contract, other: pa.RecordBatch) -> None:
    engine = contract.engine(contract.master(products()))
    with pytest.raises(StreamSchemaError, match=r"(?s)schema.*Cast the batches"):
        list(engine.run([batch_of(0), other]))


@pytest.mark.parametrize("wrong", [{"id": [1]}, None], ids=["dict", "None"])
@pytest.mark.parametrize("first", [True, False])
def test_what_is_not_a_batch_is_refused(contract: Contract, first: bool, wrong: object) -> None:
    """None does not end the stream in silence either."""
    engine = contract.engine(contract.master(products()))
    stream: list[Any] = [*([] if first else [batch_of(0)]), wrong, batch_of(1)]
    kind = type(wrong).__name__
    with pytest.raises(StreamSchemaError, match=rf"gave a {kind}.*pyarrow\.RecordBatch"):
        list(engine.run(stream))
    with pytest.raises(StreamSchemaError, match=rf"gave a {kind}"):
        list(engine.run_timed([wrong]))  # type: ignore[list-item]


def test_the_metrics_are_a_frozen_snapshot(contract: Contract) -> None:
    engine = contract.engine(contract.master(products()))
    before = engine.metrics()
    checked_run(engine, [batch_of(0)])
    after = engine.metrics()
    assert (before.arrived, after.arrived) == (0, 50)
    assert after.algorithm == contract.algorithm
    with pytest.raises(AttributeError):
        after.arrived = 1


def test_the_counters_tell_what_was_done(contract: Contract) -> None:
    """Counting is timing: reads agree with the reader's, appends with deletes."""
    master = contract.master(products())
    engine = contract.engine(master)
    checked_run(engine, [batch_of(n) for n in range(6)])
    metrics = engine.metrics()
    assert metrics.appends == metrics.deletes <= metrics.arrived
    assert metrics.pages_read >= metrics.partitions_read > 0
    assert metrics.bytes_read >= metrics.pages_read * int(master.pages.length.min())
    assert metrics.probes > 0
    assert metrics.iterations > 0
    assert metrics.matches <= metrics.outputs


def test_time_stands_still_when_the_clock_does(contract: Contract) -> None:
    engine = contract.engine(contract.master(products()))
    checked_run(engine, [batch_of(n) for n in range(3)])
    metrics = engine.metrics()
    assert (metrics.seconds, metrics.service_rate) == (0.0, 0.0)
    assert metrics.processing_time == metrics.waiting_time
    assert metrics.processing_time.p99 == 0.0


def test_waiting_time_is_that_in_the_stream_buffer(contract: Contract) -> None:
    """With few slots most tuples of a batch wait for room, each of them counted once."""
    clock = ManualClock(tick=0.001)
    master = contract.master(products())
    engine = contract.engine(master, clock=clock, **contract.few_slots(master, 4))
    checked_run(engine, [batch_of(0, 200)])
    metrics = engine.metrics()
    assert metrics.seconds > 0
    assert 0 < metrics.waiting_time.mean <= metrics.seconds
    assert metrics.waiting_time.p50 <= metrics.waiting_time.p99
    assert metrics.processing_time.mean <= metrics.seconds
