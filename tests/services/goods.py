"""A table of goods in memory that tells of its changes as Debezium would."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from time import time
from typing import Final

import pyarrow as pa

__all__ = ["EMPTY", "SCHEMA", "Goods", "Message", "untidy"]

Message = tuple[bytes, bytes | None]
"""Key and value of a message in a topic."""
SCHEMA: Final = (
    "op string, ts_ms long, source struct<lsn: long, ts_ms: long>, "
    "before struct<id: long>, after struct<id: long, name: string, price: double>"
)
EMPTY: Final = pa.table(
    {
        "id": pa.array([], pa.int64()),
        "name": pa.array([], pa.string()),
        "price": pa.array([], pa.float64()),
    }
)


class Goods:
    """The rows now, and every row that a key ever had: a name is never given twice."""

    def __init__(self, seed: int) -> None:
        self.rows: dict[int, tuple[int, str, float]] = {}
        self.was: dict[int, list[tuple[int, str, float]]] = {}
        self._random = random.Random(seed)
        self._lsn = 1000

    def snapshot(self) -> list[Message]:
        """Every row as it is now."""
        return [self._event("r", id, None) for id in self.rows]

    def put(self, id: int) -> list[Message]:
        """Insert a row, or change it."""
        op = "u" if id in self.rows else "c"
        self._lsn += self._random.randint(1, 9)
        self.rows[id] = (id, f"{id}@{self._lsn}", self._lsn * 0.5)
        self.was.setdefault(id, []).append(self.rows[id])
        return [self._event(op, id, None)]

    def remove(self, id: int) -> list[Message]:
        """Delete a row; the event has the key only, and a tombstone follows."""
        self._lsn += self._random.randint(1, 9)
        del self.rows[id]
        return [self._event("d", id, {"id": id}), (_key(id), None)]

    def some(self, count: int, keys: int) -> list[Message]:
        """Random changes; one in ten gives a row another key."""
        found: list[Message] = []
        for _ in range(count):
            id = self._random.randrange(keys)
            if id in self.rows and self._random.random() < 0.4:
                found += self.remove(id)
                if self._random.random() < 0.25:
                    found += self.put(self._random.randrange(keys))
            else:
                found += self.put(id)
        return found

    def _event(self, op: str, id: int, before: dict[str, int] | None) -> Message:
        after = None
        if op != "d":
            after = dict(zip(("id", "name", "price"), self.rows[id], strict=True))
        now = int(time() * 1000)
        source = {"lsn": self._lsn, "ts_ms": now, "table": "goods"}
        event = {"op": op, "before": before, "after": after, "source": source, "ts_ms": now}
        return _key(id), json.dumps(event).encode()


def untidy(messages: Sequence[Message], seed: int) -> list[Message]:
    """The same messages, some late, some again, as after a restart of what sends them."""
    rng = random.Random(seed)
    found = [*messages]
    for start in range(0, len(found), 40):
        window = found[start : start + 40]
        if rng.random() < 0.5:
            rng.shuffle(window)
        found[start : start + 40] = window
    repeated: list[Message] = []
    for start in range(0, len(found), 100):
        repeated += found[start : start + 100]
        repeated += found[max(start - rng.randint(0, 90), 0) : start + 20]
    return repeated


def _key(id: int) -> bytes:
    return json.dumps({"id": id}).encode()
