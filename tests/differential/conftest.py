"""Random joins for the differential tests, one per draw from a grid of settings."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.errors import BudgetError
from semistream.testing import ManualClock, assert_same_rows, checked_run, oracle_join

_EPOCH = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
_LEAST = re.compile(r"the least is ([\d,]+) bytes")


def _integers(kind: pa.DataType) -> Callable[[int], tuple[int]]:
    """Numbers of the type, the extreme ones among them, in no order."""
    info = np.iinfo(kind.to_pandas_dtype())
    low, high = int(info.min), int(info.max)
    edges, inner = [low, high, low + 1, high - 1], high - low - 3
    step = next(n for n in range(inner * 5 // 8, inner) if math.gcd(n, inner) == 1)
    return lambda n: (edges[n] if n < 4 else low + 2 + (n - 4) * step % inner,)


KEY_TYPES: Final[dict[str, tuple[list[pa.DataType], Callable[[int], tuple[Any, ...]]]]] = {
    **{
        str(kind): ([kind], _integers(kind))
        for kind in (
            *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
            *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        )
    },
    "string": ([pa.string()], lambda n: ("" if n == 0 else f"κ{n}" * (1 + n % 5),)),
    "large string": ([pa.large_string()], lambda n: (f"{n:020d}",)),
    "binary": (
        [pa.binary()],
        lambda n: (b"" if n == 0 else str(n).encode() * (1 + n % 4) + b"\0",),
    ),
    "fixed binary": ([pa.binary(5)], lambda n: (n.to_bytes(5, "big"),)),
    "date": ([pa.date32()], lambda n: ((_EPOCH + dt.timedelta(n - 50)).date(),)),
    "timestamp": ([pa.timestamp("us", "UTC")], lambda n: (_EPOCH + dt.timedelta(0, n * 37, n),)),
    "time": ([pa.time32("s")], lambda n: (dt.time(n // 3600 % 24, n // 60 % 60, n % 60),)),
    "decimal": ([pa.decimal128(12, 3)], lambda n: (Decimal(n - 100) / 8,)),
    "wide decimal": ([pa.decimal256(50, 3)], lambda n: (Decimal(n) * 10**30 / 8,)),
    "boolean": ([pa.bool_()], lambda n: (n % 2 == 0,)),
    "integer and string": ([pa.int32(), pa.string()], lambda n: (n % 13, f"s{n // 13}")),
    "string, date and boolean": (
        [pa.string(), pa.date32(), pa.bool_()],
        lambda n: (f"{n % 7}", (_EPOCH + dt.timedelta(n // 14)).date(), n // 7 % 2 == 0),
    ),
}
"""By name: the types of the key columns, and the n-th key."""

HASHED: Final = [
    name
    for name, (types, _) in KEY_TYPES.items()
    if len(types) > 1 or "string" in name or "binary" in name or "decimal" in name
]
"""The key types whose codes are hashes."""

_MOST_KEYS = {"int8": 200, "uint8": 200, "boolean": 2}


@dataclass(frozen=True)
class Setting:
    """One point of the grid."""

    key_type: str
    layout: str
    exponent: float
    batch_rows: int
    page_bytes: int
    budget: str
    master_rows_per_key: int
    how: str
    strings: bool
    io: str

    def __str__(self) -> str:
        return (
            f"{self.key_type}-{self.layout}-zipf{self.exponent:g}-batch{self.batch_rows}"
            f"-page{self.page_bytes}-{self.budget}-dup{self.master_rows_per_key}-{self.how}"
            f"{'-strings' if self.strings else ''}-{self.io}"
        )


GRID: Final[dict[str, list[Any]]] = {
    "key_type": list(KEY_TYPES),
    "layout": ["key", "given"],
    "exponent": [0.0, 1.0, 2.0],
    "batch_rows": [1, 7, 1000],
    "page_bytes": [4096, 65536],
    "budget": ["least", "twice", "large"],
    "master_rows_per_key": [1, 1, 2, 40],
    "how": ["inner", "left"],
    "strings": [False, True],
    "io": ["unmapped", "buffered"],
}


@lru_cache
def sample(count: int, seed: int, hashed_keys: bool = False) -> list[Setting]:
    """`count` settings in which every value of every dimension comes equally often."""
    rng = np.random.default_rng(seed)
    grid = GRID | ({"key_type": HASHED} if hashed_keys else {})
    columns = {}
    for name, values in grid.items():
        repeated = [values[i % len(values)] for i in range(count)]
        columns[name] = [repeated[i] for i in rng.permutation(count)]
    rows = zip(*columns.values(), strict=True)
    return [Setting(**dict(zip(columns, row, strict=True))) for row in rows]


class RandomJoin:
    """A master and a stream of the setting's kind, drawn from a seed."""

    def __init__(self, setting: Setting, seed: int, small: bool = False) -> None:
        self.setting = setting
        self._small = small
        self._rng = np.random.default_rng(seed)
        types, self._key = KEY_TYPES[setting.key_type]
        self.names = [f"key{i}" for i in range(len(types))]
        self._types = types
        most = _MOST_KEYS.get(setting.key_type, 10_000)
        wanted = 600 if setting.page_bytes == 4096 else 1800
        wanted = 150 if small else wanted
        self._keys = min(most, max(1, wanted // setting.master_rows_per_key))
        self.table = self._master()
        self.stream = list(self._stream())

    def _key_columns(self, numbers: np.ndarray[Any, Any], nulls: float) -> list[pa.Array]:
        keys = [self._key(int(n)) for n in numbers]
        columns = []
        for i, kind in enumerate(self._types):
            absent = self._rng.random(len(keys)) < nulls
            values = [None if gone else key[i] for key, gone in zip(keys, absent, strict=True)]
            columns.append(pa.array(values, kind))
        return columns

    def _master(self) -> pa.Table:
        """Two in three keys exist; how many rows a key has varies about the setting's number."""
        present = self._rng.permutation(self._keys)[: max(1, self._keys * 2 // 3)]
        times = self._rng.integers(1, 2 * self.setting.master_rows_per_key, len(present))
        numbers = self._rng.permutation(np.repeat(present, times))
        columns = dict(zip(self.names, self._key_columns(numbers, 0.01), strict=True))
        count = len(numbers)
        columns["row"] = pa.array(np.arange(count))
        if self.setting.strings:
            lengths = self._rng.integers(0, 60, count)
            columns["text"] = pa.array(["m" * int(n) if n else None for n in lengths])
        return pa.table(columns)

    def _stream(self) -> Iterator[pa.RecordBatch]:
        size = self.setting.batch_rows
        count = {1: 120, 7: 400}.get(size, 1500)
        if self.setting.master_rows_per_key > 2:
            count //= 10
        if self._small:
            count //= 5
        weights = 1.0 / np.arange(1, self._keys + 1) ** self.setting.exponent
        ranks = self._rng.choice(self._keys, count, p=weights / weights.sum())
        numbers = self._rng.permutation(self._keys)[ranks]
        columns = dict(zip(self.names, self._key_columns(numbers, 0.02), strict=True))
        columns["sale"] = pa.array(np.arange(count), pa.int32())
        if self.setting.strings:
            lengths = self._rng.integers(0, 40, count)
            columns["note"] = pa.array(["s" * int(n) if n > 4 else None for n in lengths])
        yield from pa.table(columns).combine_chunks().to_batches(max_chunksize=size)

    def check(self, algorithms: tuple[str, ...], folder: Path) -> None:
        """Every algorithm gives what the oracle gives."""
        setting = self.setting
        expected = oracle_join(self.stream, self.table, on=self.names, how=setting.how)
        master = ss.MasterTable.from_arrow(
            self.table,
            folder / "random.master",
            key=self.names,
            page_bytes=setting.page_bytes,
            layout=setting.layout,
        )
        for algorithm in algorithms:
            engine = self._engine(algorithm, master)
            try:
                assert_same_rows(checked_run(engine, self.stream), expected.rows)
                metrics = engine.metrics()
                assert (metrics.joined, metrics.unmatched) == expected[1:]
            except Exception as error:
                error.add_note(f"{algorithm}: {setting}\n{engine.plan}")
                raise

    def _engine(self, algorithm: str, master: ss.MasterTable) -> ss.Engine:
        memory = 4 << 20
        if self.setting.budget != "large":
            memory = self._least(algorithm, master) * (1 if self.setting.budget == "least" else 2)
        return ss.engine(
            master,
            algorithm=algorithm,
            on=self.names,
            how=self.setting.how,
            memory=memory,
            io=self.setting.io,
            clock=ManualClock(),
        )

    def _least(self, algorithm: str, master: ss.MasterTable) -> int:
        engine = ss.engine(
            master,
            algorithm=algorithm,
            on=self.names,
            how=self.setting.how,
            memory=1,
            io=self.setting.io,
        )
        with pytest.raises(BudgetError, match=_LEAST) as caught:
            list(engine.run(self.stream))
        found = _LEAST.search(str(caught.value))
        return int(found[1].replace(",", "")) if found else 0


@pytest.fixture
def draw(pytestconfig: pytest.Config, seed: int) -> Callable[..., RandomJoin]:
    """The n-th join of a sample; the sample and the data both move with `--seed`."""

    def drawn(
        number: int, count: int, hashed_keys: bool = False, small: bool = False
    ) -> RandomJoin:
        settings = sample(count, pytestconfig.getoption("seed"), hashed_keys)
        return RandomJoin(settings[number], seed, small)

    return drawn
