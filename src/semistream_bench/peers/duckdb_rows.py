"""DuckDB: R as a table in a file, sorted by key, and a semi-join with a task's distinct keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from semistream_bench.peers.left_join import Keys, left_join

_OPEN: dict[tuple[str, str], duckdb.DuckDBPyConnection] = {}


def build(
    table: pa.Table, path: Path, key: str, memory: str, primary_key: bool = False
) -> DuckdbLookUps:
    """Write R, which is sorted by key, and give look-ups with a memory limit such as "30MB"."""
    with duckdb.connect(str(path)) as connection:
        connection.register("given", table)
        connection.execute("CREATE TABLE rows AS FROM given")
        if primary_key:
            connection.execute(f"ALTER TABLE rows ADD PRIMARY KEY ({key})")
    return DuckdbLookUps(str(path), key, memory)


@dataclass(frozen=True)
class DuckdbLookUps:
    """A left join by semi-joins in a DuckDB file, with a limit on its memory."""

    path: str
    key: str
    memory: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join the batches of one task."""
        return left_join(batches, self.key, self._look_up)

    def _look_up(self, keys: Keys) -> tuple[Keys, pa.RecordBatch]:
        connection = self.open()
        connection.register("asked", pa.table({self.key: keys}))
        query = f"FROM rows SEMI JOIN asked USING ({self.key})"
        found = connection.sql(query).to_arrow_table().combine_chunks()
        connection.unregister("asked")
        found_keys = found[self.key].to_numpy()
        rows = found.drop_columns([self.key])
        # One thread reads in order of the file.
        if not np.all(found_keys[:-1] < found_keys[1:]):
            order = np.argsort(found_keys)
            found_keys, rows = found_keys[order], rows.take(pa.array(order))
        return found_keys, rows.to_batches()[0] if rows.num_rows else _nothing(rows.schema)

    def close(self) -> None:
        """Close the file, if it is open."""
        if (connection := _OPEN.pop((self.path, self.memory), None)) is not None:
            connection.close()

    def open(self) -> duckdb.DuckDBPyConnection:
        """The open file; it stays open in this process."""
        at = self.path, self.memory
        if at not in _OPEN:
            connection = duckdb.connect(self.path, read_only=True)
            # A worker per core runs already, so a second thread would only take turns with it.
            connection.execute(f"SET threads = 1; SET memory_limit = '{self.memory}'")
            _OPEN[at] = connection
        return _OPEN[at]


def _nothing(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema)
