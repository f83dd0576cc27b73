"""What a task tells of its plan."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa

import semistream as ss
from semistream.cost.micro_batches import micro_batch_engine
from semistream.spark.task_metrics import merged, plan_record, task_record


def test_a_task_tells_its_plan_and_the_memory_of_its_parts(tmp_path: Path) -> None:
    rows = pa.table({"id": range(9000), "name": [f"name of number {i}" for i in range(9000)]})
    master = ss.MasterTable.from_arrow(rows, tmp_path / "goods", key="id", page_bytes=4096)
    engine = micro_batch_engine(master, on="id", memory="200KB")
    assert plan_record(engine) == {}
    list(engine.run([pa.record_batch({"id": [i * i % 9000 for i in range(2000)]})]))
    found = plan_record(engine)
    assert engine.plan is not None
    assert engine.plan.expected is not None
    assert found["plan"]["expected"]["rate"] == engine.plan.expected.rate
    assert found["plan"]["expected"]["exponent"] == engine.plan.expected.exponent
    assert 0 < sum(found["parts"].values()) <= 200 * 1024
    assert not {"peak", "budget"} & set(found["parts"])
    record = {**task_record(engine.metrics(), version=1, warm=False), **found}
    back = json.loads(json.dumps(record))
    assert merged([back])["parts"] == found["parts"]
    assert plan_record(object()) == {}
