"""Calibration, and the command that plans, calibrates and measures."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import semistream as ss
from semistream.cli import app
from semistream.cost import calibration
from semistream.cost import read_costs as read_costs_module
from semistream.cost.calibration import Calibration, calibrate, least_squares
from semistream.cost.empirical import zipf_stream
from semistream.cost.factors import factors_path, known_factors, shipped_factors
from semistream.cost.pricing import priced_seconds
from semistream.cost.read_costs import read_costs
from semistream.metrics import Metrics, Recorder
from semistream.workload import ZipfKeys
from semistream.workload.zipf import scattered

Masters = dict[str, ss.MasterTable]


@pytest.fixture(autouse=True)
def _own_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def test_least_squares_finds_what_it_was_made_from() -> None:
    random = np.random.default_rng(2)
    matrix, x = random.random((30, 4)), np.array([3.0, 0.0, 0.5, 10.0])
    assert least_squares(matrix, matrix @ x) == pytest.approx(x, abs=1e-6)


def runs(factor: float) -> list[Metrics]:
    """Runs whose seconds are what the shipped factors, times `factor`, make of their counters."""
    random = np.random.default_rng(3)
    made = []
    for _ in range(20):
        reads = int(random.integers(1, 1000))
        recorder = Recorder(lambda: 0.0, partitions_read=reads)
        recorder.sequential_reads = int(random.integers(0, reads))
        recorder.bytes_read = reads * int(random.integers(10_000, 500_000))
        recorder.index_pages_read = int(random.integers(0, 500))
        recorder.iterations = int(random.integers(1, 1000))
        recorder.appends = recorder.deletes = int(random.integers(0, 1_000_000))
        recorder.outputs = recorder.stream_reads = int(random.integers(1, 1_000_000))
        metrics = recorder.snapshot("x", 0, 0)
        seconds = factor * priced_seconds(metrics, shipped_factors().factors)
        made.append(replace(metrics, seconds=seconds))
    return made


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_factors_are_found_from_counters_and_seconds(factor: float) -> None:
    shipped = asdict(shipped_factors().factors)
    found, missed = calibration._factors(
        runs(factor), factor * shipped["byte_read"], shipped_factors().factors
    )
    assert missed < 0.02
    for name in ("partition_read", "iteration", "append", "output"):
        assert asdict(found)[name] == pytest.approx(factor * shipped[name], rel=0.1), name


@pytest.mark.slow
def test_a_calibration_measures_and_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    few = [(*run[:3], 2_000, *run[4:]) for run in calibration._RUNS[3:9:2]]
    monkeypatch.setattr(calibration, "_RUNS", tuple(few))
    monkeypatch.setattr(calibration, "_REPEAT", 1)
    monkeypatch.setattr(calibration, "_ROWS", 20_000)
    told: list[str] = []
    found = calibrate("buffered", progress=lambda what, done: told.append(what))
    assert told[0] == "reads"
    assert found.factors.iteration > 0
    assert found.save() == factors_path("buffered")
    assert known_factors("buffered").factors == found.factors
    assert "measured on" in known_factors("buffered").source


@pytest.mark.slow
def test_reads_are_timed_by_size_and_order(masters: Masters) -> None:
    found = list(read_costs(masters["key"]))
    assert {(read.io, read.sequential) for read in found} == {
        (io, order) for io in ("buffered", "direct") for order in (True, False)
    }
    assert all(0 < read.median <= read.p90 for read in found)


def test_a_stopwatch_goes_by_the_clock_where_a_disk_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    by_clock, by_processor = (read_costs_module.Stopwatch(io) for io in ("direct", "buffered"))
    clock[0] = 10.0
    assert by_clock.seconds() == 10.0
    assert 0 < by_processor.seconds() < 10.0


def test_tune_plans_and_measures(masters: Masters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semistream.cli.tune._MOST_TUPLES", 100_000)
    path = str(masters["key"].path)
    arguments = ["tune", path, "--memory", "400KB", "--skew", "1", "--algorithm", "hybridjoin"]
    result = CliRunner().invoke(app, [*arguments, "--empirical"])
    assert result.exit_code == 0, result.output
    assert "hybridjoin in 409,600 bytes" in result.output
    (off,) = re.findall(r"Deviation of the model: ([\d.]+)% from the priced", result.output)
    assert float(off) < 10


def test_tune_runs_the_skew_of_a_sample(
    masters: Masters, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("semistream.cli.tune._MOST_TUPLES", 24_000)
    asked: list[float] = []

    def noted(master: Any, exponent: float, *rest: Any) -> Any:
        asked.append(exponent)
        return zipf_stream(master, exponent, *rest)

    monkeypatch.setattr("semistream.cost.empirical.zipf_stream", noted)
    sample, few = tmp_path / "sample.parquet", tmp_path / "few.parquet"
    rows = masters["key"].row_count
    keys = pa.table({"product_id": scattered(ZipfKeys(rows, 1.2, 7).ranks(20_000), rows, 20)})
    pq.write_table(keys, sample)
    pq.write_table(keys.slice(0, 50), few)
    arguments = ["tune", str(masters["key"].path), "--memory", "400KB", "--algorithm", "hybridjoin"]
    result = CliRunner().invoke(app, [*arguments, "--sample", str(sample), "--empirical"])
    assert result.exit_code == 0, result.output
    assert asked == [pytest.approx(1.2, abs=0.1)]
    for wrong, message in {
        ("--sample", str(few)): "has 50 tuples with a key, which tell no skew",
        ("--task-tuples", "1000", "--empirical"): "leave --task-tuples out",
        ("--on", "sku"): "give one with --sample",
    }.items():
        result = CliRunner().invoke(app, [*arguments, *wrong])
        assert result.exit_code != 0
        assert message in " ".join(result.output.split())


def test_tune_takes_the_names_of_several_key_columns(tmp_path: Path) -> None:
    rows = pa.table({"shop": ["a", "b"] * 2_000, "number": range(4_000), "price": [1.5] * 4_000})
    ss.MasterTable.from_arrow(rows, tmp_path / "master", key=["shop", "number"])
    sold = rows.select(["shop", "number"]).rename_columns(["place", "nr"])
    pq.write_table(sold, tmp_path / "sample.parquet")
    sample = ["--sample", str(tmp_path / "sample.parquet")]
    arguments = ["tune", str(tmp_path / "master"), "--memory", "1MB", *sample]
    result = CliRunner().invoke(app, [*arguments, "--on", "place, nr"])
    assert result.exit_code == 0, result.output
    assert "exponent" in result.output
    result = CliRunner().invoke(app, [*arguments, "--on", "place"])
    assert result.exit_code != 0
    assert "--on names 1 columns, and the master's key has 2" in " ".join(result.output.split())


def test_tune_calibrates(monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = shipped_factors().factors
    spread = dict.fromkeys(asdict(shipped), 0.1)
    quick = Calibration("direct", shipped, spread, (), 0.05, 1.0)

    def measured(*_: Any, **__: Any) -> Calibration:
        return quick

    monkeypatch.setattr(calibration, "calibrate", measured)
    result = CliRunner().invoke(app, ["tune", "--calibrate", "--io", "direct"])
    assert result.exit_code == 0, result.output
    assert factors_path("direct").is_file()


def test_tune_says_what_is_missing() -> None:
    result = CliRunner().invoke(app, ["tune"])
    assert result.exit_code == 1
    assert "--calibrate" in result.output
