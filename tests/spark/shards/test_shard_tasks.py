"""Tasks on masters in shards: destinations, rounds and memory, without Spark around them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.algorithms import Engine
from semistream.errors import BudgetError, MasterChangedError
from semistream.relation import shard_of
from semistream.spark import worker
from semistream.spark.shards import joins
from semistream.spark.shards.division import NO_SHARD, Divider, HotKeys
from semistream.spark.shards.joins import AllShards, OneShard
from semistream.spark.shards.rows import RowsByShard, pieces_of
from semistream.spark.worker import EngineCache, EngineKey, JoinTask, key_types
from semistream.testing import assert_same_rows, oracle_join, rows_of
from tests.spark.conftest import Build

KEYS = 3_000
MEMORY = 1 << 20
NAMES = ("shard", "task")


class MakeTask(Protocol):
    """Makes the task of a join with a master that it builds."""

    def __call__(self, goods: pa.Table, shards: int, divided: bool, **options: Any) -> JoinTask: ...


def goods_of(keys: int, string: bool = False) -> pa.Table:
    """A master with a second row for every seventh key."""
    ids = np.concatenate([np.arange(keys), np.arange(0, keys, 7)])
    names = [f"name {row} of {i}" for row, i in enumerate(ids)]
    return pa.table({"id": [f"clé {i}" for i in ids] if string else ids, "name": names})


def sales_of(
    seed: int, rows: int, hot: float = 0.6, string: bool = False, batch: int = 1_000, text: int = 20
) -> list[pa.RecordBatch]:
    """Batches in which one key has a share of `hot`, some keys are absent and some null."""
    random = np.random.default_rng(seed)
    ids = random.integers(0, KEYS + 300, rows)
    ids[random.random(rows) < hot] = 5
    values = [f"clé {i}" for i in ids] if string else ids
    mask = random.random(rows) < 0.05
    column = pa.array(values, mask=mask)
    words = ["x" * int(n) for n in random.integers(0, 2 * text, rows)]
    table = pa.table({"id": column, "n": np.arange(rows), "text": words})
    batches: list[pa.RecordBatch] = table.to_batches(max_chunksize=batch)
    return batches


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> EngineCache:
    """A cache of the test's own."""
    cache = EngineCache(2)
    monkeypatch.setattr(worker, "_ENGINES", cache)
    return cache


@pytest.fixture
def make_task(build: Build) -> MakeTask:
    def make(goods: pa.Table, shards: int, divided: bool, **options: Any) -> JoinTask:
        settings: dict[str, Any] = {"how": "left", "algorithm": "chybridjoin", "memory": MEMORY}
        settings["io"] = "unmapped"
        layout = options.pop("layout", "key")
        master = build(goods, shards=shards, layout=layout)
        task = JoinTask(str(master.path), 1, (("id", "id"),), **(settings | options), shards=shards)
        return replace(task, divided_by=key_types(master)) if divided else task

    return make


def by_task(task: JoinTask, batches: list[pa.RecordBatch]) -> list[list[pa.RecordBatch]]:
    """The batches that each task gets after the shuffle."""
    divider = Divider(task.key_shards(ss.MasterTable.open(task.path)), NAMES)
    addressed = [divider.addressed(batch) for batch in batches]
    parts: list[list[pa.RecordBatch]] = [[] for _ in range(task.shards)]
    for batch, i in itertools.product(addressed, range(task.shards)):
        parts[i].append(batch.filter(pa.array(batch["task"].to_numpy() == i)))
    return parts


# Routes


def test_hot_keys_are_found_and_others_are_not(seed: int) -> None:
    random, tasks = np.random.default_rng(seed), 4
    hot = HotKeys(tasks)
    for _ in range(20):
        codes = random.integers(100, 100_000, 5_000)
        codes[random.random(5_000) < 0.3] = 7
        codes[random.random(5_000) < 0.25] = 9
        codes[random.random(5_000) < 0.04] = 11
        marked = hot.count(codes)
        assert set(codes[marked]) == {7, 9}
        assert marked.sum() == np.isin(codes, (7, 9)).sum()
        assert len(hot) <= 4 * tasks


def test_counts_go_on_from_batch_to_batch() -> None:
    hot = HotKeys(2)
    # Less than 64 tuples a batch, but a half of all.
    marks = [hot.count(np.array([5] * 30 + list(range(100 * i, 100 * i + 30)))) for i in (1, 2, 3)]
    assert [mark.sum() for mark in marks] == [0, 0, 30]


def test_a_key_that_was_hot_and_comes_no_more_is_forgotten() -> None:
    hot = HotKeys(2)
    assert hot.count(np.full(100, 5)).all()
    for i in range(20):
        hot.count(np.arange(100 * i + 10, 100 * i + 110))
    assert not hot.count(np.array([5])).any()


def test_few_tuples_are_never_hot() -> None:
    assert not HotKeys(8).count(np.full(60, 3)).any()


def test_tuples_go_to_their_shard_but_those_of_hot_keys_to_all(
    make_task: MakeTask, seed: int
) -> None:
    task = make_task(goods_of(KEYS), 4, divided=True)
    keys = task.key_shards(ss.MasterTable.open(task.path))
    divider, batches = Divider(keys, NAMES), sales_of(seed, 8_000)
    addressed = pa.Table.from_batches([divider.addressed(batch) for batch in batches])
    assert addressed.select(["id", "n", "text"]).equals(pa.Table.from_batches(batches))
    ids = addressed["id"].to_numpy(zero_copy_only=False)
    shards, tasks = addressed["shard"].to_numpy(), addressed["task"].to_numpy()
    keyless, hot = np.isnan(ids), ids == 5
    cold = ~keyless & ~hot
    assert np.array_equal(shards[~keyless], shard_of(ids[~keyless].astype(np.int64), 4))
    assert np.array_equal(tasks[cold], shards[cold])
    assert np.array_equal(tasks[keyless], shards[keyless])
    for spread in (hot, keyless):
        counts = np.bincount(tasks[spread], minlength=4)
        assert counts.min() > 0.8 * counts.mean()
    assert np.bincount(tasks).max() < len(tasks) * (1 / 4 + 0.03)


def test_a_destination_is_the_same_when_a_task_is_run_again(make_task: MakeTask, seed: int) -> None:
    task = make_task(goods_of(KEYS), 3, divided=True)
    keys, batches = task.key_shards(ss.MasterTable.open(task.path)), sales_of(seed, 5_000)
    dividers = [Divider(keys, NAMES, turn=2) for _ in range(2)]
    first, again = ([divider.addressed(batch) for batch in batches] for divider in dividers)
    assert all(one.equals(other) for one, other in zip(first, again, strict=True))


def test_what_matches_nothing_has_no_shard(make_task: MakeTask) -> None:
    task = make_task(goods_of(KEYS), 3, divided=True)
    keys = task.key_shards(ss.MasterTable.open(task.path))
    codes, shards = keys.of(pa.record_batch({"id": pa.array([1, None, 2])}))
    assert shards[1] == NO_SHARD
    assert shards[[0, 2]].tolist() == shard_of(codes[[0, 2]], 3).tolist()


# Rows set aside


def test_rows_by_shard(seed: int) -> None:
    random, rows = np.random.default_rng(seed), RowsByShard()
    wanted = []
    for start in (0, 500):
        batch = pa.record_batch({"n": np.arange(start, start + 500)})
        shards = random.integers(0, 5, 500, np.int32) * 2
        chosen = np.flatnonzero(shards != 4)
        rows.add(batch, shards, chosen[np.argsort(shards[chosen], kind="stable")])
        wanted += [(start + i, shards[i]) for i in chosen]
    assert rows.shards == [0, 2, 6, 8]
    assert rows.bytes == 8 * len(wanted)
    for shard in rows.shards:
        found = [n for (n,) in rows_of(list(rows.of(shard)))]
        assert found == [n for n, s in wanted if s == shard]
    rows.clear()
    assert (rows.bytes, rows.shards, list(rows.of(2))) == (0, [], [])


def test_pieces_of_a_batch() -> None:
    batch = pa.record_batch({"text": ["x" * (i % 50) for i in range(1_000)] + ["y" * 5_000]})
    pieces = list(pieces_of(batch, 1_000))
    assert rows_of(pieces) == rows_of(batch)
    assert all(piece.nbytes <= 1_000 or piece.num_rows == 1 for piece in pieces)
    assert len(pieces) < 100


# Joins


@pytest.mark.parametrize("layout", ["key", "given"])
@pytest.mark.parametrize("string", [False, True], ids=["integer", "string"])
@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("divided", [False, True], ids=["all shards", "one shard"])
def test_rows_and_memory(
    engines: EngineCache,
    make_task: MakeTask,
    tmp_path: Path,
    seed: int,
    divided: bool,
    how: str,
    string: bool,
    layout: str,
) -> None:
    goods, folder = goods_of(KEYS, string), tmp_path / "metrics"
    task = make_task(goods, 3, divided, how=how, layout=layout, metrics=str(folder))
    batches = sales_of(seed, 12_000, string=string)
    parts = by_task(task, batches) if divided else [batches]
    found = [batch for part in parts for batch in task(iter(part))]
    assert_same_rows(rows_of(found), oracle_join(batches, goods, on="id", how=how).rows)
    records = [json.loads(file.read_text()) for file in folder.iterdir()]
    assert sum(record["arrived"] for record in records) == 12_000
    assert sum(record["outputs"] for record in records) == len(rows_of(found))
    for record in records:
        assert record["arrived"] == record["joined"] + record["unmatched"]
        assert 0 < record["peak_memory"] <= record["budget"] == MEMORY


@pytest.mark.parametrize("algorithm", ss.ALGORITHMS)
def test_every_algorithm(
    engines: EngineCache, make_task: MakeTask, seed: int, algorithm: str
) -> None:
    goods, batches = goods_of(KEYS), sales_of(seed, 4_000)
    wanted = oracle_join(batches, goods, on="id", how="left").rows
    for divided in (True, False):
        task = make_task(goods, 3, divided, algorithm=algorithm)
        parts = by_task(task, batches) if divided else [batches]
        assert_same_rows([r for p in parts for r in rows_of(list(task(iter(p))))], wanted)


def test_a_task_joins_whatever_comes_to_it(
    engines: EngineCache, make_task: MakeTask, seed: int
) -> None:
    # As if all tasks' parts had been put into one.
    goods, batches = goods_of(KEYS), sales_of(seed, 6_000)
    task = make_task(goods, 4, divided=True)
    mixed = [batch for part in by_task(task, batches) for batch in part]
    wanted = oracle_join(batches, goods, on="id", how="left").rows
    assert_same_rows(rows_of(list(task(iter(mixed)))), wanted)


def test_shards_without_rows(engines: EngineCache, make_task: MakeTask, seed: int) -> None:
    goods, batches = goods_of(2), sales_of(seed, 2_000)
    wanted = oracle_join(batches, goods, on="id", how="left").rows
    for divided in (True, False):
        task = make_task(goods, 5, divided)
        parts = by_task(task, batches) if divided else [batches]
        assert_same_rows([r for p in parts for r in rows_of(list(task(iter(p))))], wanted)


class Watched:
    """A maker of engines that remembers them, and when they ran."""

    def __init__(self, task: JoinTask) -> None:
        self.task = task
        self.made: list[Engine] = []
        self.look_ups: list[Engine] = []

    def engine(self, master: ss.MasterTable, memory: int) -> Engine:
        self.made.append(self.task.engine(master, memory))
        return self.made[-1]

    def look_up_engine(self, master: ss.MasterTable, memory: int) -> Engine:
        self.look_ups.append(self.task.look_up_engine(master, memory))
        return self.look_ups[-1]


def opened(
    task: JoinTask, monkeypatch: pytest.MonkeyPatch, shard: int | None = None
) -> tuple[AllShards | OneShard, Watched]:
    """What joins with the shards, and the engines it makes."""
    watched = Watched(task)
    for name in ("AllShards", "OneShard"):
        kind = getattr(joins, name)
        monkeypatch.setattr(worker, name, lambda _, *given, kind=kind: kind(watched, *given))
    joining = EngineKey(task, 1, b"", shard).open()
    assert isinstance(joining, AllShards | OneShard)
    return joining, watched


def test_the_engines_of_all_shards_share_the_memory(
    make_task: MakeTask, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    joining, watched = opened(make_task(goods_of(KEYS), 4, divided=False), monkeypatch)
    list(joining.run(iter(sales_of(seed, 9_000))))
    list(joining.run(iter(sales_of(seed + 1, 9_000))))
    assert len(watched.made) == 4
    assert sum(joining.memory().values()) <= MEMORY
    assert sum(e.memory()["budget"] for e in watched.made) + MEMORY // 4 <= MEMORY
    assert joining.metrics().arrived == 9_000
    joining.close()
    assert sum(e.memory().get("stream table", 0) for e in watched.made) == 0


def test_the_engines_of_one_shard_share_the_memory(
    make_task: MakeTask, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    task = make_task(goods_of(KEYS), 4, divided=True)
    part = by_task(task, sales_of(seed, 30_000))[2]
    joining, watched = opened(task, monkeypatch, 2)
    assert isinstance(joining, OneShard)
    most = 0
    for _ in joining.run(iter(part)):
        shares = joining.memory()
        held = sum(each.memory()["budget"] for each in watched.made[1:2])
        for looking in watched.look_ups[-1:]:
            held += looking.memory()["budget"]
        others = [shard for shard in joining._shards if shard is not joining._shards[2]]
        index = sum(shard.index_bytes for shard in others) - min(s.index_bytes for s in others)
        most = max(most, held + index + joining._aside.bytes)
        assert joining._aside.bytes <= shares["aside"] * 7 / 8
    assert sum(shares.values()) == MEMORY
    assert MEMORY // 2 < most <= MEMORY
    # The hot key's shard is looked into in rounds, one engine at a time.
    assert len(watched.look_ups) > 3
    assert joining.metrics().arrived == sum(batch.num_rows for batch in part)


def test_pages_of_hot_keys_are_read_once_a_piece(
    make_task: MakeTask, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    task = make_task(goods_of(KEYS), 2, divided=True)
    hot_shard, *places = shard_of(np.array([5, *range(KEYS - 100, KEYS)]), 2).tolist()
    far = KEYS - 100 + places.index(hot_shard)
    batches = []
    for batch in sales_of(seed, 10_000):
        ids = batch["id"].to_pylist()
        # Two hot keys by turns, at either end of the shard.
        ids = [far if i == 5 and n % 2 else i for n, i in enumerate(ids)]
        batches.append(batch.set_column(0, "id", pa.array(ids)))
    part = by_task(task, batches)[1 - hot_shard]
    joining, watched = opened(task, monkeypatch, 1 - hot_shard)
    list(joining.run(iter(part)))
    looked_up = [each.metrics() for each in watched.look_ups]
    assert sum(each.arrived for each in looked_up) > 2_000
    most = joining.memory()["aside"] // 8
    pieces = sum(1 for batch in part for _ in pieces_of(batch, most))
    assert pieces < 100
    assert sum(each.pages_read for each in looked_up) <= 2 * pieces


def test_wider_tuples_leave_the_own_engine_less(
    make_task: MakeTask, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    goods, memory = goods_of(KEYS), 400_000
    task = make_task(goods, 2, divided=True, memory=memory)
    joining, _ = opened(task, monkeypatch, 0)
    shares = []
    for text in (5, 500, 5):
        batches = sales_of(seed, 600, text=text, batch=100)
        part = by_task(task, batches)[0]
        found = rows_of(list(joining.run(iter(part))))
        mine = [batch.select(["id", "n", "text"]) for batch in part]
        assert_same_rows(found, oracle_join(mine, goods, on="id", how="left").rows)
        assert sum(joining.memory().values()) == memory
        shares.append(joining.memory()["own"])
    assert shares[0] > shares[1] == shares[2]


def test_an_engine_that_has_too_little_says_of_how_much(
    engines: EngineCache, make_task: MakeTask, seed: int
) -> None:
    task = replace(make_task(goods_of(KEYS), 2, divided=True), memory=50_000)
    with pytest.raises(BudgetError, match="the least is") as caught:
        list(task(iter(by_task(task, sales_of(seed, 1_000))[0])))
    assert "part of the task's 50,000 bytes" in caught.value.__notes__[0]


def test_too_little_memory_for_look_ups(make_task: MakeTask, seed: int) -> None:
    task = replace(make_task(goods_of(KEYS), 2, divided=True), memory=60_000)
    with pytest.raises(BudgetError, match="one of 2 shards: look-ups"):
        list(task(iter(by_task(task, sales_of(seed, 1_000))[0])))


# What is kept


def test_each_shard_has_an_engine_of_its_own(
    engines: EngineCache, make_task: MakeTask, seed: int
) -> None:
    task = make_task(goods_of(KEYS), 2, divided=True)
    parts = by_task(task, sales_of(seed, 2_000))
    for part in parts * 2:
        list(task(iter(part)))
    nullable = [pa.field(field.name, field.type) for field in parts[0][0].schema]
    schema = pa.schema(nullable).serialize().to_pybytes()
    kept = [engines.take(EngineKey(task, 1, schema, shard)) for shard in (0, 1)]
    assert None not in kept
    assert len(engines) == 0
    # What the front stage has learned serves the next batch.
    assert all(each is not None and each.metrics().front_hits > 0 for each in kept)


def test_engines_of_all_shards_are_kept_together(
    engines: EngineCache, make_task: MakeTask, seed: int
) -> None:
    task, batches = make_task(goods_of(KEYS), 3, divided=False), sales_of(seed, 2_000)
    list(task(iter(batches)))
    kept = engines.take(EngineKey(task, 1, batches[0].schema.serialize().to_pybytes()))
    assert kept is not None
    engines.lay_back(EngineKey(task, 1, batches[0].schema.serialize().to_pybytes()), kept)
    list(task(iter(batches)))
    assert kept.metrics().arrived == 2_000
    assert len(engines) == 1


@pytest.mark.parametrize("divided", [False, True])
def test_a_run_that_did_not_end_is_given_up(
    engines: EngineCache, make_task: MakeTask, seed: int, divided: bool
) -> None:
    task = make_task(goods_of(KEYS), 3, divided)
    batches = sales_of(seed, 9_000)
    part = by_task(task, batches)[0] if divided else batches
    for taken in (1, 3, 7):
        running = task(iter(part))
        assert isinstance(running, Generator)
        assert len(list(itertools.islice(running, taken))) == taken
        running.close()
        assert len(engines) == 0


@pytest.mark.parametrize("divided", [False, True])
def test_a_version_in_other_shards_stops_the_query(
    engines: EngineCache, make_task: MakeTask, seed: int, divided: bool
) -> None:
    goods, batches = goods_of(KEYS), sales_of(seed, 500)
    task = replace(make_task(goods, 3, divided), version=None)
    part = by_task(task, batches)[0] if divided else batches
    list(task(iter(part)))
    ss.MasterTable.from_arrow(goods, task.path, key="id", replace=True, shards=4)
    with pytest.raises(MasterChangedError, match="has 4 shards, but the query was started for 3"):
        list(task(iter(part)))


def test_a_version_with_another_key_stops_a_divided_query(
    engines: EngineCache, make_task: MakeTask, seed: int
) -> None:
    goods = goods_of(KEYS)
    task = replace(make_task(goods, 3, divided=True), version=None)
    part = by_task(task, sales_of(seed, 500))[0]
    narrow = goods.set_column(0, "id", goods["id"].cast(pa.int32()))
    ss.MasterTable.from_arrow(narrow, task.path, key="id", replace=True, shards=3)
    with pytest.raises(MasterChangedError, match=r"a key of \('int32',\), but .*int64"):
        list(task(iter(part)))


def test_updates_keep_the_shards(engines: EngineCache, make_task: MakeTask, seed: int) -> None:
    goods, batches = goods_of(KEYS), sales_of(seed, 3_000)
    for divided in (True, False):
        task = replace(make_task(goods, 3, divided), version=None)
        master = ss.MasterTable.open(task.path)
        parts = by_task(task, batches) if divided else [batches]
        for part in parts:
            list(task(iter(part)))
        change = pa.table({"id": [5, KEYS + 1], "name": ["changed", "added"]})
        master.upsert(change)
        rest = goods.filter(pa.compute.not_equal(goods["id"], 5))
        wanted = oracle_join(batches, pa.concat_tables([rest, change]), on="id", how="left").rows
        assert_same_rows([r for p in parts for r in rows_of(list(task(iter(p))))], wanted)
