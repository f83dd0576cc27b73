"""The star engine: order of columns, pauses, memory, metrics, errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.cost.factors import known_factors
from semistream.errors import (
    BudgetError,
    ColumnClashError,
    CorruptPageError,
    KeyColumnError,
    KeyTypeError,
    OptionError,
    StreamSchemaError,
    UnknownAlgorithmError,
)
from semistream.star import division
from semistream.testing import assert_same_rows, rows_of

SALES = pa.record_batch({"origin": [1, 2, 9], "target": [2, 1, 1], "n": [10, 11, 12]})


@pytest.fixture
def cities(tmp_path: Path) -> ss.MasterTable:
    table = pa.table({"id": [1, 2, 3], "city": ["Bern", "Rome", "Oslo"]})
    return ss.MasterTable.from_arrow(table, tmp_path / "cities.master", key="id")


@pytest.fixture
def kinds(tmp_path: Path) -> ss.MasterTable:
    table = pa.table({"n": [10, 11, 12], "kind": ["x", "y", "z"]})
    return ss.MasterTable.from_arrow(table, tmp_path / "kinds.master", key="n")


def test_columns_come_in_the_order_of_the_look_ups_whichever_ran_first(
    cities: ss.MasterTable, kinds: ss.MasterTable
) -> None:
    lookups = [
        ss.Lookup(cities, on={"origin": "id"}, how="left", name="from", prefix="from_"),
        ss.Lookup(kinds, on="n"),
        ss.Lookup(cities, on={"target": "id"}, name="to", prefix="to_"),
    ]
    with ss.star_engine(lookups, memory="4MB") as star:
        found = list(star.run([SALES]))
        assert found[0].schema.names == [*SALES.schema.names, "from_city", "kind", "to_city"]
        assert_same_rows(
            rows_of(found),
            [
                (1, 2, 10, "Bern", "x", "Rome"),
                (2, 1, 11, "Rome", "y", "Bern"),
                (9, 1, 12, None, "z", "Bern"),
            ],
        )
        metrics = star.metrics()
        assert (metrics.arrived, metrics.joined, metrics.unmatched) == (3, 2, 1)
        assert set(star.plans) == set(metrics.lookups) == {"from", "kinds", "to"}


def test_an_inner_look_up_drops_tuples_before_a_left_one_looks_for_them(
    cities: ss.MasterTable, kinds: ss.MasterTable
) -> None:
    lookups = [
        ss.Lookup(kinds, on="n", how="left"),
        ss.Lookup(cities, on={"origin": "id"}),
    ]
    star = ss.star_engine(lookups, memory="4MB")
    assert sum(batch.num_rows for batch in star.run([SALES])) == 2
    assert star.metrics().lookups["cities"].arrived == 3
    assert star.metrics().lookups["kinds"].arrived == 2


def test_a_pause_hands_out_all_results(cities: ss.MasterTable) -> None:
    asked: list[int] = []
    taken: list[int] = []

    def stream() -> Iterator[pa.RecordBatch]:
        for batch in [SALES, SALES.slice(0, 0), SALES]:
            asked.append(sum(taken))
            yield batch

    star = ss.star_engine([ss.Lookup(cities, on={"origin": "id"}, how="left")], memory="4MB")
    for batch in star.run(stream()):
        taken.append(batch.num_rows)
    assert asked == [0, 0, 3]
    assert sum(taken) == 6


def test_many_rows_of_a_key_stay_inside_the_memory(tmp_path: Path, cities: ss.MasterTable) -> None:
    """Each tuple has 3,000 rows of 1 KB in each of two masters, before a third look-up."""
    masters = [
        ss.MasterTable.from_arrow(
            pa.table({"k": [1] * rows, f"text{i}": ["t" * size] * rows}),
            tmp_path / f"m{i}.master",
            key="k",
        )
        for i, (rows, size) in enumerate([(3000, 1000), (20, 10)])
    ]
    lookups = [ss.Lookup(master, on={"origin": "k"}) for master in masters]
    lookups.append(ss.Lookup(cities, on={"target": "id"}))
    stream = [pa.record_batch({"origin": [1] * 4, "target": [1, 2, 3, 1]})]
    star = ss.star_engine(lookups, memory="1MB")
    before, peak, rows = pa.total_allocated_bytes(), 0, 0
    for batch in star.run(stream):
        peak = max(peak, pa.total_allocated_bytes() - before - batch.nbytes)
        rows += batch.num_rows
    assert rows == 4 * 3000 * 20
    assert peak <= 1 << 20
    memory = star.memory()
    assert memory["peak"] <= memory["budget"] == 1 << 20
    assert sum(memory[name] for name in ("rounds", "m0", "m1", "cities")) <= 1 << 20


def test_memory_goes_where_it_saves_most(tmp_path: Path) -> None:
    """A large master and a small one: equal shares would be wrong, and the plan says why."""
    masters = []
    for name, rows in (("small", 2_000), ("large", 300_000)):
        keys = np.arange(rows)
        table = pa.table({"id": keys, name: [f"{'row':>60}{i % 97}" for i in range(rows)]})
        masters.append(ss.MasterTable.from_arrow(table, tmp_path / f"{name}.master", key="id"))
    lookups = [ss.Lookup(m, on={f"k{i}": "id"}) for i, m in enumerate(masters)]
    schema = pa.schema([("k0", pa.int64()), ("k1", pa.int64())])
    plan = ss.star_engine(lookups, memory="6MB").planned(schema)
    small, large = plan.shares
    assert large.memory > 1.5 * small.memory
    assert plan.seconds_if_equal is not None
    assert plan.seconds < plan.seconds_if_equal
    assert plan.held + small.memory + large.memory <= plan.memory == 6 << 20
    assert small.memory >= small.least
    assert large.memory >= large.least
    text = plan.explain()
    assert "large" in text
    assert "with equal shares" in text
    assert f"{plan.held:,}" in text
    ample = ss.star_engine(lookups, memory="2GB").planned(schema)
    assert all(share.whole for share in ample.shares)
    assert "kept in memory" in ample.explain()


def test_the_least_memory_works_and_one_byte_less_does_not(
    cities: ss.MasterTable, kinds: ss.MasterTable
) -> None:
    lookups = [ss.Lookup(cities, on={"origin": "id"}), ss.Lookup(kinds, on="n")]
    with pytest.raises(BudgetError, match="the least is") as caught:
        list(ss.star_engine(lookups, memory=1).run([SALES]))
    found = re.search(r"the least is ([\d,]+) bytes", str(caught.value))
    assert found is not None
    least = int(found[1].replace(",", ""))
    assert sum(b.num_rows for b in ss.star_engine(lookups, memory=least).run([SALES])) == 2
    with pytest.raises(BudgetError, match=f"the least is {least:,} bytes"):
        list(ss.star_engine(lookups, memory=least - 1).run([SALES]))


def test_dictionaries_and_views_come_out_plain(cities: ss.MasterTable) -> None:
    batch = pa.record_batch(
        {
            "origin": pa.array([1, 2]).dictionary_encode(),
            "word": pa.array(["a", "b"]).cast(pa.string_view()),
        }
    )
    (found,) = ss.star_engine([ss.Lookup(cities, on={"origin": "id"})], memory="1MB").run([batch])
    assert found.schema.types == [pa.int64(), pa.string(), pa.string()]
    assert rows_of(found) == [(1, "a", "Bern"), (2, "b", "Rome")]


def test_errors_say_which_look_up(cities: ss.MasterTable, kinds: ss.MasterTable) -> None:
    def run(*lookups: ss.Lookup) -> None:
        list(ss.star_engine(list(lookups), memory="4MB").run([SALES]))

    first = ss.Lookup(cities, on={"origin": "id"})
    with pytest.raises(ColumnClashError, match="Look-up two: the column 'city' is one of look-up"):
        run(first, ss.Lookup(cities, on={"target": "id"}, name="two"))
    with pytest.raises(ColumnClashError, match="Look-up kinds: the column 'n' is one of the stre"):
        run(ss.Lookup(kinds, on={"origin": "n"}, columns=["n"]))
    with pytest.raises(OptionError, match="the same name: cities"):
        run(first, ss.Lookup(cities, on={"target": "id"}))
    with pytest.raises(KeyColumnError, match="Look-up cities: The stream has no column"):
        run(ss.Lookup(cities, on={"start": "id"}))
    table = pa.table({"id": ["a"], "word": ["b"]})
    words = ss.MasterTable.from_arrow(table, f"{cities.path}-words", key="id")
    with pytest.raises(KeyTypeError, match="Look-up words"):
        run(ss.Lookup(words, on={"origin": "id"}, name="words"))
    with pytest.raises(OptionError, match="how='outer'"):
        run(ss.Lookup(cities, on={"origin": "id"}, how="outer"))
    with pytest.raises(UnknownAlgorithmError, match="nonsense"):
        run(ss.Lookup(cities, on={"origin": "id"}, algorithm="nonsense"))
    with pytest.raises(OptionError, match="list of look-ups"):
        run()
    with pytest.raises(OptionError, match=r"must be an ss\.Lookup"):
        ss.star_engine([cities], memory="1MB")  # type: ignore[list-item]
    with pytest.raises(OptionError, match="MasterTable"):
        ss.Lookup("cities.master", on="id")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="is not a size"):
        ss.star_engine([first], memory="much")


def test_a_batch_of_another_schema_and_a_second_run_are_refused(cities: ss.MasterTable) -> None:
    star = ss.star_engine([ss.Lookup(cities, on={"origin": "id"})], memory="1MB")
    with pytest.raises(StreamSchemaError):
        list(star.run([SALES, SALES.select(["origin"])]))
    with pytest.raises(StreamSchemaError, match="it must give pyarrow"):
        list(star.run([SALES.to_pydict()]))
    run = star.run([SALES] * 2)
    next(run)
    with pytest.raises(OptionError, match="running already"):
        star.run([SALES])
    run.close()
    assert sum(batch.num_rows for batch in star.run(pa.Table.from_batches([SALES]))) == 2
    narrow = SALES.select(["origin"])
    assert sum(batch.num_rows for batch in star.run(narrow)) == 2


def test_a_broken_page_stops_the_run(tmp_path: Path, cities: ss.MasterTable) -> None:
    (file,) = (tmp_path / "cities.master" / "data").glob("*.pages.arrow")
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 0xFF
    file.write_bytes(data)
    with pytest.raises((CorruptPageError, ss.SemistreamError)):
        list(ss.star_engine([ss.Lookup(cities, on={"origin": "id"})], memory="1MB").run([SALES]))


def test_a_master_in_shards_is_for_spark(tmp_path: Path) -> None:
    table = pa.table({"id": range(100), "x": range(100)})
    master = ss.MasterTable.from_arrow(table, tmp_path / "s.master", key="id", shards=2)
    with pytest.raises(OptionError, match="has 2 shards"):
        list(ss.star_engine([ss.Lookup(master, on={"n": "id"})], memory="4MB").run([SALES]))


def test_an_empty_stream_and_an_empty_master(tmp_path: Path, cities: ss.MasterTable) -> None:
    nothing = pa.table({"id": pa.array([], pa.int64()), "x": pa.array([], pa.string())})
    master = ss.MasterTable.from_arrow(nothing, tmp_path / "none.master", key="id")
    lookups = [
        ss.Lookup(cities, on={"origin": "id"}),
        ss.Lookup(master, on={"n": "id"}, how="left"),
    ]
    star = ss.star_engine(lookups, memory="4MB")
    assert list(star.run([])) == []
    assert star.plan is None
    assert star.metrics().arrived == 0
    assert rows_of(star.run([SALES])) == [(1, 2, 10, "Bern", None), (2, 1, 11, "Rome", None)]


def test_a_division_reads_the_cost_factors_once_for_each_look_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pa.table({"id": range(500), "text": ["t" * 40] * 500})
    master = ss.MasterTable.from_arrow(rows, tmp_path / "m.master", key="id")
    asked: list[str] = []

    def counted(io: str) -> Any:
        asked.append(io)
        return known_factors(io)

    monkeypatch.setattr(division, "known_factors", counted)
    given = [ss.Lookup(master, on={name: "id"}, name=name, prefix=name) for name in "ab"]
    ss.star_engine(given, memory="8MB").planned(pa.schema([("a", pa.int64()), ("b", pa.int64())]))
    assert len(asked) == 2
