"""`JoinTask` and its engines, as a Python worker uses them, without Spark around them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle

import semistream as ss
from semistream.spark import worker
from semistream.spark.worker import EngineCache, EngineKey, JoinTask, operator
from semistream.testing import Row, assert_same_rows, oracle_join

GOODS = pa.table({"id": pa.array(range(300)), "name": [f"name {i}" for i in range(300)]})
SALES = pa.record_batch({"id": pa.array([1, 1, 250, 999, None])})


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> EngineCache:
    """A cache of the test's own."""
    cache = EngineCache(2)
    monkeypatch.setattr(worker, "_ENGINES", cache)
    return cache


@pytest.fixture
def task(build: Callable[..., ss.MasterTable]) -> JoinTask:
    master = build(GOODS)
    return JoinTask(str(master.path), 1, (("id", "id"),), "left", "chybridjoin", 1 << 20)


def expected() -> list[Row]:
    return oracle_join([SALES], GOODS, on="id", how="left").rows


def key(task: JoinTask, version: int = 1) -> EngineKey:
    return EngineKey(task, version, SALES.schema.serialize().to_pybytes())


def test_an_engine_is_kept_and_serves_again(engines: EngineCache, task: JoinTask) -> None:
    assert_same_rows(list(task(iter([SALES]))), expected())
    kept = engines.take(key(task))
    assert isinstance(kept, ss.Engine)
    engines.lay_back(key(task), kept)
    assert_same_rows(list(task(iter([SALES]))), expected())
    assert engines.take(key(task)) is kept


def test_empty_batches_are_no_pause(engines: EngineCache, task: JoinTask) -> None:
    empty = SALES.slice(0, 0)
    found = list(task(iter([empty, SALES, empty, empty, SALES, empty])))
    assert_same_rows(found, expected() * 2)
    assert list(task(iter([empty, empty]))) == []


def test_an_engine_that_runs_is_nobody_elses(engines: EngineCache, task: JoinTask) -> None:
    first, second = task(iter([SALES])), task(iter([SALES]))
    next(first)
    next(second)
    assert len(engines) == 0
    assert isinstance(first, Generator)
    first.close()
    assert len(engines) == 0
    list(second)
    assert len(engines) == 1


def test_an_error_gives_the_engine_up(engines: EngineCache, task: JoinTask) -> None:
    list(task(iter([SALES])))

    def broken() -> Iterator[pa.RecordBatch]:
        yield SALES
        raise OSError("the source is gone")

    with pytest.raises(OSError, match="gone"):
        list(task(broken()))
    assert len(engines) == 0
    assert_same_rows(list(task(iter([SALES]))), expected())


def test_another_schema_has_another_engine(engines: EngineCache, task: JoinTask) -> None:
    wide = SALES.cast(pa.schema([("id", pa.int32())]))
    list(task(iter([SALES])))
    assert_same_rows(list(task(iter([wide]))), expected())
    assert len(engines) == 2


def test_few_engines_are_kept(engines: EngineCache, task: JoinTask) -> None:
    used = [replace(task, memory=memory << 20) for memory in (1, 2, 3)]
    for each in (used[0], used[1], used[0], used[2]):
        list(each(iter([SALES])))
    assert len(engines) == 2
    assert engines.take(key(used[1])) is None
    assert engines.take(key(used[0])) is not None


def test_a_newer_version_takes_the_place_of_an_older(engines: EngineCache, task: JoinTask) -> None:
    latest = replace(task, version=None)
    list(latest(iter([SALES])))
    changed = GOODS.set_column(1, "name", pa.array(["new"] * len(GOODS)))
    ss.MasterTable.from_arrow(changed, task.path, key="id", replace=True)
    found = list(latest(iter([SALES])))
    assert_same_rows(found, oracle_join([SALES], changed, on="id", how="left").rows)
    assert len(engines) == 1
    assert engines.take(key(latest, version=2)) is not None


def test_metrics_are_left_for_others(engines: EngineCache, task: JoinTask, tmp_path: Path) -> None:
    observed = replace(task, metrics=str(tmp_path / "metrics"))
    list(observed(iter([SALES])))
    list(observed(iter([SALES])))
    records = [json.loads(file.read_text()) for file in (tmp_path / "metrics").iterdir()]
    assert sorted(record["warm"] for record in records) == [False, True]
    for record in records:
        counted = {name: record[name] for name in ("arrived", "joined", "unmatched", "budget")}
        assert counted == {"arrived": 5, "joined": 3, "unmatched": 2, "budget": 1 << 20}
        assert record["master_version"] == 1
        assert 0 < record["peak_memory"] <= record["budget"]


def test_a_run_that_did_not_end_leaves_no_metrics(
    engines: EngineCache, task: JoinTask, tmp_path: Path
) -> None:
    running = replace(task, metrics=str(tmp_path / "metrics"))(iter([SALES]))
    next(running)
    assert isinstance(running, Generator)
    running.close()
    assert not (tmp_path / "metrics").exists()


def test_what_spark_ships_refers_to_the_module(engines: EngineCache, task: JoinTask) -> None:
    dumps: Callable[[object], bytes] = cloudpickle.dumps
    shipped = pickle.loads(dumps(operator(task)))
    assert shipped.__name__ == "semistream_chybridjoin_1MB"
    # Were the module's own state shipped along, this cache would not see the engine.
    assert_same_rows(list(shipped(iter([SALES]))), expected())
    assert len(engines) == 1
