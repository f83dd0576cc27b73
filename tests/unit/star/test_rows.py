"""Rows of a round: numbers that meet, in whatever order and number look-ups find them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from semistream.star.rows import Chunks, Rows, matched_tuples
from semistream.testing import rows_of

STREAM = [pa.record_batch({"n": [0, 1, 2]}), pa.record_batch({"n": [3, 4]})]
SCHEMA = pa.schema([("n", pa.int64()), ("a", pa.string()), ("b", pa.int64())])


def found(values: list[Any], kind: pa.DataType) -> Chunks:
    """Found rows in pieces of two."""
    array = pa.array(values, kind)
    pieces = [array.slice(i, 2) for i in range(0, len(array), 2)]
    return Chunks([pa.record_batch([piece], ["x"]) for piece in pieces], 0, [kind])


def numbers(*values: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(values, np.int32)


def absent(*values: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.isin(np.arange(5), values)


def test_rows_in_order_are_not_copied() -> None:
    column = pa.array(list("abcde"))
    batch = pa.record_batch([column], ["x"])
    rows = Rows.of(STREAM).with_found(
        Chunks([batch], 0, [pa.string()]), numbers(0, 1, 2, 3, 4), None
    )
    results = list(rows.results(SCHEMA.remove(2), [0], 100))
    assert rows_of(results) == [(0, "a"), (1, "b"), (2, "c"), (3, "d"), (4, "e")]
    assert [r.num_rows for r in results] == [3, 2]
    values = column.buffers()[2].address
    assert all(r.column("a").buffers()[2].address == values for r in results)
    assert results[0].column("n").buffers()[1].address == STREAM[0].column(0).buffers()[1].address


@pytest.mark.parametrize("most", [1, 2, 100])
def test_out_of_order_repeated_dropped_and_absent(most: int) -> None:
    rows = Rows.of(STREAM)
    # Inner: tuple 1 has no row, tuple 3 has two; they come in no order.
    rows = rows.with_found(
        found(["d", "a", "e", "D", "c"], pa.string()), numbers(3, 0, 4, 3, 2), None
    )
    assert rows.tuples is not None
    assert rows.tuples.tolist() == [0, 2, 3, 3, 4]
    # Left, by row numbers: rows 0 and 4 have none, row 1 has two.
    rows = rows.with_found(
        found([30, 31, 20, 21], pa.int64()), numbers(2, 3, 1, 1), np.isin(np.arange(5), [0, 4])
    )
    expected = [
        (0, "a", None),
        (2, "c", 20),
        (2, "c", 21),
        (3, "d", 30),
        (3, "D", 31),
        (4, "e", None),
    ]
    assert rows_of(rows.results(SCHEMA, [0, 1], most)) == expected
    assert sorted(set(matched_tuples(rows).tolist())) == [2, 3]  # type: ignore[union-attr]
    swapped = pa.schema([SCHEMA.field(0), SCHEMA.field(2), SCHEMA.field(1)])
    assert rows_of(rows.results(swapped, [1, 0], most)) == [(n, b, a) for n, a, b in expected]


def test_nothing_found_is_all_nulls_or_no_rows() -> None:
    none = numbers()
    kept = Rows.of(STREAM).with_found(found([], pa.string()), none, absent(0, 1, 2, 3, 4))
    schema = SCHEMA.remove(2)
    assert rows_of(kept.results(schema, [0], 9)) == [(n, None) for n in range(5)]
    assert len(matched_tuples(kept)) == 0  # type: ignore[arg-type]
    dropped = Rows.of(STREAM).with_found(found([], pa.string()), none, None)
    assert len(dropped) == 0
    assert list(dropped.results(schema, [0], 9)) == []


def test_keys_are_those_of_the_rows() -> None:
    rows = Rows.of(STREAM).with_found(found([1, 4, 4], pa.int64()), numbers(1, 4, 4), None)
    batches = list(rows.keys({"n": "key"}, "number"))
    assert [batch.to_pydict() for batch in batches] == [
        {"number": [0], "key": [1]},
        {"number": [1, 2], "key": [4, 4]},
    ]
