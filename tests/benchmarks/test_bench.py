"""`semistream bench`: its ways give the same rows, and what it says is what it measured."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from semistream_bench.cli import app
from semistream_bench.measure import Measured
from semistream_bench.report import memory_told, sentence, table
from semistream_bench.resident import Resident, _anonymous, _descendants
from semistream_bench.shop import Shop
from semistream_bench.turns import in_turns
from semistream_bench.ways import OURS, PACKED, WAYS

pytest.importorskip("lmdb")
pytest.importorskip("rocksdict")
pytest.importorskip("duckdb")


def lines_of(folder: Path, *options: str) -> list[dict[str, Any]]:
    """What a short run writes."""
    small = ["--rows", "3000", "--batch", "400", "--batches", "1", "--rounds", "1", "--quiet"]
    places = ["--folder", str(folder), "--out", str(folder / "out")]
    # In a process of its own: it starts and stops Spark.
    code = "from semistream_bench.cli import app; app()"
    order = [sys.executable, "-c", code, *small, *places, *options]
    run = subprocess.run(order, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert not list(folder.glob("semistream-bench-*")), "R is removed"
    written = (folder / "out" / "results.jsonl").read_text("utf-8")
    return [json.loads(line) for line in written.splitlines()]


@pytest.mark.slow
@pytest.mark.service
def test_all_ways_are_measured(tmp_path: Path) -> None:
    """It fails by itself if the rows of two ways differ."""
    lines = lines_of(tmp_path, "--no-resident")
    assert {line["way"] for line in lines if line["where"] == "warm"} == set(WAYS)
    stores = {line["way"] for line in lines if line["where"] == "cold"}
    assert stores == {OURS, PACKED, "LMDB", "RocksDB", "DuckDB"}
    for line in lines:
        assert not line["failed"]
        assert line["rate"] > 0
        assert len(line["seconds"]) == 1
        assert line["settings"]["seed"] == 20
        assert line["machine"]["pyspark"]
    assert (tmp_path / "out" / "warm.svg").read_text().startswith("<?xml")


@pytest.mark.slow
@pytest.mark.service
def test_the_memory_of_a_way_is_its_own(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, "--only", "LMDB", "--no-cold")
    assert {line["way"] for line in lines} == {OURS, "LMDB"}
    assert all(line["resident"]["workers"] > 1 << 20 for line in lines)


def measured(way: str, seconds: float, ours: float = 1.0) -> Measured:
    ratio = seconds / ours
    return Measured(way, "warm", 100, [seconds], ratio, (ratio, ratio))


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (2.0, "semistream is the fastest; LMDB comes next, 2.0 times as slow."),
        (1.01, "semistream and LMDB are about as fast as each other."),
        (0.5, "LMDB is the fastest, 2.0 times as fast as semistream."),
    ],
)
def test_the_sentence_is_true_for_what_was_measured(seconds: float, said: str) -> None:
    # A limit is no rival, however fast.
    found = [measured(OURS, 1.0), measured("LMDB", seconds), measured("identity", 0.1)]
    assert sentence(found, "Warm") == f"Warm: {said}"


def test_the_table_has_all_ways_fastest_first() -> None:
    failed = Measured("broadcast", "warm", 100, [], 0.0, (0.0, 0.0), failed="no memory")
    ours = Measured(OURS, "warm", 100, [1.0], 1.0, (1.0, 1.0), Resident(5_000_000, 7_000_000))
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(table([ours, measured("LMDB", 2.0), failed], "warm", 160))
    text = console.export_text()
    places = [text.index(name) for name in (OURS, "LMDB", "broadcast")]
    assert places[0] < places[1] < places[2]
    assert "failed" in text
    assert text.count("█") == 24 + 12


def test_the_table_fits_a_terminal_of_80_columns() -> None:
    held = Resident(1_471_000_000, 3_699_000_000)
    names = (OURS, "stream-static, bucketed")
    found = [Measured(n, "warm", 100, [1.0], 13.53, (12.5, 113.78), held) for n in names]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table(found, "warm", 80))
    text = console.export_text()
    assert "…" not in text
    assert "stream-static, bucketed" in text
    assert "12.50–113.78" in text


def test_what_a_store_may_take_beyond_the_others_is_said() -> None:
    ours, duck = (
        replace(measured(way, 1.0), allowed=allowed)
        for way, allowed in {OURS: 1_000_000, "DuckDB": 30_000_000}.items()
    )
    told = "A task may take 1.0 MB, but DuckDB 30 MB: it fails with less."
    assert memory_told([ours, duck, measured("LMDB", 1.0)]) == told
    assert not memory_told([ours, replace(duck, allowed=1_000_000)])


def test_what_cannot_be() -> None:
    for options, message in {
        ("--rows", "0"): "--rows is 0",
        ("--memory", "0"): "--memory is 0.0",
        ("--only", "Oracle"): "There is no way 'Oracle'",
        ("--batch", "1", "--cores", "2"): "give each task a tuple, or --no-cold",
        ("--out", __file__): "which cannot be written",
        ("--folder", "/no/such/folder"): "there is no such folder",
        ("--exponent", "10"): "or more, below 10",
        ("--seed", "-1"): "--seed is -1",
    }.items():
        run = CliRunner().invoke(app, list(options))
        assert run.exit_code != 0
        assert message in run.output


def test_a_store_is_built_with_its_own_package_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("lmdb", "rocksdict"):
        monkeypatch.setitem(sys.modules, package, None)
    shop = Shop(tmp_path, 1000, 0.1, seed=1)
    shop.add_stores(["DuckDB"])
    assert list(shop.stores) == ["DuckDB"]
    with pytest.raises(ImportError):
        shop.add_stores(["LMDB"])


def test_names_with_commas_can_be_chosen() -> None:
    run = CliRunner().invoke(app, ["--only", "stream-static, sorted,nothing"])
    assert "There is no way 'nothing'" in run.output


def test_no_way_at_all_is_refused() -> None:
    assert "There is no way ''" in CliRunner().invoke(app, ["--only", ""]).output


@pytest.mark.parametrize("before", ["", "a line of another run\n"])
def test_interrupted_it_leaves_only_results_that_were_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("semistream_bench.measure.Comparison.run", stop)
    results = tmp_path / "results.jsonl"
    if before:
        results.write_text(before)
    run = CliRunner().invoke(app, ["--only", "LMDB", "--out", str(tmp_path)])
    assert run.exit_code
    assert (results.read_text() if results.exists() else "") == before
    assert results.exists() == bool(before)


def test_the_memory_of_processes_is_read() -> None:
    assert os.getpid() in _descendants(os.getppid())
    assert _anonymous(os.getpid()) > 1 << 20
    assert _anonymous(2**22 + 1) == 0


def test_a_way_that_fails_is_left_out_and_the_others_go_on() -> None:
    def tired(number: int) -> list[float]:
        if number == 2:
            raise RuntimeError("An error occurred while calling o1.\n: no memory left\n\tat Java")
        return [1.0]

    failed: dict[str, str] = {}
    said: list[str] = []
    seconds = in_turns({"a": tired, "b": lambda _: [2.0]}, 3, said.append, failed)
    assert seconds == {"b": [[2.0]] * 3}
    assert failed == {"a": "no memory left"}
    with pytest.raises(RuntimeError, match="no memory"):
        in_turns({"a": tired}, 3, said.append)
