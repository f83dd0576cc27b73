"""The least memory that a join on terms names: it works, and is told of the whole join."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.errors import BudgetError


def master_of(path: Path, rows: int, width: int = 60) -> ss.MasterTable:
    number = np.arange(rows)
    text = pa.array(["t" * (i % width) for i in range(rows)], pa.string())
    data = {"id": pa.array(number // 3), "begins": pa.array(number), "text": text}
    return ss.MasterTable.from_arrow(pa.table(data), path, key="id", page_bytes=4096)


def stream_of(widths: list[int], rows: int = 40) -> list[pa.RecordBatch]:
    number = np.arange(rows)
    return [
        pa.record_batch({"id": number, "at": number * 3, "note": ["n" * width] * rows})
        for width in widths
    ]


def least_of(master: ss.MasterTable, stream: list[pa.RecordBatch], **terms: Any) -> int:
    with pytest.raises(BudgetError, match=r"^memory=1 bytes is too little") as caught:
        list(ss.engine(master, on="id", memory=1, **terms).run(stream))
    named = re.search(r"the least is ([\d,]+) bytes", str(caught.value))
    assert named is not None
    assert int(named[1].replace(",", "")) == caught.value.least
    return caught.value.least


TERMS: list[dict[str, Any]] = [
    {"preserve_order": True},
    {"how": "left", "where": "length(note) >= 0"},
    {"where": "length(note) >= 0", "retune": True},
    {"how": "semi"},
    {"how": "anti", "as_of": ("at", "begins"), "io": "unmapped"},
]


@pytest.mark.parametrize("rows", [0, 1, 500])
@pytest.mark.parametrize("terms", TERMS, ids=str)
def test_the_least_that_is_named_works(tmp_path: Path, rows: int, terms: dict[str, Any]) -> None:
    master, stream = master_of(tmp_path / "m", rows), stream_of([20, 25, 20])
    least = least_of(master, stream, **terms)
    engine = ss.engine(master, on="id", memory=least, **terms)
    list(engine.run(stream))
    assert engine.metrics().arrived == 120
    assert engine.memory()["peak"] <= least


@pytest.mark.parametrize("terms", TERMS, ids=str)
def test_it_works_if_a_stream_begins_with_a_pause(tmp_path: Path, terms: dict[str, Any]) -> None:
    master = master_of(tmp_path / "m", 500)
    (batch,) = stream_of([900])
    stream = [batch.slice(0, 0), batch.slice(0, 0), batch]
    engine = ss.engine(master, on="id", memory=least_of(master, stream, **terms), **terms)
    list(engine.run(stream))
    assert engine.metrics().arrived == 40


def test_a_tuple_that_is_too_wide_is_told_of_the_whole_memory(tmp_path: Path) -> None:
    master = master_of(tmp_path / "m", 500)
    stream = stream_of([10, 50_000])
    for terms in TERMS[:2]:
        memory = least_of(master, stream[:1], **terms)
        with pytest.raises(BudgetError, match=rf"^memory={memory:,} bytes is too little"):
            list(ss.engine(master, on="id", memory=memory, **terms).run(stream))
