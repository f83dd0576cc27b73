"""Random requests, deletes, own rows and compactions of a key table, against a dict."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream import keys as key_codes
from semistream.relation import Frame, MasterTable, key_table
from semistream.relation.updates import update
from semistream.testing import rows_of

Key = tuple[str, int]


def stored(path: Path) -> dict[Key, int]:
    master = MasterTable.open(path)
    with master.reader() as reader:
        frame = Frame(reader.frame_bytes(max(master.page_count, 1)))
        pages = reader.read(0, master.page_count, frame) if master.page_count else []
        rows = [row[:3] for page in pages for row in rows_of(page)]
    assert len({row[:2] for row in rows}) == len(rows)
    return {row[:2]: row[2] for row in rows}


@pytest.mark.parametrize("mask", [-1, 7], ids=["", "keys share codes"])
@pytest.mark.parametrize("number", range(4))
def test_against_a_dict(
    tmp_path: Path, seed: int, number: int, mask: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_codes, "_HASH_MASK", mask)
    monkeypatch.setattr(update, "_MOST_FILES", 3)
    monkeypatch.setattr(key_table, "_TIDY_EVERY", 4)
    random = np.random.default_rng([seed, number])
    path = tmp_path / "keys"
    key = {"source": "string", "id": "int64"}
    ss.key_table(path, key=key, surrogate="k", first=int(random.integers(-50, 50)), page_bytes=4096)
    oracle: dict[Key, int] = {}
    given: set[int] = set()
    for _ in range(25):
        some = [(f"s{random.integers(3)}", int(random.integers(60))) for _ in range(20)]
        action = random.choice(["assign", "assign", "assign", "delete", "own", "compact"])
        if action == "assign":
            columns = [pa.array([s for s, _ in some]), pa.array([i for _, i in some])]
            numbers = key_table.assigned(path, columns, ["source", "id"], 0.0).tolist()
            for asked, got in zip(some, numbers, strict=True):
                # Known, or a number that nobody ever had.
                assert got == oracle[asked] if asked in oracle else got not in given
                oracle[asked] = got
                given.add(got)
        elif action == "delete":
            MasterTable.open(path).delete(some[:3])
            for gone in some[:3]:
                oracle.pop(gone, None)
        elif action == "own":
            (source, item), own = some[0], max(given, default=0) + int(random.integers(1, 9))
            row = {"source": [source], "id": [item], "k": [own]}
            MasterTable.open(path).upsert(pa.table(row))
            oracle[source, item] = own
            given.add(own)
        else:
            MasterTable.open(path).compact()
        assert stored(path) == oracle
    assert len(set(oracle.values())) == len(oracle)
