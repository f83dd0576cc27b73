"""Joins on terms against an oracle in plain Python: every algorithm, random terms and data.

The oracle knows Python's comparisons only: it shares nothing with the layer that it judges. Kinds
of join, conditions, history, order and budgets are drawn at random; `--seed` draws others.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import semistream as ss
from semistream.errors import BudgetError, HistoryError
from semistream.testing import ManualClock, assert_same_rows, checked_run, rows_of

_LEAST = re.compile(r"the least is ([\d,]+) bytes")
START = dt.datetime(2024, 1, 1)
Row = tuple[Any, ...]


class Pair(NamedTuple):
    """A stream tuple and a master row, by the names of their columns."""

    sale: int
    id: int | None
    quantity: int | None
    at: dt.datetime | None
    note: str
    row: int
    least: int | None
    begins: dt.datetime | None
    ends: dt.datetime | None
    text: str | None


def _enough(pair: Pair) -> bool:
    if pair.quantity is None or pair.least is None:
        return False
    return pair.quantity >= pair.least


def _other(pair: Pair) -> bool:
    return pair.text is None or (pair.quantity is not None and pair.quantity == 3)


CONDITIONS: list[tuple[Any, Callable[[Pair], bool]]] = [
    (None, lambda pair: True),
    ("quantity >= least", _enough),
    (pc.field("quantity") >= pc.field("least"), _enough),
    ("text is null or quantity = 3", _other),
    ("1 = 0", lambda pair: False),
]


def _is_valid(pair: Pair) -> bool:
    if pair.at is None or pair.begins is None:
        return False
    return pair.begins <= pair.at and (pair.ends is None or pair.at < pair.ends)


def _has_begun(pair: Pair, tolerance: dt.timedelta | None) -> bool:
    if pair.at is None or pair.begins is None or pair.begins > pair.at:
        return False
    return tolerance is None or pair.at - pair.begins <= tolerance


class Data:
    """A master with a history, and a stream of events, some at the very bounds."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        keys = int(rng.integers(1, 50))
        rows: list[tuple[int, int | None, int | None]] = []
        for key in range(keys):
            at = int(rng.integers(0, 5))
            for _ in range(int(rng.integers(1, 5))):
                # Touching and open intervals, gaps, rows that are never valid.
                length = int(rng.integers(0, 4))
                ends = None if rng.random() < 0.2 else at + length
                rows.append((key, at, ends))
                at += max(length, 1) + int(rng.integers(0, 2))
                if ends is None:
                    break
            if rng.random() < 0.1:
                rows.append((key, None, None))
        order = rng.permutation(len(rows))
        rows = [rows[i] for i in order]
        count = len(rows)
        self.master = pa.table(
            {
                "id": pa.array([key for key, _, _ in rows], pa.int64()),
                "row": pa.array(np.arange(count)),
                "least": pa.array(self._some(count, 6), pa.int64()),
                "begins": pa.array([_time(at) for _, at, _ in rows], pa.timestamp("ms")),
                "ends": pa.array([_time(end) for _, _, end in rows], pa.timestamp("ms")),
                "text": pa.array([None if i % 5 == 0 else "m" * (i % 40) for i in range(count)]),
            }
        )
        tuples = int(rng.integers(1, 300))
        hot = rng.random(tuples) < 0.3
        ids = np.where(hot, 0, rng.integers(0, keys + 10, tuples))
        self.stream = pa.table(
            {
                "sale": pa.array(np.arange(tuples)),
                "id": pa.array([None if i % 13 == 5 else int(k) for i, k in enumerate(ids)]),
                "quantity": pa.array(self._some(tuples, 6), pa.int32()),
                "at": pa.array([_time(t) for t in self._some(tuples, 16)], pa.timestamp("us")),
                "note": pa.array(["s" * int(n) for n in rng.integers(0, 30, tuples)]),
            }
        )

    def _some(self, count: int, most: int) -> list[int | None]:
        numbers = self.rng.integers(0, most + 1, count)
        return [None if n == most else int(n) for n in numbers]

    def batches(self) -> list[pa.RecordBatch]:
        """The stream, in batches, some of them empty."""
        size = int(self.rng.choice([1, 7, 64, 1000]))
        found = list(self.stream.combine_chunks().to_batches(max_chunksize=size))
        if len(found) > 2:
            found.insert(1, found[0].slice(0, 0))
        return found

    def pairs(self) -> Iterator[tuple[Row, list[Pair]]]:
        """Each tuple with its pairs of equal keys."""
        rows: dict[int, list[Row]] = {}
        for row in rows_of(self.master):
            rows.setdefault(row[0], []).append(row[1:])
        for tup in rows_of(self.stream):
            found = [] if tup[1] is None else rows.get(tup[1], [])
            yield tup, [Pair(*tup, *row) for row in found]


def _time(at: int | None) -> dt.datetime | None:
    return None if at is None else START + dt.timedelta(hours=at)


def expected(
    data: Data,
    how: str,
    passes: Callable[[Pair], bool],
    history: str,
    tolerance: dt.timedelta | None,
) -> tuple[list[list[Row]], int]:
    """The result rows of each tuple, in stream order, and how many tuples are joined."""
    found, joined = [], 0
    for tup, pairs in data.pairs():
        if history == "valid":
            pairs = [pair for pair in pairs if _is_valid(pair)]
            assert len(pairs) < 2
        elif history == "as_of":
            begun = [pair for pair in pairs if _has_begun(pair, tolerance)]
            pairs = [max(begun, key=lambda pair: pair.begins or START)] if begun else []
        pairs = [pair for pair in pairs if passes(pair)]
        joined += bool(pairs)
        nothing = (None,) * 5
        if how in ("inner", "left"):
            rows = [(*tup, *pair[5:]) for pair in pairs]
            found.append(rows or ([(*tup, *nothing)] if how == "left" else []))
        else:
            found.append([tup] if bool(pairs) == (how == "semi") else [])
    return found, joined


@pytest.mark.parametrize("number", range(36))
@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
def test_every_algorithm_gives_what_the_oracle_gives(
    number: int, how: str, seed: int, tmp_path: Path
) -> None:
    data, rng = Data(seed), np.random.default_rng(seed + 1)
    where, passes = CONDITIONS[int(rng.integers(0, len(CONDITIONS)))]
    history = str(rng.choice(["", "valid", "as_of"]))
    tolerance = dt.timedelta(hours=2) if history == "as_of" and rng.random() < 0.5 else None
    ordered = bool(rng.random() < 0.5)
    terms: dict[str, Any] = {"how": how, "where": where, "preserve_order": ordered}
    if history == "valid":
        terms["valid"] = ("at", "begins", "ends")
    elif history == "as_of":
        terms |= {"as_of": ("at", "begins"), "tolerance": tolerance}
    if not ordered and where is None and not history and how in ("inner", "left"):
        terms["preserve_order"] = ordered = True
    checked = history == "valid" and rng.random() < 0.5
    master = ss.MasterTable.from_arrow(
        data.master,
        tmp_path / "m.master",
        key="id",
        page_bytes=4096,
        layout=str(rng.choice(["key", "given"])),
        valid=("begins", "ends") if checked else None,
    )
    rows, joined = expected(data, how, passes, history, tolerance)
    stream, budget = data.batches(), str(rng.choice(["least", "twice", "4MB"]))
    algorithms = ss.ALGORITHMS if number % 4 == 0 else rng.choice(ss.ALGORITHMS, 2).tolist()
    for algorithm in algorithms:
        engine = _engine(master, stream, budget, algorithm, terms)
        try:
            found = checked_run(engine, stream)
            assert_same_rows(found, [row for some in rows for row in some])
            metrics = engine.metrics()
            tuples = data.stream.num_rows
            assert (metrics.arrived, metrics.joined) == (tuples, joined)
            if ordered:
                _check_order(rows_of(found), rows)
        except Exception as error:
            error.add_note(f"{algorithm}, {budget}, {terms}")
            raise


def _engine(
    master: ss.MasterTable,
    stream: list[pa.RecordBatch],
    budget: str,
    algorithm: str,
    terms: dict[str, Any],
) -> ss.Engine:
    def made(memory: int | str) -> ss.Engine:
        return ss.engine(
            master, on="id", algorithm=algorithm, memory=memory, clock=ManualClock(), **terms
        )

    if budget == "4MB":
        return made(budget)
    with pytest.raises(BudgetError, match=_LEAST) as caught:
        list(made(1).run(stream))
    found = _LEAST.search(str(caught.value))
    assert found is not None
    return made(int(found[1].replace(",", "")) * (2 if budget == "twice" else 1))


def _check_order(found: list[Row], rows: list[list[Row]]) -> None:
    """Tuples come as in the stream; rows of one tuple come in any order."""
    at = 0
    for wanted in rows:
        some = found[at : at + len(wanted)]
        assert sorted(map(repr, some)) == sorted(map(repr, wanted))
        at += len(wanted)
    assert at == len(found)


@pytest.mark.parametrize("how", ["inner", "left", "semi"])
def test_overlapping_rows_are_found_in_the_join(how: str, tmp_path: Path) -> None:
    rows = pa.table(
        {
            "id": [1, 1, 2],
            "begins": pa.array([0, 5, 0]),
            "ends": pa.array([6, 9, None], pa.int64()),
        }
    )
    master = ss.MasterTable.from_arrow(rows, tmp_path / "m", key="id")
    stream = pa.record_batch({"id": [2, 1, 1], "at": [5, 4, 6]})
    terms: dict[str, Any] = {"on": "id", "memory": "1MB", "how": how}
    engine = ss.engine(master, **terms, valid=("at", "begins", "ends"))
    assert sum(batch.num_rows for batch in engine.run([stream])) == 3
    bad = pa.record_batch({"id": [2, 1], "at": [5, 5]})
    with pytest.raises(HistoryError, match=r"for the key id=1, more than one row .* at=5"):
        list(engine.run([bad]))
    with pytest.raises(HistoryError, match="for the key id=1, more than one row"):
        ss.MasterTable.from_arrow(rows, tmp_path / "n", key="id", valid=("begins", "ends"))


def test_two_rows_that_are_both_the_latest_are_an_error(tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 1, 1, 2], "begins": [0, 5, 5, 5]})
    master = ss.MasterTable.from_arrow(rows, tmp_path / "m", key="id")
    terms: dict[str, Any] = {"on": "id", "memory": "1MB", "as_of": ("at", "begins")}
    engine = ss.engine(master, **terms)
    fine = pa.record_batch({"id": [1, 2], "at": [4, 9]})
    assert sum(batch.num_rows for batch in engine.run([fine])) == 2
    with pytest.raises(HistoryError, match=r"for the key id=1, .* the same begins, .* at=7"):
        list(engine.run([pa.record_batch({"id": [2, 1], "at": [7, 7]})]))
