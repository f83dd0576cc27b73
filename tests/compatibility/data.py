"""What the committed files hold, in plain Python: what a later version must find in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from semistream.testing import Row, rows_of

FILES: Final = Path(__file__).parent / "format2"
ROWS: Final = 40

_PAYLOAD: Final = pa.schema(
    [
        ("n", pa.int32()),
        ("text", pa.string()),
        ("price", pa.decimal128(9, 2)),
        ("sizes", pa.list_(pa.int16())),
    ]
)


def _payload(n: int) -> Row:
    """Nulls in every column but the first, and texts of all lengths up to 50."""
    values = (
        "t" * (n % 51),
        Decimal(n) / 4,
        list(range(n % 4)),
    )
    return (n, *(None if n % 11 == i else value for i, value in enumerate(values)))


class Life(NamedTuple):
    """A master table that was built, then had an upsert, then a delete: three versions."""

    key: dict[str, pa.DataType]
    built: Sequence[Row]
    """The keys of the rows it was built from."""
    upserted: Sequence[Row]
    deleted: Sequence[Row]
    options: dict[str, Any]

    def table(self, keys: Iterable[Row], first: int = 0) -> pa.Table:
        """Rows with these keys, numbered from `first`."""
        schema = pa.schema([*self.key.items(), *_PAYLOAD])
        rows = [(*key, *_payload(n)) for n, key in enumerate(keys, first)]
        names = schema.names
        return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], schema)

    def changes(self) -> pa.Table:
        """The rows of the upsert."""
        return self.table(self.upserted, 1000)

    def versions(self) -> dict[int, list[Row]]:
        """The rows of each version, in no order."""
        width = len(self.key)
        built, changed = rows_of(self.table(self.built)), rows_of(self.changes())
        second = [row for row in built if row[:width] not in self.upserted] + changed
        third = [row for row in second if row[:width] not in self.deleted]
        return {1: built, 2: second, 3: third}

    def table_of(self, version: int) -> pa.Table:
        """The rows of a version as a table."""
        schema = pa.schema([*self.key.items(), *_PAYLOAD])
        columns = zip(*self.versions()[version], strict=True)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
        return pa.table(arrays, schema=schema)


# One key with thirty rows spans pages; some keys are replaced, some are new, some go.
_NUMBERS: Final = [((i * 37) % ROWS * 3,) for i in range(ROWS)] + [(7,)] * 30
_WORDS: Final = [(f"clé {i} " + "k" * (i % 9),) for i in range(ROWS)]
_PAIRS: Final = [(f"{i % 10}", (i * 7) % ROWS) for i in range(ROWS)]

MASTERS: Final[dict[str, Life]] = {
    "integer-keys-filter": Life(
        {"id": pa.int64()},
        _NUMBERS,
        [(0,), (3,), (3,), (-5,), (10**12,)],
        [(7,), (9,), (2,)],
        {"filter_bits": 10},
    ),
    "string-keys": Life(
        {"name": pa.string()},
        _WORDS,
        [_WORDS[4], _WORDS[4], ("",), ("a new one",)],
        [_WORDS[5], ("absent",)],
        {},
    ),
    "composite-keys-given": Life(
        {"group": pa.string(), "part": pa.int64()},
        _PAIRS,
        [_PAIRS[3], ("new", 1), ("new", 1)],
        [_PAIRS[8], ("0", -1)],
        {"layout": "given", "filter_bits": 8},
    ),
    "integer-keys-shards": Life(
        {"id": pa.int64()},
        _NUMBERS,
        [(0,), (3,), (-5,)],
        [(9,), (12,)],
        {"shards": 3},
    ),
}

SHED_ROWS: Final = 400
"""Tuples of the run that shed load; `shed.json` says which of them are in its folder."""
EARLY, LATE = 300, 400
"""Goods in the master when the pipeline was stopped, and in the end."""
PIPELINE: Final[dict[str, Any]] = {"batch_target": 0.5, "algorithm": "hybridjoin"}
LATER: Final = 1_000_100.0
"""By the pipeline's clock, some time after it was stopped."""


def goods(count: int) -> pa.Table:
    """The pipeline's master."""
    return pa.table({"id": range(count), "name": [f"name {i}" for i in range(count)]})


def shed_sales() -> pa.RecordBatch:
    """All that arrived at the run that shed load, at once."""
    return pa.record_batch(
        {"id": pa.array([i * 11 % 300 for i in range(SHED_ROWS)]), "n": range(SHED_ROWS)}
    )
