"""Which columns meet and what types come out, for every algorithm."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from semistream.testing import assert_same_rows, checked_run, oracle_join
from tests.contract.harness import Contract

COUNT = 150
BRIEFLY = [("key", "least"), ("given", "roomy")]
"""For many types: what differs between them does not depend on the sizes."""
WORDS = ["", "a", "ß", "longer than the inline twelve bytes", "日本語", "x" * 200]


def products(count: int = COUNT) -> pa.Table:
    return pa.table(
        {
            "id": pa.array([i * 2 for i in range(count)], pa.int64()),
            "name": [f"product {i} " + "n" * (i % 50) for i in range(count)],
            "price": [i / 8 for i in range(count)],
            "weight": pa.array([None if i % 5 == 0 else i for i in range(count)], pa.int16()),
        }
    )


def sales(count: int = 90, **columns: Any) -> list[pa.RecordBatch]:
    """Batches of 40: keys of which half are absent, and the given columns."""
    everything = {"id": [i * 7 % 320 for i in range(count)], "sale": list(range(count))} | columns
    batches: list[pa.RecordBatch] = pa.table(everything).to_batches(max_chunksize=40)
    return batches


@pytest.mark.parametrize(
    ("on", "key", "stream_key"),
    [
        ("id", "id", ["id"]),
        (["id"], "id", ["id"]),
        ({"id": "id"}, "id", ["id"]),
        ({"bought": "id"}, "id", ["bought"]),
        (["id", "day"], ["id", "day"], ["id", "day"]),
        (["day", "id"], ["id", "day"], ["id", "day"]),
        ({"when": "day", "bought": "id"}, ["id", "day"], ["bought", "when"]),
    ],
    ids=str,
)
def test_on_may_be_a_name_a_list_or_a_dict(
    contract: Contract, on: Any, key: Any, stream_key: list[str]
) -> None:
    table = products().append_column("day", pa.array([i % 3 for i in range(COUNT)], pa.int32()))
    names = dict(zip(["id", "day"], [*stream_key, "day"], strict=False))
    stream = [
        pa.record_batch({names["id"]: [0, 2, 4, 6, 6, 5], names["day"]: [0, 1, 0, 0, 0, 1]}),
        pa.record_batch({names["id"]: [2, 298, None], names["day"]: [1, 2, 2]}),
    ]
    if isinstance(key, str):
        stream = [batch.select([names["id"]]) for batch in stream]
    contract.holds(table, stream, key=key, on=on)


@pytest.mark.parametrize(
    "columns", [[], ["price"], ["weight", "name"], ["name", "price", "weight"]], ids=str
)
@pytest.mark.parametrize("key", ["id", "name"])
def test_the_masters_columns_can_be_chosen(
    contract: Contract, columns: list[str], key: str
) -> None:
    """An exact and a hashed key: the latter is read to be compared, but does not come out."""
    columns = [name for name in columns if name != key]
    if key == "id":
        stream = sales()
    else:
        asked = [f"product {i} " + "n" * (i % 50) for i in range(0, 200, 3)]
        stream = pa.table({"name": asked, "n": range(len(asked))}).to_batches(max_chunksize=40)
    engine = contract.holds(products(), stream, key=key, columns=columns)
    for batch in engine.run(stream):
        assert batch.schema.names == [*stream[0].schema.names, *columns]


def test_the_masters_key_may_be_chosen_where_the_names_differ(contract: Contract, how: str) -> None:
    stream = [pa.record_batch({"bought": [2, 3, 4]})]
    contract.holds(products(), stream, on={"bought": "id"}, how=how, columns=["id", "name"])


def test_a_stream_of_nothing_but_its_key(contract: Contract, how: str) -> None:
    contract.holds(products(), [batch.select(["id"]) for batch in sales()], how=how)


def test_output_fields_are_the_streams_then_the_masters(contract: Contract, how: str) -> None:
    table = products().cast(
        pa.schema([field.with_nullable(field.name == "weight") for field in products().schema])
    )
    master = contract.master(table)
    stream = [batch.cast(_required(batch.schema)) for batch in sales()]
    engine = contract.engine(master, how=how)
    found = checked_run(engine, stream)
    payload = [field for field in table.schema if field.name != "id"]
    if how == "left":
        payload = [field.with_nullable(True) for field in payload]
    assert all(batch.schema.equals(pa.schema([*stream[0].schema, *payload])) for batch in found)


def _required(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(False) for field in schema])


def test_strings_on_both_sides(contract: Contract, how: str) -> None:
    words = [None if i % 11 == 0 else WORDS[i % len(WORDS)] for i in range(90)]
    stream = sales(word=words, other=[f"{i}" * (i % 9) for i in range(90)])
    contract.holds(products(), stream, how=how)
    contract.holds(products(), sales(word=[None] * 90), how=how)


NESTED = {
    "list": pa.array([None if i % 9 == 0 else list(range(i % 7)) for i in range(90)]),
    "struct": pa.array([{"a": i, "b": None if i % 4 else "b" * (i % 30)} for i in range(90)]),
    "map": pa.array(
        [[(f"k{j}", j) for j in range(i % 4)] for i in range(90)], pa.map_(pa.string(), pa.int32())
    ),
    "fixed list": pa.array(
        [[i, None, i + 1] for i in range(90)], pa.list_(pa.int16(), list_size=3)
    ),
    "list of structs of lists": pa.array(
        [[{"x": [f"{j}" * j for j in range(i % 3)]}] * (i % 4) for i in range(90)]
    ),
    "large list": pa.array([[i] * (i % 3) for i in range(90)], pa.large_list(pa.int64())),
}


@pytest.mark.parametrize("kind", NESTED)
def test_nested_columns_on_both_sides(contract: Contract, kind: str) -> None:
    table = products(90).append_column("nested", NESTED[kind])
    contract.holds(table, sales(tree=NESTED[kind]))


KINDS: dict[str, pa.Array] = {
    "dictionary": pa.array([WORDS[i % 6] for i in range(90)]).dictionary_encode(),
    "dictionary with nulls": pa.array(
        [None if i % 4 else "x" for i in range(90)]
    ).dictionary_encode(),
    "dictionary of int8 indices": pa.array(
        [WORDS[i % 6] for i in range(90)], pa.dictionary(pa.int8(), pa.string())
    ),
    "dictionary of integers": pa.array([i % 5 for i in range(90)]).dictionary_encode(),
    "string view": pa.array([WORDS[i % 6] for i in range(90)], pa.string_view()),
    "binary view": pa.array([WORDS[i % 6].encode() for i in range(90)], pa.binary_view()),
    "large string": pa.array([WORDS[i % 6] for i in range(90)], pa.large_string()),
    "boolean": pa.array([None if i % 5 == 0 else i % 2 == 0 for i in range(90)]),
    "null": pa.nulls(90),
    "decimal": pa.array([Decimal(i) / 8 for i in range(90)], pa.decimal128(20, 3)),
    "wide decimal": pa.array([Decimal(i) / 8 for i in range(90)], pa.decimal256(60, 3)),
    "fixed-size binary": pa.array([bytes([i] * 7) for i in range(90)], pa.binary(7)),
    "half float": pa.array([i / 4 for i in range(90)], pa.float16()),
    "nanoseconds": pa.array([i * 1000 for i in range(90)], pa.timestamp("ns", "UTC")),
    "time": pa.array([dt.time(i % 24, 1, 2, i) for i in range(90)], pa.time64("us")),
    "duration": pa.array([dt.timedelta(i) for i in range(90)], pa.duration("s")),
    "interval": pa.array([(i, 2, 3) for i in range(90)], pa.month_day_nano_interval()),
}

ENCODED_WITHIN: dict[str, pa.Array] = {
    "list view": pa.array([[i] * (i % 3) for i in range(90)], pa.list_view(pa.int32())),
    "struct of dictionary": pa.StructArray.from_arrays(
        [pa.array([WORDS[i % 6] for i in range(90)]).dictionary_encode()], ["word"]
    ),
    "list of string views": pa.array(
        [WORDS[: i % 4] for i in range(90)], pa.list_(pa.string_view())
    ),
    "run-end encoded": pc.run_end_encode(pa.array([i // 10 for i in range(90)])),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_column_of_any_type_comes_out_plain(contract: Contract, kind: str) -> None:
    stream = sales(extra=KINDS[kind])
    engine = contract.holds(products(), stream, runs=BRIEFLY)
    for batch in engine.run(stream):
        assert batch.schema.field("extra").type == _plain(KINDS[kind].type)


@pytest.mark.parametrize("kind", ENCODED_WITHIN)
def test_encodings_that_arrow_can_hardly_handle_keep_their_values(
    contract: Contract, kind: str
) -> None:
    contract.holds(products(), sales(extra=ENCODED_WITHIN[kind]), runs=BRIEFLY)


@pytest.mark.parametrize(
    "kind", [pa.dictionary(pa.int32(), pa.string()), pa.string_view(), pa.large_string()], ids=str
)
def test_a_stream_key_of_another_string_type_comes_out_plain(
    contract: Contract, kind: pa.DataType
) -> None:
    names = [f"product {i} " + "n" * (i % 50) for i in range(0, 200, 3)] + [None]
    keys = pa.chunked_array([pa.array(names).cast(kind)])
    stream = pa.table({"name": keys, "n": range(len(names))}).to_batches(max_chunksize=30)
    engine = contract.holds(products(), stream, key="name", runs=BRIEFLY)
    for batch in engine.run(stream):
        assert batch.schema.field("name").type == _plain(kind)


def test_dictionaries_may_differ_from_batch_to_batch(contract: Contract) -> None:
    """More words than int8 can number, but fewer in each batch: nothing promises one dictionary."""
    kind = pa.dictionary(pa.int8(), pa.string())
    stream = [
        pa.record_batch(
            {"id": list(range(100)), "word": pa.array([f"{n}-{i}" for i in range(100)], kind)}
        )
        for n in range(4)
    ]
    contract.holds(products(), stream, runs=BRIEFLY)


@pytest.mark.parametrize(
    ("master_type", "stream_type"),
    [
        (pa.int64(), pa.int8()),
        (pa.int8(), pa.int64()),
        (pa.uint64(), pa.int32()),
        (pa.int32(), pa.uint64()),
        (pa.int64(), pa.dictionary(pa.int8(), pa.int64())),
        (pa.date32(), pa.date64()),
        (pa.timestamp("ms"), pa.timestamp("us")),
        (pa.decimal128(9, 2), pa.decimal128(20, 4)),
    ],
    ids=str,
)
def test_keys_of_other_widths_match_by_value(
    contract: Contract, master_type: pa.DataType, stream_type: pa.DataType
) -> None:
    """The stream's plain type comes out; what the master's type cannot hold matches nothing."""
    table = pa.table({"id": _typed(range(100), master_type), "n": range(100)})
    keys = [*range(90, 120), None, 3, 3, 127]
    stream = [pa.record_batch([_typed(keys, stream_type)], names=["id"])]
    engine = contract.holds(table, stream, runs=BRIEFLY)
    for batch in engine.run(stream):
        assert batch.schema.field("id").type == _plain(stream_type)


def _plain(kind: pa.DataType) -> pa.DataType:
    """Dictionaries and views come out as what they stand for."""
    if pa.types.is_dictionary(kind):
        return kind.value_type
    return {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(kind, kind)


def _typed(numbers: Any, kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(
            pa.array(range(len(numbers)), kind.index_type), _typed(numbers, kind.value_type)
        )
    if pa.types.is_date(kind):
        day = dt.date(2020, 1, 1)
        return pa.array([None if n is None else day + dt.timedelta(n) for n in numbers], kind)
    if pa.types.is_timestamp(kind):
        return pa.array(
            [None if n is None else dt.datetime(2020, 1, 1) + dt.timedelta(0, n) for n in numbers],
            kind,
        )
    if pa.types.is_decimal(kind):
        return pa.array([None if n is None else Decimal(n) / 4 for n in numbers], kind)
    return pa.array(list(numbers), kind)


@pytest.mark.parametrize("layout", ["key", "given"])
def test_all_io_modes_give_the_same(contract: Contract, how: str, layout: str) -> None:
    table, stream = products(400), sales(300)
    master = contract.master(table, layout=layout)
    expected = oracle_join(stream, table, on="id", how=how).rows
    read = []
    for io in ("buffered", "unmapped", "direct"):
        engine = contract.engine(master, how=how, io=io)
        assert_same_rows(checked_run(engine, stream), expected)
        read.append(engine.metrics().pages_read)
    assert read[0] <= read[1] == read[2]
