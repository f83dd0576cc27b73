"""The membership filter: never a wrong "no", few wrong "yes", and joins that use it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import semistream as ss
from semistream.errors import BudgetError, MasterFormatError, OptionError
from semistream.relation import MembershipFilter
from semistream.relation.membership_filter import expected_rate
from semistream.relation.storage import LocalStorage, files
from semistream.relation.versions.manifest import FORMAT_VERSION
from semistream.testing import assert_same_rows, checked_run, oracle_join

CODES = st.integers(-(2**63), 2**63 - 1)
KEYS, TUPLES = 1500, 3000
_LEAST = re.compile(r"the least is ([\d,]+) bytes")


def codes_of(values: list[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, np.int64)


def products(how_keyed: str = "integer") -> pa.Table:
    """Even numbers as keys, some of them twice."""
    ids = np.concatenate([np.arange(0, 2 * KEYS, 2), np.arange(0, 200, 2)])
    table = pa.table({"id": ids, "name": [f"product {i:06d} {'x' * 40}" for i in ids]})
    return keyed(table, how_keyed)


def sales(seed: int, how_keyed: str = "integer", nulls: bool = False) -> list[pa.RecordBatch]:
    """Half of the keys are odd: R does not have them."""
    ids = np.random.default_rng(seed).integers(0, 2 * KEYS, TUPLES)
    mask = np.arange(TUPLES) % 97 == 0 if nulls else None
    table = pa.table({"id": pa.array(ids, mask=mask), "quantity": np.arange(TUPLES)})
    batches: list[pa.RecordBatch] = keyed(table, how_keyed).to_batches(max_chunksize=700)
    return batches


def keyed(table: pa.Table, how_keyed: str) -> pa.Table:
    """The table with its integer key, with a string, or with two columns."""
    if how_keyed == "integer":
        return table
    ids = table.column("id").to_pylist()
    if how_keyed == "string":
        text = pa.array([None if i is None else f"key {i}" for i in ids], pa.string())
        return table.set_column(0, "id", text)
    tens = pa.array([None if i is None else i // 10 for i in ids], pa.int64())
    ones = pa.array([None if i is None else i % 10 for i in ids], pa.int32())
    return table.set_column(0, "id", tens).append_column("digit", ones)


def build(path: Path, table: pa.Table | None = None, **options: Any) -> ss.MasterTable:
    defaults: dict[str, Any] = {"key": "id", "page_bytes": 4096, "filter_bits": 12}
    data = products() if table is None else table
    return ss.MasterTable.from_arrow(data, path, **(defaults | options))


def filter_file(master: ss.MasterTable) -> Path:
    (path,) = (Path(master.path) / "data").glob("*.filter")
    return path


def least(master: ss.MasterTable, stream: list[pa.RecordBatch], **arguments: Any) -> int:
    with pytest.raises(BudgetError) as raised:
        list(
            ss.engine(
                master, algorithm="hybridjoin", io="unmapped", on="id", memory=1, **arguments
            ).run(stream)
        )
    found = _LEAST.search(str(raised.value))
    assert found
    return int(found[1].replace(",", ""))


@given(st.lists(CODES, max_size=300), st.integers(4, 32), st.integers(0, 300))
def test_what_is_in_is_never_denied(values: list[int], bits: int, keys: int) -> None:
    """Whatever the codes, and even if the filter was made for fewer or more of them."""
    some = MembershipFilter.sized(keys, bits)
    some.add(codes_of(values))
    assert some.may_contain(codes_of(values)).all()


@given(st.lists(CODES, max_size=50))
def test_an_empty_filter_denies_all(values: list[int]) -> None:
    some = MembershipFilter.sized(0, 10)
    assert not some.may_contain(codes_of(values)).any()
    assert some.expected_rate == 0.0


@pytest.mark.parametrize("bits", [8, 10, 12, 16])
@pytest.mark.parametrize("spread", [1, 3, 1 << 32])
def test_the_false_positive_rate_is_that_of_theory(bits: int, spread: int, seed: int) -> None:
    keys = np.arange(200_000, dtype=np.int64) * spread
    np.random.default_rng(seed).shuffle(keys)
    some = MembershipFilter.sized(len(keys), bits)
    some.add(keys)
    absent = (np.arange(2_000_000, dtype=np.int64) + len(keys)) * spread
    rate = float(some.may_contain(absent).mean())
    theory = expected_rate(bits, some.probes)
    assert some.expected_rate == pytest.approx(theory, rel=0.01)
    assert theory / 1.5 < rate < theory * 1.5


def test_more_bits_are_more_bytes_and_fewer_mistakes() -> None:
    sizes = [MembershipFilter.sized(100_000, bits) for bits in range(4, 33)]
    assert [some.nbytes for some in sizes] == sorted(some.nbytes for some in sizes)
    rates = [some.expected_rate for some in sizes]
    assert rates == sorted(rates, reverse=True)
    assert all(some.nbytes <= 100_000 * some.bits / 8 + 128 for some in sizes)


def test_a_filter_read_back_is_the_same(tmp_path: Path) -> None:
    some = MembershipFilter.sized(1000, 10)
    some.add(np.arange(1000))
    (tmp_path / "f").write_bytes(some.data)
    data = (tmp_path / "f").read_bytes()
    assert len(data) == some.nbytes
    again = MembershipFilter.load(
        LocalStorage(tmp_path), "f", len(data), files.checksum_bytes(data)
    )
    codes = np.arange(-5000, 5000)
    assert (again.may_contain(codes) == some.may_contain(codes)).all()
    assert (again.bits, again.probes, again.keys) == (some.bits, some.probes, some.keys)


def test_the_bits_on_disk_do_not_change() -> None:
    """Filters that were written must be understood for ever."""
    some = MembershipFilter.sized(100, 16)
    some.add(np.arange(-50, 50))
    assert files.checksum_bytes(some.data) == "07d0718ca3a25011"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"SSBLOOM1",
        bytes(128),
        b"SSBLOOM1" + np.array([10, 7, 2, 5, 0, 0, 0], "<i8").tobytes() + bytes(64),
        b"SSBLOOM1" + np.array([10, 99, 1, 5, 0, 0, 0], "<i8").tobytes() + bytes(64),
        b"SSBLOOM1" + np.array([10, 7, 0, 5, 0, 0, 0], "<i8").tobytes(),
    ],
    ids=["empty", "cut", "no magic", "too few blocks", "probes", "no block"],
)
def test_a_file_that_is_no_filter_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "f"
    path.write_bytes(data)
    with pytest.raises(MasterFormatError, match=re.escape(str(path))):
        MembershipFilter.load(
            LocalStorage(path.parent), path.name, len(data), files.checksum_bytes(data)
        )


@pytest.mark.parametrize("bits", [True, 1, 3, 33, -1, 10.0, "10", None])
def test_bits_that_cannot_be(tmp_path: Path, bits: Any) -> None:
    with pytest.raises(OptionError, match=r"filter_bits=.*from 4 to 32"):
        build(tmp_path / "r", filter_bits=bits)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("layout", ["key", "given"])
@pytest.mark.parametrize("how_keyed", ["integer", "string"])
def test_the_master_holds_a_filter_of_its_keys(tmp_path: Path, layout: str, how_keyed: str) -> None:
    table = products(how_keyed)
    master = build(tmp_path / "r", table, layout=layout, filter_bits=10)
    some = master.membership_filter()
    assert some is not None
    assert master.membership_filter() is some
    assert (some.keys, some.bits) == (KEYS, 10)  # rows of one key count once
    assert master.filter_bytes == some.nbytes == filter_file(master).stat().st_size
    codes, _ = master.codec.codes(table.select(["id"]).combine_chunks().to_batches()[0].columns)
    assert some.may_contain(codes).all()
    assert f"{some.nbytes:,} bytes in memory" in master.describe()


def test_rows_without_a_key_are_not_in_it(tmp_path: Path) -> None:
    table = pa.table({"id": [1, None, 2, None], "name": list("abcd")})
    some = build(tmp_path / "r", table).membership_filter()
    assert some is not None
    assert some.keys == 2


def test_a_master_without_a_filter_stays_as_it_was(tmp_path: Path) -> None:
    master = build(tmp_path / "r", filter_bits=0)
    (manifest,) = (tmp_path / "r" / "versions").iterdir()
    content = json.loads(manifest.read_text())
    assert content["format_version"] == FORMAT_VERSION
    assert set(content["files"]) == {"index"}
    assert master.membership_filter() is None
    assert master.filter_bytes == 0
    assert re.search(r"filter +none", master.describe())


def test_each_version_has_its_own(tmp_path: Path) -> None:
    build(tmp_path / "r", filter_bits=8)
    build(tmp_path / "r", filter_bits=0, replace=True)
    build(tmp_path / "r", filter_bits=16, replace=True)
    assert (
        json.loads((tmp_path / "r/versions/00000003.json").read_text())["format_version"]
        == FORMAT_VERSION
    )
    found = [ss.MasterTable.open(tmp_path / "r", version).filter_bytes for version in (1, 2, 3)]
    assert found[0] > found[1] == 0
    assert found[2] > found[0]


@pytest.mark.parametrize("layout", ["key", "given"])
@pytest.mark.parametrize("algorithm", ss.ALGORITHMS)
def test_joins_with_and_without_it_give_the_same(
    tmp_path: Path, algorithm: str, layout: str, seed: int
) -> None:
    stream = sales(seed, nulls=True)
    master = build(tmp_path / "r", layout=layout)
    memory = "64KB" if layout == "key" else "80KB"
    for how in ("inner", "left"):
        expected = oracle_join(stream, products(), on="id", how=how)
        pages = {}
        for use in (True, False):
            engine = ss.engine(
                master,
                algorithm=algorithm,
                io="unmapped",
                on="id",
                how=how,
                memory=memory,
                use_filter=use,
            )
            found = checked_run(engine, stream) if use else list(engine.run(stream))
            assert_same_rows(found, expected.rows)
            metrics = engine.metrics()
            assert (metrics.joined, metrics.unmatched) == (expected.joined, expected.unmatched)
            pages[use] = metrics.pages_read + metrics.index_pages_read
            if use:
                # Nulls are unmatched too, but it is not the filter that finds them.
                absent = expected.unmatched - sum(b.column("id").null_count for b in stream)
                assert 0.97 * absent < metrics.filtered <= absent
            else:
                assert metrics.filtered == 0
        if layout == "given" and algorithm in ("inlj", "cinlj"):
            # A chunk's look-ups share the pages of the dense index, whoever they are for.
            assert pages[True] <= pages[False]
        else:
            assert pages[True] < pages[False]


@pytest.mark.parametrize("how_keyed", ["string", "composite"])
@pytest.mark.parametrize("algorithm", ["hybridjoin", "meshjoin"])
def test_hashed_keys(tmp_path: Path, algorithm: str, how_keyed: str, seed: int) -> None:
    table, stream = products(how_keyed), sales(seed, how_keyed, nulls=True)
    key = ["id", "digit"] if how_keyed == "composite" else ["id"]
    for layout in ("key", "given"):
        master = build(tmp_path / layout, table, layout=layout, key=key)
        expected = oracle_join(stream, table, on=key, how="left")
        engine = ss.engine(
            master, algorithm=algorithm, io="unmapped", on=key, how="left", memory="256KB"
        )
        assert_same_rows(checked_run(engine, stream), expected.rows)
        assert engine.metrics().filtered > 0.4 * TUPLES


@pytest.mark.parametrize("algorithm", ss.ALGORITHMS)
def test_tuples_that_it_excludes_read_no_page(tmp_path: Path, algorithm: str) -> None:
    """They leave before a pause is over, and cost nothing."""
    master = build(tmp_path / "r", products().slice(0, 500), filter_bits=32)
    batch = pa.record_batch({"id": np.arange(1, 401, 2), "quantity": np.arange(200)})
    engine = ss.engine(
        master, algorithm=algorithm, io="unmapped", on="id", how="left", memory="1MB"
    )
    left: list[int] = []

    def stream() -> Iterator[pa.RecordBatch]:
        yield batch
        yield batch.slice(0, 0)
        assert sum(left) == batch.num_rows
        yield batch

    for found in engine.run(stream()):
        left.append(found.num_rows)
        assert found.column("name").null_count == found.num_rows
    metrics = engine.metrics()
    assert metrics.filtered == metrics.unmatched == metrics.arrived == sum(left) == 400
    pinned = engine.plan.pinned_partitions if engine.plan else 0
    assert bool(metrics.pages_read) == bool(pinned)
    assert metrics.appends == 0


def test_a_master_without_rows(tmp_path: Path, seed: int) -> None:
    master = build(tmp_path / "r", products().slice(0, 0))
    engine = ss.engine(
        master, algorithm="hybridjoin", io="unmapped", on="id", how="left", memory="1MB"
    )
    assert sum(batch.num_rows for batch in checked_run(engine, sales(seed))) == TUPLES
    assert engine.metrics().filtered == TUPLES


@pytest.mark.parametrize("algorithm", ss.ALGORITHMS)
def test_its_bytes_are_in_the_budget(tmp_path: Path, algorithm: str, seed: int) -> None:
    master = build(tmp_path / "r")
    engine = ss.engine(master, algorithm=algorithm, io="unmapped", on="id", memory="256KB")
    checked_run(engine, sales(seed))
    assert engine.plan is not None
    parts = engine.plan.parts
    assert parts["filter"] == master.filter_bytes
    assert sum(parts.values()) <= engine.plan.memory == 256 << 10
    assert "filter" in engine.plan.explain()
    memory = engine.memory()
    assert memory["filter"] == master.filter_bytes
    assert memory["stream buffer"] == parts["stream buffer"]
    assert memory["peak"] <= memory["budget"]


def test_it_is_part_of_the_least_memory(tmp_path: Path, seed: int) -> None:
    stream, master = sales(seed), build(tmp_path / "r", filter_bits=32)
    without, with_it = least(master, stream), least(master, stream, use_filter=True)
    assert without == least(master, stream, use_filter=False)
    assert with_it >= without + master.filter_bytes
    expected = oracle_join(stream, products(), on="id")
    engine = ss.engine(
        master, algorithm="hybridjoin", io="unmapped", on="id", memory=with_it, use_filter=True
    )
    assert_same_rows(checked_run(engine, stream), expected.rows)
    assert engine.metrics().filtered > 0
    short = ss.engine(
        master, algorithm="hybridjoin", io="unmapped", on="id", memory=with_it - 1, use_filter=True
    )
    with pytest.raises(BudgetError, match=rf"least is {with_it:,}.*use_filter=False"):
        list(short.run(stream))


def test_by_default_a_budget_without_room_for_it_goes_without(tmp_path: Path, seed: int) -> None:
    stream, master = sales(seed), build(tmp_path / "r", filter_bits=32)
    memory = least(master, stream, use_filter=True) - 1
    engine = ss.engine(master, algorithm="hybridjoin", io="unmapped", on="id", memory=memory)
    assert_same_rows(checked_run(engine, stream), oracle_join(stream, products(), on="id").rows)
    assert engine.metrics().filtered == 0
    assert engine.plan is not None
    assert "filter" not in engine.plan.parts
    assert "filter" not in engine.memory()


def test_asking_for_a_filter_that_is_not_there(tmp_path: Path) -> None:
    master = build(tmp_path / "r", filter_bits=0)
    with pytest.raises(OptionError, match=r"no membership filter.*filter_bits=10"):
        ss.engine(
            master, algorithm="hybridjoin", io="unmapped", on="id", memory="1MB", use_filter=True
        )
    wrong: Any = "yes"
    with pytest.raises(OptionError, match="use_filter='yes'"):
        ss.engine(
            master, algorithm="hybridjoin", io="unmapped", on="id", memory="1MB", use_filter=wrong
        )
    ss.engine(
        master, algorithm="hybridjoin", io="unmapped", on="id", memory="1MB", use_filter=False
    )


@pytest.mark.parametrize("damage", ["flip", "cut", "grow", "remove"])
def test_a_broken_filter_is_named_and_nothing_is_joined_with_it(
    tmp_path: Path, damage: str, seed: int
) -> None:
    path = filter_file(build(tmp_path / "r"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    if damage == "flip":
        path.write_bytes(data)
    elif damage == "remove":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-64] if damage == "cut" else data + bytes(64))
    master, stream = ss.MasterTable.open(tmp_path / "r"), sales(seed)
    with pytest.raises(MasterFormatError, match=re.escape(str(path))):
        master.membership_filter()
    engine = ss.engine(master, algorithm="hybridjoin", io="unmapped", on="id", memory="1MB")
    with pytest.raises(MasterFormatError, match=rf"{re.escape(str(path))}.*use_filter=False"):
        next(engine.run(stream))
    assert engine.metrics().pages_read == 0
    without = ss.engine(
        master, algorithm="hybridjoin", io="unmapped", on="id", memory="1MB", use_filter=False
    )
    expected = oracle_join(stream, products(), on="id")
    assert_same_rows(checked_run(without, stream), expected.rows)


def test_a_build_that_fails_leaves_no_filter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LocalStorage.write

    def fail(storage: LocalStorage, name: str, data: bytes) -> None:
        if name.endswith(".filter"):
            real(storage, name, b"half")
            raise OSError("disk full")
        real(storage, name, data)

    monkeypatch.setattr(LocalStorage, "write", fail)
    with pytest.raises(OSError, match="disk full"):
        build(tmp_path / "r")
    assert list(tmp_path.rglob("*")) == []
