"""The minimum that the error for a small budget names: it works, one byte less does not."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.errors import BudgetError
from semistream.testing import assert_same_rows, checked_run, oracle_join
from tests.contract.harness import Contract, having

_LEAST = re.compile(r"the least is ([\d,]+) bytes")


def texts(count: int, lengths: list[int], seed: int = 1) -> list[str]:
    drawn = np.random.default_rng(seed).choice(lengths, count)
    return ["t" * int(length) for length in drawn]


def numbers(count: int, step: int = 2) -> pa.Array:
    return pa.array(np.arange(count) * step)


MASTERS: dict[str, pa.Table] = {
    "no rows": pa.table({"id": pa.array([], pa.int64()), "name": pa.array([], pa.string())}),
    "one row": pa.table({"id": [4], "name": ["four"]}),
    "fixed width": pa.table({"id": numbers(900), "price": np.arange(900) / 4}),
    "strings": pa.table({"id": numbers(500), "name": texts(500, [0, 10, 90])}),
    "one long row among short ones": pa.table(
        {"id": numbers(400), "name": ["short"] * 250 + ["l" * 9000] + ["short"] * 149}
    ),
    "a short page, then long ones": pa.table(
        {"id": numbers(40), "name": ["short"] + ["l" * 12_000] * 39}
    ),
    "many rows of one key": pa.table({"id": [6] * 500, "name": texts(500, [5, 50])}),
    "nested": pa.table({"id": numbers(300), "many": [list(range(i % 40)) for i in range(300)]}),
}
LONG_AND_SHORT = texts(200, [0, 1, 2, 3])
LONG_AND_SHORT[137] = "l" * 5000
STREAMS: dict[str, list[pa.RecordBatch]] = {
    "fixed": [pa.record_batch({"id": np.arange(i, i + 200), "n": np.arange(200)}) for i in (0, 90)],
    "strings": [pa.record_batch({"id": np.arange(200), "text": texts(200, [0, 9, 60])})] * 2,
    "one long string among short ones": [
        pa.record_batch({"id": np.arange(200), "text": LONG_AND_SHORT})
    ],
    "an empty batch first": [
        pa.record_batch({"id": pa.array([], pa.int64()), "text": pa.array([], pa.string())}),
        pa.record_batch({"id": np.arange(200), "text": texts(200, [0, 9, 60])}),
    ],
}


@pytest.mark.parametrize("layout", ["key", "given"])
@pytest.mark.parametrize("name", MASTERS)
def test_the_named_minimum_works_and_a_byte_less_does_not(
    contract: Contract, name: str, layout: str
) -> None:
    table, stream = MASTERS[name], STREAMS["fixed"]
    master = contract.master(table, layout=layout)
    least = contract.least(master, stream)
    engine = contract.engine(master, memory=least)
    found = checked_run(engine, stream)
    assert_same_rows(found, oracle_join(stream, table, on="id", how="left").rows)
    with pytest.raises(BudgetError, match=f"memory={least - 1:,} .*the least is {least:,} bytes"):
        list(contract.engine(master, memory=least - 1).run(stream))


@pytest.mark.parametrize("stream", STREAMS)
def test_the_named_minimum_works_for_any_stream(contract: Contract, stream: str) -> None:
    table, batches = MASTERS["strings"], STREAMS[stream]
    master = contract.master(table)
    least = contract.least(master, batches)
    found = checked_run(contract.engine(master, memory=least), batches)
    assert_same_rows(found, oracle_join(batches, table, on="id", how="left").rows)
    with pytest.raises(BudgetError, match=f"the least is {least:,} bytes"):
        list(contract.engine(master, memory=least - 1).run(batches))


@pytest.mark.parametrize("name", MASTERS)
def test_every_budget_above_the_minimum_works(contract: Contract, name: str) -> None:
    """More memory may be divided otherwise, but is never too little."""
    table, stream = MASTERS[name], STREAMS["fixed"][:1]
    master = contract.master(table)
    least = contract.least(master, stream)
    expected = oracle_join(stream, table, on="id", how="left").rows
    for factor in (1.01, 1.1, 1.25, 1.5, 2, 3, 4.5, 8, 20):
        engine = contract.engine(master, memory=int(least * factor) + 1)
        assert_same_rows(list(engine.run(stream)), expected)
        assert engine.metrics().peak_memory <= engine.metrics().budget


FIXED: list[dict[str, int]] = [
    {"partition_pages": 1},
    {"partition_pages": 3},
    {"stream_slots": 1000},
    {"stream_slots": 1000, "partition_pages": 2},
    {"pinned_partitions": 0},
    {"pinned_partitions": 4},
]


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [(algorithm, options) for options in FIXED for algorithm in having(*options)],
    ids=str,
)
def test_the_minimum_heeds_options_that_fix_sizes(
    contract: Contract, options: dict[str, int]
) -> None:
    table, stream = MASTERS["strings"], STREAMS["fixed"]
    master = contract.master(table)
    least = contract.least(master, stream, **options)
    engine = contract.engine(master, memory=least, **options)
    found = checked_run(engine, stream)
    assert_same_rows(found, oracle_join(stream, table, on="id", how="left").rows)
    assert engine.plan is not None
    assert {name: getattr(engine.plan, name) for name in options} == options
    with pytest.raises(BudgetError, match=rf"{least:,} bytes.*drop the options that fix sizes"):
        list(contract.engine(master, memory=least - 1, **options).run(stream))


@pytest.mark.parametrize("algorithm", having("chunk_tuples"))
def test_options_that_no_memory_can_meet_are_told_as_such(contract: Contract) -> None:
    """MESHJOIN wants a slot for every partition: no budget helps, and none must be named."""
    table, stream = MASTERS["strings"], STREAMS["fixed"]
    master = contract.master(table)
    options = {"stream_slots": 1, "partition_pages": 1, "chunk_tuples": 1}
    with pytest.raises(ss.SemistreamError) as caught:
        list(contract.engine(master, memory="1GB", **options).run(stream))
    found = _LEAST.search(str(caught.value))
    assert found is None, f"the error names a minimum that does not help: {caught.value}"
    assert "stream_slots" in str(caught.value)


_ADVICE = re.compile(r"Give the join (?:at least )?([\d,]+) bytes( more)?")


@pytest.mark.parametrize("length", [3_000, 40_000, 3_000_000])
@pytest.mark.parametrize("memory", ["least", 2_000_000])
def test_advice_for_a_tuple_that_is_too_wide_helps(
    contract: Contract, length: int, memory: int | str
) -> None:
    """The first batch shows how wide tuples are; a later one is far wider."""
    table = MASTERS["strings"]
    stream = [
        pa.record_batch({"id": np.arange(50), "text": ["s"] * 50}),
        pa.record_batch({"id": [1, 2, 3], "text": ["s", "l" * length, "s"]}),
    ]
    master = contract.master(table)
    budget = contract.least(master, stream) if memory == "least" else int(memory)
    expected = oracle_join(stream, table, on="id", how="left").rows
    for _ in range(3):
        try:
            found = list(contract.engine(master, memory=budget).run(stream))
        except BudgetError as error:
            advice = _ADVICE.search(str(error))
            if advice is None:
                raise
            named = int(advice[1].replace(",", ""))
            budget = budget + named if advice[2] else named
        else:
            assert_same_rows(found, expected)
            return
    pytest.fail(f"the advice was followed three times, up to {budget:,} bytes, in vain")
