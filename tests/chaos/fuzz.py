"""Random schemas, batches, budgets and updates, for all algorithms, against plain dicts."""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

import semistream as ss
from semistream.errors import BudgetError
from semistream.testing import rows_of
from tests.chaos.attack import Attack, Verdict, differs

Make = Callable[[random.Random], Any]
WORDS = ["", "a", "Ä", "word", "longer words " * 3, "x" * 200]

KEYS: list[tuple[pa.DataType, Make]] = [
    (pa.int64(), lambda r: r.randint(-300, 300)),
    (pa.int32(), lambda r: r.randint(-300, 300)),
    (pa.uint64(), lambda r: 2**63 + r.randint(-300, 300)),
    (pa.int8(), lambda r: r.randint(-128, 127)),
    (pa.string(), lambda r: f"{r.choice(WORDS)}{r.randint(0, 150)}"),
    (pa.binary(), lambda r: bytes([r.randrange(200), r.randrange(3)])),
    (pa.decimal128(12, 2), lambda r: Decimal(r.randint(-300, 300)).scaleb(-2)),
    (pa.bool_(), lambda r: r.random() < 0.5),
]
VALUES: list[tuple[pa.DataType, Make]] = [
    *KEYS,
    (pa.float64(), lambda r: r.choice([0.5, -1e300, 3.25])),
    (pa.list_(pa.int32()), lambda r: [r.randrange(9) for _ in range(r.randrange(4))]),
    (pa.list_view(pa.string()), lambda r: r.sample(WORDS, 2)),
    (pa.struct([("a", pa.int16()), ("b", pa.string())]), lambda r: {"a": 1, "b": r.choice(WORDS)}),
    (pa.string_view(), lambda r: r.choice(WORDS)),
    (pa.null(), lambda r: None),
    (pa.dictionary(pa.int32(), pa.string()), lambda r: r.choice(WORDS)),
]
ALGORITHMS = [name for name in ss.ALGORITHMS if name != "auto"] + ["auto"]


class _Maker:
    """Columns of random types, with rows to match."""

    def __init__(
        self, rng: random.Random, prefix: str, key: list[tuple[pa.DataType, Make]]
    ) -> None:
        self._rng = rng
        others = [rng.choice(VALUES) for _ in range(rng.randint(1, 4))]
        self._kinds = [*key, *others]
        self.key = [f"k{i}" for i in range(len(key))]
        self.names = [*self.key, *(f"{prefix}{i}" for i in range(len(others)))]

    def rows(self, count: int, nulls: float) -> list[tuple[Any, ...]]:
        rng = self._rng
        return [
            tuple(None if rng.random() < nulls else make(rng) for _, make in self._kinds)
            for _ in range(count)
        ]

    def table(self, rows: list[tuple[Any, ...]]) -> pa.Table:
        columns = list(zip(*rows, strict=True)) or [()] * len(self._kinds)
        arrays = [
            pa.array(list(column), kind)
            for column, (kind, _) in zip(columns, self._kinds, strict=True)
        ]
        return pa.table(arrays, names=self.names)


def _size(rng: random.Random, most: int) -> int:
    """A number below `most`. Every order of magnitude is as likely: most cases cost little."""
    return int(most ** rng.random()) - 1


def _case(rng: random.Random, folder: Path) -> Verdict:
    key = [rng.choice(KEYS) for _ in range(rng.choice([1, 1, 1, 2]))]
    left, right = _Maker(rng, "s", key), _Maker(rng, "m", key)
    width = len(key)
    layout = rng.choice(["key", "given"])
    stored = right.rows(_size(rng, 800), 0.03)
    master = ss.MasterTable.from_arrow(
        right.table(stored),
        folder / "r",
        key=right.key,
        page_bytes=4096,
        layout=layout,
        filter_bits=rng.choice([0, 8]),
    )
    model: dict[Any, list[Any]] = {}
    _add(model, stored, width)
    for _ in range(rng.randrange(3)):
        some = right.rows(rng.randrange(40), 0.03)
        deed = rng.choice(["upsert", "delete", "compact"])
        if deed == "upsert":
            for row in some:
                model.pop(row[:width], None)
            _add(model, some, width)
            master = master.upsert(right.table(some))
        elif deed == "delete":
            for row in some:
                model.pop(row[:width], None)
            master = master.delete(right.table(some).select(right.key))
        else:
            master = master.compact()
    algorithm, how = rng.choice(ALGORITHMS), rng.choice(["inner", "left"])
    memory = rng.choice([300_000, 600_000, 1 << 20, 8 << 20])
    arrivals = left.rows(_size(rng, 1500), 0.05)
    table = left.table(arrivals)
    batches = table.combine_chunks().to_batches(max_chunksize=rng.choice([7, 200, 4000]))
    note = f"{algorithm} {how} {memory} {layout} {table.schema} {master.schema}"
    try:
        engine = ss.engine(
            master,
            on=left.key,
            how=how,
            memory=memory,
            algorithm=algorithm,
            io=rng.choice(["buffered", "unmapped"]),
        )
        found = rows_of(engine.run(batches))
    except BudgetError:
        return Verdict(note="too little memory")
    nothing = (None,) * (len(right.names) - width)
    wanted = []
    for row in arrivals:
        matches = model.get(row[:width], []) if None not in row[:width] else []
        wanted += [(*row, *match[width:]) for match in matches]
        if not matches and how == "left":
            wanted.append((*row, *nothing))
    return Verdict(differs(found, wanted), note)


def _add(model: dict[Any, list[Any]], rows: list[tuple[Any, ...]], width: int) -> None:
    for row in rows:
        if None not in row[:width]:
            model.setdefault(row[:width], []).append(row)


ATTACK = Attack("fuzz", _case, per_child=200)
