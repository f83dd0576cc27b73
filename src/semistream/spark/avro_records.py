"""Records in Avro as columns, read by fastavro in Arrow batches.

Spark's own connector does not exist for every Spark. A record is its fields as Avro's binary form
has them, without a header: one value of a Kafka record.
"""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from semistream.errors import ConnectorError, OptionError

__all__ = ["AvroRecords"]

_PLAIN: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: Final[Mapping[str, pa.DataType]] = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}


class AvroRecords:
    """A writer's schema, and how its records become rows."""

    def __init__(self, schema: str) -> None:
        """`schema` is JSON, or the name of a file with it that ends in .avsc."""
        try:
            text = Path(schema).read_text("utf-8") if schema.endswith(".avsc") else schema
            self._schema = json.loads(text)
            _fastavro().parse_schema(copy.deepcopy(self._schema))
        except ConnectorError:
            raise
        except Exception as error:
            # Its errors have no common class.
            raise OptionError(
                f"schema is not Avro's JSON ({error}). Give the writer's schema, as "
                '\'{"type": "record", …}\', or the name of a file *.avsc that has it.'
            ) from error
        if not isinstance(self._schema, dict) or self._schema.get("type") != "record":
            raise OptionError("schema must be a record of Avro, whose fields become columns.")
        kind = _Types().of(self._schema)
        self.fields: list[pa.Field] = list(kind)

    def added(
        self, batches: Iterator[pa.RecordBatch], column: str, record: str, corrupt: str
    ) -> Iterator[pa.RecordBatch]:
        """Each batch with two columns more: the records of a column, and the bytes of bad ones."""
        read = _fastavro().schemaless_reader
        schema = _fastavro().parse_schema(self._schema)
        kind = pa.struct(self.fields)
        for batch in batches:
            records: list[Any] = []
            broken: list[str | None] = []
            for data in batch.column(column).to_pylist():
                found = None if data is None else _decoded(read, data, schema)
                records.append(found)
                is_whole = data is None or found is not None
                broken.append(None if is_whole else base64.b64encode(data).decode())
            new = [pa.array(records, kind), pa.array(broken, pa.string())]
            names = [*batch.schema.names, record, corrupt]
            yield pa.record_batch([*batch.columns, *new], names=names)


def _decoded(read: Any, data: bytes, schema: Any) -> Any:
    """The record; None if the bytes are not one."""
    source = BytesIO(data)
    try:
        record = read(source, schema)
    except Exception:
        # Bytes that are no record end in any kind of error.
        return None
    return record if source.tell() == len(data) else None


class _Types:
    """Avro's types as Arrow's. What Arrow has no type for is left as Avro stores it."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._open: list[int] = []

    def of(self, schema: Any, space: str = "") -> pa.DataType:
        """The Arrow type of a schema, in which logical types that Arrow lacks are struck out."""
        if isinstance(schema, list):
            return self._union(schema, space)
        if isinstance(schema, str):
            return self._by_name(schema, space)
        space = schema.get("namespace", space)
        if "name" in schema:
            self._named[_full(schema["name"], space)] = schema
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.of(kind, space)
        if kind in ("record", "error"):
            return self._record(schema, space)
        if kind == "array":
            return pa.list_(self.of(schema["items"], space))
        if kind == "map":
            return pa.map_(pa.string(), self.of(schema["values"], space))
        if kind == "enum":
            return pa.string()
        return self._scalar(schema, kind, space)

    def _scalar(self, schema: Any, kind: str, space: str) -> pa.DataType:
        logical = schema.get("logicalType")
        if logical == "decimal":
            return pa.decimal128(schema["precision"], schema.get("scale", 0))
        if logical in _LOGICAL:
            return _LOGICAL[logical]
        schema.pop("logicalType", None)
        return pa.binary() if kind == "fixed" else self._by_name(kind, space)

    def _record(self, schema: Any, space: str) -> pa.DataType:
        if id(schema) in self._open:
            raise OptionError(
                f"The Avro record {schema['name']} has itself among its fields, which no column "
                "can hold."
            )
        self._open.append(id(schema))
        fields = [pa.field(one["name"], self.of(one["type"], space)) for one in schema["fields"]]
        self._open.pop()
        return pa.struct(fields)

    def _union(self, schemas: Sequence[Any], space: str) -> pa.DataType:
        kinds = [self.of(one, space) for one in schemas if one != "null"]
        if not kinds:
            return pa.null()
        for one in (pa.int64(), pa.float64()):
            narrow = (pa.int32(), pa.int64()) if one == pa.int64() else (pa.float32(), one)
            if len(kinds) > 1 and all(kind in narrow for kind in kinds):
                return one
        if any(kind != kinds[0] for kind in kinds):
            raise OptionError(
                f"An Avro field may be one of {len(kinds)} types, and a column has one. Use null "
                "and one type."
            )
        return kinds[0]

    def _by_name(self, name: str, space: str) -> pa.DataType:
        if name in _PLAIN:
            return _PLAIN[name]
        return self.of(self._named.get(_full(name, space)) or self._named[name], space)


def _full(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError as error:
        raise ConnectorError(
            "Records in Avro are read with fastavro: pip install 'semistream[avro]'"
        ) from error
    return fastavro
