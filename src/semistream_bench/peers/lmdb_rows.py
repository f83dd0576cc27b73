"""LMDB: a record per key, read with a `get` for each distinct key of a task.

`map` calls `get` from compiled code. That takes two thirds of the time of the cursor's `getmulti`,
with keys and values of fixed size or without.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import lmdb
import numpy as np
import pyarrow as pa

from semistream_bench.peers.left_join import Keys, left_join
from semistream_bench.peers.packed_rows import PackedRows

_DATABASE = b"rows"
_CHUNK_ROWS = 500_000
_OPEN: dict[str, tuple[lmdb.Environment, lmdb._Database]] = {}


def build(table: pa.Table, path: Path, key: str) -> LmdbLookUps:
    """Write R, which is sorted by key, and give its look-ups."""
    packed = PackedRows.of(table.drop_columns([key]))
    # Room for pages that are not full; the file is as large as what is written.
    room = 3 * table.num_rows * (packed.dtype.itemsize + 16) + (1 << 24)
    with lmdb.open(str(path), map_size=room, max_dbs=1, sync=False) as environment:
        database = _database(environment)
        for start in range(0, table.num_rows, _CHUNK_ROWS):
            chunk = table.slice(start, _CHUNK_ROWS)
            records = packed.pack(chunk.drop_columns([key]))
            items = zip(
                _key_bytes(chunk[key].to_numpy()),
                records.view(f"V{packed.dtype.itemsize}").tolist(),
                strict=True,
            )
            with environment.begin(write=True, db=database) as transaction:
                transaction.cursor().putmulti(items, append=True)
    return LmdbLookUps(str(path), key, packed)


@dataclass(frozen=True)
class LmdbLookUps:
    """A left join by look-ups in an LMDB environment."""

    path: str
    key: str
    packed: PackedRows

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join the batches of one task."""
        return left_join(batches, self.key, self._look_up)

    def _look_up(self, keys: Keys) -> tuple[Keys, pa.RecordBatch]:
        environment, database = self.open()
        with environment.begin(db=database) as transaction:
            return self.packed.found(keys, list(map(transaction.get, _key_bytes(keys))))

    def close(self) -> None:
        """Close the environment, if it is open."""
        if (opened := _OPEN.pop(self.path, None)) is not None:
            opened[0].close()

    def open(self) -> tuple[lmdb.Environment, lmdb._Database]:
        """The open environment; it stays open in this process."""
        if self.path not in _OPEN:
            environment = lmdb.open(
                self.path, readonly=True, lock=False, readahead=False, max_dbs=1
            )
            _OPEN[self.path] = environment, _database(environment)
        return _OPEN[self.path]


def _database(environment: lmdb.Environment) -> lmdb._Database:
    return environment.open_db(_DATABASE, integerkey=True)


def _key_bytes(keys: Keys) -> list[bytes]:
    """Each key as 8 bytes in the machine's order, which LMDB compares as an unsigned number."""
    as_bytes: list[bytes] = np.ascontiguousarray(keys).view("V8").tolist()
    return as_bytes
