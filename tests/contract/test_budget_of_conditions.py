"""Whether the budget tells the truth for joins by a condition, as it does for those by key."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.testing import ManualClock
from tests.contract.test_budget_truth import ALLOWED, measuring, texts

CONDITIONS = {
    "codes": ss.between("n", "low", "high"),
    "bytes": ss.below("note", "name"),
    "decimals": ss.between("price", "least", "most"),
    "texts": ss.similar("note", "name", at_least=0.9),
}


def master_rows(count: int) -> pa.Table:
    low = np.arange(count) * 7
    decimals = pa.array(low.tolist(), pa.decimal128(38, 4))
    return pa.table(
        {
            "id": np.arange(count),
            "low": low,
            "high": low + 5,
            "name": pa.array([f"{i:x} name of it {i * 7919 % 1000}" for i in range(count)]),
            "least": decimals,
            "most": decimals,
        }
    )


def stream_of(count: int) -> pa.RecordBatch:
    number = np.arange(count) * 7919 % (count * 7)
    notes = pa.array([f"{i:x} name of it {i * 7919 % 1000}" for i in range(count)])
    decimals = pa.array(number.tolist(), pa.decimal128(20, 0))
    named = {"n": number, "note": notes, "price": decimals, "wide": texts(count, 60)}
    (batch,) = pa.table(named).combine_chunks().to_batches()
    return batch


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("name", CONDITIONS)
def test_the_budget_is_what_is_allocated(name: str, kept: bool, tmp_path: Path) -> None:
    memory = 4 << 20
    # "bytes" matches nearly every pair with few rows; the others have about one match each.
    rows = (50 if name == "bytes" else 6_000) if kept else 60_000
    master = ss.MasterTable.from_arrow(
        master_rows(rows), tmp_path / "r", key="id", page_bytes=16384
    )
    # Each text is compared with many.
    batch = stream_of({"bytes": 2_000, "texts": 2_000 if kept else 400}.get(name, 20_000))
    how = "semi" if name == "bytes" and not kept else "left"

    def engine() -> ss.Engine:
        on = CONDITIONS[name]
        return ss.engine(master, on=on, how=how, memory=memory, clock=ManualClock())

    list(engine().run([batch.slice(0, 200)]))
    join = engine()
    with measuring() as measured:
        for found in join.run([batch] * 2):
            measured.sizes.append(found.nbytes)
            del found
    assert join.plan is not None
    assert ("R is kept" in join.plan.explain()) == kept
    over = measured.own - memory
    assert over <= memory // ALLOWED, (
        f"{over:,} bytes over {memory:,}: Arrow {measured.arrow:,}, NumPy and Python "
        f"{measured.python:,}, frames {measured.frames:,}, handed out {measured.handed_out:,}; "
        f"granted {join.memory()}"
    )
    assert join.metrics().peak_memory <= memory
