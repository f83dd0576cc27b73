"""Master tables that were written before: all their versions are read, joined and changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import semistream as ss
from semistream.testing import assert_same_rows, checked_run, oracle_join
from tests.compatibility.data import FILES, MASTERS, Life

ALGORITHMS = ["inlj", "meshjoin", "chybridjoin"]
"""Look-ups by the index, whole scans, and pages read a few at a time with a front stage."""


@pytest.fixture(params=MASTERS)
def life(request: pytest.FixtureRequest) -> Life:
    return MASTERS[request.param]


@pytest.fixture
def path(life: Life, tmp_path: Path) -> Path:
    """A copy of the committed table."""
    (name,) = [name for name, known in MASTERS.items() if known is life]
    return Path(shutil.copytree(FILES / name, tmp_path / "r"))


def shards(master: ss.MasterTable) -> list[ss.MasterTable]:
    """What engines can read."""
    count = master.shard_count
    return [master.shard(i) for i in range(count)] if count > 1 else [master]


def asked(life: Life) -> pa.RecordBatch:
    """Every key there ever was twice, some that never were, and a null."""
    table = pa.concat_tables([life.table_of(2), life.table(life.built), life.table(life.deleted)])
    never = {name: [None] for name in life.key}
    keys = pa.concat_tables([table.select(list(life.key)), pa.table(never, schema_of(life))])
    return keys.append_column("sale", pa.array(range(len(keys)))).combine_chunks().to_batches()[0]


def schema_of(life: Life) -> pa.Schema:
    return pa.schema(list(life.key.items()))


def joined(master: ss.MasterTable, stream: pa.RecordBatch, algorithm: str) -> list[pa.RecordBatch]:
    """The inner join with each shard."""
    found: list[pa.RecordBatch] = []
    for part in shards(master):
        engine = ss.engine(part, on=list(master.key), memory="512KB", algorithm=algorithm)
        found += checked_run(engine, [stream])
    return found


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("version", [1, 2, 3])
def test_each_version_joins_as_it_did(life: Life, path: Path, version: int, algorithm: str) -> None:
    master, stream = ss.MasterTable.open(path, version), asked(life)
    expected = oracle_join(stream, life.table_of(version), on=list(life.key))
    assert_same_rows(joined(master, stream, algorithm), expected.rows)
    assert master.row_count == len(life.versions()[version])


def test_it_is_described_as_it_was_made(life: Life, path: Path) -> None:
    master = ss.MasterTable.open(path)
    assert master.version == 3
    assert list(master.key) == list(life.key)
    assert master.layout == life.options.get("layout", "key")
    assert master.shard_count == life.options.get("shards", 1)
    assert bool(master.filter_bytes) == ("filter_bits" in life.options)
    assert master.schema.equals(life.table_of(3).schema)


def test_its_history_is_told(life: Life, path: Path) -> None:
    history = ss.MasterTable.open(path).history()
    counts = {version: len(rows) for version, rows in life.versions().items()}
    assert {info.version: info.row_count for info in history} == counts
    made = [info.operation.split()[0] for info in history]
    assert made == ["build", "upsert", "delete"]


def test_it_goes_on_with_new_versions(life: Life, path: Path) -> None:
    """An upsert onto pages of the old format, then a compaction, and a vacuum of the rest."""
    master = ss.MasterTable.open(path).upsert(life.table(life.deleted, 2000))
    expected = pa.concat_tables([life.table_of(3), life.table(life.deleted, 2000)])
    for changed in (master, master.compact()):
        found = joined(changed, asked(life), "inlj")
        assert_same_rows(found, oracle_join(asked(life), expected, on=list(life.key)).rows)
    changed.vacuum(keep_versions=1)
    assert [info.version for info in ss.MasterTable.open(path).history()] == [5]
    assert_same_rows(joined(ss.MasterTable.open(path), asked(life), "inlj"), found)
