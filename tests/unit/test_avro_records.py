"""Records in Avro: their types, and bytes that are none."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest

from semistream.errors import OptionError
from semistream.spark.avro_records import AvroRecords

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Sale",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "product", "type": ["null", "long"], "default": None},
        {"name": "amount", "type": ["int", "long"]},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "again", "type": ["null", "Kind"]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "more", "type": {"type": "map", "values": "double"}},
        {
            "name": "place",
            "type": {"type": "record", "name": "Place", "fields": [{"name": "x", "type": "float"}]},
        },
        {"name": "mark", "type": {"type": "fixed", "name": "Mark", "size": 2}},
    ],
}
ROW: dict[str, Any] = {
    "id": "00000000-0000-0000-0000-000000000007",
    "product": None,
    "amount": 2**40,
    "price": Decimal("12.30"),
    "at": dt.datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=dt.UTC),
    "day": dt.date(2026, 1, 2),
    "kind": "B",
    "again": "A",
    "tags": ["a", "b"],
    "more": {"k": 0.5},
    "place": {"x": 1.5},
    "mark": b"ab",
}


def packed(row: dict[str, Any]) -> bytes:
    data = BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(json.loads(json.dumps(SCHEMA))), row)
    return data.getvalue()


def read(records: AvroRecords, values: list[bytes | None]) -> list[dict[str, Any]]:
    batch = pa.record_batch({"value": pa.array(values, pa.binary()), "topic": ["t"] * len(values)})
    (found,) = records.added(iter([batch]), "value", "record", "_corrupt")
    assert found.select(["value", "topic"]) == batch
    rows: list[dict[str, Any]] = found.to_pylist(maps_as_pydicts="strict")
    return rows


def test_every_type_becomes_a_column(tmp_path: Path) -> None:
    file = tmp_path / "sale.avsc"
    file.write_text(json.dumps(SCHEMA))
    sent = packed(ROW | {"id": UUID(ROW["id"])})
    for schema in (json.dumps(SCHEMA), str(file)):
        (found,) = read(AvroRecords(schema), [sent])
        assert (found["record"], found["_corrupt"]) == (ROW, None)


def test_bytes_that_are_no_record_are_kept_whole() -> None:
    whole = packed(ROW)
    found = read(AvroRecords(json.dumps(SCHEMA)), [whole[:-1], whole + b"x", b"", None, whole])
    assert [one["_corrupt"] is None for one in found] == [False, False, False, True, True]
    assert [one["record"] for one in found] == [None, None, None, None, ROW]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("{", "schema is not Avro's JSON"),
        ('"long"', "must be a record"),
        ('{"type": "record", "name": "r", "fields": [{"name": "f", "type": "nothing"}]}', "Avro's"),
        (
            '{"type": "record", "name": "r", "fields": [{"name": "f", "type": ["int", "string"]}]}',
            "one of 2 types",
        ),
        (
            '{"type": "record", "name": "r", "fields": [{"name": "f", "type": ["null", "r"]}]}',
            "has itself among its fields",
        ),
    ],
)
def test_schemas_that_cannot_be(schema: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        AvroRecords(schema)
