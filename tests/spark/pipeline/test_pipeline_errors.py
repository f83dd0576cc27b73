"""What is wrong with a pipeline's arguments is told before anything starts, and what to do."""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa
import pytest

from semistream.errors import (
    CheckpointError,
    ColumnClashError,
    KeyColumnError,
    MasterChangedError,
    MasterNotFoundError,
    OptionError,
    PipelineStateError,
)
from semistream.spark.pipeline.routes import Retry, parse_duration
from semistream.spark.pipeline.sinks import ParquetSink, TableSink
from tests.spark.pipeline.conftest import Shop

NO_PLAN = (
    r"^The check 'odd' is no SQL predicate on the source: \[[^\n]*m[^\n]* Its columns are [^\n]*$"
)
"""Spark's first sentence only."""
CASES: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"how": "outer"}, OptionError, 'Use one of: "left", "inner"'),
    ({"on": "product"}, KeyColumnError, r"The stream has no column \['product'\]; it has"),
    ({"on": "n"}, KeyColumnError, r"the master's key is \['id'\]"),
    ({"columns": ["nome"]}, OptionError, "nome"),
    ({"memory": "1KB"}, Exception, "memory|budget|bytes"),
    ({"sink": 7}, OptionError, "sink is a int, which is no sink"),
    ({"unmatched": 7}, OptionError, "unmatched is a int, which is no sink"),
    ({"sink": ParquetSink("out", batch_column="N")}, OptionError, "batch_column"),
    ({"checks": {"odd": "n = 1"}}, OptionError, "rejected= is not given"),
    ({"rejected": "bad", "checks": {"odd": "m = 1"}}, OptionError, NO_PLAN),
    ({"rejected": "bad", "checks": {"odd": "n + 1"}}, OptionError, "'odd' is no SQL predicate"),
    ({"batch_target": "soon"}, OptionError, "batch_target='soon' is not a duration"),
    ({"batch_target": 0}, OptionError, "not a duration"),
    ({"trigger": "now"}, OptionError, "trigger='now'"),
    ({"deferred": "queue"}, OptionError, "without batch_target"),
    ({"master": "nowhere.master"}, MasterNotFoundError, "nowhere.master"),
]


@pytest.mark.service
@pytest.mark.parametrize(("options", "error", "text"), CASES)
def test_arguments_are_checked_before_anything_starts(
    shop: Shop, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    shop.master()
    shop.sell(5)
    with pytest.raises(error, match=text):
        shop.pipeline(**options)
    assert not (shop.folder / "checkpoint").exists()


@pytest.mark.service
def test_of_two_pipelines_on_one_checkpoint_the_second_stops_before_it_touches_anything(
    shop: Shop,
) -> None:
    shop.master()
    shop.sell(5)
    first = shop.pipeline(trigger="10s", unmatched=Retry(), name="first").start()
    try:
        home = shop.folder / "checkpoint" / "semistream"
        before = sorted(home.rglob("*.json"))
        with pytest.raises(CheckpointError, match=rf"in use by the pipeline first .*{os.getpid()}"):
            shop.pipeline(trigger="10s", unmatched=Retry()).start()
        assert set(before) <= set(home.rglob("*.json"))
        assert first.status().state == "running"
    finally:
        first.stop()
    shop.sell(5)
    assert shop.pipeline(unmatched=Retry()).start().await_termination()


@pytest.mark.service
def test_a_pipeline_that_cannot_start_leaves_the_checkpoint_to_others(shop: Shop) -> None:
    shop.master()
    shop.sell(5)
    shop.pipeline(unmatched=Retry(backoff="9h", deadline="99h")).start().await_termination()
    for _ in range(2):
        with pytest.raises(OptionError, match="wait in the retry queue"):
            shop.pipeline().start()


@pytest.mark.service
def test_sources_that_cannot_be(shop: Shop) -> None:
    shop.master()
    shop.sell(5)
    with pytest.raises(OptionError, match=r"Join a batch DataFrame with ss\.join"):
        shop.pipeline(shop.spark.range(5))
    clash = shop.stream().withColumnRenamed("n", "NAME")
    with pytest.raises(ColumnClashError):
        shop.pipeline(clash)
    kept = shop.stream().withColumnRenamed("n", "__semistream_n")
    with pytest.raises(OptionError, match="names kept for a pipeline"):
        shop.pipeline(kept)
    reason = shop.stream().withColumnRenamed("n", "Reason")
    with pytest.raises(OptionError, match="'reason'"):
        shop.pipeline(reason, rejected="bad")


@pytest.mark.service
def test_a_pipeline_starts_once(shop: Shop) -> None:
    shop.master()
    shop.sell(5)
    pipeline = shop.pipeline()
    with pytest.raises(PipelineStateError, match=r"call start\(\)"):
        pipeline.await_termination()
    pipeline.start()
    with pytest.raises(PipelineStateError, match="Make a new one"):
        pipeline.start()
    pipeline.await_termination()
    pipeline.stop()
    assert pipeline.status().state == "finished"


@pytest.mark.service
def test_a_running_pipeline_is_stopped_and_another_goes_on(shop: Shop) -> None:
    shop.master()
    shop.sell(20)
    pipeline = shop.pipeline(trigger="100ms").start()
    assert not pipeline.await_termination(timeout=0.01)
    assert pipeline.status().state == "running"
    pipeline.stop()
    assert pipeline.status().state == "stopped"
    assert pipeline.status().error is None
    assert pipeline.await_termination()
    shop.sell(20)
    shop.run()
    assert sorted(n for (n,) in shop.rows("out", "n")) == list(range(40))


@pytest.mark.service
def test_tuples_that_wait_need_a_retry(shop: Shop) -> None:
    shop.master()
    shop.sell(pa.table({"id": [9_999], "n": [1]}))
    shop.run(unmatched=Retry())
    with pytest.raises(OptionError, match="1 stream tuples wait in the retry queue"):
        shop.pipeline().start()


@pytest.mark.service
def test_a_version_that_does_not_fit_stops_it(shop: Shop) -> None:
    shop.master()
    shop.sell(5)
    pipeline = shop.pipeline()
    shop.master(pa.table({"id": [1], "title": ["other"]}))
    with pytest.raises(MasterChangedError, match="Version 2"):
        pipeline.start().await_termination()
    assert pipeline.status().state == "failed"
    assert "Version 2" in (pipeline.status().error or "")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"backoff": "2h", "deadline": "1h"}, "longer than deadline"),
        ({"backoff": "often"}, "backoff='often' is not a duration"),
        ({"deadline": -1}, "deadline=-1 is not a duration"),
        ({"deadline": True}, "deadline=True is not a duration"),
        ({"factor": 0.5}, "factor=0.5"),
        ({"then": "keep"}, "Use one of: emit, drop, dead_letter"),
        ({"then": "dead_letter"}, "needs dead_letters"),
        ({"dead_letters": "dead"}, "needs dead_letters"),
    ],
)
def test_a_retry_is_checked(options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        Retry(**options)


def test_durations() -> None:
    given = [("500ms", 0.5), ("30s", 30), ("5m", 300), ("5 min", 300), ("2d", 172_800), (1.5, 1.5)]
    assert [parse_duration(text, "x") for text, _ in given] == [seconds for _, seconds in given]


def test_a_table_has_one_place() -> None:
    with pytest.raises(OptionError, match="give one of them"):
        TableSink()
    with pytest.raises(OptionError, match="give one of them"):
        TableSink(table="a", path="b")
