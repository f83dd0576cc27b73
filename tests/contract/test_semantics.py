"""What comes out of a join: cases of keys that are easy to get wrong, for every algorithm.

A case is master keys and stream batches of keys. Every case runs in both layouts, at the least
budget, at a roomy one, and with a stream table of three slots (`RUNS` in harness.py), each
time with the engine's invariants checked after every batch, against the oracle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from semistream.algorithms.meshjoin import MeshJoin
from semistream.testing import assert_same_rows, checked_run, oracle_join
from tests.contract.harness import Contract, having

Key = int | None
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
ROWS_OF_SEVERAL_PAGES = 300
"""Five pages of 4,096 bytes."""
WITHOUT_SLOTS = [("key", "least"), ("key", "roomy"), ("given", "roomy")]


class Case(NamedTuple):
    master: Sequence[Key]
    batches: Sequence[Sequence[Key]]


def master_table(keys: Sequence[Key]) -> pa.Table:
    count = len(keys)
    return pa.table(
        {
            "id": pa.array(keys, pa.int64()),
            "name": pa.array([f"product number {i}, as it is called" for i in range(count)]),
            "price": pa.array([None if i % 7 == 0 else i / 4 for i in range(count)], pa.float64()),
        }
    )


def stream_batches(batches: Sequence[Sequence[Key]]) -> list[pa.RecordBatch]:
    """Batches whose tuples differ, by a number and by a nullable column."""
    result, start = [], 0
    for keys in batches:
        numbers = range(start, start + len(keys))
        start += len(keys)
        result.append(
            pa.record_batch(
                {
                    "sale": pa.array(numbers, pa.int32()),
                    "id": pa.array(keys, pa.int64()),
                    "note": pa.array([None if n % 3 else n / 2 for n in numbers], pa.float32()),
                }
            )
        )
    return result


def spread(count: int, step: int = 3) -> list[int]:
    """`count` keys with gaps between them, in no order."""
    keys = np.random.default_rng(count).permutation(count) * step
    return [int(key) for key in keys]


def cut(keys: Sequence[Key], size: int) -> list[Sequence[Key]]:
    return [keys[start : start + size] for start in range(0, len(keys), size)]


SEVERAL = spread(ROWS_OF_SEVERAL_PAGES)
LOW, HIGH = min(SEVERAL), max(SEVERAL)
SKEWED = [SEVERAL[(i % 17) ** 2] for i in range(240)]

CASES: dict[str, Case] = {
    "every key once": Case(SEVERAL, cut(SEVERAL, 90)),
    "duplicates in the stream": Case(SEVERAL, cut(SKEWED, 64)),
    "duplicates in the master": Case([*SEVERAL, *SEVERAL[:150], *SEVERAL[:40]], [SEVERAL[::2]]),
    "duplicates in both": Case([*SEVERAL[:100], *SEVERAL[:30], *SEVERAL[:9]], cut(SKEWED, 70)),
    "null keys among others": Case(SEVERAL, [[None, 3, None, 4, 6, None], [None] * 5, [9, None]]),
    "only null keys": Case(SEVERAL, [[None] * 4, [None] * 3]),
    "null keys in the master": Case([None, *SEVERAL, None], [[3, None, 6]]),
    "absent keys only, between others": Case(SEVERAL, cut([k + 1 for k in SEVERAL[:150]], 37)),
    "absent keys only, below and above": Case(
        SEVERAL, [[LOW - 1, HIGH + 1, LOW - 500, HIGH + 500], [INT64_MIN, INT64_MAX]]
    ),
    "absent keys at the head of the queue": Case(
        SEVERAL, [[1, LOW - 1, HIGH + 1, 2], [0, 3, 6, 1, 600], [1, 1, 2, 2, 0, 0]]
    ),
    "an absent key, many times, before each present one": Case(
        SEVERAL, cut([key for pair in SEVERAL[:60] for key in (1, 1, pair + 1, pair)], 50)
    ),
    "only empty batches": Case(SEVERAL, [[], [], []]),
    "empty batches first, between and last": Case(
        SEVERAL, [[], [], SEVERAL[:50], [], [], SKEWED[:80], [], [1, 2, 3], []]
    ),
    "an empty master": Case([], [[1, 2, None, 2], [], [3]]),
    "an empty master, an empty stream": Case([], [[]]),
    "a master of one row, which matches": Case([7], [[7, 7, 7], [8, 7, 6]]),
    "a master of one row, which does not": Case([7], [[1, 8, None]]),
    "a master smaller than a page": Case([5, 3, 3, 8], [[3, 5, 4, 8, 3, 9, 1]]),
    "one key for the whole stream": Case(SEVERAL, cut([SEVERAL[200]] * 150, 40)),
    "one absent key for the whole stream": Case(SEVERAL, cut([HIGH - 1] * 150, 40)),
    "one key for the whole master": Case([42] * 300, [[42], [41, 42, 43], [42]]),
    "one key for the whole master, which nobody asks for": Case([42] * 300, [[41, 43, 41]]),
    "one key for stream and master": Case([42] * 150, [[42] * 12, [42] * 5]),
    "a key that spans pages, between others": Case(
        [*range(60), *[60] * 200, *range(61, 130)], [[59, 60, 61], [60, 60, 0, 129, 128, 60]]
    ),
    "the first key and the last key span pages": Case(
        [*[0] * 120, *range(1, 80), *[80] * 120], [[0, 80, 40, 0], [79, 1, 80, -1, 81]]
    ),
    "each key spans pages": Case(
        [key for key in range(6) for _ in range(70)], cut([i % 8 - 1 for i in range(30)], 7)
    ),
    "a stream shorter than one cycle of R": Case(spread(900), [[0, 3, 1500, 2697]]),
    "a stream of one tuple": Case(SEVERAL, [[SEVERAL[7]]]),
    "a last batch that is not full": Case(SEVERAL, cut(SEVERAL[:205], 100)),
    "batches of one tuple": Case(SEVERAL, cut(SKEWED[:60], 1)),
    "extreme keys": Case(
        [INT64_MIN, INT64_MIN + 1, -1, 0, 1, INT64_MAX - 1, INT64_MAX, *SEVERAL],
        [[INT64_MIN, INT64_MAX, -1, 0, 5], [INT64_MAX - 1, INT64_MIN + 1, INT64_MIN + 2]],
    ),
    "extreme keys that span pages": Case(
        [*[INT64_MIN] * 130, *[INT64_MAX] * 130, 0],
        [[INT64_MAX, 0, INT64_MIN], [INT64_MIN + 1, INT64_MAX - 1, INT64_MIN]],
    ),
    "only the least key, spanning pages": Case([INT64_MIN] * 150, [[INT64_MIN, INT64_MAX, 0]]),
    "only the greatest key, spanning pages": Case([INT64_MAX] * 150, [[INT64_MAX, INT64_MIN, 0]]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_join_is_exact(contract: Contract, how: str, name: str) -> None:
    case = CASES[name]
    contract.holds(master_table(case.master), stream_batches(case.batches), how=how)


def test_exact_duplicate_tuples_are_all_kept(contract: Contract, how: str) -> None:
    table = master_table([*SEVERAL[:80], *SEVERAL[:80]])
    same = {"sale": pa.array([1] * 40, pa.int32()), "id": [3] * 20 + [4] * 20}
    contract.holds(table, [pa.record_batch(same)] * 3, how=how)


@pytest.mark.parametrize("pages", [1, 2, 3, 4, 1000])
@pytest.mark.parametrize("algorithm", having("partition_pages"))
def test_the_partition_size_need_not_divide_the_master(
    contract: Contract, how: str, pages: int
) -> None:
    table, stream = master_table(SEVERAL), stream_batches(cut([*SKEWED, 1, 2, HIGH + 1], 80))
    contract.holds(table, stream, how=how, runs=WITHOUT_SLOTS, partition_pages=pages)


@pytest.mark.parametrize("pinned", [0, 1, 2, 1000])
@pytest.mark.parametrize("algorithm", having("pinned_partitions"))
def test_any_number_of_partitions_may_be_pinned(contract: Contract, how: str, pinned: int) -> None:
    keys = [*range(60), *[60] * 130, *range(61, 130)]
    table, stream = master_table(keys), stream_batches([[60, 0, 129], [60, 61, 1, 59, 200]])
    contract.holds(table, stream, how=how, pinned_partitions=pinned)


@pytest.mark.parametrize("spare", [0, 1, 16])
@pytest.mark.parametrize("algorithm", having("stream_slots"))
def test_slots_are_not_leaked(contract: Contract, how: str, spare: int) -> None:
    """Far more tuples than slots, of every fate: a slot lost now and then would end the run."""
    keys: list[Key] = [*range(0, 120, 2), *[120] * 130, *range(121, 180)]
    asked: list[Key] = [int(k) for k in np.random.default_rng(spare).integers(-5, 190, 200)]
    asked[::9] = [None] * len(asked[::9])
    table, stream = master_table(keys), stream_batches(cut(asked, 37))
    slots = contract.fewest_slots(contract.master(table)) + spare
    sizes: dict[str, Any] = {"stream_slots": slots, "partition_pages": 1}
    contract.holds(table, stream, how=how, runs=[("key", "roomy"), ("given", "roomy")], **sizes)


def test_newer_tuples_of_a_key_outlive_an_expired_chunk(contract: Contract, how: str) -> None:
    """All chunks have the same keys: when the oldest expires, only its own tuples may go."""
    table = master_table(spread(300))
    options = contract.options(partition_pages=1, chunk_tuples=2)
    stream = stream_batches(cut([0, 3, 0, 1, 3, 3, 0, 1] * 20, 5))
    contract.holds(table, stream, how=how, runs=WITHOUT_SLOTS, **options)


def test_many_matches_per_tuple_do_not_pass_the_budget(contract: Contract, how: str) -> None:
    """Hundreds of result rows per tuple: they leave in pieces that the staging can hold."""
    table, stream = master_table([1] * 250 + [2] * 100), stream_batches([[1] * 3, [2] * 3])
    contract.holds(table, stream, how=how)


@pytest.mark.parametrize("algorithm", having("chunk_tuples"))
def test_w_may_change_between_steps(contract: Contract, how: str) -> None:
    """Chunks of different sizes still expire one by one, each after its own full cycle."""
    table, keys = master_table(SEVERAL), [*SKEWED, 1, 2]
    batches = stream_batches(cut(keys, 12))
    engine = contract.engine(contract.master(table), how=how, partition_pages=1, stream_slots=64)
    chosen = np.random.default_rng(5).integers(1, 30, len(batches)).tolist()

    def source() -> Iterator[pa.RecordBatch]:
        for batch, w in zip(batches, chosen, strict=True):
            if engine._running is not None:
                algorithm, _ = engine._running
                assert isinstance(algorithm, MeshJoin)
                algorithm.waiting.w = w
            yield batch

    found = checked_run(engine, source())
    assert_same_rows(found, oracle_join(batches, table, on="id", how=how).rows)
