"""`load_dimension`: types 1 and 2 against plain Python, with late, equal and repeated tuples."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import semistream as ss
from semistream.errors import MasterExistsError, OptionError
from semistream.relation import Frame, MasterTable
from semistream.spark.transformations import dimensions
from semistream.testing import Row, assert_same_rows, rows_of

pytestmark = pytest.mark.service

VALID = ("valid_from", "valid_to")
KEYS, BATCHES = 25, 4

History = dict[int, list[list[Any]]]
"""Key → [begin, end, (name, price)], in order of time; an end of None is open."""


def stored(path: Path) -> list[Row]:
    master = MasterTable.open(path)
    with master.reader() as reader:
        frame = Frame(reader.frame_bytes(max(master.page_count, 1)))
        pages = reader.read(0, master.page_count, frame) if master.page_count else []
        return rows_of(pa.Table.from_batches(pages, master.stored_schema))


def batches(seed: int) -> list[list[Row]]:
    """Tuples (id, name, price, at) of few values, so that many say nothing new; some come late."""
    random = np.random.default_rng(seed)
    made = []
    for number in range(BATCHES):
        rows, taken = [], set()
        for _ in range(60):
            key, at = int(random.integers(0, KEYS)), int(random.integers(0, 40)) + 15 * number
            if (key, at) not in taken:
                taken.add((key, at))
                name = [None, "a", "b"][random.integers(0, 3)]
                rows.append((key, name, float(random.integers(0, 2)), at))
        made.append(rows)
    return made


def insert(history: History, key: int, name: str | None, price: float, at: int) -> None:
    """What a tuple does to the history of its key."""
    rows, values = history.setdefault(key, []), (name, price)
    for row in rows:
        if row[0] == at:
            row[2] = values
            return
        if row[0] < at and (row[1] is None or at < row[1]):
            if row[2] != values:
                rows.append([at, row[1], values])
                row[1] = at
            break
    else:
        later = [row[0] for row in rows if row[0] > at]
        rows.append([at, min(later, default=None), values])
    rows.sort(key=lambda row: row[0])


SCHEMA = "id long, name string, price double, at long"


def dimension(path: Path, timed: bool, rows: list[Row] = ()) -> None:  # type: ignore[assignment]
    last = [("valid_from", pa.int64()), ("valid_to", pa.int64())] if timed else [("at", pa.int64())]
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("price", pa.float64()), *last])
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(c, t) for c, t in zip(columns, schema.types, strict=True)]
    MasterTable.from_arrow(pa.table(arrays, schema=schema), path, key="id", page_bytes=4096)


def test_type_2(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    path = tmp_path / "products"
    # A history of the user's own, with a gap, and with two equal rows one after the other.
    own = [(0, "a", 1.0, 2, 5), (0, "b", 1.0, 20, 30), (1, "a", 0.0, 0, 9), (1, "a", 0.0, 9, None)]
    history: History = {
        0: [[2, 5, ("a", 1.0)], [20, 30, ("b", 1.0)]],
        1: [[0, 9, ("a", 0.0)], [9, None, ("a", 0.0)]],
    }
    dimension(path, True, own)
    for rows in batches(seed):
        frame = spark.createDataFrame(rows, SCHEMA).repartition(2)
        loaded = ss.load_dimension(frame, path, on="id", at="at", valid=VALID, memory="2MB")
        for row in sorted(rows, key=lambda row: row[3]):
            insert(history, *row)
        wanted = [(k, *row[2], row[0], row[1]) for k, rows in history.items() for row in rows]
        assert_same_rows(stored(path), wanted)
        # The same batch again changes nothing, and makes no version.
        again = ss.load_dimension(frame, path, on="id", at="at", valid=VALID, memory="2MB")
        assert again.version == loaded.version == MasterTable.latest_version(path)


def test_type_1(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    path = tmp_path / "products"
    dimension(path, False)
    newest: dict[int, Row] = {}
    for rows in batches(seed):
        frame = spark.createDataFrame([*rows, (None, "x", 1.0, 99)], SCHEMA).repartition(2)
        loaded = ss.load_dimension(frame, path, on="id", at="at", memory="2MB")
        for row in rows:
            if row[0] not in newest or row[3] >= newest[row[0]][3]:
                newest[row[0]] = row
        assert_same_rows(stored(path), list(newest.values()))
        again = ss.load_dimension(frame, path, on="id", at="at", memory="2MB")
        assert again.version == loaded.version


def test_ties_are_settled_the_same_way_each_time(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(1, name, price, 5) for name in ("a", "b", None) for price in (1.0, 2.0)]
    found = set()
    for number, parts in enumerate((1, 3, 4)):
        path = tmp_path / str(number)
        dimension(path, True)
        frame = spark.createDataFrame(rows, SCHEMA).repartition(parts)
        ss.load_dimension(frame, path, on="id", at="at", valid=VALID)
        (row,) = stored(path)
        found.add(row)
    assert len(found) == 1


def test_days_and_other_names(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema(
        [("id", pa.int32()), ("day", pa.date32()), ("end", pa.date32()), ("name", pa.string())]
    )
    MasterTable.from_arrow(schema.empty_table(), tmp_path / "d", key="id")
    frame = spark.createDataFrame(
        [
            (7, "first", "2026-01-01"),
            (7, "next", "2026-01-03"),
            (7, "lost", None),
        ],
        "product long, name string, at string",
    ).selectExpr("product", "name", "cast(at as date) as at")
    for _ in range(2):
        ss.load_dimension(
            frame, tmp_path / "d", on={"product": "id"}, at="at", valid=("day", "end")
        )
    first, third = date(2026, 1, 1), date(2026, 1, 3)
    assert_same_rows(stored(tmp_path / "d"), [(7, first, third, "first"), (7, third, None, "next")])
    assert MasterTable.latest_version(tmp_path / "d") == 2


def test_another_writer_was_first(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "products"
    dimension(path, True)
    real = MasterTable.upsert
    others = iter([[(1, "theirs", 1.0, 3, None)], [(2, "theirs", 1.0, 3, None)]])

    def late(self: MasterTable, data: Any) -> MasterTable:
        for rows in others:
            columns = list(zip(*rows, strict=True))
            table = pa.table([pa.array(c) for c in columns], names=self.schema.names)
            real(MasterTable.open(path), table)
            break
        return real(self, data)

    monkeypatch.setattr(MasterTable, "upsert", late)
    frame = spark.createDataFrame([(1, "ours", 1.0, 5)], SCHEMA)
    ss.load_dimension(frame, path, on="id", at="at", valid=VALID)
    assert_same_rows(
        stored(path),
        [(1, "theirs", 1.0, 3, 5), (1, "ours", 1.0, 5, None), (2, "theirs", 1.0, 3, None)],
    )

    def never(self: MasterTable, data: Any) -> MasterTable:
        raise MasterExistsError("taken")

    monkeypatch.setattr(MasterTable, "upsert", never)
    monkeypatch.setattr(dimensions, "_MOST_ATTEMPTS", 2)
    with pytest.raises(MasterExistsError, match="taken"):
        ss.load_dimension(
            spark.createDataFrame([(9, "x", 1.0, 5)], SCHEMA), path, on="id", at="at", valid=VALID
        )


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"at": "when"}, "without .'when'."),
        ({"valid": ("valid_from", "until")}, "valid="),
        ({"valid": ("valid_from",)}, "must name two columns"),
        ({"valid": ("valid_from", "valid_from")}, "must name two columns"),
        ({"at": "id"}, "at='id' is the key"),
        ({"dotted": True}, "a dot or a backtick"),
        ({"valid": None}, "without .'valid_from', 'valid_to'."),
        ({"compare": ["other"]}, "the stream must have 'other'"),
        ({"compare": {"name": "price"}}, "must be a list"),
        ({"stream": True}, "foreachBatch"),
    ],
)
def test_errors(spark: SparkSession, tmp_path: Path, options: dict[str, Any], match: str) -> None:
    dimension(tmp_path / "products", True)
    frame = spark.createDataFrame([(1, "a", 1.0, 5)], SCHEMA)
    if options.pop("stream", False):
        frame = spark.readStream.format("rate").load()
    if options.pop("dotted", False):
        frame = frame.withColumnRenamed("name", "a.name")
    arguments: dict[str, Any] = {"on": "id", "at": "at", "valid": VALID} | options
    with pytest.raises(OptionError, match=match):
        ss.load_dimension(frame, tmp_path / "products", **arguments)


CASTS = [
    # A string in place of a number failed inside Spark; the others lost digits, or the time of day.
    ({"price": "string"}, None, "'price' is string, and the master's 'price' is double"),
    ({"price": "decimal(20,2)"}, None, r"'price' is decimal\(20,2\)"),
    ({"name": "binary"}, None, "'name' is binary"),
    ({"at": "double"}, VALID, "'at' is double, and the master's 'valid_from' is bigint"),
    ({"at": "timestamp"}, VALID, "'at' is timestamp, and the master's 'valid_from' is bigint"),
    ({"price": "string"}, VALID, "'price' is string"),
]


@pytest.mark.parametrize(("casts", "valid", "match"), CASTS)
def test_types_that_could_lose_something(
    spark: SparkSession,
    tmp_path: Path,
    casts: dict[str, str],
    valid: tuple[str, str] | None,
    match: str,
) -> None:
    dimension(tmp_path / "products", valid is not None)
    frame = spark.createDataFrame([(1, "a", 1.0, 5)], SCHEMA)
    for name, kind in casts.items():
        frame = frame.withColumn(name, frame[name].cast(kind))
    with pytest.raises(OptionError, match=match):
        ss.load_dimension(frame, tmp_path / "products", on="id", at="at", valid=valid)
    assert MasterTable.latest_version(tmp_path / "products") == 1


def test_narrower_types_are_widened(spark: SparkSession, tmp_path: Path) -> None:
    for timed in (False, True):
        path = tmp_path / str(timed)
        dimension(path, timed)
        frame = spark.createDataFrame(
            [(1, "a", 0.1, 5)], "id int, name string, price float, at int"
        )
        for _ in range(2):
            ss.load_dimension(frame, path, on="id", at="at", valid=VALID if timed else None)
        (row,) = stored(path)
        assert row[:3] == (1, "a", float(np.float32(0.1)))
        assert MasterTable.latest_version(path) == 2


def test_type_1_refuses_a_key_with_several_rows(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "products"
    dimension(path, False, [(1, "a", 1.0, 1), (1, "b", 1.0, 2), (2, "a", 1.0, 1)])

    def load(*rows: Row) -> MasterTable:
        frame = spark.createDataFrame(list(rows), SCHEMA)
        return ss.load_dimension(frame, path, on="id", at="at")

    # The tuple is equal to one of the two rows; the other must not go without a word.
    with pytest.raises(OptionError, match=r"several rows of the key \{'id': 1\}"):
        load((1, "b", 1.0, 2), (2, "c", 1.0, 2))
    assert MasterTable.latest_version(path) == 1
    assert load((2, "c", 1.0, 2)).row_count == 3


def test_ties_with_other_values_are_settled_too(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(1, name, price, 5) for name in ("a", "b", "c") for price in (1.0, 2.0)]
    found = set()
    for number, given in enumerate((rows, rows[::-1])):
        path = tmp_path / str(number)
        dimension(path, True)
        frame = spark.createDataFrame(given, SCHEMA).coalesce(1)
        ss.load_dimension(frame, path, on="id", at="at", valid=VALID, compare=["price"])
        (row,) = stored(path)
        found.add(row)
    assert len(found) == 1
