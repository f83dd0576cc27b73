"""What a front stage has learned goes to another engine: the rows are those of its own master."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.parts.admission import ADMISSIONS
from semistream.parts.learned import Learned, Legacy
from semistream.testing import assert_same_rows, checked_run, oracle_join
from tests.contract.harness import Contract, having

WITH_RULE = having("admission")
CASES = [*((name, {"admission": rule}) for name in WITH_RULE for rule in ADMISSIONS)]
CASES += [("oxhybridjoin", {})]
HOT = 24
ROWS = 600


def rows_for(keys: list[int], word: str) -> pa.Table:
    """Two rows for each third key, one for the others."""
    both = sorted([*keys, *(key for key in keys if key % 3 == 0)])
    names = [f"{word} {key}, number {i}" for i, key in enumerate(both)]
    return pa.table({"id": pa.array(both, pa.int64()), "name": names})


BEFORE = rows_for(list(range(0, 2 * ROWS, 2)), "old")
CHANGED, DELETED, INSERTED = [0, 6, 40, 700], [2, 12, 500], [1, 9, 13, 801]
"""Hot keys and others; an inserted key is odd, and was asked for in vain before."""


def after() -> pa.Table:
    """The rows after the update, in another way than the update makes them."""
    gone = {*CHANGED, *DELETED}
    stay = BEFORE.filter(pa.array([key not in gone for key in BEFORE["id"].to_pylist()]))
    return pa.concat_tables([stay, rows_for(CHANGED + INSERTED, "new")])


def sales(seed: int, count: int = 1500) -> list[pa.RecordBatch]:
    """Mostly keys below `HOT`, absent ones too."""
    random = np.random.default_rng(seed)
    hot = random.integers(0, HOT, count)
    keys = np.where(random.random(count) < 0.8, hot, random.integers(0, 2 * ROWS, count))
    table = pa.table({"id": pa.array(keys, mask=random.random(count) < 0.02), "n": range(count)})
    batches: list[pa.RecordBatch] = table.to_batches(max_chunksize=150)
    return batches


def taught(contract: Contract, master: ss.MasterTable, options: dict[str, Any]) -> ss.Engine:
    """An engine that has seen some of the stream."""
    engine = contract.engine(master, memory="256KB", **options)
    for seed in range(3):
        checked_run(engine, sales(seed))
    return engine


@pytest.mark.parametrize("layout", ["key", "given"])
@pytest.mark.parametrize(("algorithm", "options"), CASES)
def test_a_newer_version_has_its_own_rows(
    contract: Contract, options: dict[str, Any], layout: str, note_seed: Any
) -> None:
    master = contract.master(BEFORE, layout=layout)
    legacy = taught(contract, master, options).leave()
    newer = master.upsert(rows_for(CHANGED + INSERTED, "new")).delete(DELETED)
    engine, cold = (contract.engine(newer, memory="256KB", **options) for _ in range(2))
    if legacy is not None:
        engine.inherit(legacy)
    for seed in (10, 11):
        batches = sales(note_seed(seed))
        found = checked_run(engine, batches)
        assert_same_rows(found, oracle_join(batches, after(), on="id", how="left").rows)
        metrics = engine.metrics()
        assert metrics.peak_memory <= metrics.budget
        if seed == 10 and contract.algorithm != "oxhybridjoin":
            checked_run(cold, batches)
            assert metrics.front_hits > cold.metrics().front_hits


@pytest.mark.parametrize(("algorithm", "options"), CASES)
def test_the_same_version_needs_no_reads(contract: Contract, options: dict[str, Any]) -> None:
    master = contract.master(BEFORE)
    engine = taught(contract, master, options)
    known = engine.learned()
    legacy = engine.leave()
    assert engine.memory().keys() == {"peak", "budget"}
    assert (legacy is None) == (contract.algorithm == "oxhybridjoin")
    if legacy is None:
        return
    other = contract.engine(ss.MasterTable.open(master.path), memory="256KB", **options)
    other.inherit(legacy)
    # A batch of keys that are all kept: nothing is read.
    batches = [pa.record_batch({"id": known.codes, "n": np.arange(len(known.codes))})]
    found = checked_run(other, batches)
    assert_same_rows(found, oracle_join(batches, BEFORE, on="id", how="left").rows)
    assert other.metrics().front_hits == len(known.codes) > 0
    if contract.algorithm != "cmeshjoin":
        assert other.metrics().pages_read == 0


@pytest.mark.parametrize(("algorithm", "options"), CASES)
@pytest.mark.parametrize("layout", ["key", "given"])
def test_codes_alone_are_a_hint(contract: Contract, options: dict[str, Any], layout: str) -> None:
    """Codes of keys that are there, that are not, that come twice, and more than have room."""
    master = contract.master(BEFORE, layout=layout)
    random = np.random.default_rng(5)
    codes = np.concatenate(
        [np.arange(HOT), np.arange(-3, 3), random.integers(-(1 << 62), 1 << 62, 9)]
    )
    codes = np.concatenate([codes, random.integers(0, 2 * ROWS, 5000)])
    learned = Learned(codes, np.linspace(9, 1, len(codes)).astype(np.float32))
    engine = contract.engine(master, memory="256KB", **options)
    engine.inherit(Legacy(learned))
    batches = sales(4)
    found = checked_run(engine, batches)
    assert_same_rows(found, oracle_join(batches, BEFORE, on="id", how="left").rows)
    metrics = engine.metrics()
    assert metrics.peak_memory <= metrics.budget
    if contract.algorithm != "oxhybridjoin":
        assert metrics.front_hits > 0.2 * metrics.arrived


@pytest.mark.parametrize("algorithm", WITH_RULE)
def test_wider_tuples_keep_what_was_learned(contract: Contract) -> None:
    master = contract.master(BEFORE)
    engine, cold = taught(contract, master, {}), contract.engine(master, memory="256KB")
    wide = [
        batch.append_column("note", pa.array(["a long note"] * batch.num_rows))
        for batch in sales(8, 150)
    ]
    found = checked_run(engine, wide)
    assert_same_rows(found, oracle_join(wide, BEFORE, on="id", how="left").rows)
    checked_run(cold, wide)
    assert engine.metrics().front_hits > cold.metrics().front_hits
    assert engine.metrics().peak_memory <= engine.metrics().budget


@pytest.mark.parametrize("algorithm", ["chybridjoin"])
def test_less_memory_keeps_the_most_frequent(contract: Contract) -> None:
    master = contract.master(BEFORE)
    legacy = taught(contract, master, {}).leave()
    assert legacy is not None
    engine = contract.engine(master, memory="128KB")
    engine.inherit(legacy)
    batches = sales(9)
    found = checked_run(engine, batches)
    assert_same_rows(found, oracle_join(batches, BEFORE, on="id", how="left").rows)
    assert engine.metrics().peak_memory <= engine.metrics().budget


@pytest.mark.parametrize("algorithm", ["chybridjoin", "cinlj"])
def test_a_broken_page_is_an_error_only_to_those_who_need_it(contract: Contract) -> None:
    master = contract.master(BEFORE)
    (pages,) = (Path(master.path) / "data").glob("*pages.arrow")
    content = bytearray(pages.read_bytes())
    content[int(master.pages.offset[-1]) + 500] ^= 1
    pages.write_bytes(content)
    codes = np.arange(0, 2 * ROWS, 2)
    engine = contract.engine(master, memory="256KB")
    engine.inherit(Legacy(Learned(codes, np.ones(len(codes), np.float32))))
    batches = [pa.record_batch({"id": np.arange(0, 40, 2), "n": np.arange(20)})]
    found = checked_run(engine, batches)
    assert_same_rows(found, oracle_join(batches, BEFORE, on="id", how="left").rows)
