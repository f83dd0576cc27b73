"""Upserts, deletes, compaction, history and vacuum of master tables."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.errors import (
    KeyColumnError,
    KeyTypeError,
    MasterExistsError,
    MasterFormatError,
    MasterNotFoundError,
    OptionError,
)
from semistream.relation import Frame, MasterTable
from semistream.relation.page_file import PageWriter
from semistream.relation.storage import LocalStorage
from semistream.testing import assert_same_rows, checked_run, oracle_join, rows_of


def products(ids: Any, text: str = "product") -> pa.Table:
    ids = [int(i) for i in ids]
    return pa.table({"id": ids, "name": [f"{text} {i:>40}" for i in ids]})


def rows(master: MasterTable) -> pa.Table:
    """All rows in their order on disk."""
    if not master.page_count:
        return master.schema.empty_table()
    with master.reader() as reader:
        frame = Frame(reader.frame_bytes(master.page_count))
        batches = reader.read(0, master.page_count, frame)
        return pa.Table.from_batches(batches).select(master.schema.names)


def build(path: Path, ids: Any = range(0, 4000, 2), **options: Any) -> MasterTable:
    defaults: dict[str, Any] = {"key": "id", "page_bytes": 4096}
    return MasterTable.from_arrow(products(ids), path, **(defaults | options))


def files_of(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_an_upsert_writes_only_the_pages_it_touches(tmp_path: Path) -> None:
    master = build(tmp_path / "r")
    newer = master.upsert(products([500, 501, 3001], "new"))
    assert master.page_count > 25
    old = {(int(o), 0) for o in master.pages.offset}
    kept = {
        (int(o), int(f)) for o, f in zip(newer.pages.offset, newer.pages.file, strict=True)
    } & old
    assert len(kept) == master.page_count - 2
    written = newer.manifest.page_files[1]
    assert written.bytes < 6 * 4096
    expected = {row[0]: row for row in rows_of(products(range(0, 4000, 2)))}
    expected |= {row[0]: row for row in rows_of(products([500, 501, 3001], "new"))}
    assert rows_of(rows(newer)) == [expected[i] for i in sorted(expected)]


def test_keys_below_the_first_page_and_above_the_last(tmp_path: Path) -> None:
    master = build(tmp_path / "r").upsert(products([-7, 9999, -8]))
    assert rows(master)["id"].to_pylist() == [-8, -7, *range(0, 4000, 2), 9999]


def test_a_full_page_splits_evenly_and_an_empty_one_vanishes(tmp_path: Path) -> None:
    master = build(tmp_path / "r")
    split = master.upsert(products([101]))
    assert split.page_count == master.page_count + 1
    page, _ = split.pages.span(101)
    pair = sorted(split.pages.rows[split.pages.file == 1].tolist())
    assert len(pair) == 2
    assert pair[1] - pair[0] <= 2
    low, high = int(split.pages.first[page]), int(split.pages.last[page])
    fewer = split.delete(list(range(low, high + 1)))
    assert fewer.page_count == master.page_count
    assert fewer.row_count == split.row_count - int(split.pages.rows[page])
    nothing = fewer.delete(list(range(5000)))
    assert (nothing.page_count, nothing.row_count, nothing.manifest.page_files) == (0, 0, ())
    assert nothing.upsert(products([3, 1])).row_count == 2


def test_a_delete_of_absent_keys_writes_no_page(tmp_path: Path) -> None:
    master = build(tmp_path / "r")
    newer = master.delete(list(range(1, 4000, 2)))
    assert newer.version == 2
    assert newer.manifest.page_files == master.manifest.page_files
    assert rows(newer).equals(rows(master))


def test_the_given_order_keeps_a_key_where_it_is(tmp_path: Path) -> None:
    ids = np.random.default_rng(5).permutation(2000)
    master = build(tmp_path / "r", ids, layout="given")
    changed = [int(ids[3]), int(ids[1900]), 7000, 6000]
    newer = master.upsert(products([*changed, changed[0]], "new"))
    found = rows(newer)
    first = int(ids[3])
    assert found["id"].to_pylist() == [*ids[:4], first, *ids[4:], 7000, 6000]
    by_id = dict(zip(found["id"].to_pylist(), found["name"].to_pylist(), strict=True))
    assert all(by_id[i].startswith("new") == (i in changed) for i in by_id)


def test_rows_without_a_key_are_left_out_and_counted(tmp_path: Path) -> None:
    master = build(tmp_path / "r", [1, 2])
    data = pa.table({"id": [None, 2, None], "name": ["a", "b", "c"]})
    newer = master.upsert(data)
    assert (newer.row_count, newer.rows_without_key) == (2, 2)
    again = newer.upsert(data)
    assert again.rows_without_key == 4
    assert again.delete([None, 1]).row_count == 1


def test_data_is_cast_to_the_stored_types_and_order_of_columns(tmp_path: Path) -> None:
    master = build(tmp_path / "r", [1, 2])
    data = pa.table(
        {
            "name": pa.array(["b"]).dictionary_encode(),
            "id": pa.array([2], pa.int16()),
        }
    )
    assert rows_of(rows(master.upsert(data)))[1] == (2, "b")


BAD: list[tuple[Any, str]] = [
    (pa.table({"id": [1]}), "columns are id; those of the master table are id, name"),
    (pa.table({"id": [1], "name": ["a"], "more": [1]}), "id, name, more"),
    (pa.table({"id": [1.5], "name": ["a"]}), "Column 'id' has type double"),
    (pa.table({"id": ["x"], "name": ["a"]}), "Column 'id' has type string"),
    (pa.table({"id": [1], "name": [[1]]}), "Column 'name'"),
    ([], "is empty"),
]


@pytest.mark.parametrize(("data", "message"), BAD, ids=lambda v: str(v)[:12])
def test_data_that_does_not_fit_is_refused(tmp_path: Path, data: Any, message: str) -> None:
    master = build(tmp_path / "r", [1, 2])
    before = files_of(tmp_path)
    with pytest.raises(OptionError, match=message):
        master.upsert(data)
    assert files_of(tmp_path) == before


def test_nulls_in_a_column_without_are_refused(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("n", pa.int64(), nullable=False)])
    data = pa.table({"id": [1], "n": [1]}, schema=schema)
    master = MasterTable.from_arrow(data, tmp_path / "r", key="id")
    with pytest.raises(OptionError, match="'n' has nulls"):
        master.upsert(pa.table({"id": [1], "n": pa.array([None], pa.int64())}))


def test_keys_to_delete_come_in_many_forms(tmp_path: Path) -> None:
    forms: list[Any] = [
        [1, 3],
        (1, 3),
        pa.array([1, 3], pa.int8()),
        pa.chunked_array([[1], [3]]),
        pa.table({"id": [1, 3], "other": ["x", "y"]}),
        pa.record_batch({"id": [1, 3]}),
        [pa.record_batch({"id": [1]}), pa.record_batch({"id": [3]})],
        np.array([1, 3, 3]),
    ]
    for i, keys in enumerate(forms):
        newer = build(tmp_path / str(i), range(5)).delete(keys)
        assert rows(newer)["id"].to_pylist() == [0, 2, 4]
        assert newer.manifest.operation == "delete 2 keys"
    two = pa.table({"a": [1, 1, 2], "b": ["x", "y", "x"], "n": [1, 2, 3]})
    master = MasterTable.from_arrow(two, tmp_path / "two", key=["a", "b"])
    assert rows(master.delete([(1, "x"), (9, "z")]))["n"].to_pylist() in ([2, 3], [3, 2])


def test_keys_that_cannot_be_are_refused(tmp_path: Path) -> None:
    master = build(tmp_path / "r", range(5))
    with pytest.raises(KeyColumnError, match="no column id"):
        master.delete(pa.table({"other": [1]}))
    with pytest.raises(KeyTypeError, match="never match"):
        master.delete(["a"])
    two = MasterTable.from_arrow(pa.table({"a": [1], "b": ["x"]}), tmp_path / "two", key=["a", "b"])
    with pytest.raises(KeyColumnError, match="the key has 2"):
        two.delete(pa.array([1]))
    with pytest.raises(OptionError, match="tuples of 2 values"):
        two.delete([1])


def test_the_second_of_two_writers_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    master = build(tmp_path / "r", range(10))
    master.upsert(products([100]))
    before = files_of(tmp_path)
    actions: list[Callable[[], MasterTable]] = [
        lambda: master.upsert(products([200])),
        lambda: master.delete([1]),
        master.compact,
    ]
    for action in actions:
        with pytest.raises(MasterExistsError, match="Open the newest version"):
            action()
    assert files_of(tmp_path) == before
    newest = MasterTable.open(tmp_path / "r").upsert(products([200]))
    assert rows(newest)["id"].to_pylist() == [*range(10), 100, 200]


def test_a_writer_that_commits_meanwhile_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = build(tmp_path / "r", range(10))
    real = LocalStorage.publish
    done: list[bool] = []

    def meanwhile(storage: LocalStorage, *arguments: Any) -> None:
        if not done:
            done.append(True)
            MasterTable.open(tmp_path / "r").upsert(products([100]))
        real(storage, *arguments)

    monkeypatch.setattr(LocalStorage, "publish", meanwhile)
    with pytest.raises(MasterExistsError, match="another build or update"):
        master.upsert(products([200]))
    newest = MasterTable.open(tmp_path / "r")
    assert rows(newest)["id"].to_pylist() == [*range(10), 100]
    named = {f"r/data/{f.name}" for m in (master, newest) for f in m.manifest.data_files}
    assert {name for name in files_of(tmp_path) if "/data/" in name} == named


def test_a_shard_is_not_updated_by_itself(tmp_path: Path) -> None:
    master = build(tmp_path / "r", range(10), shards=2)
    with pytest.raises(OptionError, match="Update the whole"):
        master.shard(0).upsert(products([1]))


STEPS = ("open_sink", "write", "settle", "publish")


class Crash(BaseException):
    """Not an Exception: nothing may take it for one and go on."""


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("layout", ["key", "given"])
def test_a_crash_at_any_step_leaves_the_old_version(
    tmp_path: Path, layout: str, clean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = build(tmp_path / "r", range(300), layout=layout, filter_bits=8, shards=2)
    old = rows(master)
    before = files_of(tmp_path)
    calls, limit = 0, 0

    def counted(name: str) -> Any:
        real = getattr(LocalStorage, name)

        def call(storage: LocalStorage, *arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == limit:
                raise Crash
            return real(storage, *arguments)

        return call

    for name in STEPS:
        monkeypatch.setattr(LocalStorage, name, counted(name))
    if not clean:
        # A process that was killed removes nothing.
        monkeypatch.setattr(LocalStorage, "remove", lambda *_: None)
    while True:
        calls, limit = 0, limit + 1
        try:
            newer = master.upsert(products(range(250, 350), "new"))
            break
        except Crash:
            assert rows(MasterTable.open(tmp_path / "r")).equals(old)
            assert clean is False or files_of(tmp_path) == before
    assert limit > (8 if layout == "given" else 6)
    monkeypatch.undo()
    assert newer.row_count == 350
    newer.vacuum(grace_seconds=-60)
    named = {f"r/data/{f.name}" for m in (master, newer) for f in m.manifest.data_files}
    assert {name for name in files_of(tmp_path) if "/data/" in name} == named


def test_a_failure_after_the_commit_keeps_the_files_of_the_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = build(tmp_path / "r", range(300))
    real = LocalStorage.publish

    def late(storage: LocalStorage, *arguments: Any) -> None:
        real(storage, *arguments)
        raise OSError(5, "the folder could not be synced")

    monkeypatch.setattr(LocalStorage, "publish", late)
    with pytest.raises(OSError, match="synced"):
        master.upsert(products([7000]))
    newest = MasterTable.open(tmp_path / "r")
    assert rows(newest)["id"].to_pylist() == [*range(300), 7000]


@pytest.mark.parametrize("layout", ["key", "given"])
def test_as_many_rows_as_there_are_can_be_added(tmp_path: Path, layout: str) -> None:
    master = build(tmp_path / "r", range(0, 6000, 2), layout=layout, filter_bits=10)
    some = master.membership_filter()
    assert some is not None
    for start in range(0, 6000, 1000):
        master = master.upsert(products(range(start + 1, start + 1000, 2)))
    assert master.row_count == 6000
    grown = master.membership_filter()
    assert grown is not None
    assert grown.may_contain(np.arange(6000)).all()
    assert grown.nbytes > some.nbytes
    assert grown.may_contain(np.arange(10_000, 60_000)).mean() < 0.08
    stream = pa.record_batch({"id": np.arange(-10, 6010), "at": np.arange(6020)})
    expected = oracle_join(stream, products(range(6000)), on="id", how="left")
    for algorithm in ("hybridjoin", "xhybridjoin"):
        engine = ss.engine(master, algorithm=algorithm, on="id", how="left", memory="400kB")
        assert_same_rows(checked_run(engine, [stream]), expected.rows)


@pytest.mark.parametrize("layout", ["key", "given"])
def test_compaction_makes_it_as_it_was_built(tmp_path: Path, layout: str) -> None:
    ids = np.random.default_rng(8).permutation(3000)
    whole = build(tmp_path / "whole", ids, layout=layout, filter_bits=8)
    master = build(tmp_path / "r", ids, layout=layout, filter_bits=8)
    passing = products(np.repeat(np.arange(0, 3000, 250), 60), "passing")
    master = master.upsert(passing).upsert(products(range(0, 3000, 250)))
    master = master.upsert(products([9000])).delete([9000])
    assert master.page_count > whole.page_count
    assert len(master.manifest.page_files) > 1
    packed = master.compact()
    assert rows(packed).equals(rows(whole))
    assert packed.pages.rows.tolist() == whole.pages.rows.tolist()
    assert len(packed.manifest.page_files) == 1
    some = packed.membership_filter()
    assert some is not None
    assert some.nbytes == whole.filter_bytes
    assert packed.compact().pages.rows.tolist() == whole.pages.rows.tolist()


def test_an_update_of_every_page_holds_only_a_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = pa.table({"id": range(40_000), "text": ["x" * 500] * 40_000})
    master = MasterTable.from_arrow(data, tmp_path / "r", key="id", page_bytes=65536)
    assert int(master.pages.length.sum()) > 20_000_000
    del data
    change = pa.table({"id": range(0, 40_000, 100), "text": ["y"] * 400})
    before, most = pa.total_allocated_bytes(), 0
    real = PageWriter._append

    def watched(writer: PageWriter, *arguments: Any) -> int:
        nonlocal most
        most = max(most, pa.total_allocated_bytes() - before)
        return real(writer, *arguments)

    monkeypatch.setattr(PageWriter, "_append", watched)
    updates: list[Callable[[], MasterTable]] = [
        lambda: master.upsert(change),
        lambda: MasterTable.open(master.path).compact(),
    ]
    for update in updates:
        assert len(set(update().pages.file)) == 1
        assert 0 < most < 4_000_000


def test_history_tells_what_made_each_version(tmp_path: Path) -> None:
    master = build(tmp_path / "r", range(10))
    master.upsert(products(range(5, 1205))).delete([1, 2, 2, 77_777]).compact()
    assert [(one.version, one.row_count, one.operation) for one in master.history()] == [
        (1, 10, "build"),
        (2, 1205, "upsert 1,200 keys"),
        (3, 1203, "delete 3 keys"),
        (4, 1203, "compact"),
    ]
    assert all(one.created.endswith("+00:00") for one in master.history())


def test_vacuum_removes_what_no_version_names(tmp_path: Path) -> None:
    root = tmp_path / "r"
    first = build(root)
    second = first.upsert(products([1, 3001]))
    third = second.delete([500])
    fourth = third.compact()
    with first.reader() as reader:
        told = fourth.vacuum(keep_versions=1, pinned=[2])
        assert told.versions == (1, 3)
        # The first file is still in use by version 2; of version 3 only its own page goes.
        assert [one.version for one in fourth.history()] == [2, 4]
        named = {f"r/data/{f.name}" for m in (second, fourth) for f in m.manifest.data_files}
        manifests = {f"r/versions/0000000{v}.json" for v in (2, 4)}
        assert files_of(tmp_path) == named | manifests
        assert told.bytes > 0
        assert len(told.files) == 2 + 3
        told = fourth.vacuum(keep_versions=1)
        assert told.versions == (2,)
        frame = Frame(reader.frame_bytes(5))
        assert len(reader.read(3, 5, frame)) == 5
    assert rows(MasterTable.open(root)).equals(rows(fourth))
    with pytest.raises(MasterNotFoundError, match="no version 1"):
        MasterTable.open(root, 1)
    assert fourth.vacuum().files == ()
    assert fourth.upsert(products([5])).version == 5


def test_vacuum_spares_files_of_builds_that_may_be_running(tmp_path: Path) -> None:
    root = tmp_path / "r"
    master = build(root, range(10))
    young, old = root / "data" / "young.pages.arrow", root / "data" / "old.pages.arrow"
    hidden = root / "versions" / ".tmp-dead"
    for path in (young, old, hidden):
        path.write_bytes(b"half")
    for path in (old, hidden):
        os.utime(path, (1.0, 1.0))
    told = master.vacuum()
    assert set(told.files) == {"data/old.pages.arrow", "versions/.tmp-dead"}
    assert young.exists()
    assert master.vacuum(grace_seconds=-60).files == ("data/young.pages.arrow",)


def test_vacuum_refuses_to_guess(tmp_path: Path) -> None:
    master = build(tmp_path / "r", range(10))
    newer = master.upsert(products([5]))
    before = files_of(tmp_path)
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(OptionError, match="keep_versions"):
            newer.vacuum(keep_versions=wrong)  # type: ignore[arg-type]
    (tmp_path / "r" / "versions" / "00000001.json").write_text("{}")
    with pytest.raises(MasterFormatError, match=r"00000001\.json is broken"):
        newer.vacuum(keep_versions=1, grace_seconds=-60)
    assert files_of(tmp_path) == before


def test_a_build_whose_files_were_taken_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LocalStorage.write

    def taken(storage: LocalStorage, name: str, data: bytes) -> None:
        for path in (tmp_path / "r" / "data").glob("*.pages.arrow"):
            path.unlink()
        real(storage, name, data)

    monkeypatch.setattr(LocalStorage, "write", taken)
    with pytest.raises(MasterFormatError, match="vanished"):
        build(tmp_path / "r", range(10))
    with pytest.raises(MasterNotFoundError):
        MasterTable.open(tmp_path / "r")


def test_a_spark_frame_is_collected(tmp_path: Path) -> None:
    class FrameOfSpark:
        def __init__(self, table: pa.Table) -> None:
            self.table = table

        def toArrow(self) -> pa.Table:  # noqa: N802
            return self.table

    master = build(tmp_path / "r", range(10))
    newer = master.upsert(FrameOfSpark(products([20])))
    fewer = newer.delete(FrameOfSpark(pa.table({"id": [0, 1]})))
    assert rows(fewer)["id"].to_pylist() == [*range(2, 10), 20]
