"""Where the JSON lines of a pipeline go: a file, or a folder as `ss.join` takes one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from semistream.spark.pipeline.batch_log import BatchLog, BatchRecord, Counts, Outcome
from semistream.spark.pipeline.metrics_log import MetricsLog


def test_a_folder_gets_a_file_of_the_pipelines_name(tmp_path: Path) -> None:
    assert MetricsLog("shop", tmp_path / "new").lines == tmp_path / "new" / "shop.jsonl"
    assert MetricsLog("shop", tmp_path).lines == tmp_path / "shop.jsonl"
    assert MetricsLog("a/b", tmp_path).lines == tmp_path / "a%2Fb.jsonl"
    (tmp_path / "v1.2").mkdir()
    assert MetricsLog("shop", tmp_path / "v1.2").lines == tmp_path / "v1.2" / "shop.jsonl"


@pytest.mark.parametrize("name", ["metrics.jsonl", "deep/er.txt"])
def test_a_file_stays_a_file(tmp_path: Path, name: str) -> None:
    assert MetricsLog("shop", tmp_path / name).lines == tmp_path / name


def test_a_file_that_is_there_stays_one_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("{}")
    assert MetricsLog("shop", str(tmp_path / "lines")).lines == tmp_path / "lines"
    assert MetricsLog("shop").lines is None


def finish(folder: Path, number: int) -> BatchLog:
    """The log after one more batch."""
    log = BatchLog(folder)
    counts = Counts(source=number)
    log.begin(BatchRecord(number, number, 0.0, 1))
    log.finish(
        Outcome(
            number, number, 0.0, 1, counts, counts, 0.1, None, waiting_retry=0, waiting_deferred=0
        )
    )
    return log


def lines(path: Path) -> list[int]:
    return [json.loads(line)["batch"] for line in path.read_text("utf-8").splitlines()]


def test_a_kill_before_the_first_line_loses_no_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics" / "shop.jsonl"
    MetricsLog("shop", path).catch_up(BatchLog(tmp_path))
    log = finish(tmp_path, 0)
    # Killed here: batch 0 is done, and has no line.
    again = MetricsLog("shop", path)
    again.catch_up(log)
    assert lines(path) == [0]
    assert [file.name for file in path.parent.iterdir()] == ["shop.jsonl"]
    log = finish(tmp_path, 1)
    MetricsLog("shop", path).catch_up(log)
    assert lines(path) == [0, 1]


def test_a_new_file_begins_with_the_next_batch(tmp_path: Path) -> None:
    log = finish(tmp_path, 0)
    path = tmp_path / "new.jsonl"
    MetricsLog("shop", path).catch_up(log)
    assert not path.exists()
    log = finish(tmp_path, 1)
    MetricsLog("shop", path).catch_up(log)
    assert lines(path) == [1]


def test_prometheus_has_the_last_batch_after_a_kill(tmp_path: Path) -> None:
    log = finish(tmp_path, 0)
    MetricsLog("shop", prometheus=tmp_path / "p" / "shop.prom").catch_up(log)
    assert 'semistream_batches_total{pipeline="shop"} 1.0' in (tmp_path / "p/shop.prom").read_text()
