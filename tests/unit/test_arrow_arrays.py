"""Numbers between NumPy and Arrow: the same as PyArrow's own conversions, which need pandas."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from semistream.arrow_arrays import no_rows, to_arrow, to_numpy

NUMBERS = ["?", "i1", "u1", "i2", "i4", "u4", "i8", "u8", "f4", "f8"]


def numbers(dtype: str, count: int) -> Any:
    return np.random.default_rng(1).integers(0, 2 if dtype == "?" else 100, count).astype(dtype)


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 1000])
def test_there_and_back_as_pyarrow_does(dtype: str, count: int) -> None:
    values = numbers(dtype, count)
    array = to_arrow(values)
    array.validate(full=True)
    assert array.equals(pa.array(values))
    assert to_numpy(array).dtype == values.dtype
    np.testing.assert_array_equal(to_numpy(array), values)


@pytest.mark.parametrize("dtype", NUMBERS)
def test_a_part_of_an_array(dtype: str) -> None:
    values = numbers(dtype, 100)
    np.testing.assert_array_equal(to_numpy(pa.array(values)[13:57]), values[13:57])
    assert to_arrow(values[::3]).equals(pa.array(values[::3].copy()))


def test_numbers_are_shared_and_not_to_be_written_to() -> None:
    values = numbers("i8", 10)
    shared = to_numpy(to_arrow(values))
    assert np.shares_memory(shared, values)
    assert not shared.flags.writeable


def test_nulls_hold_anything_and_the_rest_is_right() -> None:
    assert to_numpy(pa.array([1, None, 3])).tolist()[::2] == [1, 3]
    assert to_numpy(pa.array([True, None, False])).tolist()[::2] == [True, False]


def test_no_rows_has_all_columns() -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("name", pa.string()),
            pa.field("tags", pa.list_(pa.struct([("a", pa.int8())]))),
            pa.field("kind", pa.dictionary(pa.int8(), pa.string())),
        ],
        metadata={"a": "b"},
    )
    assert no_rows(schema).equals(pa.RecordBatch.from_pylist([], schema), check_metadata=True)
