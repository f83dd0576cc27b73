"""RocksDB: a record per key, read with one multi-get for all keys of a task.

Blocks are not compressed, and are read from mapped files: both are faster when R is in the page
cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    SstFileWriter,
)

from semistream_bench.peers.left_join import Keys, left_join
from semistream_bench.peers.packed_rows import PackedRows

_CHUNK_ROWS = 500_000
_OPEN: dict[tuple[str, int], Rdict] = {}


def build(table: pa.Table, path: Path, key: str, cache: int) -> RocksdbLookUps:
    """Write R, which is sorted by key, as sorted files, and give look-ups with a block cache."""
    packed = PackedRows.of(table.drop_columns([key]))
    database = Rdict(str(path), _options(cache))
    for start in range(0, table.num_rows, _CHUNK_ROWS):
        chunk = table.slice(start, _CHUNK_ROWS)
        records = packed.pack(chunk.drop_columns([key])).view(f"V{packed.dtype.itemsize}")
        writer = SstFileWriter(_options(cache))
        name = str(path / f"{start}.sst.new")
        writer.open(name)
        for key_bytes, row in zip(_key_bytes(chunk[key].to_numpy()), records.tolist(), strict=True):
            writer[key_bytes] = row
        writer.finish()
        database.ingest_external_file([name])
    database.flush()
    database.close()
    return RocksdbLookUps(str(path), key, packed, cache)


@dataclass(frozen=True)
class RocksdbLookUps:
    """A left join by look-ups in a RocksDB database, with a block cache of so many bytes."""

    path: str
    key: str
    packed: PackedRows
    cache: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join the batches of one task."""
        return left_join(batches, self.key, self._look_up)

    def _look_up(self, keys: Keys) -> tuple[Keys, pa.RecordBatch]:
        asked: list[Any] = _key_bytes(keys)
        values: Any = self.open().get(asked)
        return self.packed.found(keys, values)

    def close(self) -> None:
        """Close the database, if it is open."""
        if (database := _OPEN.pop((self.path, self.cache), None)) is not None:
            database.close()

    def open(self) -> Rdict:
        """The open database; it stays open in this process."""
        at = self.path, self.cache
        if at not in _OPEN:
            _OPEN[at] = Rdict(self.path, _options(self.cache), access_type=AccessType.read_only())
        return _OPEN[at]


def _options(cache: int) -> Options:
    options = Options(raw_mode=True)
    options.set_compression_type(DBCompressionType.none())
    options.set_allow_mmap_reads(True)
    blocks = BlockBasedOptions()
    blocks.set_block_cache(Cache(cache))
    options.set_block_based_table_factory(blocks)
    return options


def _key_bytes(keys: Keys) -> list[bytes]:
    """Each key as 8 bytes, highest first: RocksDB compares byte by byte."""
    as_bytes: list[bytes] = keys.astype(">i8").view("V8").tolist()
    return as_bytes
