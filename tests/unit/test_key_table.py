"""Key tables: each key has one surrogate and each surrogate one key, whoever asks and dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream import keys as key_codes
from semistream.errors import (
    KeyColumnError,
    KeyTypeError,
    MasterExistsError,
    MasterFormatError,
    OptionError,
)
from semistream.relation import Frame, MasterTable
from semistream.relation import key_table as module
from semistream.relation.key_table import assigned
from semistream.relation.surrogates import surrogates_of
from semistream.relation.updates import update as updates
from semistream.relation.updates.update import update
from semistream.testing import rows_of
from semistream.turns import turn

KEY = {"source": "string", "product": "int64"}
Key = tuple[str, int]


def made(folder: Path, **options: Any) -> str:
    path = folder / "keys"
    ss.key_table(path, **({"key": KEY, "surrogate": "product_key"} | options))
    return str(path)


def assign(path: str, *asked: Key) -> list[int]:
    columns = [pa.array([s for s, _ in asked]), pa.array([p for _, p in asked])]
    numbers: list[int] = assigned(path, columns, ["source", "product"], None).tolist()
    return numbers


def stored(path: str) -> dict[Key, int]:
    """All keys of the table; fails if a key is there twice."""
    master = MasterTable.open(path)
    with master.reader() as reader:
        frame = Frame(reader.frame_bytes(max(master.page_count, 1)))
        pages = reader.read(0, master.page_count, frame) if master.page_count else []
        rows = [row[:3] for page in pages for row in rows_of(page)]
    found = {(source, product): number for source, product, number in rows}
    assert len(found) == len(rows)
    assert len(set(found.values())) == len(rows)
    return found


def test_a_key_gets_a_number_once_and_keeps_it(tmp_path: Path) -> None:
    path = made(tmp_path)
    assert assign(path, ("s1", 7), ("s2", 7), ("s1", 7)) == [1, 2, 1]
    assert assign(path, ("s3", 7), ("s2", 7), ("s1", 8), ("s1", 7)) == [3, 2, 4, 1]
    assert stored(path) == {("s1", 7): 1, ("s2", 7): 2, ("s3", 7): 3, ("s1", 8): 4}
    # Nothing new makes no version.
    assert assign(path, ("s1", 8)) == [4]
    assert [one.operation for one in MasterTable.open(path).history()] == [
        "build",
        "assign 2 keys",
        "assign 2 keys",
    ]


def test_it_is_opened_if_it_is_there(tmp_path: Path) -> None:
    path = made(tmp_path)
    assign(path, ("s1", 1))
    assert ss.key_table(path, key=KEY, surrogate="product_key").version == 2
    for other in ({"key": {"source": "string"}}, {"surrogate": "id"}, {"key": KEY | {"n": "int8"}}):
        with pytest.raises(OptionError, match="is a key table with key"):
            made(tmp_path, **other)


def test_what_is_not_a_key_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "products"
    ss.MasterTable.from_arrow(pa.table({"id": [1], "k": [1]}), path, key="id")
    with pytest.raises(OptionError, match=r"is not a key table.*ss\.key_table"):
        ss.key_table(path, key={"id": "int64"}, surrogate="k")


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"key": {}}, KeyColumnError, "must be a dict"),
        ({"key": ["source"]}, KeyColumnError, "must be a dict"),
        ({"key": {"source": "text"}}, KeyTypeError, "Arrow does not know"),
        ({"key": {"source": 5}}, KeyTypeError, "Arrow does not know"),
        ({"key": {"source": "double"}}, KeyTypeError, "cannot be a join key"),
        ({"surrogate": "source"}, OptionError, "beside the key"),
        ({"surrogate": None}, OptionError, "beside the key"),
        ({"first": "1"}, OptionError, "whole number"),
    ],
)
def test_bad_arguments(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        made(tmp_path, **options)


def test_a_key_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    path = made(tmp_path, key={"product": pa.int8()})
    assert assigned(path, [pa.array([100])], ["p"]).tolist() == [1]
    with pytest.raises(KeyTypeError, match=r"\{'p': 300\} does not fit.*int8"):
        assigned(path, [pa.array([1, 300])], ["p"])
    assert MasterTable.open(path).row_count == 1


def test_keys_that_share_a_code_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_codes, "_HASH_MASK", 1)
    path = made(tmp_path)
    asked = [("s", 1), ("t", 2), ("s", 1), ("s", 3), ("t", 2), ("s", 1)]
    assert assign(path, *asked) == [1, 2, 1, 3, 2, 1]
    assert assign(path, ("u", 9), *asked[::-1]) == [4, 1, 2, 3, 1, 2, 1]
    assert len(stored(path)) == 4


def test_numbers_begin_where_asked_and_may_be_negative(tmp_path: Path) -> None:
    path = made(tmp_path, first=-1)
    assert assign(path, ("s", 1), ("s", 2), ("s", 3)) == [-1, 0, 1]
    assert assign(path, ("s", 3), ("s", 2), ("s", 1), ("s", 4)) == [1, 0, -1, 2]


def test_no_number_is_given_again(tmp_path: Path) -> None:
    path = made(tmp_path)
    assign(path, ("s", 1), ("s", 2), ("s", 3))
    table = MasterTable.open(path).delete([("s", 3)])
    assert assign(path, ("s", 4)) == [4]
    # Rows of the user's own raise the next number too.
    row = {"source": ["s"], "product": [50], "product_key": [50]}
    table = MasterTable.open(path).upsert(pa.table(row))
    assert assign(path, ("s", 5), ("s", 50)) == [51, 50]
    row = {"source": ["s"], "product": [6], "product_key": [20]}
    table = MasterTable.open(path).upsert(pa.table(row)).compact()
    assert assign(path, ("s", 7)) == [52]
    mark = surrogates_of(MasterTable.open(path).stored_schema)
    assert mark is not None
    assert (mark.column, mark.next) == ("product_key", 53)
    assert table.row_count == 6
    row["product_key"] = [2**63 - 1]
    with pytest.raises(OptionError, match="no number is above"):
        MasterTable.open(path).upsert(pa.table(row))


@pytest.mark.parametrize(
    "mark",
    [{b"semistream.next": b"x"}, {b"semistream.next": b"3"}, {b"semistream.surrogate": b"k"}],
)
def test_a_broken_mark_is_an_error(mark: dict[bytes, bytes]) -> None:
    with pytest.raises(MasterFormatError, match="schema of a key table"):
        surrogates_of(pa.schema([("id", pa.int64()), ("k", pa.int64())], mark))


def test_who_comes_second_looks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(tmp_path)
    monkeypatch.setattr(module, "_LONGEST_TURN", 0.0)
    real, rounds = update, iter([[("s", 1), ("s", 5)], [("s", 2)], []])

    def late(*args: Any, **options: Any) -> int:
        others = next(rounds, [])
        monkeypatch.setattr(module, "update", real)
        if others:
            assign(path, *others)
        monkeypatch.setattr(module, "update", late)
        return real(*args, **options)

    monkeypatch.setattr(module, "update", late)
    assert assign(path, ("s", 1), ("s", 2), ("s", 3)) == [1, 3, 4]
    assert stored(path) == {("s", 1): 1, ("s", 5): 2, ("s", 2): 3, ("s", 3): 4}


def test_it_gives_up_if_no_writer_gets_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(tmp_path)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    calls = []

    def refused(*args: Any, **options: Any) -> int:
        calls.append(1)
        raise MasterExistsError("a claim that a stopped writer has left")

    monkeypatch.setattr(module, "update", refused)
    with pytest.raises(MasterExistsError, match="stopped writer"):
        assign(path, ("s", 1))
    assert 10 < len(calls) < 50


def test_the_lock_is_only_an_optimisation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(tmp_path)
    monkeypatch.setattr(module, "_LONGEST_TURN", 0.01)
    with turn(str(path), 0.0):
        assert assign(path, ("s", 1)) == [1]
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "nowhere"))
    assert assign(path, ("s", 2)) == [2]


def test_many_small_commits_leave_few_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates, "_MOST_FILES", 8)
    monkeypatch.setattr(module, "_TIDY_EVERY", 10)
    path = made(tmp_path, page_bytes=4096)
    # Spread over the whole table, so that a commit leaves most pages in their old files.
    assign(path, *[("s", i) for i in range(2000)])
    most = 0
    table = MasterTable.open(path).upsert(
        pa.table({"source": ["own"], "product": [1], "product_key": [9000]})
    )
    own = table.version
    for i in range(60):
        columns = [pa.array(["t"]), pa.array([i])]
        assert assigned(path, columns, ["s", "p"], keep=0.0).tolist() == [9001 + i]
        most = max(most, len(MasterTable.open(path).manifest.page_files))
    assert most <= 9
    versions = [one.version for one in MasterTable.open(path).history()]
    # The build and the user's own version stay; of the others, what came since the last tidying.
    assert versions[:2] == [1, own]
    assert len(versions) <= 2 + 2 + 10
    assert len(stored(path)) == 2061


@pytest.mark.slow
@pytest.mark.parametrize("kills", [0, 3])
def test_processes_at_the_same_time(tmp_path: Path, seed: int, kills: int) -> None:
    path = made(tmp_path)
    random = np.random.default_rng(seed)

    def start(number: int) -> subprocess.Popen[bytes]:
        script = str(Path(__file__).with_name("key_writer.py"))
        notes = str(tmp_path / f"notes-{number}")
        rounds = "1000000" if kills else "20"
        command = [sys.executable, script, path, notes, str(seed % 1000 + number), rounds]
        return subprocess.Popen(command, env={**os.environ, "TMPDIR": str(tmp_path)})

    running = [start(number) for number in range(3)]
    for number in range(3, 3 + kills):
        version = MasterTable.latest_version(path)
        while MasterTable.latest_version(path) < version + 5:
            time.sleep(random.uniform(0.0, 0.01))
        # It is at some point of its work.
        victim = running.pop(0)
        victim.kill()
        victim.wait()
        running.append(start(number))
    for process in running:
        if kills:
            process.kill()
        assert process.wait(timeout=120) == (-signal.SIGKILL if kills else 0)
    _check_answers(tmp_path, stored(path), at_least=300)
    mark = surrogates_of(MasterTable.open(path).stored_schema)
    assert mark is not None
    assert mark.next > max(stored(path).values())


def _check_answers(folder: Path, table: dict[Key, int], at_least: int) -> None:
    """Compare the table with what each process was told."""
    told = 0
    for notes in folder.glob("notes-*"):
        # A kill may cut the last line off.
        for line in notes.read_text("utf-8").split("\n")[:-1]:
            for source, product, number in json.loads(line):
                assert table[source, product] == number
                told += 1
    assert told >= at_least


NUMBERING = """
import gc, json, sys, tracemalloc
import numpy as np
import pyarrow as pa
from semistream.arrow_arrays import to_arrow
from semistream.relation import MasterTable
from semistream.relation.key_table import assigned, key_table, numbering_bytes, numbering_growth

path, rows, width = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
table = key_table(path, key={"source": "string", "product": "int64"}, surrogate="k")

def some(first, rows):
    text = pa.py_buffer(b"x" * (rows * width))
    ends = pa.py_buffer(np.arange(0, rows * width + 1, width, dtype=np.int32))
    numbers = np.random.default_rng(1).permutation(rows) + first
    return [pa.StringArray.from_buffers(rows, ends, text), to_arrow(numbers)]

assigned(path, some(10**9, 10), ["a", "b"])
keys = some(0, rows)
gc.collect()
before = pa.total_allocated_bytes()
tracemalloc.start()
assigned(path, keys, ["a", "b"])
held = tracemalloc.get_traced_memory()[1] + pa.default_memory_pool().max_memory() - before
said = numbering_bytes(MasterTable.open(path)) + numbering_growth(rows, sum(k.nbytes for k in keys))
print(json.dumps([held, said]))
"""


@pytest.mark.parametrize(("rows", "width"), [(10, 10), (30_000, 4), (10_000, 200)])
def test_numbering_holds_no_more_than_it_says(tmp_path: Path, rows: int, width: int) -> None:
    """The most of NumPy and the most of Arrow together are not less than the most of both."""
    found = subprocess.run(
        [sys.executable, "-c", NUMBERING, str(tmp_path / "keys"), str(rows), str(width)],
        stdout=subprocess.PIPE,
        check=True,
    )
    held, said = json.loads(found.stdout)
    assert held <= said
