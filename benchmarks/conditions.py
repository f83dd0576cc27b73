"""Joins by a condition, side by side with DuckDB in one process.

    python benchmarks/conditions.py [--tuples 1000000] [--rows 200000] [--repeats 5]

A range join: `tuples` addresses with `rows` intervals, about one match each; both are random.
DuckDB has both sides in its own tables and two threads; its result is taken as Arrow. semistream
has `memory` bytes in one thread; with the second figure R does not fit and is read for each window.
Both give as many rows. The similarity join has fewer; there DuckDB compares every pair.

The repetitions take turns. Prints and writes the median and the best of each in seconds, of the
clock and of the processor: on a machine with other work, the second says more.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

import semistream as ss
from results import machine, write_results

RESULTS = Path(__file__).parent / "results" / "conditions.jsonl"
THREADS = 2
SPAN = 1 << 32
_CLOCKS = ("wall", "cpu")


def intervals(rows: int, rng: np.random.Generator) -> pa.Table:
    """Intervals of addresses with a name each; a few overlap."""
    low = np.sort(rng.integers(0, SPAN, rows))
    high = low + rng.integers(0, 2 * SPAN // max(rows, 1), rows)
    return pa.table({"low": low, "high": high, "name": [f"network {i}" for i in range(rows)]})


def names(count: int, rng: np.random.Generator) -> list[str]:
    """Made-up names and streets."""
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = ["".join(rng.choice(letters, rng.integers(4, 9))) for _ in range(2_000)]
    chosen = rng.integers(0, len(words), (count, 3))
    house = rng.integers(1, 200, count)
    return [
        " ".join([*(words[i] for i in row), str(n)]) for row, n in zip(chosen, house, strict=True)
    ]


def edited(text: str, rng: np.random.Generator) -> str:
    """The text with up to two characters replaced."""
    characters = list(text)
    for place in rng.integers(0, len(text), rng.integers(0, 3)):
        characters[place] = "z"
    return "".join(characters)


class Duck:
    """DuckDB with both sides in tables of its own."""

    def __init__(self, stream: pa.Table, table: pa.Table, query: str) -> None:
        self._connection = duckdb.connect(config={"threads": THREADS})
        for name, data in (("s", stream), ("r", table)):
            self._connection.register("given", data)
            self._connection.execute(f"CREATE TABLE {name} AS SELECT * FROM given")
        self._query = query

    def rows(self) -> int:
        """Join once; how many rows came out."""
        return int(self._connection.sql(self._query).to_arrow_table().num_rows)


class Ours:
    """An engine of semistream, which stays from run to run."""

    def __init__(self, master: ss.MasterTable, stream: pa.Table, on: ss.Condition, memory: str):
        self._engine = ss.engine(master, on=on, memory=memory)
        self._batches = stream.to_batches(max_chunksize=100_000)
        self.memory = memory

    def rows(self) -> int:
        """Join once; how many rows came out."""
        return sum(batch.num_rows for batch in self._engine.run(self._batches))


def measured(ways: Mapping[str, Callable[[], int]], repeats: int) -> list[dict[str, Any]]:
    """Seconds of each way, in turns; the first round is not counted."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    rows: dict[str, int] = {}
    for turn in range(repeats + 1):
        for name, run in ways.items():
            start = time.perf_counter(), time.process_time()
            rows[name] = run()
            if turn:
                taken[name].append((time.perf_counter() - start[0], time.process_time() - start[1]))
    assert len(set(rows.values())) == 1, rows
    return [
        {
            "way": name,
            "rows": rows[name],
            **{
                f"{what}_median": median(s)
                for what, s in zip(_CLOCKS, zip(*times, strict=True), strict=True)
            },
            **{
                f"{what}_best": min(s)
                for what, s in zip(_CLOCKS, zip(*times, strict=True), strict=True)
            },
            "repetitions": times,
        }
        for name, times in taken.items()
    ]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tuples", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--similar", type=int, default=2_000, help="texts on either side")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        table = intervals(args.rows, rng)
        addresses = rng.integers(0, SPAN, args.tuples)
        stream = pa.table({"ip": addresses, "number": np.arange(args.tuples)})
        master = ss.MasterTable.from_arrow(table, Path(folder) / "r", key="low")
        query = "SELECT * FROM s JOIN r ON ip BETWEEN low AND high"
        on = ss.between("ip", "low", "high")
        ways = {"DuckDB": Duck(stream, table, query).rows}
        ways |= {f"semistream {m}": Ours(master, stream, on, m).rows for m in ("64MB", "4MB")}
        lines += [{"join": "between"} | line for line in measured(ways, args.repeats)]

        texts = names(args.similar, rng)
        table = pa.table({"text": texts, "no": np.arange(args.similar)})
        stream = pa.table({"name": [edited(text, rng) for text in reversed(texts)]})
        master = ss.MasterTable.from_arrow(table, Path(folder) / "t", key="no")
        query = (
            "SELECT * FROM s JOIN r ON "
            "1 - levenshtein(name, text) / greatest(length(name), length(text)) >= 0.9"
        )
        ways = {"DuckDB": Duck(stream, table, query).rows}
        ours = Ours(master, stream, ss.similar("name", "text", at_least=0.9), "64MB")
        ways["semistream 64MB"] = ours.rows
        lines += [{"join": "similar"} | line for line in measured(ways, min(args.repeats, 3))]
    for line in lines:
        times = ", ".join(
            f"{what} {line[f'{what}_median']:.3f} (best {line[f'{what}_best']:.3f})"
            for what in _CLOCKS
        )
        print(f"{line['join']:<8} {line['way']:<16} {line['rows']:>10,} rows, seconds: {times}")
    where = machine(ss.__version__) | {"duckdb": duckdb.__version__}
    given = {**vars(args), "duckdb_threads": THREADS}
    write_results(RESULTS, [line | given for line in lines], where)


if __name__ == "__main__":
    main()
