"""The harness of the contract: one algorithm, run every way it can be sized, against the oracle."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

import semistream as ss
from semistream.errors import BudgetError, OptionError
from semistream.testing import ManualClock, assert_same_rows, checked_run, oracle_join

_LEAST = re.compile(r"the least is ([\d,]+) bytes")

RUNS: Final = {
    "left": [
        ("key", "least"),
        ("key", "roomy"),
        ("key", "few slots"),
        ("given", "least"),
        ("given", "few slots"),
    ],
    "inner": [("key", "few slots"), ("given", "roomy")],
}
"""Layouts and sizes at which a case is run. A left join shows all that an inner one does, and
what is lost besides; the inner one need only leave that out."""


class Contract:
    """Runs one algorithm and holds it to what every algorithm promises."""

    def __init__(self, algorithm: str, folder: Path) -> None:
        self.algorithm = algorithm
        self._folder = folder
        self._built = 0

    def master(
        self, table: pa.Table, key: str | Sequence[str] = "id", **build: Any
    ) -> ss.MasterTable:
        """A master table in small pages: a few dozen rows make several."""
        self._built += 1
        path = self._folder / f"{self._built}.master"
        return ss.MasterTable.from_arrow(table, path, key=key, **({"page_bytes": 4096} | build))

    def engine(self, master: ss.MasterTable, **arguments: Any) -> ss.Engine:
        defaults: dict[str, Any] = {"on": list(master.key), "how": "left", "memory": "512KB"}
        return ss.engine(
            master, algorithm=self.algorithm, clock=ManualClock(), **(defaults | arguments)
        )

    def least(
        self, master: ss.MasterTable, stream: Iterable[pa.RecordBatch], **arguments: Any
    ) -> int:
        """The minimum that the error for a budget of one byte names."""
        with pytest.raises(BudgetError, match=_LEAST) as caught:
            list(self.engine(master, **(arguments | {"memory": 1})).run(stream))
        found = _LEAST.search(str(caught.value))
        return int(found[1].replace(",", "")) if found else 0

    def supported(self, master: ss.MasterTable, **options: int) -> dict[str, int]:
        """Those of the options for sizes that this algorithm has."""
        known = {}
        for name, value in options.items():
            try:
                self.engine(master, **{name: value})
            except OptionError:
                continue
            known[name] = value
        return known

    def few_slots(self, master: ss.MasterTable, slots: int) -> dict[str, int]:
        """A tiny stream table; one slot per partition where an algorithm must have that."""
        if self.algorithm in ("meshjoin", "cmeshjoin"):
            slots = max(slots, master.page_count)
        return self.supported(master, stream_slots=slots, partition_pages=1)

    def sized(
        self, master: ss.MasterTable, stream: list[pa.RecordBatch], size: str, **arguments: Any
    ) -> ss.Engine:
        """An engine of one of the sizes that the contract is checked at."""
        if size == "least":
            arguments["memory"] = self.least(master, stream, **arguments)
        elif size == "few slots":
            arguments |= self.few_slots(master, 3)
        else:
            arguments = self.supported(master, look_ups=3) | arguments
        return self.engine(master, **arguments)

    def holds(
        self,
        table: pa.Table,
        stream: list[pa.RecordBatch],
        *,
        key: str | Sequence[str] = "id",
        how: str = "left",
        runs: Sequence[tuple[str, str]] | None = None,
        build: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> ss.Engine:
        """The join of `stream` and `table` is the oracle's, in both layouts and at all sizes."""
        wanted: dict[str, Any] = {"on": key, "how": how} | arguments
        columns = arguments.get("columns")
        expected = oracle_join(stream, table, on=wanted["on"], how=how, columns=columns)
        masters: dict[str, ss.MasterTable] = {}
        for layout, size in runs or RUNS[how]:
            if layout not in masters:
                masters[layout] = self.master(table, key, layout=layout, **(build or {}))
            engine = self.sized(masters[layout], stream, size, **wanted)
            try:
                found = checked_run(engine, stream)
                assert_same_rows(found, expected.rows)
                metrics = engine.metrics()
                fared = (metrics.arrived, metrics.joined, metrics.unmatched)
                tuples = sum(batch.num_rows for batch in stream)
                assert fared == (tuples, expected.joined, expected.unmatched)
            except Exception as error:
                error.add_note(f"{self.algorithm}, layout {layout}, {size}: {engine.plan}")
                raise
        return engine


@pytest.fixture(params=ss.ALGORITHMS)
def algorithm(request: pytest.FixtureRequest) -> str:
    """Each algorithm there is, those added later included."""
    return str(request.param)


@pytest.fixture(params=["inner", "left"])
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def contract(algorithm: str, tmp_path: Path) -> Contract:
    return Contract(algorithm, tmp_path)
