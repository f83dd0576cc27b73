"""Rows 1, 2, 3 and 9: the engine without Spark.

Engines stay open from round to round, as they do in a worker of Spark, and every round has new
stream tuples. All of R in memory is what ratios compare with, except for keys of other types: these
are compared with integer keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

import semistream as ss
from engine import InMemory, timed
from measures.findings import LEAST_MEMORY, Finding, say
from semistream.workload import ZipfKeys, products, sales
from semistream_bench.turns import in_turns

KEY = "product_id"
TASK_TUPLES = 50_000
PASS_TUPLES = 500_000
_BATCH_TUPLES = 10_000
_TASKS_A_ROUND = 4
_IN_PLACE, _DIRECT = "buffered", "direct"
_WHERE = {_IN_PLACE: "in place", _DIRECT: "direct"}
_ALL_IN_MEMORY = "in memory"
_AISLE_ROWS = 1_000
_FIRST_BARCODE = 2_000_000_000_000

Rows: TypeAlias = pa.Table | pa.RecordBatch
Run = Callable[[list[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class EngineMeasures:
    """The engine's rows. R of 5 million rows has `rows`; smaller ones are in proportion."""

    rows: int
    rounds: int
    seed: int
    folder: Path
    algorithm: str

    def findings(self, wanted: set[int]) -> Iterator[Finding]:
        """The rows that are wanted, in an order that builds each R once."""
        if wanted & {1, 2, 3}:
            large = self._relation(self.rows)
            if 1 in wanted:
                yield self._task(large)
            if 2 in wanted:
                for share in (0.01, 0.05, 0.10):
                    yield self._against_memory(2, large, share, _IN_PLACE, 1.5)
            if 3 in wanted:
                yield self._against_memory(3, large, 0.01, _DIRECT, 0.6)
            del large
        if 3 in wanted:
            medium = self._relation(self.rows * 2 // 5)
            yield self._against_memory(3, medium, 0.10, _DIRECT, 1.6)
        if 2 in wanted:
            small = self._relation(self.rows // 10)
            yield self._against_memory(2, small, 0.05, _IN_PLACE, 1.5)
        if 9 in wanted:
            yield from self._key_types(_IN_PLACE, 0.05)
            yield from self._key_types(_DIRECT, 0.10)

    def _relation(self, rows: int) -> _Relation:
        say(f"R of {rows:,} rows …")
        return _Relation(products(rows, self.seed), self.folder / f"{rows}.master", [KEY])

    def _streams(self, rows: int, tuples: int) -> list[list[pa.RecordBatch]]:
        """One stream a round, in batches as large as Spark's."""
        keys = ZipfKeys(rows, 1.0, seed=self.seed)
        rounds = range(self.rounds + 1)
        return [list(sales(tuples, keys, rows, batch_rows=_BATCH_TUPLES)) for _ in rounds]

    def _task(self, relation: _Relation) -> Finding:
        say("row 1 …")
        streams = self._streams(relation.rows, _TASKS_A_ROUND * TASK_TUPLES)
        length = TASK_TUPLES // _BATCH_TUPLES
        engine = relation.engine(0.05, _IN_PLACE, self.algorithm, how="left")

        def tasks(number: int) -> list[float]:
            batches = streams[number]
            starts = range(0, len(batches), length)
            return [_seconds(engine.run, batches[at : at + length]) for at in starts]

        text = f"engine, in place, R {relation.rows:,}, 5 %: a task of {TASK_TUPLES:,} tuples"
        seconds = in_turns({"engine": tasks}, self.rounds, say)
        return Finding(1, text, 20, seconds, "engine", None, TASK_TUPLES, self._parameters(0.05))

    def _against_memory(
        self, row: int, relation: _Relation, share: float, io: str, bound: float
    ) -> Finding:
        say(f"row {row}, {share * 100:g} %, {io} …")
        streams = self._streams(relation.rows, PASS_TUPLES)
        engine = relation.engine(share, io, self.algorithm)
        runs = {"engine": engine.run, _ALL_IN_MEMORY: relation.in_memory.run}
        _check_alike({name: list(run(streams[0][:5])) for name, run in runs.items()})
        ways = {name: partial(_pass, run, streams) for name, run in runs.items()}
        text = f"engine, {_WHERE[io]}, R {relation.rows:,}, {share * 100:g} % / all of R in memory"
        seconds = in_turns(ways, self.rounds, say)
        parameters = self._parameters(share)
        return Finding(row, text, bound, seconds, "engine", _ALL_IN_MEMORY, PASS_TUPLES, parameters)

    def _key_types(self, io: str, share: float) -> Iterator[Finding]:
        rows = self.rows * 2 // 5
        say(f"row 9, {io}: R of {rows:,} rows with three types of key …")
        table = products(rows, self.seed)
        streams = self._streams(rows, PASS_TUPLES)
        budget = 0
        outputs: dict[str, list[pa.RecordBatch]] = {}
        ways: dict[str, Callable[[int], list[float]]] = {}
        for name, (key, keyed) in _KEY_TYPES.items():
            master = table if name == "string" else keyed(table)
            relation = _Relation(master, self.folder / f"{rows}-{name}-{io}.master", key)
            budget = budget or relation.share(share)
            engine = ss.engine(
                relation.master, on=key, memory=budget, io=io, algorithm=self.algorithm
            )
            own = [[keyed(batch) for batch in stream] for stream in streams]
            outputs[name] = list(engine.run(own[0][:5]))
            ways[name] = partial(_pass, engine.run, own)
        _check_alike(outputs)
        seconds = in_turns(ways, self.rounds, say)
        for name in ("string", "composite"):
            text = f"engine, {_WHERE[io]}, R {rows:,}, {share * 100:g} %: {name} key / integer key"
            parameters = self._parameters(share)
            yield Finding(9, text, 0.7, seconds, name, "integer", PASS_TUPLES, parameters)

    def _parameters(self, share: float) -> dict[str, Any]:
        return {"rows": self.rows, "seed": self.seed, "share": share, "algorithm": self.algorithm}


class _Relation:
    """R as a master table, and all of it in memory when asked for."""

    def __init__(self, table: pa.Table, path: Path, key: list[str]) -> None:
        self._table = table
        self.rows = table.num_rows
        self.master = ss.MasterTable.from_arrow(table, path, key=key)

    def share(self, share: float) -> int:
        """A share of R's bytes on disk, as a budget."""
        return max(int(self.master.pages.length.sum() * share), LEAST_MEMORY)

    @cached_property
    def in_memory(self) -> InMemory:
        """All of R, sorted."""
        return InMemory(self._table, KEY)

    def engine(self, share: float, io: str, algorithm: str, how: str = "inner") -> ss.Engine:
        """An engine with a share of R as memory."""
        memory = self.share(share)
        return ss.engine(self.master, on=KEY, memory=memory, io=io, algorithm=algorithm, how=how)


def _pass(run: Run, streams: list[list[pa.RecordBatch]], number: int) -> list[float]:
    """Seconds of one pass over a round's stream."""
    return [_seconds(run, streams[number])]


def _seconds(run: Run, stream: list[pa.RecordBatch]) -> float:
    taken, rows = timed(lambda: run(stream))
    asked = sum(batch.num_rows for batch in stream)
    assert rows == asked, f"{rows:,} rows came out for {asked:,} tuples"
    return taken


def _with_barcode(data: Rows) -> Rows:
    """Stream tuples with a string key in place of the number."""
    barcode = pc.cast(pc.add(data.column(KEY), _FIRST_BARCODE), pa.string())
    return data.drop_columns([KEY]).append_column("barcode", barcode)


def _with_shelf(data: Rows) -> Rows:
    """Rows with a key of two columns in place of the number."""
    aisle = pc.divide(data.column(KEY), _AISLE_ROWS)
    shelf = pc.subtract(data.column(KEY), pc.multiply(aisle, _AISLE_ROWS))
    data = data.drop_columns([KEY])
    return data.append_column("aisle", aisle.cast(pa.int32())).append_column("shelf", shelf)


_KEY_TYPES: Mapping[str, tuple[list[str], Callable[[Rows], Rows]]] = {
    "integer": ([KEY], lambda data: data),
    "string": (["barcode"], _with_barcode),
    "composite": (["aisle", "shelf"], _with_shelf),
}


def _check_alike(outputs: Mapping[str, list[pa.RecordBatch]]) -> None:
    """Raise unless all ways gave the same rows, in any order, in the columns that all have."""
    tables = {name: pa.Table.from_batches(batches) for name, batches in outputs.items()}
    names = sorted(set.intersection(*(set(table.column_names) for table in tables.values())))
    sums = {}
    for way, table in tables.items():
        hashes = pd.util.hash_pandas_object(table.select(names).to_pandas(), index=False)
        sums[way] = (table.num_rows, int(hashes.to_numpy().sum(dtype=np.uint64)))
    assert len(set(sums.values())) == 1, f"rows and checksums differ: {sums}"
