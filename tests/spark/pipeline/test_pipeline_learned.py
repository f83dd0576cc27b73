"""What the workers of a pipeline have learned outlives batches of other frames, and a restart."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import semistream as ss
from semistream.testing import assert_same_rows
from tests.spark.pipeline.conftest import Shop

HOT = [7, 70, 140, 301]


def hot(shop: Shop, rows: int = 400) -> pa.Table:
    """Sales of few keys, and one that is not in the master."""
    numbers = range(shop.sold, shop.sold + rows)
    return pa.table({"id": [999 if n % 100 == 99 else HOT[n % 4] for n in numbers], "n": numbers})


def ratios(shop: Shop, **options: Any) -> list[float]:
    """The hit ratios of the batches that a pipeline adds, with engines of its own."""
    log = shop.folder / "metrics.jsonl"
    log.unlink(missing_ok=True)
    wanted = {"algorithm": "chybridjoin", "io": "unmapped", "metrics": log, "on": "id"}
    shop.run(**(wanted | options))
    return [line["hit_ratio"] for line in shop.lines("metrics.jsonl")]


@pytest.mark.parametrize("damage", [False, True])
def test_a_restart_begins_with_what_was_learned(shop: Shop, damage: bool) -> None:
    shop.master()
    sold = [shop.sell(hot(shop)), shop.sell(hot(shop))]
    before = ratios(shop, memory=1_000_000)
    assert before[0] < 0.5 < before[1]
    (file,) = (shop.folder / "checkpoint" / "semistream" / "learned").iterdir()
    if damage:
        file.write_bytes(file.read_bytes()[:-1])
    sold.append(shop.sell(hot(shop)))
    # No engine that waits in a worker has this memory, so a new one is made, as in a new worker.
    after = ratios(shop, memory=1_000_001 + damage)
    assert (after[0] > 0.9) != damage
    found = shop.rows("out", "n", "id", "name")
    names = dict(zip(*shop.goods.to_pydict().values(), strict=True))
    rows = [(n, key, names.get(key)) for table in sold for key, n in _pairs(table)]
    assert_same_rows(found, rows)


def test_retried_tuples_and_new_versions_leave_it_warm(shop: Shop) -> None:
    """Frames with waiting tuples have nullable columns, those without have not."""
    master = shop.master()
    log = shop.folder / "warm.jsonl"
    options: dict[str, Any] = {"unmatched": ss.Retry(backoff="1ms", deadline="1h"), "metrics": log}
    options |= {"algorithm": "chybridjoin", "io": "unmapped", "memory": 1_000_003}
    for round_ in range(4):
        shop.sell(hot(shop))
        if round_ == 2:
            master.upsert(pa.table({"id": [7], "name": ["another name"]}))
        source = shop.stream().selectExpr("coalesce(id, 0L) id", "coalesce(n, 0L) n")
        shop.run(source, **options)
    lines = [line for line in shop.lines("warm.jsonl") if line["source"]]
    assert {line["master_version"] for line in lines} == {1, 2}
    assert any(line["retried"] for line in lines)
    warm = [line["hit_ratio"] * line["arrived"] / line["source"] for line in lines[1:]]
    assert min(warm) > 0.9
    found = {n: name for n, name, key in shop.rows("out", "n", "name", "id") if key == 7}
    assert [found[n] for n in sorted(found)] == ["name of number 7"] * 200 + ["another name"] * 200


def _pairs(table: pa.Table) -> list[tuple[int, int]]:
    return list(zip(table["id"].to_pylist(), table["n"].to_pylist(), strict=True))
