"""Stars against a chain of oracle joins, on look-ups drawn from seeds.

Each draw has two to four masters of different key types, row counts and duplicates, any mix of
inner, left, semi and anti, stream order or any, nulls and absent keys in the stream, any algorithm,
and a budget from the least that works up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.errors import BudgetError
from semistream.testing import assert_same_rows, oracle_join, rows_of

DRAWS = 24
_LEAST = re.compile(r"the least is ([\d,]+) bytes")
ALGORITHMS = ("auto", "auto", "auto", "hybridjoin", "meshjoin", "inlj", "chybridjoin", "cinlj")


@dataclass
class Terms:
    """One look-up of a draw."""

    table: pa.Table
    terms: dict[str, Any]


class RandomStar:
    """Masters and a stream, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        count = int(self.rng.integers(2, 5))
        many = int(self.rng.integers(2 * count))  # A key of this one has many rows.
        self.lookups = [self._lookup(i, i == many) for i in range(count)]
        self.stream = self._stream()
        self.budget = float(self.rng.choice([1.0, 1.3, 3.0, 40.0]))
        self.ordered = bool(self.rng.random() < 0.5)

    def _key(self, number: int, kind: int) -> Any:
        return number if kind == 0 else f"k{number:0{1 + number % 7}d}"

    def _lookup(self, i: int, has_many: bool) -> Terms:
        rng = self.rng
        kind, keys = int(rng.integers(2)), int(rng.integers(1, 400))
        times = rng.integers(1, 1 + (40 if has_many else int(rng.choice([1, 1, 2]))), keys)
        numbers = np.repeat(np.arange(keys), times)[:3000]
        columns = {
            f"id{i}": [self._key(int(n), kind) for n in rng.permutation(numbers)],
            f"row{i}": np.arange(len(numbers)),
            f"text{i}": ["m" * int(n) if n else None for n in rng.integers(0, 40, len(numbers))],
        }
        how = str(rng.choice(["inner", "left", "inner", "left", "semi", "anti"]))
        terms = {
            "on": {f"key{i}": f"id{i}"},
            "how": how,
            "algorithm": str(rng.choice(ALGORITHMS)),
            "io": str(rng.choice(["buffered", "unmapped"])),
            "columns": [None, [f"row{i}"], []][int(rng.choice([0, 0, 1, 2]))],
        }
        if how in ("semi", "anti"):
            terms["columns"] = None
        return Terms(pa.table(columns), terms)

    def _stream(self) -> list[pa.RecordBatch]:
        rng = self.rng
        count, size = int(rng.choice([1, 40, 300])), int(rng.choice([1, 17, 1000]))
        columns: dict[str, Any] = {"sale": np.arange(count)}
        for i, one in enumerate(self.lookups):
            ids = one.table.column(0).to_pylist()
            absent = [self._key(5000 + n, int(isinstance(ids[0], str))) for n in range(20)]
            drawn = rng.zipf(1.4, count) % len(ids)
            picked = [absent[n % 20] if n % 11 == 3 else ids[n] for n in drawn.tolist()]
            nulls = rng.random(count) < 0.03
            values = [None if gone else key for key, gone in zip(picked, nulls, strict=True)]
            columns[f"key{i}"] = pa.array(values, one.table.schema.field(0).type)
        columns["note"] = ["s" * int(n) for n in rng.integers(0, 30, count)]
        return list(pa.table(columns).combine_chunks().to_batches(max_chunksize=size))

    def opened(self, folder: Path) -> list[ss.Lookup]:
        """The look-ups, with their masters built."""
        found = []
        for i, one in enumerate(self.lookups):
            master = ss.MasterTable.from_arrow(
                one.table, folder / f"m{i}.master", key=f"id{i}", page_bytes=4096
            )
            found.append(ss.Lookup(master, **one.terms))
        return found

    def expected(self) -> tuple[list[Any], int]:
        """The rows of a chain of joins, and how many tuples every master has a row for."""
        table, whole = pa.Table.from_batches(self.stream), pa.Table.from_batches(self.stream)
        for one in self.lookups:
            if one.terms["how"] in ("semi", "anti"):
                table, whole = _filtered(table, one), _filtered(whole, one)
                continue
            terms = {name: one.terms[name] for name in ("on", "columns")}
            table = _chained(table, one, terms | {"how": one.terms["how"]})
            whole = _chained(whole, one, terms | {"how": "inner"})
        return rows_of(table), len(set(whole.column("sale").to_pylist()))


def _filtered(table: pa.Table, one: Terms) -> pa.Table:
    """The tuples that stay after a look-up that adds no columns."""
    known, (name,) = set(one.table.column(0).to_pylist()), one.terms["on"]
    has_row = [key in known for key in table.column(name).to_pylist()]
    wanted = one.terms["how"] == "semi"
    return table.filter(pa.array([found == wanted for found in has_row], pa.bool_()))


def _chained(table: pa.Table, one: Terms, terms: dict[str, Any]) -> pa.Table:
    """The oracle's rows as a table for the next join."""
    rows = oracle_join(table, one.table, **terms).rows
    names = list(one.table.column_names[1:])
    names = names if terms["columns"] is None else terms["columns"]
    schema = pa.schema([*table.schema, *(one.table.schema.field(name) for name in names)])
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema)


def _least(lookups: list[ss.Lookup], stream: list[pa.RecordBatch]) -> int:
    with pytest.raises(BudgetError, match=_LEAST) as caught:
        list(ss.star_engine(lookups, memory=1).run(stream))
    found = _LEAST.search(str(caught.value))
    assert found is not None
    return int(found[1].replace(",", ""))


@pytest.mark.parametrize("number", range(DRAWS))
def test_a_star_gives_what_a_chain_gives(
    number: int, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    star = RandomStar(1000 * int(pytestconfig.getoption("seed")) + number)
    lookups = star.opened(tmp_path)
    memory = int(_least(lookups, star.stream) * star.budget)
    rows, joined = star.expected()
    with ss.star_engine(lookups, memory=memory, preserve_order=star.ordered) as engine:
        for _ in range(2):  # The second time engines are warm.
            found = list(engine.run(star.stream))
            for batch in found:
                batch.validate(full=True)
                assert batch.schema.equals(found[0].schema)
            assert_same_rows(rows_of(found), rows)
            if star.ordered:
                sales = [row[0] for row in rows_of(found)]
                assert sales == sorted(sales)
            metrics = engine.metrics()
            count = sum(batch.num_rows for batch in star.stream)
            assert (metrics.arrived, metrics.joined) == (count, joined)
            assert metrics.unmatched == count - joined
            assert metrics.outputs == len(rows)
            for run in metrics.lookups.values():
                assert run.arrived == run.joined + run.unmatched
            held = engine.memory()
            assert held["peak"] <= held["budget"] == memory
