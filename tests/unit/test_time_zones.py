"""Instants at any depth of a schema get the session's time zone; local times have none."""

from __future__ import annotations

import pyarrow as pa

from semistream.spark.columns import in_zone


def test_instants_at_any_depth() -> None:
    def nested(zone: str) -> pa.Field:
        at = pa.timestamp("us", zone)
        inner = pa.struct([pa.field("at", at, nullable=False), ("local", pa.timestamp("us"))])
        return pa.field("x", pa.map_(pa.string(), pa.list_(inner)), nullable=False)

    assert in_zone(nested("UTC"), "Europe/Zurich").equals(nested("Europe/Zurich"))
    assert not nested("UTC").equals(nested("Europe/Zurich"))
    plain = pa.field("n", pa.large_string())
    assert in_zone(plain, "Europe/Zurich").equals(plain)
