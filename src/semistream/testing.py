"""Checking a join: an oracle to compare with, row comparison, a clock moved by hand.

For semistream's own tests and for those of its users. The oracle is a second implementation of the
join, with plain Python dicts. It shares no code with the engine or with Arrow's join, so a bug
there does not repeat here.

    expected = oracle_join(batches, products, on="product_id", how="left")
    found = checked_run(engine, batches)
    assert_same_rows(found, expected.rows)
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias
from unittest import mock

import pyarrow as pa

from semistream.algorithms import Engine
from semistream.relation import Frame, PageReader

__all__ = [
    "Joined",
    "ManualClock",
    "PageReads",
    "assert_same_rows",
    "checked_run",
    "oracle_join",
    "row_difference",
    "rows_of",
]

Row: TypeAlias = tuple[Any, ...]
"""The values of one row, as Python objects."""
ArrowRows: TypeAlias = "pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch]"
"""Rows in Arrow memory."""

_NAN = ("not a number",)


def rows_of(data: ArrowRows) -> list[Row]:
    """The rows as tuples of Python values, in order; dictionaries and views are decoded.

    >>> rows_of(pa.table({"id": [1, 2], "name": ["a", None]}))
    [(1, 'a'), (2, None)]
    """
    rows: list[Row] = []
    for batch in [data] if isinstance(data, (pa.Table, pa.RecordBatch)) else data:
        columns = [column.to_pylist() for column in batch.columns]
        rows.extend(zip(*columns, strict=True) if columns else [()] * batch.num_rows)
    return rows


class Joined(NamedTuple):
    """The expected result of a join: its rows in any order, and counts of stream tuples."""

    rows: list[Row]
    joined: int
    """Stream tuples with at least one master row."""
    unmatched: int
    """Stream tuples without a master row, including those with a null in the key."""


def oracle_join(
    stream: ArrowRows,
    master: pa.Table,
    *,
    on: str | Sequence[str] | Mapping[str, str],
    how: str = "inner",
    columns: Sequence[str] | None = None,
) -> Joined:
    """Join in plain Python: every pair with equal keys once; a null key equals nothing.

    The arguments are those of `semistream.engine`; `master` has the rows of the master table.
    Result columns are the stream's, then the master's without its key (or `columns`). Keys are
    compared as Python values, so integers of different widths, or timestamps of different
    units, are equal when they mean the same.

    >>> sales = pa.table({"id": [2, 9], "quantity": [10, 20]})
    >>> oracle_join(sales, pa.table({"id": [1, 2], "name": ["a", "b"]}), on="id", how="left")
    Joined(rows=[(2, 10, 'b'), (9, 20, None)], joined=1, unmatched=1)
    """
    pairs = _key_pairs(on)
    names = [name for name in master.column_names if name not in pairs.values()]
    chosen = names if columns is None else list(columns)
    payload = _payload_by_key(master, list(pairs.values()), chosen)
    rows: list[Row] = []
    joined = unmatched = 0
    for batch in [stream] if isinstance(stream, (pa.Table, pa.RecordBatch)) else stream:
        keys = rows_of(batch.select(list(pairs)))
        for key, row in zip(keys, rows_of(batch), strict=True):
            matches = () if None in key else payload.get(key, ())
            joined, unmatched = joined + bool(matches), unmatched + (not matches)
            rows.extend(row + match for match in matches)
            if not matches and how == "left":
                rows.append(row + (None,) * len(chosen))
    return Joined(rows, joined, unmatched)


def _key_pairs(on: str | Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """Stream column → master column."""
    if isinstance(on, str):
        return {on: on}
    return dict(on) if isinstance(on, Mapping) else {name: name for name in on}


def _payload_by_key(
    master: pa.Table, key: list[str], payload: list[str]
) -> dict[Row, Sequence[Row]]:
    found: defaultdict[Row, list[Row]] = defaultdict(list)
    keys, rows = rows_of(master.select(key)), rows_of(master.select(payload))
    for values, row in zip(keys, rows, strict=True):
        if None not in values:
            found[values].append(row)
    return dict(found)


def assert_same_rows(actual: ArrowRows | list[Row], expected: ArrowRows | list[Row]) -> None:
    """Assert that both have the same rows, each equally often, in any order.

    Here NaN equals NaN and null equals null, because results are compared, not keys.
    """
    difference = row_difference(actual, expected)
    if difference:
        raise AssertionError(difference)


def row_difference(
    actual: ArrowRows | list[Row], expected: ArrowRows | list[Row], limit: int = 5
) -> str:
    """How two multisets of rows differ, for people to read; empty if they are equal.

    >>> print(row_difference([(1, "a"), (1, "a")], [(1, "a"), (2, "b")]))
    The rows differ: 2 found, 2 expected.
    1 missing:
      (2, 'b')
    1 too many:
      (1, 'a')
    """
    found, wanted = _plain_rows(actual), _plain_rows(expected)
    if _equal_as_they_are(found, wanted):
        return ""
    names: dict[Any, Row] = {_frozen(row): row for row in (*wanted, *found)}
    have, want = Counter(map(_frozen, found)), Counter(map(_frozen, wanted))
    if have == want:
        return ""
    lines = [f"The rows differ: {len(found)} found, {len(wanted)} expected."]
    for title, some in (("missing", want - have), ("too many", have - want)):
        lines += _listed(title, some, names, limit)
    return "\n".join(lines)


def _listed(title: str, some: Counter[Any], names: Mapping[Any, Row], limit: int) -> list[str]:
    if not some:
        return []
    lines = [f"{some.total()} {title}:"]
    for key, count in some.most_common(limit):
        lines.append(f"  {names[key]!r}" + (f"  × {count}" if count > 1 else ""))
    return lines + (["  …"] if len(some) > limit else [])


def _plain_rows(rows: ArrowRows | list[Row]) -> list[Row]:
    if isinstance(rows, list) and not (rows and isinstance(rows[0], pa.RecordBatch)):
        return rows
    return rows_of(rows)


def _equal_as_they_are(found: list[Row], wanted: list[Row]) -> bool:
    """Whether the rows are equal as they are; a quick check that works if nothing is nested."""
    try:
        return Counter(found) == Counter(wanted)
    except TypeError:
        return False


def _frozen(value: Any) -> Any:
    """The value as something hashable, in which NaN equals NaN."""
    if isinstance(value, dict):
        return ("struct", *((name, _frozen(item)) for name, item in value.items()))
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(item) for item in value)
    return _NAN if isinstance(value, float) and math.isnan(value) else value


def checked_run(
    engine: Engine, stream: pa.Table | Iterable[pa.RecordBatch]
) -> list[pa.RecordBatch]:
    """Run a join to its end and check what must hold for every run.

    That is: the engine's own invariants after each result batch, one schema for all batches, the
    budget, and that every stream tuple that arrived was joined, unmatched or left out, once.
    """
    found: list[pa.RecordBatch] = []
    for batch in engine.run(stream):
        engine.check()
        batch.validate(full=True)
        assert not found or batch.schema.equals(found[0].schema)
        found.append(batch)
    engine.check()
    metrics = engine.metrics()
    assert metrics.arrived == metrics.joined + metrics.unmatched + metrics.left_out, metrics
    assert metrics.outputs == sum(batch.num_rows for batch in found), metrics
    assert metrics.peak_memory <= metrics.budget, metrics
    return found


class ManualClock:
    """A clock that moves only when told to, for the argument `clock=` of an engine.

    With `tick`, each reading moves it forward by that many seconds.

    >>> clock = ManualClock()
    >>> clock.advance(2.5)
    >>> clock(), clock()
    (2.5, 2.5)
    """

    def __init__(self, now: float = 0.0, tick: float = 0.0) -> None:
        """At `now` seconds."""
        self.now = now
        self.tick = tick

    def __call__(self) -> float:
        """The time now."""
        now = self.now
        self.now += self.tick
        return now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        if seconds < 0:
            raise ValueError(f"A clock never runs backwards, but was told to by {seconds} s.")
        self.now += seconds

    def advance_to(self, seconds: float) -> None:
        """Move the clock to this time, or leave it if it is later already."""
        self.now = max(self.now, seconds)


class PageReads:
    """Records, while it is open, which pages of master tables are read, in order.

        with PageReads() as reads:
            list(engine.run(batches))
        reads.pages          # [0, 1, 0, 1]
        reads.partitions     # [(0, 1), (0, 1)], one item per read

    A page that is read ahead counts when its read begins. Locator pages are in `index_pages`.
    """

    def __init__(self) -> None:
        """Nothing is recorded yet."""
        self.partitions: list[tuple[int, ...]] = []
        self.index_pages: list[int] = []
        self._patch: Any = None

    @property
    def pages(self) -> list[int]:
        """The pages of R in the order in which they were read."""
        return [page for partition in self.partitions for page in partition]

    def __enter__(self) -> PageReads:
        original = PageReader.fetch

        def fetch(reader: PageReader, first: int, count: int, frame: Frame) -> None:
            pages = tuple(range(first, first + count))
            if ".locator." in reader.path.name:
                self.index_pages.extend(pages)
            else:
                self.partitions.append(pages)
            original(reader, first, count, frame)

        several = PageReader.stretches

        def stretches(reader: PageReader, firsts: Any, stops: Any, numbers: Any) -> Any:
            runs = zip(firsts.tolist(), stops.tolist(), strict=True)
            self.partitions.extend(tuple(range(first, stop)) for first, stop in runs)
            return several(reader, firsts, stops, numbers)

        noted = PageReader.note

        def note(reader: PageReader, firsts: Any, stops: Any) -> None:
            runs = zip(firsts.tolist(), stops.tolist(), strict=True)
            self.partitions.extend(tuple(range(first, stop)) for first, stop in runs)
            noted(reader, firsts, stops)

        self._patch = mock.patch.multiple(PageReader, fetch=fetch, stretches=stretches, note=note)
        self._patch.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._patch.stop()
