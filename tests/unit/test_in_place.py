"""Rows found in place: the same rows, wherever the pages are, and no damaged page is believed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream import keys as key_codes
from semistream.errors import CorruptPageError
from semistream.kernels.mapped_index import RESIDENT
from semistream.relation import MappedPages
from semistream.testing import assert_same_rows, checked_run, oracle_join

ROWS = 3_000
ALGORITHMS = ("meshjoin", "hybridjoin", "oxhybridjoin", "cinlj")
"""The rest stand behind the same stage."""


def products(keys: pa.Array, **columns: pa.Array) -> pa.Table:
    """Rows with columns of all widths, with and without nulls."""
    count = len(keys)
    rng = np.random.default_rng(7)
    numbers = rng.integers(-1000, 1000, count)
    nulls = rng.random(count) < 0.2
    return pa.table(
        {
            "id": keys,
            **columns,
            "big": pa.array(numbers, mask=nulls),
            "small": pa.array(numbers.astype(np.int8)),
            "short": pa.array(numbers.astype(np.int16), mask=nulls),
            "real": pa.array(numbers.astype(np.float32)),
            "flag": pa.array(numbers > 0, mask=nulls),
            "name": pa.array([None if n else "x" * (k % 40) for k, n in enumerate(nulls)]),
            "long": pa.array([f"l{k}" for k in range(count)], pa.large_string()),
            "digest": pa.array([bytes(20)] * count, pa.binary(20)),
            "price": pa.array(numbers, pa.int64()).cast(pa.decimal128(21, 2)),
        }
    )


def unique_keys() -> pa.Table:
    return products(pa.array(np.arange(ROWS) * 3))


def repeated_keys() -> pa.Table:
    """Keys with one to many rows; one fills several pages."""
    keys = np.sort(np.concatenate([np.arange(ROWS) % 700, np.full(400, 333)]))
    return products(pa.array(keys))


def narrow_keys() -> pa.Table:
    return products(pa.array(np.arange(ROWS) * 2, pa.int32()))


def large_keys() -> pa.Table:
    """So large, and so close together, that the keys of a page are one floating-point number."""
    return products(pa.array(17 * 10**17 + np.arange(ROWS)))


def text_keys() -> pa.Table:
    return products(pa.array([f"key {k // 2}" for k in range(ROWS)]))


def key_pairs() -> pa.Table:
    return products(pa.array(np.arange(ROWS) % 50), other=pa.array([f"o{k}" for k in range(ROWS)]))


TABLES: dict[str, tuple[Callable[[], pa.Table], list[str]]] = {
    "unique": (unique_keys, ["id"]),
    "repeated": (repeated_keys, ["id"]),
    "narrow": (narrow_keys, ["id"]),
    "large": (large_keys, ["id"]),
    "text": (text_keys, ["id"]),
    "pairs": (key_pairs, ["id", "other"]),
}


def stream_for(table: pa.Table, key: list[str]) -> list[pa.RecordBatch]:
    """Tuples with keys of the table, others, and nulls."""
    rng = np.random.default_rng(3)
    some = rng.integers(0, len(table), 700)
    keys = table.select(key).take(pa.array(some)).combine_chunks()
    columns = []
    for column in keys.columns:
        values = column.combine_chunks().to_pylist()
        if pa.types.is_integer(column.type):
            values = [v + 1 if k % 7 == 0 else v for k, v in enumerate(values)]
        else:
            values = [f"{v}?" if k % 7 == 0 else v for k, v in enumerate(values)]
        values = [None if k % 11 == 0 else v for k, v in enumerate(values)]
        columns.append(pa.array(values, column.type))
    sales = pa.table([*columns, pa.array(range(len(some)))], names=[*key, "sale"])
    batches: list[pa.RecordBatch] = sales.to_batches(max_chunksize=150)
    return batches


@pytest.fixture(params=TABLES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[ss.MasterTable, pa.Table]:
    make, key = TABLES[request.param]
    table = make()
    path = tmp_path / "master"
    return ss.MasterTable.from_arrow(table, path, key=key, page_bytes=4096), table


@pytest.fixture(params=["all", "none", "half", "changing"])
def held(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which pages the operating system says that it holds, asked for every chunk."""
    rng = np.random.default_rng(5)

    def look(mapped: MappedPages) -> None:
        pages = len(mapped.index.state)
        there = {
            "all": np.ones(pages, np.bool_),
            "none": np.zeros(pages, np.bool_),
            "half": np.arange(pages) % 2 == 0,
            "changing": rng.random(pages) < 0.6,
        }[request.param]
        mapped.index.state[:] = np.where(there, mapped.index.state | RESIDENT, 0)

    monkeypatch.setattr(MappedPages, "look", look)
    monkeypatch.setattr(MappedPages, "look_again", lambda mapped, missed: look(mapped))
    return str(request.param)


@pytest.mark.parametrize("how", ["inner", "left"])
def test_the_rows_are_the_same_wherever_the_pages_are(
    case: tuple[ss.MasterTable, pa.Table], held: str, how: str
) -> None:
    master, table = case
    stream = stream_for(table, list(master.key))
    expected = oracle_join(stream, table, on=list(master.key), how=how)
    for algorithm in ALGORITHMS:
        engine = ss.engine(master, on=list(master.key), memory="1MB", how=how, algorithm=algorithm)
        with engine:
            assert_same_rows(checked_run(engine, stream), expected.rows)
            metrics = engine.metrics()
            assert (metrics.joined, metrics.unmatched) == (expected.joined, expected.unmatched)
            if held == "all" and algorithm != "oxhybridjoin":
                assert (metrics.pages_read, metrics.appends) == (0, 0)
                assert metrics.in_place_rows >= len(expected.rows) - expected.unmatched
            if held == "none":
                assert metrics.in_place_rows == 0
            assert "in place" in engine.memory() or engine.plan is None


@pytest.mark.parametrize("strategy", [None, "keep", "random", "considering"])
def test_timed_streams_and_shedding_lose_nothing(
    tmp_path: Path, held: str, strategy: str | None
) -> None:
    table = unique_keys()
    master = ss.MasterTable.from_arrow(table, tmp_path / "m", key="id", page_bytes=4096)
    stream = stream_for(table, ["id"])
    expected = oracle_join(stream, table, on=["id"], how="left")
    clock = ss.PricedClock(ss.CostFactors(partition_read=0.01))
    shedding = None if strategy is None else ss.Shedding(strategy, tmp_path / "shed")
    options: dict[str, Any] = {"algorithm": "hybridjoin", "clock": clock, "stream_slots": 64}
    with ss.engine(master, on="id", memory="1MB", how="left", **options) as engine:
        found = []
        arrivals = [(number * 0.001, batch) for number, batch in enumerate(stream)]
        for batch in engine.run_timed(arrivals, shedding=shedding):
            engine.check()
            found.append(batch)
        assert_same_rows(found, expected.rows)
        metrics = engine.metrics()
        assert (metrics.joined, metrics.unmatched) == (expected.joined, expected.unmatched)


def test_results_keep_the_order_of_the_stream(tmp_path: Path) -> None:
    master = ss.MasterTable.from_arrow(unique_keys(), tmp_path / "m", key="id", page_bytes=4096)
    stream = stream_for(unique_keys(), ["id"])
    with ss.engine(master, on="id", memory="1MB", how="inner") as engine:
        sales = [n for batch in engine.run(stream) for n in batch.column("sale").to_pylist()]
    assert sales == sorted(sales)


def test_other_ways_to_read_never_look_in_place(tmp_path: Path) -> None:
    master = ss.MasterTable.from_arrow(unique_keys(), tmp_path / "m", key="id", page_bytes=4096)
    stream = stream_for(unique_keys(), ["id"])
    for io in ("unmapped", "direct"):
        with ss.engine(master, on="id", memory="1MB", io=io, algorithm="hybridjoin") as engine:
            list(engine.run(stream))
            assert engine.metrics().in_place_probes == 0
            assert engine.metrics().pages_read > 0
            assert "in place" not in engine.memory()


def page_file(master: ss.MasterTable) -> Path:
    (name,) = Path(master.path, "data").glob("*.pages.arrow")
    return name


@pytest.mark.parametrize("place", [0, 100, 2000, -1])
def test_a_damaged_page_is_found_before_any_of_its_rows_leaves(tmp_path: Path, place: int) -> None:
    master = ss.MasterTable.from_arrow(unique_keys(), tmp_path / "m", key="id", page_bytes=4096)
    page, file = 3, page_file(master)
    content = bytearray(file.read_bytes())
    length = int(master.pages.length[page])
    content[int(master.pages.offset[page]) + place % length] ^= 0x40
    file.write_bytes(content)
    first, last = int(master.pages.first[page]), int(master.pages.last[page])
    keys = pa.array([0, first, last, first + 3])
    engine = ss.engine(master, on="id", memory="1MB", algorithm="hybridjoin")
    found = []
    with pytest.raises(CorruptPageError, match=f"Page {page} of .*is broken"):
        found = list(engine.run([pa.record_batch({"id": keys})]))
    assert found == []


@pytest.mark.parametrize("fresh", [False, True], ids=["same engine", "new engine"])
@pytest.mark.parametrize("change", ["cut", "damaged", "damaged at the same time", "touched"])
def test_a_file_that_changes_under_a_join(tmp_path: Path, change: str, fresh: bool) -> None:
    """Pages that were checked before are checked again, also if the file's time was set back."""
    master = ss.MasterTable.from_arrow(unique_keys(), tmp_path / "m", key="id", page_bytes=4096)
    stream = stream_for(unique_keys(), ["id"])
    options: dict[str, Any] = {"on": "id", "memory": "1MB", "algorithm": "hybridjoin"}
    engine = ss.engine(master, **options)
    before = list(engine.run(stream))
    assert engine.metrics().in_place_probes > 0
    file = page_file(master)
    told = file.stat()
    if change == "cut":
        os.truncate(file, told.st_size // 2)
    elif change == "touched":
        file.touch()
    else:
        content = file.read_bytes()
        with open(file, "r+b") as opened:
            opened.write(content.replace(b"xxxxxxxx", b"yyyyyyyy"))
        if change == "damaged at the same time":
            os.utime(file, ns=(told.st_atime_ns, told.st_mtime_ns))
    engine = ss.engine(master, **options) if fresh else engine
    if change == "touched":
        assert list(engine.run(stream)) == before
    else:
        with pytest.raises(CorruptPageError, match=r"was cut while|is broken"):
            list(engine.run(stream))


def test_a_file_that_is_removed_or_replaced_is_read_on(tmp_path: Path) -> None:
    """As a vacuum does it: whoever has the version open keeps its files."""
    table = unique_keys()
    master = ss.MasterTable.from_arrow(table, tmp_path / "m", key="id", page_bytes=4096)
    stream = stream_for(table, ["id"])
    expected = oracle_join(stream, table, on=["id"], how="left")
    with ss.engine(master, on="id", memory="1MB", how="left") as engine:
        list(engine.run(stream))
        file = page_file(master)
        file.unlink()
        file.write_bytes(b"something else")
        assert_same_rows(checked_run(engine, stream), expected.rows)


def test_pages_that_were_given_back_are_read_for_many_tuples(tmp_path: Path) -> None:
    """With the real page cache: evicted pages are not waited for one by one."""
    table = unique_keys()
    master = ss.MasterTable.from_arrow(table, tmp_path / "m", key="id", page_bytes=4096)
    stream = stream_for(table, ["id"])
    # Only what is on the disk can be given back, and tests do not wait for the disk otherwise.
    subprocess.run(["sync", page_file(master)], check=True)
    file = os.open(page_file(master), os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)
    expected = oracle_join(stream, table, on=["id"], how="left")
    with ss.engine(master, on="id", memory="1MB", how="left", algorithm="hybridjoin") as engine:
        assert_same_rows(checked_run(engine, stream), expected.rows)
        if not engine.metrics().pages_read:
            pytest.skip("this filesystem keeps its pages in memory")
        assert_same_rows(checked_run(engine, stream), expected.rows)


HOSTILE = """
import sys
import numpy as np, pyarrow as pa
from semistream.kernels.page_check import sound_page
from semistream.parts.row_arena import column_width

rows = 50
batch = pa.record_batch({
    "id": pa.array(range(rows)),
    "name": pa.array([None if k % 5 == 0 else "n" * k for k in range(rows)]),
    "flag": pa.array([k % 3 == 0 for k in range(rows)]),
    "long": pa.array([b"x" * k for k in range(rows)], pa.large_binary()),
})
widths = np.array([column_width(f.type) for f in batch.schema], np.int64)
message = np.frombuffer(batch.serialize(), np.uint8).copy()
places = np.zeros(3, np.int64)
assert sound_page(message.ctypes.data, len(message), rows, widths, places)
assert not sound_page(message.ctypes.data, len(message), rows + 1, widths, places)
assert not sound_page(message.ctypes.data, len(message) - 64, rows, widths, places)
metadata = int(places[2])
rng = np.random.default_rng(int(sys.argv[1]))
refused = 0
for number in range(20_000):
    changed = message.copy()
    for _ in range(rng.integers(1, 4)):
        at = rng.integers(0, metadata)
        kind = rng.integers(0, 3)
        if kind == 0:
            changed[at] = rng.integers(0, 256)
        else:
            value = rng.choice([2**31 - 1, -1, -2**31, 1 << 20, 1 << 40, 2**62, -2**62])
            size = 4 if kind == 1 else 8
            at = min(at & ~3, metadata - 8)
            changed[at:at + size] = np.array([value], np.int64).view(np.uint8)[:size]
    refused += not sound_page(changed.ctypes.data, len(changed), rows, widths, places)
print(refused)
"""


def test_absurd_metadata_is_never_followed() -> None:
    """In another process, so that a crash is seen; the pages' checksums would be right."""
    run: Any = subprocess.run(
        [sys.executable, "-c", HOSTILE, "1"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 5_000


def test_a_front_stage_is_not_asked_for_rows_in_memory(tmp_path: Path) -> None:
    table = unique_keys()
    master = ss.MasterTable.from_arrow(table, tmp_path / "m", key="id", page_bytes=4096)
    stream = pa.record_batch({"id": np.repeat(np.arange(300) * 3, 5)})
    with ss.engine(master, algorithm="chybridjoin", on="id", memory="1MB") as engine:
        rows = sum(batch.num_rows for _ in range(3) for batch in engine.run([stream]))
        metrics = engine.metrics()
    assert rows == 3 * stream.num_rows
    assert metrics.in_place_probes == stream.num_rows
    assert metrics.front_probes == 0


@pytest.mark.parametrize("rows", [1, 3, 100, 488, 490, 600])
@pytest.mark.parametrize("kind", [pa.int64(), pa.int32(), pa.string()])
def test_small_pages_and_a_single_page(tmp_path: Path, rows: int, kind: pa.DataType) -> None:
    """488 integers are a full page and one of 152 bytes."""
    table = pa.table({"id": pa.array(range(rows)).cast(kind)})
    master = ss.MasterTable.from_arrow(table, tmp_path / "r", key="id", page_bytes=4096)
    stream = pa.record_batch({"id": pa.array(range(rows + 5)).cast(kind), "n": range(rows + 5)})
    for algorithm in ALGORITHMS:
        engine = ss.engine(master, on="id", how="left", memory="1MB", algorithm=algorithm)
        expected = oracle_join(stream, table, on="id", how="left").rows
        assert_same_rows(checked_run(engine, [stream]), expected)
        assert engine.metrics().in_place_probes == rows + 5


@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_row_with_the_code_of_another_key_is_none(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each tuple finds one row in place, but only some of them have its key."""
    monkeypatch.setattr(key_codes, "_HASH_MASK", 0)
    table = pa.table({"id": ["here"], "value": [7]})
    master = ss.MasterTable.from_arrow(table, tmp_path / "m", key="id")
    stream = pa.record_batch({"id": ["here", "elsewhere", "here", "nowhere"], "n": [0, 1, 2, 3]})
    engine = ss.engine(master, on="id", memory=1 << 20, algorithm="hybridjoin", how=how)
    joined = pa.Table.from_batches(list(engine.run([stream])))
    expected = {0: 7, 2: 7} if how == "inner" else {0: 7, 1: None, 2: 7, 3: None}
    assert dict(zip(*joined.select(["n", "value"]).to_pydict().values(), strict=True)) == expected
    metrics = engine.metrics()
    assert (metrics.in_place_probes, metrics.joined, metrics.unmatched) == (4, 2, 2)
