"""Joins by a condition against brute force, DuckDB, and themselves at other sizes."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import semistream as ss
from semistream.errors import BudgetError
from semistream.testing import ManualClock, assert_same_rows, checked_run
from tests.differential.condition_oracle import expected, meeting

HOWS = ("inner", "left", "semi", "anti")
CLOSED: dict[str, Callable[[Any, Any, Any], bool]] = {
    "both": lambda v, low, high: low <= v <= high,
    "low": lambda v, low, high: low <= v < high,
    "high": lambda v, low, high: low < v <= high,
    "neither": lambda v, low, high: low < v < high,
}
ONE_SIDED: dict[str, tuple[Any, Callable[[Any, Any], bool]]] = {
    "below": (ss.below, lambda v, bound: v < bound),
    "at_most": (ss.at_most, lambda v, bound: v <= bound),
    "above": (ss.above, lambda v, bound: v > bound),
    "at_least": (ss.at_least, lambda v, bound: v >= bound),
}
_LEAST = re.compile(r"the least is ([\d,]+) bytes")
_MOMENT = dt.datetime(2024, 2, 29)


class Kind(NamedTuple):
    """The types of a value and its bounds, and a value for each number."""

    stream: pa.DataType
    low: pa.DataType
    high: pa.DataType
    value: Callable[[int], Any]
    bound: Callable[[int], Any] | None = None


def _extreme(low: int, high: int) -> Callable[[int], int]:
    edges = [low, low + 1, high - 1, high]
    return lambda n: edges[n % 4] if n % 5 == 0 else max(low, min(high, n))


KINDS = {
    "int64": Kind(pa.int64(), pa.int64(), pa.int64(), _extreme(-(2**63), 2**63 - 1)),
    "int8 in int64": Kind(
        pa.int8(), pa.int64(), pa.int16(), _extreme(-128, 127), _extreme(-(2**15), 2**15 - 1)
    ),
    "uint64": Kind(pa.uint64(), pa.uint64(), pa.uint64(), _extreme(0, 2**64 - 1)),
    "uint64 in int64": Kind(
        pa.uint64(), pa.int64(), pa.uint64(), _extreme(0, 2**64 - 1), _extreme(0, 2**63 - 1)
    ),
    "float64": Kind(
        pa.float64(),
        pa.float64(),
        pa.float32(),
        lambda n: [float("nan"), float("inf"), float("-inf"), -0.0, n / 8][min(n % 9, 4)],
        lambda n: [float("nan"), float("inf"), float("-inf"), 0.0, n / 8][min(n % 11, 4)],
    ),
    "int32 in float64": Kind(
        pa.int32(), pa.float64(), pa.int32(), _extreme(-(2**31), 2**31 - 1), lambda n: n
    ),
    "decimal": Kind(
        pa.decimal128(10, 2), pa.decimal128(14, 3), pa.decimal128(9, 1), lambda n: Decimal(n - 30)
    ),
    "integer in decimal": Kind(
        pa.int64(), pa.decimal128(12, 2), pa.int64(), lambda n: n - 30, lambda n: n - 30
    ),
    "wide decimal": Kind(
        pa.decimal256(50, 3),
        pa.decimal128(38, 4),
        pa.decimal256(45, 0),
        lambda n: Decimal(n - 30) * 10**25,
    ),
    "string": Kind(pa.string(), pa.string(), pa.large_string(), lambda n: "é" * (n % 3) + str(n)),
    "dictionary": Kind(
        pa.dictionary(pa.int32(), pa.string()), pa.string(), pa.string(), lambda n: f"{n % 40}"
    ),
    "binary": Kind(pa.binary(), pa.binary(), pa.binary(3), lambda n: n.to_bytes(3, "big")),
    "date": Kind(pa.date32(), pa.date64(), pa.date32(), lambda n: _MOMENT.date() + dt.timedelta(n)),
    "seconds in nanoseconds": Kind(
        pa.timestamp("s"),
        pa.timestamp("ns"),
        pa.timestamp("us"),
        lambda n: _MOMENT + dt.timedelta(seconds=n // 2),
        lambda n: _MOMENT + dt.timedelta(seconds=n / 2),
    ),
    "microseconds in seconds": Kind(
        pa.timestamp("us", "UTC"),
        pa.timestamp("s", "Europe/Paris"),
        pa.timestamp("ms", "UTC"),
        lambda n: (_MOMENT + dt.timedelta(milliseconds=500 * n)).replace(tzinfo=dt.UTC),
        lambda n: (_MOMENT + dt.timedelta(seconds=n // 2)).replace(tzinfo=dt.UTC),
    ),
    "far away": Kind(
        pa.timestamp("ns"),
        pa.timestamp("s"),
        pa.timestamp("s"),
        lambda n: _MOMENT + dt.timedelta(n),
        lambda n: [dt.datetime(1, 1, 1), dt.datetime(9999, 1, 1), _MOMENT + dt.timedelta(n)][n % 3],
    ),
    "time": Kind(
        pa.time32("s"), pa.time64("us"), pa.time32("ms"), lambda n: dt.time(n // 60, n % 60)
    ),
    "duration": Kind(
        pa.duration("ms"), pa.duration("s"), pa.duration("us"), lambda n: dt.timedelta(seconds=n)
    ),
}


def column(kind: pa.DataType, values: list[Any]) -> pa.ChunkedArray:
    if pa.types.is_dictionary(kind):
        return pa.chunked_array([pa.array(values, kind.value_type).dictionary_encode()])
    return pa.chunked_array([pa.array(values, kind)])


def some(rng: np.random.Generator, kind: Any, count: int, nulls: bool = True) -> list[Any]:
    """Values of random numbers; one in eight is null."""
    return [
        None if nulls and rng.random() < 0.125 else kind(int(n)) for n in rng.integers(0, 60, count)
    ]


def data(kind: Kind, seed: int, tuples: int, rows: int) -> tuple[pa.Table, pa.Table]:
    """A stream with the column `v`, and a master with `low` and `high`, touching now and then."""
    rng = np.random.default_rng(seed)
    bound = kind.bound or kind.value
    stream = {"i": pa.array(range(tuples)), "v": column(kind.stream, some(rng, kind.value, tuples))}
    master = {
        "j": pa.array(range(rows), pa.int64()),
        "low": column(kind.low, some(rng, bound, rows)),
        "high": column(kind.high, some(rng, bound, rows)),
        "text": pa.array(["x" * (j % 90) for j in range(rows)], pa.string()),
    }
    return pa.table(stream), pa.table(master)


def built(table: pa.Table, path: Path, **options: Any) -> ss.MasterTable:
    terms: dict[str, Any] = {"key": "j", "page_bytes": 4096} | options
    return ss.MasterTable.from_arrow(table, path, **terms)


def least(master: ss.MasterTable, stream: list[pa.RecordBatch], **arguments: Any) -> int:
    with pytest.raises(BudgetError, match=_LEAST) as caught:
        list(ss.engine(master, **(arguments | {"memory": 1})).run(stream))
    found = _LEAST.search(str(caught.value))
    assert found is not None
    return int(found[1].replace(",", ""))


def check(
    stream: pa.Table, master: ss.MasterTable, on: ss.Condition, pairs: list[tuple[int, int]]
) -> None:
    """All kinds of joins, with the least memory and with much, give what is expected."""
    tuples, met = stream.num_rows, {i for i, _ in pairs}
    batches = stream.to_batches(max_chunksize=70)
    for how in HOWS:
        columns = ["j"] if how in ("inner", "left") else None
        terms: dict[str, Any] = {"on": on, "how": how, "columns": columns, "clock": ManualClock()}
        smallest = least(master, batches, **terms)
        # With the least memory a window is a tuple or two: slow, and the same for all kinds.
        for memory in (smallest, 8 << 20) if how == "left" else (smallest + 20_000,):
            engine = ss.engine(master, memory=memory, **terms)
            found = checked_run(engine, batches)
            chosen = [batch.select(["i", *(columns or [])]) for batch in found]
            assert_same_rows(chosen, expected(how, tuples, pairs))
            metrics = engine.metrics()
            assert (metrics.joined, metrics.arrived) == (len(met), tuples)
            assert engine.memory()["budget"] == memory
            engine.close()


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("closed", CLOSED)
def test_between(name: str, closed: str, seed: int, tmp_path: Path) -> None:
    stream, table = data(KINDS[name], seed, 90, 110)
    pairs = meeting(stream["v"], [table["low"], table["high"]], CLOSED[closed])
    assert pairs
    check(
        stream, built(table, tmp_path / "r"), ss.between("v", "low", "high", closed=closed), pairs
    )


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("side", ONE_SIDED)
def test_one_bound(name: str, side: str, seed: int, tmp_path: Path) -> None:
    """Most tuples match many rows: the output is several times the stream."""
    stream, table = data(KINDS[name], seed, 60, 50)
    make, test = ONE_SIDED[side]
    pairs = meeting(stream["v"], [table["high"]], test)
    assert pairs
    check(stream, built(table, tmp_path / "r"), make("v", "high"), pairs)


def test_one_row_that_matches_every_tuple_comes_out_in_bounded_batches(tmp_path: Path) -> None:
    master = built(pa.table({"j": [0, 1], "low": [0, 5], "high": [10, 5]}), tmp_path / "r")
    tuples = 300_000
    stream = pa.table({"i": range(tuples), "v": np.full(tuples, 5)})
    engine = ss.engine(master, on=ss.between("v", "low", "high"), memory="1MB")
    sizes = [batch.nbytes for batch in checked_run(engine, stream)]
    assert engine.metrics().outputs == 2 * tuples
    assert max(sizes) <= 1 << 18
    assert engine.plan is not None
    assert engine.plan.fragment_bytes <= 1 << 18


@pytest.mark.parametrize("memory", ["256KB", "8MB"])
@pytest.mark.parametrize("rows", [0, 1, 5_000])
@pytest.mark.parametrize("tuples", [0, 1, 2_000])
def test_empty_and_small_sides(memory: str, rows: int, tuples: int, tmp_path: Path) -> None:
    low = np.arange(rows) * 3
    table = pa.table({"j": np.arange(rows), "low": low, "high": low + 1})
    stream = pa.table({"i": np.arange(tuples), "v": np.arange(tuples) % 7})
    master = built(table, tmp_path / "r")
    wanted = [(i, i % 7 // 3) for i in range(tuples) if i % 7 % 3 < 2 and i % 7 // 3 < rows]
    for how in HOWS:
        columns = ["j"] if how in ("inner", "left") else None
        on = ss.between("v", "low", "high")
        engine = ss.engine(master, on=on, memory=memory, how=how, columns=columns)
        found = checked_run(engine, stream)
        chosen = [batch.select(["i", *(columns or [])]) for batch in found]
        assert_same_rows(chosen, expected(how, tuples, wanted))


@pytest.mark.parametrize("build", [{"layout": "given"}, {"shards": 3}, {"key": "low"}])
def test_any_layout_key_and_shards(build: dict[str, Any], seed: int, tmp_path: Path) -> None:
    stream, table = data(KINDS["int64"], seed, 200, 400)
    table = table.filter(table["low"].is_valid())
    pairs = meeting(stream["v"], [table["low"], table["high"]], CLOSED["both"])
    renumbered = table["j"].to_pylist()
    check(
        stream,
        built(table, tmp_path / "r", **build),
        ss.between("v", "low", "high"),
        [(i, renumbered[j]) for i, j in pairs],
    )


def test_reading_and_keeping_give_the_same(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    low = rng.integers(0, 1_000_000, 20_000)
    table = pa.table(
        {"j": np.arange(20_000), "low": low, "high": low + rng.integers(0, 99, 20_000)}
    )
    master = built(table, tmp_path / "r")
    stream = pa.table({"i": np.arange(9_000), "v": rng.integers(0, 1_000_000, 9_000)})
    found = {}
    for memory in ("150KB", "8MB"):
        engine = ss.engine(master, on=ss.between("v", "low", "high"), memory=memory)
        found[memory] = checked_run(engine, stream.to_batches(max_chunksize=500))
        pages = engine.metrics().pages_read
        kept = memory == "8MB"
        assert (pages == master.page_count) == kept
        assert ("kept in memory" in str(engine.plan and engine.plan.explain())) == kept
    assert_same_rows(found["150KB"], found["8MB"])


@pytest.mark.parametrize("how", HOWS)
def test_duckdb_gives_the_same(how: str, seed: int, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    rng = np.random.default_rng(seed)
    low = rng.integers(0, 100_000, 3_000)
    table = pa.table({"j": np.arange(3_000), "low": low, "high": low + rng.integers(-5, 99, 3_000)})
    stream = pa.table({"i": np.arange(5_000), "v": rng.integers(0, 100_000, 5_000)})
    master = built(table, tmp_path / "r")
    engine = ss.engine(master, on=ss.between("v", "low", "high"), memory="4MB", how=how)
    connection = duckdb.connect()
    connection.register("s", stream)
    connection.register("r", table)
    chosen = "s.*, r.*" if how in ("inner", "left") else "s.*"
    query = f"SELECT {chosen} FROM s {how} JOIN r ON v BETWEEN low AND high"
    assert_same_rows(checked_run(engine, stream), connection.sql(query).fetchall())


words = st.text("abé漢", max_size=9)


def is_similar(value: str, text: str, threshold: float) -> bool:
    """By RapidFuzz' distance, in fractions, which are not rounded."""
    distance = pytest.importorskip("rapidfuzz.distance").Levenshtein.distance(value, text)
    longer = max(len(value), len(text))
    return bool(distance <= (1 - Fraction(threshold).limit_denominator(1000)) * longer)


@settings(max_examples=40)
@given(
    st.lists(st.none() | words, min_size=1, max_size=25),
    st.lists(st.none() | words, max_size=25),
    st.sampled_from([1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 2 / 3, 0.6, 0.5, 0.34, 0.2, 0.1]),
)
def test_similar_texts(
    tmp_path_factory: pytest.TempPathFactory,
    stream_texts: list[str | None],
    master_texts: list[str | None],
    threshold: float,
) -> None:
    stream = pa.table({"i": range(len(stream_texts)), "v": pa.array(stream_texts, pa.string())})
    rows = pa.array(range(len(master_texts)), pa.int64())
    table = pa.table({"j": rows, "text": pa.array(master_texts, pa.string())})
    pairs = meeting(
        stream["v"],
        [table["text"]],
        lambda v, t: is_similar(v, t, threshold),
    )
    master = built(table, tmp_path_factory.mktemp("similar") / "r")
    check(stream, master, ss.similar("v", "text", at_least=threshold), pairs)


@pytest.mark.parametrize("threshold", [0.9, 0.8, 0.7, 0.5])
def test_similar_texts_of_all_lengths(threshold: float, seed: int, tmp_path: Path) -> None:
    """Long texts and short ones, with as many edits as are allowed, and with one more."""
    rng = np.random.default_rng(seed)
    letters = np.array(list("abcdefghijklmno pqrs"))
    # The widest is in the first batch, by which parts are sized.
    lengths = [*(6500, 4097, 4096, 4095, 4094), *rng.integers(0, 60, 100)]
    texts = ["".join(rng.choice(letters, length)) for length in lengths]

    def edited(text: str) -> str:
        characters = list(text)
        for _ in range(int(len(text) * (1 - threshold)) + rng.integers(-1, 2)):
            place = rng.integers(0, len(characters) + 1)
            cut = rng.integers(0, 2)
            characters[place : place + cut] = ["z"] * rng.integers(0, 2)
        return "".join(characters)

    values = [edited(text) for text in texts]
    stream = pa.table({"i": range(len(values)), "v": values})
    table = pa.table({"j": range(len(texts)), "text": texts})
    pairs = meeting(
        stream["v"],
        [table["text"]],
        lambda v, t: is_similar(v, t, threshold),
    )
    assert len(pairs) > 20
    check(stream, built(table, tmp_path / "r"), ss.similar("v", "text", at_least=threshold), pairs)
