"""A pipeline on a master that follows its source: how far behind it is, and how far it may be."""

from __future__ import annotations

import json
from typing import Any

import pytest

import semistream as ss
from semistream.errors import OptionError, StaleMasterError
from semistream.relation.following import as_of, note_fresh
from semistream.testing import ManualClock
from tests.spark.pipeline.conftest import Shop

CHANGES = "id long, name string, _change_type string, _commit_version long"


def test_a_pipeline_fails_rather_than_join_older_rows(shop: Shop) -> None:
    changes = shop.spark.createDataFrame([(1, "another", "insert", 1)], CHANGES)
    master = shop.master().sync(changes).master
    at = as_of(master.location)
    shop.sell(50)
    options: dict[str, Any] = {"max_staleness": "10m", "metrics": shop.folder / "metrics.jsonl"}
    done = shop.run(**options, clock=ManualClock(at + 500))
    assert done.status().totals.source == 50
    (line,) = shop.lines("metrics.jsonl")
    assert line["master_lag_seconds"] == pytest.approx(500)
    assert "semistream_master_lag_seconds" in done.prometheus()
    log = shop.folder / "checkpoint" / "semistream" / "batches"
    assert json.loads((log / "00000000.json").read_text())["master_as_of"] == at

    shop.sell(30)
    late = shop.pipeline(**options, clock=ManualClock(at + 700)).start()
    with pytest.raises(StaleMasterError, match="700 seconds ago, and max_staleness allows 600"):
        late.await_termination()
    assert not (log / "00000001.json").exists()
    # The source had nothing new for long; what brings the master up to date says so.
    note_fresh(master.location, at + 600)
    done = shop.run(**options, clock=ManualClock(at + 700))
    assert done.status().totals.source == 80


def test_a_master_that_follows_nothing_is_as_old_as_its_version(shop: Shop) -> None:
    made = as_of(shop.master().location)
    shop.sell(5)
    options: dict[str, Any] = {
        "metrics": shop.folder / "metrics.jsonl",
        "clock": ManualClock(made + 100),
    }
    with pytest.raises(StaleMasterError, match="100 seconds ago"):
        shop.run(**options, max_staleness=60)
    shop.run(**options)
    assert "master_lag_seconds" not in shop.lines("metrics.jsonl")[0]
    with pytest.raises(OptionError, match="max_staleness"):
        shop.pipeline(max_staleness="soon")


def test_a_look_up_has_a_limit_of_its_own(shop: Shop) -> None:
    goods = shop.master()
    at = as_of(goods.location)
    shop.sell(5)

    def lookups(limit: str) -> list[ss.Lookup]:
        one = ss.Lookup(goods, on="id", how="left", max_staleness="1h")
        return [one, one.changed(name="again", prefix="again_", max_staleness=limit)]

    options: dict[str, Any] = {"on": None, "clock": ManualClock(at + 100)}
    with pytest.raises(StaleMasterError, match="100 seconds ago, and max_staleness allows 60"):
        shop.run(master=lookups("1m"), **options)
    assert shop.run(master=lookups("2m"), **options).status().totals.source == 5
    with pytest.raises(OptionError, match="Look-up again: max_staleness='soon'"):
        lookups("soon")
    sales = shop.spark.createDataFrame([(1,)], "id long")
    with pytest.raises(StaleMasterError):
        ss.join_star(sales, lookups("1ms"), memory="1MB")
