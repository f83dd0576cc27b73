"""Tuples that wait: for their master row, until a deadline, and for the load to fall."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from semistream.spark.pipeline.batch_log import BatchLog, BatchRecord
from semistream.spark.pipeline.queues import QueueEntry
from semistream.spark.pipeline.routes import Retry
from semistream.testing import ManualClock, assert_same_rows, oracle_join, rows_of
from tests.spark.pipeline.conftest import Shop

pytestmark = pytest.mark.service

OUTPUT = ("id", "n", "name")


def entries(shop: Shop, queue: str) -> list[QueueEntry]:
    folder = shop.folder / "checkpoint" / "semistream" / queue
    found = []
    for path in folder.glob("[0-9]*"):
        entry = QueueEntry.parse(path.name)
        assert entry is not None, path
        found.append(entry)
    return sorted(found)


def records(shop: Shop) -> list[BatchRecord]:
    return BatchLog(shop.folder / "checkpoint" / "semistream").records()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000.0)


@pytest.fixture
def late(shop: Shop) -> Shop:
    """A shop whose last hundred goods are not in the master yet."""
    shop.master(shop.goods.slice(0, shop.keys - 100))
    return shop


def test_a_late_master_row_is_joined(late: Shop, clock: ManualClock) -> None:
    retry = Retry(backoff="30s", deadline="1h")
    sold = late.sell(200)
    status = late.run(unmatched=retry, clock=clock).status()
    early = late.goods.slice(0, late.keys - 100)
    assert_same_rows(late.rows("out", *OUTPUT), oracle_join(sold, early, on="id").rows)
    missing = oracle_join(sold, early, on="id").unmatched
    assert (status.waiting_retry, status.counts.unmatched) == (missing, missing)
    late.master()
    more = late.sell(100)
    status = late.run(unmatched=retry, clock=clock).status()
    everything = pa.concat_tables([sold, more])
    expected = oracle_join(everything, late.goods, on="id")
    assert_same_rows(late.rows("out", *OUTPUT), expected.rows)
    assert (status.counts.source, status.counts.retried) == (100, missing)
    assert status.waiting_retry == status.counts.unmatched == expected.unmatched
    assert sum(entry.rows for entry in entries(late, "retry")) == expected.unmatched


def test_they_are_looked_for_again_without_a_new_batch(late: Shop, clock: ManualClock) -> None:
    retry = Retry(backoff="30s")
    sold = late.sell(200)
    late.run(unmatched=retry, clock=clock)
    late.master()
    status = late.run(unmatched=retry, clock=clock).status()
    assert (status.batch, status.counts.source) == (1, 0)
    assert_same_rows(late.rows("out", *OUTPUT), oracle_join(sold, late.goods, on="id").rows)


def test_backoff_grows_up_to_the_deadline(late: Shop, clock: ManualClock) -> None:
    retry = Retry(backoff="10s", factor=3, deadline="100s")
    late.sell(pa.table({"id": [9_999, 1, None], "n": [0, 1, 2]}))
    seen = []
    for _ in range(100):
        status = late.run(unmatched=retry, clock=clock).status()
        waiting = entries(late, "retry")
        seen.append((clock.now - 1_000_000, status.batch, [e.attempt for e in waiting]))
        if not waiting:
            break
        assert [entry.rows for entry in waiting] == [2]
        # A moment before it is due nothing happens.
        clock.advance_to(waiting[0].due / 1000 - 0.01)
        before = late.run(unmatched=retry, clock=clock).status()
        assert before.batch == status.batch
        clock.advance_to(waiting[0].due / 1000 + 0.001)
    # After 10, then 30, then (instead of 90) when the 100 seconds are over.
    moments = [round(moment) for moment, _, _ in seen]
    assert moments[:3] == [0, 10, 40]
    assert 100 - 100 / 64 - 1 <= moments[3] <= 100
    assert [attempt for *_, attempt in seen] == [[1], [2], [3], []]
    found = late.rows("out", *OUTPUT)
    assert_same_rows(found, [(1, 1, "name of number 1"), (9_999, 0, None), (None, 2, None)])
    assert status.totals.expired == 2


@pytest.mark.parametrize("then", ["emit", "drop", "dead_letter"])
def test_what_becomes_of_a_tuple_in_the_end(late: Shop, clock: ManualClock, then: str) -> None:
    dead = str(late.folder / "dead") if then == "dead_letter" else None
    retry = Retry(backoff=10, deadline=60, then=then, dead_letters=dead)
    late.sell(pa.table({"id": [9_999, 1], "n": [0, 1]}))
    late.run(unmatched=retry, clock=clock)
    clock.advance(61)
    status = late.run(unmatched=retry, clock=clock).status()
    joined, over = [(1, 1, "name of number 1")], [(9_999, 0, None)]
    assert_same_rows(late.rows("out", *OUTPUT), joined + over * (then == "emit"))
    assert late.rows("dead", "id", "n") == [(9_999, 0)] * (then == "dead_letter")
    assert (status.counts.unmatched, status.counts.expired, status.waiting_retry) == (1, 1, 0)
    assert entries(late, "retry") == []


def test_while_the_stream_rests_waiting_tuples_are_looked_after(late: Shop) -> None:
    """Spark runs no batch without new data; a change of the master must be noticed all the same."""
    taken: list[tuple[Any, ...]] = []
    seen = {number: threading.Event() for number in (0, 1)}

    def take(frame: DataFrame, batch: int) -> None:
        taken.extend(rows_of(frame.toArrow()))
        seen[batch].set()

    late.sell(pa.table({"id": [1, 399], "n": [0, 1]}))
    pipeline = late.pipeline(sink=take, unmatched=Retry(), trigger="100ms").start()
    try:
        assert seen[0].wait(120)
        assert taken == [(1, 0, "name of number 1")]
        late.master()
        assert seen[1].wait(120)
    finally:
        pipeline.stop()
    assert taken[1:] == [(399, 1, "name of number 399")]
    assert [record.stream_batch for record in records(late)] == [0, None]


class Cashier:
    """A sink that takes a millisecond for each row, by the clock."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.taken: dict[int, pa.Table] = {}

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.taken[batch] = frame.toArrow()
        self.clock.advance(len(self.taken[batch]) / 1000)

    def rows(self) -> pa.Table:
        return pa.concat_tables(self.taken.values())


def crowd(shop: Shop, rows: int, first: int) -> pa.Table:
    """Sales of a few keys that come often and many that come once or twice."""
    table = shop.sales(rows)
    often = [(i * 7919) % 5 if i % 3 else int((i * 104_729) % shop.keys) for i in range(rows)]
    return table.set_column(0, "id", pa.array(often)).set_column(
        1, "n", pa.array(range(first, first + rows))
    )


def test_rare_keys_are_put_off_and_come_back(shop: Shop, clock: ManualClock) -> None:
    shop.master()
    sizes = [1500, 3000, 3000, 100]
    starts = [0, 1500, 4500, 7500]
    tables = [crowd(shop, rows, first) for rows, first in zip(sizes, starts, strict=True)]
    sold = shop.sell(*tables)
    cashier = Cashier(clock)
    metrics = shop.folder / "lines.jsonl"
    shop.run(sink=cashier, batch_target="2s", clock=clock, metrics=metrics)
    assert_same_rows(cashier.rows(), oracle_join(sold, shop.goods, on="id", how="left").rows)
    lines = shop.lines("lines.jsonl")
    # The first batch starts the workers and teaches nothing; the second takes three seconds.
    assert [line["capacity"] for line in lines[:2]] == [None, 2000]
    third = lines[2]
    assert 800 <= third["deferred"] <= 1200
    assert third["joined"] + third["deferred"] == 3000
    # The fourth has room for some of them; what does not fit comes when the stream has ended.
    assert lines[3]["source"] == 100
    assert sum(line["returned"] for line in lines) == third["deferred"]
    assert all(line["arrived"] - line["deferred"] <= 2600 for line in lines[2:])
    assert lines[-1]["waiting_deferred"] == 0
    assert entries(shop, "deferred") == []
    often = Counter(tables[2]["id"].to_pylist())
    joined = Counter(cashier.taken[2]["id"].to_pylist())
    kept, put_off = (
        [often[key] for key in joined],
        [often[key] for key in often if key not in joined],
    )
    assert put_off
    assert max(put_off) <= min(kept)


def test_tuples_that_wait_can_wait_again(late: Shop, clock: ManualClock) -> None:
    """Deferred, then unmatched, then retried: a tuple keeps its way."""
    tables = [crowd(late, rows, first) for rows, first in ((1500, 0), (3000, 1500), (3000, 4500))]
    sold = late.sell(*tables)
    cashier = Cashier(clock)
    options: dict[str, Any] = {
        "batch_target": 2,
        "unmatched": Retry(),
        "clock": clock,
        "sink": cashier,
    }
    options["deferred"] = late.folder / "deferred"
    status = late.run(**options).status()
    early = oracle_join(sold, late.goods.slice(0, late.keys - 100), on="id")
    assert status.totals.deferred > 0
    assert_same_rows(cashier.rows(), early.rows)
    assert (status.waiting_retry, status.waiting_deferred) == (early.unmatched, 0)
    late.master()
    status = late.run(**options).status()
    assert_same_rows(cashier.rows(), oracle_join(sold, late.goods, on="id").rows)
    assert (status.waiting_retry, status.waiting_deferred) == (0, 0)
    assert [record.version for record in records(late)][-1] == 2
