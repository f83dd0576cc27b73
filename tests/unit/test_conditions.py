"""What joins by a condition refuse, what they say of themselves, and what they keep."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.errors import (
    BudgetError,
    ColumnClashError,
    KeyColumnError,
    KeyTypeError,
    OptionError,
    StreamSchemaError,
)
from semistream.scanning.rows import MasterRows
from semistream.testing import checked_run, rows_of

ON = ss.between("v", "low", "high")


@pytest.fixture
def master(tmp_path: Path) -> ss.MasterTable:
    low = np.arange(100) * 10
    table = pa.table({"low": low, "high": low + 4, "name": [f"n{i}" for i in range(100)]})
    return ss.MasterTable.from_arrow(table, tmp_path / "r", key="low", page_bytes=4096)


def stream(*values: int | None) -> pa.RecordBatch:
    return pa.record_batch({"v": pa.array(values, pa.int64())})


def engine(master: ss.MasterTable, **terms: Any) -> ss.Engine:
    wanted: dict[str, Any] = {"on": ON, "memory": "1MB"} | terms
    return ss.engine(master, **wanted)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ss.between("v", "a", "b", closed="left"), "closed='left' is not known"),
        (lambda: ss.below("v", 3), "3 is not a column"),  # type: ignore[arg-type]
        (lambda: ss.similar("v", "a", at_least=0), "above 0 and at most 1"),
        (lambda: ss.similar("v", "a", at_least=90), "above 0 and at most 1"),
        (lambda: ss.similar("v", "a", at_least=True), "above 0 and at most 1"),
    ],
)
def test_what_is_no_condition(make: Any, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        make()


@pytest.mark.parametrize(
    ("terms", "error", "says"),
    [
        ({"algorithm": "chybridjoin"}, OptionError, "MESHJOIN's scan"),
        ({"how": "outer"}, OptionError, "how='outer' is not known"),
        ({"io": "fast"}, OptionError, "io='fast' is not known"),
        ({"retune": True}, OptionError, "no option retune"),
        ({"stream_slots": 5}, OptionError, "no option stream_slots"),
    ],
)
def test_arguments_that_are_refused(
    master: ss.MasterTable, terms: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        engine(master, **terms)


@pytest.mark.parametrize(
    ("terms", "error", "says"),
    [
        ({"on": ss.below("w", "low")}, KeyColumnError, "The stream has no column 'w'"),
        ({"on": ss.below("v", "w")}, KeyColumnError, "The master has no column"),
        ({"on": ss.below("v", "name")}, KeyTypeError, "cannot be compared exactly"),
        ({"on": ss.similar("v", "name", at_least=0.5)}, KeyTypeError, "only texts"),
        ({"how": "semi", "columns": ["name"]}, OptionError, "adds no columns"),
        ({"columns": ["nobody"]}, OptionError, "must name master columns"),
        ({"memory": 2_000}, BudgetError, "the least is"),
    ],
)
def test_joins_that_are_refused_when_the_stream_is_seen(
    master: ss.MasterTable, terms: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        engine(master, **terms).shape(stream().schema)
    with pytest.raises(error, match=says):
        list(engine(master, **terms).run([stream(1)]))


def test_names_on_both_sides(master: ss.MasterTable) -> None:
    clash = pa.record_batch({"v": [1], "name": ["x"]})
    with pytest.raises(ColumnClashError, match="name"):
        list(engine(master).run([clash]))
    texts = pa.record_batch({"name": ["n7"]})
    (found,) = engine(master, on=ss.similar("name", "name", at_least=1)).run([texts])
    assert found.to_pylist() == [{"name": "n7", "low": 70, "high": 74}]


def test_without_rapidfuzz_the_error_says_what_to_install(
    master: ss.MasterTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rapidfuzz.distance", None)
    join = engine(master, on=ss.similar("v", "name", at_least=0.9))
    with pytest.raises(OptionError, match=r"semistream\[similar\]"):
        join.shape(pa.schema({"v": pa.string()}))


def test_what_is_not_a_batch(master: ss.MasterTable) -> None:
    for bad in (None, 3):
        for batches in ([bad], [stream(1), bad]):
            with pytest.raises(StreamSchemaError, match="it must give"):
                list(engine(master).run(batches))
    with pytest.raises(StreamSchemaError, match="the first one had"):
        list(engine(master).run([stream(1), pa.record_batch({"v": ["a"]})]))
    with pytest.raises(OptionError, match="Use run, not run_timed"):
        engine(master).run_timed([])


def test_a_column_of_nulls_matches_nothing(master: ss.MasterTable) -> None:
    nulls = pa.record_batch([pa.nulls(3)], ["v"])
    found = checked_run(engine(master, how="anti"), [nulls])
    assert rows_of(found) == [(None,)] * 3


def test_a_pause_hands_out_all_results(master: ss.MasterTable) -> None:
    """Before it asks again the join has given all it can, whether it reads R or keeps it."""
    for memory in ("24KB", "1MB"):
        given: list[int] = []

        def batches(given: list[int] = given) -> Iterator[pa.RecordBatch]:
            yield stream(1, 11)
            yield stream()
            assert given == [1, 11]
            yield stream(21)

        for batch in engine(master, memory=memory, columns=["name"]).run(batches()):
            given += batch["v"].to_pylist()
        assert given == [1, 11, 21]


def test_kept_rows_stay_from_run_to_run(master: ss.MasterTable) -> None:
    with engine(master) as join:
        pages = []
        for _ in range(3):
            assert len(rows_of(checked_run(join, [stream(1, 2, 9, None)]))) == 2
            pages.append(join.metrics().pages_read)
        assert pages == [master.page_count, 0, 0]
        assert len(join.plans) == 1
    assert sum(size for part, size in join.memory().items() if part not in ("peak", "budget")) == 0


def test_a_run_that_is_closed_early_gives_its_memory_back(master: ss.MasterTable) -> None:
    join = engine(master, memory="64KB")
    run = join.run([stream(*range(1000))] * 50)
    next(run)
    run.close()
    join.check()
    assert len(rows_of(checked_run(join, [stream(1)]))) == 1


def test_rows_that_do_not_fit_after_all_are_read(
    master: ss.MasterTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_many(*_: object) -> None:
        raise BudgetError("more than planned")

    monkeypatch.setattr(MasterRows, "_keep", too_many)
    join = engine(master)
    assert len(rows_of(checked_run(join, [stream(1), stream(11)]))) == 2
    assert "R is read for each window" in join.plan.explain()  # type: ignore[union-attr]


def test_the_plan_says_what_is_joined_and_where_memory_goes(master: ss.MasterTable) -> None:
    join = engine(master, how="left")
    text = join.planned(stream(1)).explain()
    assert text.startswith("meshjoin in 1,048,576 bytes: low <= v <= high, R is kept in memory")
    list(join.run([stream(1)]))
    parts = {"index", "disk buffer", "kept rows", "waiting tuples", "output"}
    assert {*join.memory()} == parts | {"peak", "budget"}


def test_a_join_by_a_condition_does_not_load_pandas(tmp_path: Path) -> None:
    table = pa.table({"low": [1, 5], "high": [2, 9], "name": ["abc", "abd"]})
    ss.MasterTable.from_arrow(table, tmp_path / "r", key="low")
    with pa.ipc.new_file(str(tmp_path / "s"), table.schema) as file:
        file.write(table)
    code = """
import sys
import pyarrow as pa
from semistream.relation import MasterTable
from semistream.scanning.conditions import between, similar
from semistream.scanning.engine import scan_engine
master = MasterTable.open(sys.argv[1])
stream = pa.ipc.open_file(sys.argv[2]).get_batch(0).rename_columns(["v", "w", "n"])
for on in (between("v", "low", "high"), similar("n", "name", at_least=0.5)):
    assert sum(b.num_rows for b in scan_engine(master, on=on, memory=1 << 21).run([stream]))
sys.exit("pandas" in sys.modules)
"""
    paths = [str(tmp_path / "r"), str(tmp_path / "s")]
    done = subprocess.run([sys.executable, "-c", code, *paths], env=os.environ, check=False)
    assert done.returncode == 0
