"""What a pipeline tells of itself: JSON lines, Prometheus' format, a listener."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.functions import count_if

from semistream.metrics import Recorder
from semistream.spark.join import join
from semistream.spark.pipeline.batch_log import Counts, Outcome
from semistream.spark.pipeline.listener import MetricsListener
from semistream.spark.pipeline.metrics_log import append_line, last_batch, prometheus_text
from semistream.spark.pipeline.routes import Retry
from semistream.spark.task_metrics import TaskMetrics
from semistream.testing import ManualClock, oracle_join
from tests.spark.pipeline.conftest import Shop


def parsed(text: str) -> tuple[dict[tuple[str, str | None], float], dict[str, str]]:
    """Prometheus' text format, read strictly: samples by name and labels, and types by name."""
    samples: dict[tuple[str, str | None], float] = {}
    types: dict[str, str] = {}
    name = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
    label = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
    for line in text.split("\n")[:-1]:
        if found := re.fullmatch(rf"# TYPE ({name}) (counter|gauge)", line):
            assert found[1] not in types
            types[found[1]] = found[2]
        elif not re.fullmatch(rf"# HELP {name} [^\n]*", line):
            found = re.fullmatch(rf"({name})(?:\{{({label}(?:,{label})*)\}})? (\S+)", line)
            assert found, line
            assert types[found[1]] == "counter" or not found[1].endswith("_total")
            assert (found[1], found[2]) not in samples
            samples[found[1], found[2]] = float(found[3])
    assert text.endswith("\n")
    return samples, types


@pytest.mark.service
def test_a_line_per_batch(shop: Shop) -> None:
    shop.master()
    sold = shop.sell(150, 150, 150)
    files = {"metrics": shop.folder / "lines.jsonl", "metrics_prometheus": shop.folder / "m.prom"}
    pipeline = shop.run(**files, name="sales", algorithm="chybridjoin")
    lines = shop.lines("lines.jsonl")
    assert [line["batch"] for line in lines] == [0, 1, 2]
    for i, line in enumerate(lines):
        expected = oracle_join(sold.slice(150 * i, 150), shop.goods, on="id")
        assert (line["pipeline"], line["master_version"]) == ("sales", 1)
        assert (line["joined"], line["unmatched"]) == (expected.joined, expected.unmatched)
        assert line["arrived"] == line["joined"] + line["unmatched"] == 150
        assert (line["deferred"], line["rejected"], line["retried"]) == (0, 0, 0)
        assert 0 < line["peak_memory"] <= line["budget"] == 1 << 20
        assert line["pages_read"] > 0 or line["hit_ratio"] > 0
        assert line["service_rate"] > 0
        assert 0 <= line["hit_ratio"] <= 1
        assert line["p99_seconds"] >= 0
        assert line["batch_seconds"] > 0
        assert line["algorithm"] == "chybridjoin"
    samples, types = parsed(pipeline.prometheus())
    label = 'pipeline="sales"'
    whole = oracle_join(sold, shop.goods, on="id")
    assert samples["semistream_joined_tuples_total", label] == whole.joined
    assert samples["semistream_arrived_tuples_total", label] == 450
    assert samples["semistream_memory_budget_bytes", label] == 1 << 20
    assert types["semistream_joined_tuples_total"] == "counter"
    assert types["semistream_master_version"] == "gauge"
    assert (shop.folder / "m.prom").read_text() == pipeline.prometheus()


@pytest.mark.service
def test_lines_that_a_crash_prevented_are_written_later(shop: Shop) -> None:
    shop.master()
    shop.sell(50, 50, 50)
    lines = shop.folder / "lines.jsonl"
    shop.run(metrics=lines)
    whole = lines.read_text()
    # As a crash leaves it: the second line cut off, the third not there.
    first, second, _ = whole.splitlines(keepends=True)
    lines.write_text(first + second[:20])
    shop.sell(50)
    shop.run(metrics=lines)
    kept = [json.loads(line) for line in lines.read_text().splitlines() if line.endswith("}")]
    assert [line["batch"] for line in kept] == [0, 1, 2, 3]
    assert "".join(lines.read_text().splitlines(keepends=True)[2:4]) == "".join(
        whole.splitlines(keepends=True)[1:]
    )


@pytest.mark.service
def test_tuples_that_pass_the_join_by_are_no_misses(shop: Shop) -> None:
    shop.master()
    shop.sell(300)
    metrics = shop.folder / "lines.jsonl"
    shop.run(metrics=metrics, rejected=lambda frame, batch: None, checks={"odd": "n % 2 = 0"})
    line = shop.lines("lines.jsonl")[0]
    assert line["rejected"] >= 150
    tried = line["joined"] + line["unmatched"]
    assert line["hit_ratio"] * tried == pytest.approx(round(line["hit_ratio"] * tried))


@pytest.mark.service
def test_a_listener_writes_a_line_for_each_batch_of_a_query(shop: Shop) -> None:
    master = shop.master()
    sold = shop.sell(100, 100)
    listener = MetricsListener(shop.folder / "lines.jsonl", metrics=shop.folder / "tasks")
    shop.spark.streams.addListener(listener)
    try:
        frame = join(
            shop.stream(),
            master,
            on="id",
            how="left",
            memory="1MB",
            metrics=shop.folder / "tasks",
        ).selectExpr("*", "name IS NULL AS lacks")
        frame = frame.observe("found", count_if("lacks").alias("lacking"))
        writer = frame.writeStream.format("noop").queryName("direct").trigger(availableNow=True)
        checkpoint = str(shop.folder / "other")
        query = writer.option("checkpointLocation", checkpoint).start()
        query.awaitTermination()
    finally:
        # Spark hands events over later; removing waits for none, an empty bus does.
        shop.spark._jsparkSession.sparkContext().listenerBus().waitUntilEmpty()
        shop.spark.streams.removeListener(listener)
    lines = shop.lines("lines.jsonl")
    batches = [line for line in lines if line["event"] == "batch" and line["arrived"]]
    assert [line["batch"] for line in batches] == [0, 1]
    for i, line in enumerate(batches):
        expected = oracle_join(sold.slice(100 * i, 100), shop.goods, on="id", how="left")
        assert (line["name"], line["arrived"]) == ("direct", 100)
        assert line["join"]["joined"] == expected.joined
        lacking = sum(row[2] is None for row in expected.rows)
        assert line["observed"]["found"]["lacking"] == lacking
    assert lines[-1] == {"event": "end", "query": batches[0]["query"], "error": None}
    assert list((shop.folder / "tasks").glob("*.json")) == []


def outcome(**changes: Any) -> Outcome:
    fields: dict[str, Any] = {
        "number": 3,
        "stream_batch": 3,
        "at": 0.0,
        "version": 2,
        "seconds": 1.5,
    }
    fields |= {"counts": Counts(source=2, joined=2), "totals": Counts(source=9, joined=9)}
    fields |= {"capacity": None, "waiting_retry": 0, "waiting_deferred": 0}
    return Outcome(**(fields | changes))


def test_names_are_escaped_and_what_is_not_known_is_left_out() -> None:
    name = 'a "b" \\ c\nd'
    samples, _ = parsed(prometheus_text(name, outcome()))
    label = 'pipeline="a \\"b\\" \\\\ c\\nd"'
    assert samples["semistream_joined_tuples_total", label] == 9
    assert not any("peak_memory" in metric for metric, _ in samples)
    assert all(math.isfinite(value) for value in samples.values())
    assert prometheus_text(name, None) == ""


def test_one_file_per_task_counts(tmp_path: Path) -> None:
    recorder = Recorder(ManualClock(), joined=10, unmatched=10, front_hits=5, pages_read=3)
    recorder.processing.add(0.25, 20)
    record = asdict(recorder.snapshot("inlj", peak_memory=7, budget=9)) | {"seconds": 2.0}
    recorder.processing.add(0.5, 10)
    slow = asdict(recorder.snapshot("inlj", peak_memory=8, budget=9))
    record |= {"query": "q", "batch": 4, "stage": 7, "partition": 0, "attempt": 0}
    again = record | {"attempt": 1, "joined": 12}
    other = record | {"partition": 1, **slow, "seconds": 2.0}
    strange = record | {"batch": 3}
    for i, one in enumerate((record, again, other, strange)):
        (tmp_path / f"{one['batch']}-{i}.json").write_text(json.dumps(one))
    found = TaskMetrics(tmp_path).take("q", 4)
    assert (found["joined"], found["unmatched"], found["tasks"]) == (22, 20, 2)
    assert (found["pages_read"], found["peak_memory"], found["budget"]) == (6, 8, 9)
    assert found["p99_seconds"] == pytest.approx(0.5, rel=0.04)
    assert found["service_rate"] == pytest.approx(42 / 4)
    assert [path.name for path in tmp_path.iterdir()] == ["3-3.json"]
    assert TaskMetrics(tmp_path / "none").take("q", 4) == {}


def test_a_line_that_was_cut_off_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lines.jsonl"
    assert last_batch(path) is None
    append_line(path, {"batch": 1})
    with open(path, "a") as file:
        file.write('{"batch": 2, "jo')
    assert last_batch(path) == 1
    append_line(path, {"batch": 3})
    assert last_batch(path) == 3
    assert path.read_text().splitlines()[0] == '{"batch": 1}'


@pytest.mark.service
def test_status_before_and_after(shop: Shop) -> None:
    shop.master()
    shop.sell(20)
    pipeline = shop.pipeline(unmatched=Retry(), name="one")
    before = pipeline.status()
    assert (before.name, before.state, before.batch) == ("one", "new", None)
    assert before.totals == Counts()
    pipeline.start()
    pipeline.await_termination()
    after = pipeline.status()
    assert (after.state, after.batch, after.totals.source) == ("finished", 0, 20)
    # Another one with the same checkpoint knows what was.
    again = shop.pipeline(unmatched=Retry(), name="one").start()
    assert again.status().totals == after.totals
    again.await_termination()


@pytest.mark.service
def test_what_is_not_in_a_sample_is_counted_and_nothing_that_waits_is_lost(shop: Shop) -> None:
    shop.master()
    sold = shop.sell(400)
    metrics = shop.folder / "lines.jsonl"
    options: dict[str, Any] = {"unmatched": Retry(backoff="10h", deadline="100h")}
    options["metrics"] = metrics
    shop.run(sample=0.5, **options)
    (line,) = shop.lines("lines.jsonl")
    assert 120 < line["arrived"] < 280
    assert line["arrived"] + line["left_out"] == len(sold)
    waiting = line["waiting_retry"]
    assert waiting > 0
    # A newer version lets them be looked for, and another sample must not lose any.
    shop.master()
    shop.sell(50)
    status = shop.run(sample=0.01, **options).status()
    assert sum(line["retried"] for line in shop.lines("lines.jsonl")) == waiting
    totals = status.totals
    assert totals.source == totals.joined + status.ended_unmatched + status.waiting_retry
    found = shop.rows("out", "n")
    assert len(found) == len(set(found)) == totals.joined
