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


HOT = pa.record_batch({"id": pa.array([*range(0, 30, 3)] * 40)})
"""Few keys, again and again."""


def hits(task: JoinTask, folder: Path, *batches: pa.RecordBatch) -> list[int]:
    """Tuples that the front stage has answered, in a task for each batch."""
    found = []
    for batch in batches:
        for file in folder.glob("*.json"):
            file.unlink()
        table = pa.Table.from_batches(list(replace(task, metrics=str(folder))(iter([batch]))))
        assert table.num_rows == batch.num_rows
        (file,) = folder.glob("*.json")
        found.append(json.loads(file.read_text())["front_hits"])
    return found


@pytest.fixture
def reading(task: JoinTask) -> JoinTask:
    """Reads its pages, so that the front stage learns."""
    return replace(task, io="unmapped")


def test_nullable_or_not_it_is_the_same_engine(
    engines: EngineCache, reading: JoinTask, tmp_path: Path
) -> None:
    strict = pa.schema([pa.field("id", pa.int64(), nullable=False)], {"a": "b"})
    other = pa.RecordBatch.from_arrays(HOT.columns, schema=strict)
    cold, *warm = hits(reading, tmp_path / "m", HOT, other, HOT, other)
    assert cold < HOT.num_rows
    assert warm == [HOT.num_rows] * 3
    assert len(engines) == 1


def test_an_engine_of_another_schema_begins_with_what_was_learned(
    engines: EngineCache, reading: JoinTask, tmp_path: Path
) -> None:
    narrow = HOT.cast(pa.schema([("id", pa.int32())]))
    cold, warm, narrow_warm, again = hits(reading, tmp_path / "m", HOT, HOT, narrow, HOT)
    assert cold < warm == narrow_warm == again == HOT.num_rows


def test_a_newer_version_begins_with_what_was_learned(
    engines: EngineCache, reading: JoinTask, tmp_path: Path
) -> None:
    latest = replace(reading, version=None)
    hits(latest, tmp_path / "m", HOT, HOT)
    changed = pa.table({"id": [3, 9], "name": ["new 3", "new 9"]})
    ss.MasterTable.open(latest.path).upsert(changed)
    assert hits(latest, tmp_path / "m", HOT) == [HOT.num_rows]
    names = {r for b in latest(iter([HOT])) for r in zip(*b.to_pydict().values(), strict=True)}
    assert {name for _, name in names} >= {"new 3", "new 9", "name 0", "name 6"}
    assert not {name for _, name in names} & {"name 3", "name 9"}
    assert len(engines) == 1


def test_shards_begin_with_what_was_learned(
    engines: EngineCache,
    reading: JoinTask,
    build: Callable[..., ss.MasterTable],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = str(build(GOODS, shards=2).path)
    sharded = replace(reading, path=path, version=None, shards=2, memory=2 << 20)
    sharded = replace(sharded, learned=str(tmp_path / "learned"))
    cold, warm = hits(sharded, tmp_path / "m", HOT, HOT)
    assert cold < warm == HOT.num_rows
    ss.MasterTable.open(path).upsert(pa.table({"id": [3], "name": ["new 3"]}))
    assert hits(sharded, tmp_path / "m", HOT) == [HOT.num_rows]
    assert len(engines) == 1
    monkeypatch.setattr(worker, "_ENGINES", EngineCache(2))
    assert hits(sharded, tmp_path / "m", HOT) == [HOT.num_rows]


def test_a_new_worker_begins_with_what_others_have_learned(
    engines: EngineCache, reading: JoinTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = replace(reading, learned=str(tmp_path / "learned"))
    cold, _ = hits(shared, tmp_path / "m", HOT, HOT)
    (file,) = (tmp_path / "learned").iterdir()
    monkeypatch.setattr(worker, "_ENGINES", EngineCache(2))
    assert hits(shared, tmp_path / "m", HOT) == [HOT.num_rows]
    file.write_bytes(b"{}" + file.read_bytes()[2:])
    monkeypatch.setattr(worker, "_ENGINES", EngineCache(2))
    assert hits(shared, tmp_path / "m", HOT) == [cold]
    assert_same_rows(list(shared(iter([SALES]))), expected())


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
