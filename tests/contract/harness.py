"""The harness of the contract: one algorithm, run every way it can be sized, against the oracle."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

import semistream as ss
from semistream.algorithms.registry import needs_of
from semistream.errors import BudgetError
from semistream.testing import ManualClock, assert_same_rows, checked_run, oracle_join

_LEAST = re.compile(r"the least is ([\d,]+) bytes")

RUNS: Final = {
    "left": [
        ("key", "least"),
        ("key", "roomy"),
        ("key", "few slots"),
        ("key", "in place"),
        ("given", "least"),
        ("given", "few slots"),
    ],
    "inner": [("key", "few slots"), ("key", "in place"), ("given", "roomy")],
}
"""Layouts and sizes at which a case is run. A left join shows all that an inner one does, and
what is lost besides; the inner one need only leave that out. "In place" is with pages in memory
searched where they lie; otherwise all pages are read."""


def having(*options: str) -> list[str]:
    """The algorithms that have all these options; an option that nobody has is an error."""
    for option in options:
        if not any(option in needs_of(algorithm).options for algorithm in ss.ALGORITHMS):
            raise LookupError(f"No algorithm has an option {option!r}: was it renamed?")
    return [name for name in ss.ALGORITHMS if {*options} <= {*needs_of(name).options}]


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
        defaults["io"] = "unmapped"
        return ss.engine(
            master, algorithm=self.algorithm, **({"clock": ManualClock()} | defaults | arguments)
        )

    def least(
        self, master: ss.MasterTable, stream: Iterable[pa.RecordBatch], **arguments: Any
    ) -> int:
        """The minimum that the error for a budget of one byte names."""
        with pytest.raises(BudgetError, match=_LEAST) as caught:
            list(self.engine(master, **(arguments | {"memory": 1})).run(stream))
        found = _LEAST.search(str(caught.value))
        return int(found[1].replace(",", "")) if found else 0

    def options(self, **wanted: int) -> dict[str, Any]:
        """Those of the options for sizes that this algorithm has."""
        return {name: value for name, value in wanted.items() if self.algorithm in having(name)}

    def fewest_slots(self, master: ss.MasterTable) -> int:
        """The fewest `stream_slots` that do with partitions of one page."""
        return master.page_count if needs_of(self.algorithm).tuples_per_partition else 1

    def few_slots(self, master: ss.MasterTable, slots: int) -> dict[str, Any]:
        """A tiny stream table; one slot per partition where an algorithm must have that."""
        slots = max(slots, self.fewest_slots(master))
        return self.options(stream_slots=slots, partition_pages=1)

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
        chosen = runs or RUNS[how]
        masters = {
            layout: self.master(table, key, layout=layout, **(build or {}))
            for layout in dict(chosen)
        }
        for master, sizes in self._distinct(masters, stream, chosen, wanted):
            engine = self.engine(master, **sizes)
            try:
                found = checked_run(engine, stream)
                assert_same_rows(found, expected.rows)
                metrics = engine.metrics()
                fared = (metrics.arrived, metrics.joined, metrics.unmatched)
                tuples = sum(batch.num_rows for batch in stream)
                assert fared == (tuples, expected.joined, expected.unmatched)
            except Exception as error:
                error.add_note(f"{self.algorithm}, layout {master.layout}, {sizes}: {engine.plan}")
                raise
        return engine

    def _distinct(
        self,
        masters: Mapping[str, ss.MasterTable],
        stream: list[pa.RecordBatch],
        runs: Sequence[tuple[str, str]],
        wanted: Mapping[str, Any],
    ) -> Iterator[tuple[ss.MasterTable, dict[str, Any]]]:
        """Master and arguments of each run; an algorithm without slots has few and many alike."""
        seen: list[tuple[str, dict[str, Any]]] = []
        for layout, size in runs:
            sizes = self._sizes(masters[layout], stream, size, wanted)
            if (layout, sizes) not in seen:
                seen.append((layout, sizes))
                yield masters[layout], sizes

    def _sizes(
        self,
        master: ss.MasterTable,
        stream: list[pa.RecordBatch],
        size: str,
        wanted: Mapping[str, Any],
    ) -> dict[str, Any]:
        """The arguments of an engine of one of the sizes that the contract is checked at."""
        if size == "least":
            return {**wanted, "memory": self.least(master, stream, **wanted)}
        if size == "few slots":
            return {**wanted, **self.few_slots(master, 3)}
        if size == "in place":
            return {"io": "buffered", **wanted}
        return {**self.options(look_ups=3), **wanted}
