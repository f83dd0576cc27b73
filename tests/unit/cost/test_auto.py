"""algorithm="auto" without Spark: what it chooses, and that it joins as the others do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.errors import BudgetError, OptionError
from semistream.testing import assert_same_rows, oracle_join, rows_of

Masters = dict[str, ss.MasterTable]


@pytest.fixture(autouse=True)
def _no_measured_factors(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def chosen(master: ss.MasterTable, batches: list[pa.RecordBatch], share: float) -> ss.JoinPlan:
    memory = int(master.pages.length.sum() * share)
    engine = ss.engine(master, algorithm="auto", io="unmapped", on="product_id", memory=memory)
    rows = sum(batch.num_rows for batch in engine.run(batches))
    assert rows == sum(batch.num_rows for batch in batches)
    assert engine.memory()["peak"] <= memory
    assert engine.plan is not None
    assert engine.metrics().algorithm == engine.plan.algorithm
    return engine.plan


@pytest.mark.usefixtures("slow_disk")
def test_a_skewed_stream_gets_a_front_stage_and_a_uniform_one_does_not(
    masters: Masters, stream: Any
) -> None:
    skewed = chosen(masters["key"], list(stream(1.0, 20_000, 10_000)), 0.2)
    assert skewed.algorithm == "chybridjoin"
    assert skewed.expected is not None
    assert "exponent 1.0" in skewed.explain()
    even = chosen(masters["key"], list(stream(0.0, 20_000, 10_000)), 0.2)
    assert even.front_rows == 0


def test_a_stream_that_begins_slowly_gets_one_that_adapts(masters: Masters, stream: Any) -> None:
    plan = chosen(masters["key"], list(stream(0.0, 400, 50)), 0.2)
    assert plan.algorithm == "chybridjoin"
    assert "not known yet" in plan.explain()


def test_a_master_that_fits_is_kept_in_memory(masters: Masters, stream: Any) -> None:
    plan = chosen(masters["given"], list(stream(0.5, 20_000, 10_000)), 4.0)
    assert plan.algorithm == "oxhybridjoin"
    assert plan.pinned_partitions * plan.partition_pages >= masters["given"].page_count
    assert "fits" in plan.explain()


def test_a_copy_of_the_master_never_leaves_room_for_small_chunks_only(
    masters: Masters, stream: Any
) -> None:
    """Pages that are searched in place need no copy, and chunks need room."""
    master, (first,) = masters["key"], stream(0.5, 10_000, 10_000)
    size = int(master.pages.length.sum())
    chunks = [
        ss.engine(master, on="product_id", memory=int(size * share)).planned(first)
        for share in np.arange(1.0, 4.0, 0.1)
    ]
    assert min(plan.stream_chunk_rows for plan in chunks) >= 1024
    assert chunks[-1].algorithm == "oxhybridjoin"


def test_it_joins_what_an_oracle_joins(tmp_path: Any) -> None:
    goods = pa.table({"id": np.arange(0, 6000, 2), "name": [f"n{i}" for i in range(3000)]})
    master = ss.MasterTable.from_arrow(goods, tmp_path / "m", key="id", page_bytes=4096)
    keys = np.random.default_rng(8).zipf(1.3, 4000) % 6000
    sales = pa.table({"id": keys, "n": np.arange(4000)})
    for memory in ("60KB", "4MB"):
        engine = ss.engine(
            master, algorithm="auto", io="unmapped", on="id", how="left", memory=memory
        )
        found = pa.Table.from_batches(engine.run(sales))
        assert_same_rows(rows_of(found), oracle_join(sales, goods, on="id", how="left").rows)
        again = pa.Table.from_batches(engine.run(sales))
        assert again.num_rows == found.num_rows


def test_options_are_kept_and_unknown_ones_refused(masters: Masters, stream: Any) -> None:
    batches = list(stream(1.0, 5_000, 5_000))
    memory = int(masters["key"].pages.length.sum() * 0.2)
    engine = ss.engine(
        masters["key"],
        algorithm="auto",
        io="unmapped",
        on="product_id",
        memory=memory,
        partition_pages=2,
    )
    list(engine.run(batches))
    assert engine.plan is not None
    assert engine.plan.partition_pages == 2
    with pytest.raises(OptionError, match="No algorithm has an option 'pages'"):
        ss.engine(
            masters["key"], algorithm="auto", io="unmapped", on="product_id", memory=memory, pages=2
        )
    with pytest.raises(OptionError, match="at least 1"):
        ss.engine(
            masters["key"],
            algorithm="auto",
            io="unmapped",
            on="product_id",
            memory=memory,
            partition_pages=0,
        )


def test_too_little_memory_for_all_of_them_names_the_least(masters: Masters, stream: Any) -> None:
    engine = ss.engine(
        masters["key"], algorithm="auto", io="unmapped", on="product_id", memory=5_000
    )
    with pytest.raises(BudgetError, match="too little for any algorithm"):
        list(engine.run(stream(1.0, 2_000, 2_000)))
