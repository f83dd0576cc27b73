"""Row sizes against what Arrow says of the rows themselves."""

from __future__ import annotations

import math
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semistream.row_bytes import PACKED_FLAG, row_bytes, widest_row

COUNT = 60
COLUMNS: dict[str, pa.Array] = {
    "int8": pa.array(range(COUNT), pa.int8()),
    "int64 with nulls": pa.array([None if i % 3 else i for i in range(COUNT)], pa.int64()),
    "bool": pa.array([i % 2 == 0 for i in range(COUNT)]),
    "decimal": pa.array([Decimal(i) for i in range(COUNT)], pa.decimal128(20, 2)),
    "fixed binary": pa.array([bytes([i] * 5) for i in range(COUNT)], pa.binary(5)),
    "null": pa.nulls(COUNT),
    "string": pa.array([None if i % 7 == 0 else "ß" * (i % 9) for i in range(COUNT)]),
    "large binary": pa.array([b"x" * (i % 11) for i in range(COUNT)], pa.large_binary()),
    "list": pa.array([None if i % 5 == 0 else list(range(i % 6)) for i in range(COUNT)]),
    "large list": pa.array([["a" * j for j in range(i % 4)] for i in range(COUNT)]).cast(
        pa.large_list(pa.string())
    ),
    "fixed list": pa.array([[i, None] for i in range(COUNT)], pa.list_(pa.int16(), 2)),
    "struct": pa.array(
        [None if i % 4 == 0 else {"a": i, "b": "b" * (i % 8)} for i in range(COUNT)]
    ),
    "map": pa.array(
        [[(f"k{j}", j) for j in range(i % 3)] for i in range(COUNT)],
        pa.map_(pa.string(), pa.int64()),
    ),
    "list of lists": pa.array([[[1] * (j + 1) for j in range(i % 3)] for i in range(COUNT)]),
}


def offset_bytes(kind: pa.DataType) -> int:
    """Arrow has an offset more than rows, in each column of varying size, inner ones included."""
    inner = sum(offset_bytes(kind.field(i).type) for i in range(kind.num_fields))
    wide = pa.types.is_large_list(kind) or pa.types.is_large_binary(kind)
    wide = wide or pa.types.is_large_string(kind)
    varying = wide or pa.types.is_list(kind) or pa.types.is_map(kind)
    varying = varying or pa.types.is_string(kind) or pa.types.is_binary(kind)
    return inner + (8 if wide else 4 if varying else 0)


@pytest.mark.parametrize("name", COLUMNS)
@given(data=st.data())
def test_sizes_bound_what_any_rows_take(name: str, data: st.DataObject) -> None:
    """Of the whole, of a slice that begins anywhere, and of rows taken from it in any order."""
    start = data.draw(st.integers(0, COUNT))
    stop = data.draw(st.integers(start, COUNT))
    batch = pa.record_batch([COLUMNS[name]], names=["c"]).slice(start, stop - start)
    sizes = row_bytes(batch)
    assert sizes.shape == (batch.num_rows,)
    assert (sizes >= 0).all()
    if not batch.num_rows:
        return
    rows = data.draw(st.lists(st.integers(0, batch.num_rows - 1), min_size=1, max_size=80))
    taken = batch.take(pa.array(rows))
    assert sizes[rows].sum() + offset_bytes(COLUMNS[name].type) + 1 >= taken.nbytes


@pytest.mark.parametrize("name", sorted(set(COLUMNS) - {"null"}))
def test_sizes_do_not_count_much_that_is_not_there(name: str) -> None:
    """Counted as bits, flags leave little between the sum of the rows and the whole."""
    batch = pa.record_batch([COLUMNS[name]], names=["c"])
    assert row_bytes(batch, PACKED_FLAG).sum() <= batch.nbytes * 1.35 + 16


def test_rows_of_several_columns_and_chunks_add_up() -> None:
    batch = pa.record_batch({"id": [1, 2, 3], "name": ["a", "bcd", None]})
    assert row_bytes(batch).tolist() == [15.0, 17.0, 14.0]
    table = pa.Table.from_batches([batch, batch.slice(1)])
    assert row_bytes(table).tolist() == [15.0, 17.0, 14.0, 17.0, 14.0]


def test_no_rows_and_no_columns() -> None:
    empty = pa.record_batch({"id": pa.array([], pa.int64()), "s": pa.array([], pa.string())})
    assert row_bytes(empty).tolist() == []
    none = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))
    assert row_bytes(none).tolist() == [0.0, 0.0]


def test_an_extension_type_counts_as_what_stores_it() -> None:
    storage = pa.array([bytes(16)] * 3, pa.binary(16))
    plain = row_bytes(pa.record_batch([storage], names=["u"]))
    ids = pa.ExtensionArray.from_storage(pa.uuid(), storage)
    assert row_bytes(pa.record_batch([ids], names=["u"])).tolist() == plain.tolist()


def test_a_row_of_a_sparse_union_has_a_value_in_each_field() -> None:
    union = pa.UnionArray.from_sparse(
        pa.array([0, 1, 0], pa.int8()), [pa.array([1, 2, 3]), pa.array(["a", "b", "c"])]
    )
    batch = pa.record_batch([union], names=["u"])
    # A flag, which kind it is, a flag and eight bytes, a flag, an offset and a letter.
    assert row_bytes(batch).tolist() == [1 + 1 + 1 + 8 + 1 + 4 + 1] * 3
    assert row_bytes(batch.slice(1, 1)).tolist() == [17]


@pytest.mark.parametrize("names", [["int8"], ["string"], ["string", "large binary"], [*COLUMNS]])
def test_the_widest_row_is_the_largest_of_all_sizes(names: list[str]) -> None:
    batch = pa.record_batch({name: COLUMNS[name] for name in names}).slice(7, 40)
    assert widest_row(batch) == max(math.ceil(size) for size in row_bytes(batch).tolist())
