"""The lines that a pipeline's batches are told in."""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from semistream.cli.batch_view import BatchView, MetricsTail, totals
from semistream.cli.run import stopped_by_signals
from semistream.spark.pipeline.batch_log import Counts
from semistream.spark.pipeline.pipeline import Status


def metrics(number: int, **changed: object) -> dict[str, Any]:
    line: dict[str, Any] = {
        "batch": number,
        "at": f"2026-01-01T00:00:{2 * number:02d}.000+00:00",
        "arrived": 50_000,
        "source": 40_000,
        "hit_ratio": 0.834,
        "peak_memory": 3 << 20,
        "budget": 4 << 20,
        "service_rate": 123_456.7,
        "master_version": 7,
        "batch_seconds": 1.25,
    }
    return line | changed


def shown(*lines: Mapping[str, Any]) -> tuple[list[list[str]], str]:
    text = io.StringIO()
    view = BatchView(Console(file=text, width=40))
    for line in lines:
        view.show(line)
    return [line.split() for line in text.getvalue().splitlines()], text.getvalue()


def test_a_header_and_a_line_for_each_batch() -> None:
    rows, text = shown(metrics(0), metrics(1))
    assert rows[0][:2] == ["batch", "tuples"]
    assert rows[1] == ["0", "50,000", "–", "123,457", "83", "%", "3.0", "of", "4.0", "7", "1.25"]
    # 40,000 from the source in the 2 s since the batch before; those that came back do not count.
    assert rows[2][:3] == ["1", "50,000", "20,000"]
    assert {len(line) for line in text.splitlines()} == {78}


def test_what_tasks_did_not_measure_is_left_open() -> None:
    rows, _ = shown(metrics(0, hit_ratio=None, peak_memory=None, service_rate=None))
    assert rows[1] == ["0", "50,000", "–", "–", "–", "–", "7", "1.25"]


def test_the_tail_gives_new_whole_lines_once(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"batch": 0}\n')
    tail = MetricsTail(path)
    assert tail.new() == []
    with open(path, "a") as file:
        file.write('{"batch": 1}\n{"bat')
    assert tail.new() == [{"batch": 1}]
    with open(path, "a") as file:
        file.write('ch": 2}\n' + json.dumps({"batch": 3}) + "\n")
    assert tail.new() == [{"batch": 2}, {"batch": 3}]
    assert tail.new() == []


def test_a_file_that_comes_later(tmp_path: Path) -> None:
    tail = MetricsTail(tmp_path / "m.jsonl")
    assert tail.new() == []
    (tmp_path / "m.jsonl").write_text('{"batch": 0}\n')
    assert tail.new() == [{"batch": 0}]


def test_totals_count_each_tuple_where_it_ended() -> None:
    """900 + 15 + 20 + 65 are all; eighty did not match at first, and thirty of them again."""
    counts = Counts(source=1000, retried=30, joined=900, unmatched=110, rejected=20, expired=15)
    status = Status("p", "running", None, 4, 1, Counts(), counts, 15, 1.0, 65, 0)
    assert totals(status) == (
        "1,000 tuples up to batch 4, 900 joined, 15 unmatched, 20 rejected; 65 wait; "
        "30 were looked for again."
    )
    nothing = Status("p", "running", None, None, None, Counts(), Counts(), 0, 0.0, 0, 0)
    assert totals(nothing) == "No batch yet."


def test_a_batch_without_tuples_is_not_shown_but_starts_the_clock() -> None:
    rows, _ = shown(metrics(0, arrived=0, source=0), metrics(1))
    assert [row[0] for row in rows] == ["batch", "1"]
    assert rows[1][2] == "20,000"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_noted_and_a_second_one_interrupts(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stopped_by_signals() as signalled:
        assert not signalled.is_set()
        signal.raise_signal(number)
        assert signalled.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) is before
