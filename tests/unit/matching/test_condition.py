"""Conditions: what is refused, what binds to which column, and what a join loads."""

from __future__ import annotations

import datetime as dt
import json
import os
import pickle
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import semistream as ss
from semistream.errors import OptionError, StreamSchemaError
from semistream.matching.condition import PREFIX, Columns, condition_of

STREAM = pa.schema(
    [
        ("id", pa.int64()),
        ("n", pa.int32()),
        ("x", pa.float64()),
        ("name", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("plain", pa.timestamp("us")),
        ("both", pa.int64()),
        ("amount", pa.decimal128(38, 2)),
    ]
)
MASTER = pa.schema(
    [
        ("id", pa.int64()),
        ("m", pa.uint32()),
        ("price", pa.decimal128(9, 2)),
        ("day", pa.date32()),
        ("both", pa.int64()),
        ("tags", pa.list_(pa.string())),
        ("huge", pa.uint64()),
    ]
)
COLUMNS = Columns(STREAM, MASTER, {"id": "id"})

REFUSED = {
    "n / 2 > 1": "n / 2",
    "n % 2 = 1": "n % 2",
    "cast(n as string) = '1'": "CAST",
    "upper(name) = 'A'": "UPPER",
    "name rlike 'a'": "RLIKE",
    "name ilike 'a'": "ILIKE",
    "name like name": "LIKE",
    "name like 'a\\\\b'": "backslash",
    "count(*) > 1": "COUNT",
    "n in (select 1)": "SELECT",
    "exists (select 1)": "SELECT",
    "case when n > 1 then true end": "CASE",
    "at > current_timestamp()": "CURRENT_TIMESTAMP",
    "at + interval 1 day > at": "INTERVAL",
    "name || 'a' = 'b'": r"\|\|",
    "name = 'it''s'": "CONCAT",
    "n = ?": r"\?",
    "n > 1; drop table x": "one SQL predicate",
    "n >": "cannot be read",
    "": "one SQL predicate",
    "nothing = 1": "'nothing', which does not exist",
    "both = 1": "more than once",
    "other.n = 1": "other.n",
    "n = '1'": "int32 and string",
    "x > price": "double and decimal",
    "at > plain": "without a cast",
    "at > day": "without a cast",
    "day > '2024-01-01'": "without a cast",
    "at > timestamp '2024-01-01'": "no time zone",
    "plain > timestamp_ntz '2024-01-01Z'": "has a time zone",
    "day = date 'soon'": "cannot be read",
    "at > timestamp '2024-01-01 12:00 Mars/Olympus'": "no time zone 'Mars/Olympus'",
    "at > timestamp '2024-01-01 12:00 ../etc/passwd'": "cannot be read|no time zone",
    "plain > timestamp_ntz '2024-01-01 Europe/Zurich'": "has a time zone",
    "n + 1": "not true or false",
    "name": "not true or false",
    "n and true": "'and' of int32",
    "not n": "'not' of int32",
    "name + 1 = 2": "with string",
    "huge + 1 = 2": "with uint64",
    "amount * amount > 1": "77 digits",
    "isnan(n)": "isnan of int32",
    "length(n) = 1": "length of int32",
    "abs(name) = 1": "'abs' of string",
    "tags = tags": "list",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_spark_may_answer_otherwise_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=REFUSED[text]):
        condition_of(text).bind(COLUMNS)


def pairs(**values: Any) -> pa.RecordBatch:
    arrays, names = [], []
    for name, value in values.items():
        schema, known = (MASTER, name[2:]) if name.startswith("m_") else (STREAM, name)
        arrays.append(pa.array([value], schema.field(known).type))
        names.append(known if schema is MASTER else PREFIX + known)
    return pa.record_batch(arrays, names=names)


NOON = dt.datetime(2024, 1, 1, 12)
NOON_UTC = NOON.replace(tzinfo=dt.UTC)
CASES: list[tuple[str, dict[str, Any], bool]] = [
    ("stream.both < master.both", {"both": 1, "m_both": 2}, True),
    ("stream.both < master.both", {"both": 2, "m_both": 1}, False),
    ("id = 5", {"id": 5}, True),
    ("master.id = 5", {"m_id": 5}, True),
    ("ID = 5 and N = 1", {"id": 5, "n": 1}, True),
    ("n = m", {"n": 3, "m_m": 3}, True),
    ("huge > 9223372036854775807", {"m_huge": 2**63}, True),
    ("huge = n", {"m_huge": 1, "n": 1}, True),
    ("price = 1.50", {"m_price": Decimal("1.5")}, True),
    ("n * 1.5 = 4.5", {"n": 3}, True),
    ("x = 0.1", {"x": 0.1}, True),
    ("plain < timestamp_ntz '2024-01-01 12:00:00.000001'", {"plain": NOON}, True),
    ("at = timestamp '2024-01-01 13:00:00+01:00'", {"at": NOON_UTC}, True),
    ("at = timestamp '2024-01-01 13:00:00 Europe/Zurich'", {"at": NOON_UTC}, True),
    ("at = timestamp '2024-01-01T07:00:00America/New_York'", {"at": NOON_UTC}, True),
    ("at = timestamp '2024-01-01 15:00 UTC+03:00'", {"at": NOON_UTC}, True),
    ("at = timestamp '2024-01-01 12:00:00 utc'", {"at": NOON_UTC}, True),
    ("n > -1 and n > -1.5", {"n": 0}, True),
    ("x = -0.1", {"x": -0.1}, True),
    ("1 = 1", {"n": 1}, True),
    ("null", {"n": 1}, False),
    ("n = null or true", {"n": 1}, True),
]


@pytest.mark.parametrize(("text", "values", "passes"), CASES)
def test_conditions_on_one_pair(text: str, values: dict[str, Any], passes: bool) -> None:
    condition = pickle.loads(pickle.dumps(condition_of(text)))
    assert condition == condition_of(text)
    assert bool(condition.bind(COLUMNS).passing(pairs(**values)).num_rows) == passes


@pytest.mark.parametrize("count", [3, 5_000])
def test_long_lists_and_chains(count: int) -> None:
    numbers = ", ".join(map(str, range(count)))
    chain = " and ".join(f"n <> {i}" for i in range(count))
    for text, passes in (
        (f"n in ({numbers})", [True, False]),
        (f"n not in ({numbers})", [False, True]),
        (chain, [False, True]),
    ):
        bound = condition_of(text).bind(COLUMNS)
        found = [bool(bound.passing(pairs(n=n)).num_rows) for n in (count - 1, count)]
        assert found == passes


def test_what_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(OptionError, match="nested too deeply"):
        condition_of("(" * 3_000 + "n = 1" + ")" * 3_000)


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize(
    "terms", [{"how": "semi"}, {"how": "anti"}, {"where": "n > 0"}, {"preserve_order": True}]
)
def test_none_in_a_stream_is_an_error(tmp_path: Path, at: int, terms: dict[str, Any]) -> None:
    master = ss.MasterTable.from_arrow(pa.table({"id": [1]}), tmp_path / "r", key="id")
    engine = ss.engine(master, on="id", memory="1MB", **terms)
    stream: list[Any] = [pa.record_batch({"id": [1], "n": [1]})] * 2
    stream.insert(at, None)
    with pytest.raises(StreamSchemaError, match="The stream gave a NoneType"):
        list(engine.run(stream))


def test_an_overflow_is_an_error() -> None:
    bound = condition_of("n + 1 > 0").bind(COLUMNS)
    with pytest.raises(OptionError, match="overflow"):
        bound.passing(pairs(n=2**31 - 1))


def test_an_expression_needs_only_its_own_columns() -> None:
    given = (pc.field("n") > 1) & pc.field("price").is_valid()
    condition = pickle.loads(pickle.dumps(condition_of(given)))
    assert condition == condition_of(given)
    bound = condition.bind(COLUMNS)
    assert sorted(place.name for place in bound.places) == ["n", "price"]
    assert bound.passing(pairs(n=2, m_price=Decimal(1))).num_rows == 1
    assert bound.passing(pairs(n=2, m_price=None)).num_rows == 0


@pytest.mark.parametrize(
    "given", [pc.field("nothing") > 1, pc.field("n"), pc.field("name") > 1, pc.field("both") > 1, 5]
)
def test_expressions_that_cannot_be_evaluated_are_refused(given: Any) -> None:
    with pytest.raises(OptionError):
        condition_of(given).bind(COLUMNS)


JOIN = """
import json, pickle, sys
import pyarrow as pa
import semistream as ss
terms = pickle.loads(bytes.fromhex(sys.argv[2]))
from semistream.api import _pair_engine
from semistream.matching.engine import MatchingEngine
import time
master = ss.MasterTable.open(sys.argv[1])
def make(algorithm, on, columns, memory):
    return _pair_engine(master, on, memory, "inner", algorithm, columns, "buffered", False, None,
                        time.perf_counter, {})
engine = MatchingEngine(master, terms, make, algorithm="chybridjoin", on="id", memory=1 << 20,
                        columns=None)
with pa.ipc.open_file(sys.argv[3]) as file:
    batch = file.get_batch(0)
rows = sum(found.num_rows for found in engine.run([batch]))
print(json.dumps({"rows": rows, "modules": list(sys.modules)}))
"""


def test_a_worker_needs_neither_the_parser_nor_pandas(tmp_path: Path) -> None:
    from semistream.matching.terms import Terms

    rows = pa.table({"id": pa.array(range(10)), "least": pa.array(range(10))})
    ss.MasterTable.from_arrow(rows, tmp_path / "m", key="id")
    stream = pa.table({"id": pa.array(range(20)), "n": pa.array([5] * 20, pa.int32())})
    with pa.ipc.new_file(str(tmp_path / "s.arrow"), stream.schema) as file:
        file.write(stream)
    for given, expected in (
        (Terms.of("left", "n >= least and id <> 2", preserve_order=True), 20),
        (Terms.of("inner", "n >= least"), 6),
        (Terms.of("anti", as_of=("n", "least"), tolerance=3), 16),
    ):
        arguments = [str(tmp_path / "m"), pickle.dumps(given).hex(), str(tmp_path / "s.arrow")]
        done = subprocess.run(
            [sys.executable, "-c", JOIN, *arguments],
            stdout=subprocess.PIPE,
            check=True,
            text=True,
            env=os.environ,
        )
        found = json.loads(done.stdout)
        assert found["rows"] == expected
        assert not {"sqlglot", "pandas", "pyspark"} & set(found["modules"]), given
