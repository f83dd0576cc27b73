"""Random upserts, deletes and compactions against a plain dict of lists."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream import keys
from semistream.errors import OptionError
from semistream.relation import Frame, MasterTable
from semistream.relation.shards import shard_of
from semistream.row_bytes import row_bytes
from semistream.testing import assert_same_rows, checked_run, oracle_join, rows_of

Key = tuple[Any, ...]
Oracle = dict[Key, list[Key]]
"""Key → its whole rows."""

STEPS, DOMAIN = 14, 120

COLUMNS: dict[str, list[str]] = {"integer": ["id"], "string": ["id"], "composite": ["id", "part"]}


def table_of(rows: list[Key], kind: str) -> pa.Table:
    first = pa.string() if kind == "string" else pa.int64()
    fields = [("id", first), ("n", pa.int64()), ("text", pa.string())]
    if kind == "composite":
        fields.insert(1, ("part", pa.string()))
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(fields)
    arrays = [pa.array(c, t) for c, (_, t) in zip(columns, fields, strict=True)]
    return pa.table(arrays, names=[name for name, _ in fields])


class Script:
    """Makes keys and rows, and applies to the oracle what is done to the master."""

    def __init__(self, kind: str, seed: int) -> None:
        self.kind = kind
        self.rng = np.random.default_rng(seed)
        self.oracle: Oracle = {}
        self.serial = 0

    def key(self) -> Key:
        number = int(self.rng.integers(-DOMAIN // 2, DOMAIN))
        if self.kind == "composite":
            return number // 7, f"part {number % 7}"
        return (f"key {number}",) if self.kind == "string" else (number,)

    def rows(self, count: int) -> list[Key]:
        """Several rows for some keys; a rare key has many, so that it spans pages."""
        rows = []
        for _ in range(count):
            key = self.key()
            for _ in range(int(self.rng.choice([1, 2, 90], p=[0.7, 0.27, 0.03]))):
                self.serial += 1
                rows.append((*key, self.serial, "x" * int(self.rng.integers(0, 120))))
        return [rows[i] for i in self.rng.permutation(len(rows))]

    def upsert(self, rows: list[Key]) -> pa.Table:
        width = len(COLUMNS[self.kind])
        for row in rows:
            self.oracle[row[:width]] = []
        for row in rows:
            self.oracle[row[:width]].append(row)
        return table_of(rows, self.kind)

    def delete(self, count: int) -> list[Any]:
        gone = [self.key() for _ in range(count)]
        for key in gone:
            self.oracle.pop(key, None)
        return gone if self.kind == "composite" else [key[0] for key in gone]

    def all_rows(self) -> list[Key]:
        return [row for rows in self.oracle.values() for row in rows]


def check(master: MasterTable, script: Script) -> None:
    """The rows are the oracle's, and every index tells the truth about them."""
    pages = page_rows(master)
    table = pa.Table.from_batches(pages, master.stored_schema)
    assert_same_rows(table.select(master.schema.names), script.all_rows())
    codes = [codes_of(master, page) for page in pages]
    index = master.pages
    assert master.row_count == table.num_rows == index.row_count
    assert index.rows.tolist() == [page.num_rows for page in pages]
    assert index.first.tolist() == [int(some[0]) for some in codes]
    assert index.last.tolist() == [int(some[-1]) for some in codes]
    assert ((index.length <= master.page_bytes) | (index.rows == 1)).all()
    assert row_bytes(table).max(initial=0) <= master.widest_row
    for number in range(master.shard_count):
        check_shard(master, number, codes)
    some = master.membership_filter()
    if some is not None and codes:
        assert some.may_contain(np.concatenate(codes)).all()


def check_shard(master: MasterTable, number: int, codes: list[Any]) -> None:
    start, stop = master.manifest.shard_starts[number : number + 2]
    mine = np.concatenate([np.empty(0, np.int64), *codes[start:stop]])
    assert (shard_of(mine, master.shard_count) == number).all()
    if master.layout == "key":
        assert (np.diff(mine) >= 0).all()
        return
    runs = 1 + np.count_nonzero(np.diff(mine)) if len(mine) else 0
    assert runs == len(set(mine.tolist())), "rows of one code are not adjacent"
    page_of = np.repeat(np.arange(stop - start), [len(some) for some in codes[start:stop]])
    locator = (master if master.shard_count == 1 else master.shard(number)).locator()
    assert locator is not None
    with locator:
        asked = np.unique(np.concatenate([mine, np.arange(-5, 5)]))
        low, high = locator.find_many(asked)
    for i, code in enumerate(asked.tolist()):
        where = page_of[mine == code]
        expected = (int(where.min()), int(where.max())) if len(where) else (1, 0)
        assert (int(low[i]), int(high[i])) == expected


def page_rows(master: MasterTable) -> list[pa.RecordBatch]:
    if not master.page_count:
        return []
    with master.reader() as reader:
        frame = Frame(reader.frame_bytes(master.page_count))
        return reader.read(0, master.page_count, frame)


def codes_of(master: MasterTable, page: pa.RecordBatch) -> Any:
    return master.codec.codes([page.column(name) for name in master.key])[0]


def step(master: MasterTable, script: Script) -> MasterTable:
    kind = script.rng.choice(["few", "many", "delete", "compact"], p=[0.45, 0.15, 0.3, 0.1])
    if kind == "few":
        return master.upsert(script.upsert(script.rows(int(script.rng.integers(0, 6)))))
    if kind == "many":
        return master.upsert(script.upsert(script.rows(80)))
    if kind == "delete":
        return master.delete(script.delete(int(script.rng.integers(0, 40))))
    return master.compact()


@pytest.mark.parametrize("kind", list(COLUMNS))
@pytest.mark.parametrize("layout", ["key", "given"])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("colliding", [False, True])
def test_any_sequence_of_updates_is_exact(
    tmp_path: Path,
    kind: str,
    layout: str,
    shards: int,
    colliding: bool,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    if colliding:
        monkeypatch.setattr(keys, "_HASH_MASK", 0x1F)
    script = Script(kind, seed)
    options: dict[str, Any] = {"key": COLUMNS[kind], "layout": layout, "shards": shards}
    master = MasterTable.from_arrow(
        script.upsert(script.rows(60)), tmp_path / "r", page_bytes=4096, filter_bits=8, **options
    )
    check(master, script)
    before = [(master, script.all_rows())]
    for _ in range(STEPS):
        newer = step(master, script)
        assert newer.version == master.version + 1
        check(newer, script)
        master = newer
        before.append((master, script.all_rows()))
    # No update has disturbed an older version, open or opened again.
    for older, rows in before[:: STEPS // 3]:
        for one in (older, MasterTable.open(tmp_path / "r", older.version)):
            found = pa.Table.from_batches(page_rows(one), one.stored_schema)
            assert_same_rows(found.select(one.schema.names), rows)


@pytest.mark.parametrize("layout", ["key", "given"])
@pytest.mark.parametrize("kind", list(COLUMNS))
@pytest.mark.parametrize("algorithm", ["hybridjoin", "meshjoin", "inlj", "chybridjoin"])
def test_a_join_with_an_updated_master_is_exact(
    tmp_path: Path, kind: str, layout: str, algorithm: str, note_seed: Callable[[int], int]
) -> None:
    script = Script(kind, note_seed(17))
    master = MasterTable.from_arrow(
        script.upsert(script.rows(100)),
        tmp_path / "r",
        key=COLUMNS[kind],
        layout=layout,
        page_bytes=4096,
        filter_bits=8,
    )
    for _ in range(6):
        master = step(master, script)
    names = COLUMNS[kind]
    stream = table_of([(*script.key(), i, "") for i in range(2000)], kind)
    stream = stream.select(names).append_column("at", pa.array(range(2000)))
    expected = oracle_join(stream, table_of(script.all_rows(), kind), on=names, how="left")
    for memory, io in (("300kB", "buffered"), ("4MB", direct_if_possible(master))):
        engine = ss.engine(master, algorithm=algorithm, on=names, how="left", memory=memory, io=io)
        assert_same_rows(checked_run(engine, stream.to_batches(500)), expected.rows)


def direct_if_possible(master: MasterTable) -> str:
    try:
        master.reader("direct").close()
    except OptionError:
        return "buffered"
    return "direct"


def test_the_oracle_sees_rows_of(tmp_path: Path) -> None:
    """The check itself can fail: a row that should not be there is seen."""
    script = Script("integer", 3)
    master = MasterTable.from_arrow(script.upsert(script.rows(5)), tmp_path / "r", key="id")
    check(master, script)
    script.oracle.popitem()
    with pytest.raises(AssertionError, match="too many"):
        check(master, script)
    assert rows_of(table_of([], "integer")) == []
