"""A master that follows random changes, against a replay in dicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.errors import MasterExistsError
from semistream.relation import MasterTable
from semistream.relation.following import Applied, Changes, Following, applied, tidied
from semistream.relation.updates import update
from tests.differential.change_replay import Change, history, newest, stored

KEYS: dict[str, Callable[[int], Any]] = {"int": lambda n: n, "text": lambda n: f"key {n}"}


def random_changes(rng: np.random.Generator, count: int, keys: int) -> list[Change]:
    """Changes of few keys, so that each has many; each sequence has one value."""
    found = []
    for sequence in range(count):
        key = int(rng.integers(keys))
        value = None if rng.random() < 0.3 else f"{key}@{sequence}"
        found.append(Change(key, sequence, value))
        if value is not None and rng.random() < 0.2:
            # One commit removes the row and adds another.
            found.append(Change(key, sequence, None))
    return found


def batches(rng: np.random.Generator, changes: Sequence[Change]) -> list[list[Change]]:
    """The changes out of order, some of them several times, cut anywhere."""
    some = [changes[i] for i in rng.integers(len(changes), size=len(changes) // 3)]
    many = [*changes, *some]
    # Neighbours change places, and a few come very late.
    order = np.argsort(np.arange(len(many)) + rng.exponential(len(many) / 4, len(many)))
    cuts = np.sort(rng.integers(len(many), size=8))
    return [[many[i] for i in part] for part in np.split(order, cuts)]


def as_changes(batch: Sequence[Change], kind: str = "int") -> Changes:
    """A batch as semistream takes it."""
    made = KEYS[kind]
    keys = [made(one.key) for one in batch]
    types = {"int": pa.int64(), "text": pa.string()}
    rows = {
        "id": pa.array(keys, types[kind]),
        "value": pa.array([one.value for one in batch], pa.string()),
    }
    sequence = pa.array([one.sequence for one in batch], pa.int64())
    deleted = np.array([one.value is None for one in batch], np.bool_)
    return Changes(pa.table(rows), deleted, [sequence], ("at",))


def follow(path: Path, batch: Changes, stored_as: str = "scd1") -> Applied:
    return applied(MasterTable.open(path), batch, Following(stored_as, 0.0))


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("layout", ["key", "given"])
@pytest.mark.parametrize("seed", range(3))
def test_a_master_has_the_last_change_of_each_key(
    tmp_path: Path, seed: int, kind: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update, "_MOST_FILES", 4)
    rng = np.random.default_rng(seed)
    changes = random_changes(rng, 300, 40)
    empty = as_changes([], kind).rows
    MasterTable.from_arrow(
        empty, tmp_path / "m", key="id", layout=layout, page_bytes=4096, filter_bits=8
    )
    seen: list[Change] = []
    for batch in batches(rng, changes):
        seen += batch
        done = follow(tmp_path / "m", as_changes(batch, kind))
        master = MasterTable.open(tmp_path / "m")
        assert done.version == master.version
        expected = {KEYS[kind](key): value for key, value in newest(seen).items()}
        assert {row["id"]: row["value"] for row in stored(master).to_pylist()} == expected
        assert master.row_count == len(expected)
        # The same again, and anything that was there before, does nothing.
        assert follow(tmp_path / "m", as_changes(batch, kind)).fresh == 0
        assert follow(tmp_path / "m", as_changes(seen, kind)).version == master.version


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("seed", range(3))
def test_a_history_has_every_row_that_ever_was(tmp_path: Path, seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    changes = random_changes(rng, 200, 12)
    rows = as_changes([], kind).rows
    for name in ("since", "until"):
        rows = rows.append_column(pa.field(name, pa.int64()), pa.array([], pa.int64()))
    MasterTable.from_arrow(
        rows, tmp_path / "m", key="id", valid=("since", "until"), page_bytes=4096
    )
    seen: list[Change] = []
    for batch in batches(rng, changes):
        seen += batch
        follow(tmp_path / "m", as_changes(batch, kind), "scd2")
        master = MasterTable.open(tmp_path / "m")
        expected = {(KEYS[kind](key), *row) for key, *row in history(seen)}
        found = {tuple(row.values()) for row in stored(master).to_pylist()}
        assert found == expected
        assert master.row_count == len(expected)
        assert follow(tmp_path / "m", as_changes(seen, kind), "scd2").fresh == 0


def test_a_history_that_was_there_before_is_kept(tmp_path: Path) -> None:
    given = {"id": [1, 1, 2], "value": ["a", "b", "c"]}
    times = {"since": [0, 20, 5], "until": [10, None, None]}
    MasterTable.from_arrow(
        pa.table({**given, **{name: pa.array(at, pa.int64()) for name, at in times.items()}}),
        tmp_path / "m",
        key="id",
        valid=("since", "until"),
    )
    known = [Change(1, 0, "a"), Change(1, 10, None), Change(1, 20, "b"), Change(2, 5, "c")]
    new = [Change(1, 15, "x"), Change(1, 3, "y"), Change(2, 8, None)]
    follow(tmp_path / "m", as_changes(new), "scd2")
    found = {tuple(row.values()) for row in stored(MasterTable.open(tmp_path / "m")).to_pylist()}
    assert found == history([*known, *new])


def test_two_columns_order_changes(tmp_path: Path) -> None:
    empty = as_changes([]).rows
    MasterTable.from_arrow(empty, tmp_path / "m", key="id")
    for at, number, value in [(2, "b", "x"), (2, "a", "late"), (1, "z", "late"), (2, "c", "y")]:
        rows = pa.table({"id": [1], "value": [value]})
        order = [pa.array([at]), pa.array([number])]
        batch = Changes(rows, np.array([False]), order, ("at", "number"))
        follow(tmp_path / "m", batch)
    assert stored(MasterTable.open(tmp_path / "m"))["value"].to_pylist() == ["y"]


def test_a_master_goes_on_after_other_updates(tmp_path: Path) -> None:
    master = MasterTable.from_arrow(as_changes([]).rows, tmp_path / "m", key="id")
    follow(tmp_path / "m", as_changes([Change(1, 5, "a"), Change(2, 6, "b")]))
    master = MasterTable.open(tmp_path / "m").compact()
    master.upsert(pa.table({"id": [3], "value": ["by hand"]}))
    assert follow(tmp_path / "m", as_changes([Change(1, 4, "late")])).fresh == 0
    done = follow(tmp_path / "m", as_changes([Change(1, 7, None)]))
    assert (done.upserted, done.deleted, done.fresh) == (0, 1, 1)
    found = stored(MasterTable.open(tmp_path / "m")).to_pydict()
    assert found == {"id": [2, 3], "value": ["b", "by hand"]}
    # A master that is built anew knows nothing of the changes before.
    ss.MasterTable.from_arrow(
        stored(MasterTable.open(tmp_path / "m")), tmp_path / "m", key="id", replace=True
    )
    assert follow(tmp_path / "m", as_changes([Change(1, 1, "again")])).upserted == 1


def test_of_two_that_follow_at_a_time_one_is_late_and_nothing_is_lost(tmp_path: Path) -> None:
    first, second = [Change(1, 1, "a"), Change(2, 5, "b")], [Change(1, 3, None), Change(2, 2, "c")]
    late = MasterTable.from_arrow(as_changes([]).rows, tmp_path / "m", key="id")
    follow(tmp_path / "m", as_changes(first))
    with pytest.raises(MasterExistsError):
        applied(late, as_changes(second), Following("scd1", 0.0))
    follow(tmp_path / "m", as_changes(second))
    found = stored(MasterTable.open(tmp_path / "m")).to_pydict()
    assert dict(zip(found["id"], found["value"], strict=True)) == newest([*first, *second])


def test_a_batch_of_a_source_is_applied_once(tmp_path: Path) -> None:
    MasterTable.from_arrow(as_changes([]).rows, tmp_path / "m", key="id")

    def batch(number: int, value: str, source: str = "one") -> int:
        master = MasterTable.open(tmp_path / "m")
        changes = as_changes([Change(1, number, value)])
        return applied(master, changes, Following("scd1", 0.0, source, number)).fresh

    assert [batch(1, "a"), batch(2, "b"), batch(2, "again"), batch(1, "again")] == [1, 1, 0, 0]
    # Another source has numbers of its own.
    assert [batch(1, "late", "two"), batch(7, "c", "two"), batch(3, "late")] == [0, 1, 0]


def test_old_versions_go_and_pinned_ones_stay(tmp_path: Path) -> None:
    MasterTable.from_arrow(as_changes([]).rows, tmp_path / "m", key="id")
    for number in range(8):
        follow(tmp_path / "m", as_changes([Change(number % 3, number, f"{number}")]))
    tidied(tmp_path / "m", 0.0, [4])
    # The build's, the pinned one, and the newest two.
    assert [one.version for one in MasterTable.open(tmp_path / "m").history()] == [1, 4, 8, 9]
    assert follow(tmp_path / "m", as_changes([Change(1, 0, "late")])).fresh == 0
    assert stored(MasterTable.open(tmp_path / "m", 4)).num_rows == 3
