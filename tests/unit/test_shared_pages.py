"""Which keys certainly have the same rows in two versions, compared with the rows themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.relation import same_rows
from semistream.relation.stored_rows import pages_of


def rows(keys: list[int], word: str) -> pa.Table:
    """As many rows for a key as its last digit says, at least one."""
    many = [key for key in keys for _ in range(max(1, key % 10))]
    names = [f"{word} {key}, {i}" for i, key in enumerate(many)]
    return pa.table({"id": pa.array(many, pa.int64()), "name": names})


def by_key(master: ss.MasterTable) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    with master.reader() as reader:
        for _, batch in pages_of(reader, np.arange(master.page_count)):
            for key, name in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                found.setdefault(key, []).append(name)
    return found


@pytest.mark.parametrize("round_", range(6))
def test_certain_keys_have_the_same_rows(tmp_path: Path, seed: int, round_: int) -> None:
    random = np.random.default_rng(seed + round_)
    keys = list(range(0, 6000, 2))
    first = ss.MasterTable.from_arrow(rows(keys, "old"), tmp_path / "m", key="id", page_bytes=4096)
    some = sorted(random.choice(keys, 4, replace=False).tolist())
    new = sorted((random.choice(keys, 2, replace=False) + 1).tolist())
    second = first.upsert(rows(some, "new")).upsert(rows(new, "new"))
    second = second.delete(random.choice(keys, 2).tolist())
    codes = np.arange(-5, 6010)
    before, after = by_key(first), by_key(second)
    for one, other in ((first, second), (second, first)):
        same = same_rows(one, other, codes)
        assert all(before.get(code) == after.get(code) for code in codes[same].tolist())
        # Most pages are shared, so most keys are certain.
        assert np.count_nonzero(same) > 2400
    assert np.count_nonzero(same_rows(first, ss.MasterTable.open(first.path, 1), codes)) == len(
        codes
    )
    assert not same_rows(first, second.compact(), np.array([some[0]])).any()


def test_in_the_given_order_nothing_is_certain(tmp_path: Path) -> None:
    first = ss.MasterTable.from_arrow(
        rows(list(range(50)), "old"), tmp_path / "m", key="id", layout="given"
    )
    second = first.delete([3])
    assert not same_rows(first, second, np.arange(50)).any()
    assert same_rows(first, ss.MasterTable.open(first.path, 1), np.arange(50)).all()
