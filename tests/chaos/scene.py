"""A master table with some history, and all ways to use it: what attacks on files begin with."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa

import semistream as ss
from semistream.testing import rows_of

KEYS = 400
Row = tuple[Any, ...]


def rows(keys: list[int], salt: int) -> pa.Table:
    """Rows of some keys; `salt` makes them differ from other rows of the same keys."""
    return pa.table(
        {
            "id": pa.array(keys, pa.int64()),
            "name": [f"row {key} {salt}" for key in keys],
            "size": pa.array([None if key % 5 == 0 else key + salt for key in keys], pa.int32()),
            "flag": [(key + salt) % 3 == 0 for key in keys],
        }
    )


def build(rng: random.Random, path: Path) -> dict[int, Row]:
    """A master of two or three versions in several files. Returns its rows by key."""
    layout = rng.choice(["key", "key", "given"])
    keys = [2 * key for key in range(KEYS)]
    if layout == "given":
        rng.shuffle(keys)
    master = ss.MasterTable.from_arrow(
        rows(keys, 0),
        path,
        key="id",
        page_bytes=4096,
        layout=layout,
        filter_bits=rng.choice([0, 10]),
    )
    model = dict(zip(keys, rows_of(rows(keys, 0)), strict=True))
    for salt in range(1, rng.randint(2, 3)):
        some = rng.sample(range(2 * KEYS), 20)
        master = master.upsert(rows(some, salt))
        model.update(zip(some, rows_of(rows(some, salt)), strict=True))
    return model


def ask(rng: random.Random, path: Path) -> list[pa.RecordBatch]:
    """Open it and use it in one way or another. Returns the rows it has, by a join."""
    master = ss.MasterTable.open(path)
    way = rng.choice(["join", "join", "join", "compact", "upsert", "delete"])
    if way == "compact":
        master = master.compact()
    elif way == "upsert":
        master = master.upsert(rows([], 0))
    elif way == "delete":
        master = master.delete([-5])
    algorithm = rng.choice(["inlj", "meshjoin", "hybridjoin", "hybridjoin", "chybridjoin"])
    options: dict[str, Any] = {"io": rng.choice(["unmapped", "buffered"])}
    if algorithm == "hybridjoin":
        options["look_ups"] = rng.choice([0, 8])
    stream = pa.record_batch({"id": pa.array(range(2 * KEYS), pa.int64())})
    engine = ss.engine(master, on="id", memory="2MB", algorithm=algorithm, **options)
    return list(engine.run([stream]))
