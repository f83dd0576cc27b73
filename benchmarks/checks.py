"""What it costs to check pages before they are followed: each join with the checks and without.

    python benchmarks/checks.py [--rows 200000] [--tuples 200000] [--repeat 31] …

A page is checked once, when it is first used, so each run opens the master anew and meets every
page for the first time. R lies in the page cache. "Without" are the same kernels compiled with
checks that say yes at once, in the same process. Checksums are computed in both.

It can run on a busy machine. Both take turns in short runs, and each pair of neighbours gives one
ratio of CPU times, so other work meets both alike. Told are the median of these ratios, and the
interval that holds the true median in 95 of 100 such measurements. The checks of all pages are
timed alone too, and given as a share of the run's time.

Writes one JSON line per way to benchmarks/results/checks.jsonl.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import tempfile
import time
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numba.core.registry import CPUDispatcher
from numpy.typing import NDArray

import semistream as ss
from results import machine, write_results
from semistream.column_widths import column_width
from semistream.kernels import compiling, page_check, pages, steps
from semistream.kernels.copying import load_2, load_4, load_8
from semistream.parts import frame_finder, in_place
from semistream.workload import ZipfKeys, products, sales

RESULTS = Path(__file__).parent / "results"
WAYS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "in place": (in_place, "locate", {"algorithm": "hybridjoin", "io": "buffered"}),
    "look-ups": (frame_finder, "find_rows", {"algorithm": "hybridjoin", "io": "unmapped"}),
    "steps": (
        steps,
        "advance",
        {"algorithm": "hybridjoin", "io": "unmapped", "look_ups": 0},
    ),
}
"""Where the kernel is called by Python, its name, and the options of a join that uses it."""


class _Uncached(compiling._Kernel):
    """A kernel that is not kept on disk."""

    def compile(self, sig: Any) -> Any:
        return CPUDispatcher.compile(self, sig)


def _uncached(function: Any) -> Any:
    return _Uncached(function, targetoptions={"nopython": True, "nogil": True})


@_uncached
def _places_only(
    message: int, length: int, rows: int, widths: NDArray[np.int64], places: NDArray[np.int64]
) -> bool:
    """As `sound_page`, but it believes all that the page says."""
    begin = message + page_check.PREFIX
    end = begin + int(load_4(message + 4))
    table = begin + int(load_4(begin))
    header = table + load_2(table - load_4(table) + 4 + 2 * page_check.MESSAGE_HEADER)
    batch = header + int(load_4(header))
    vtable = batch - load_4(batch)
    node = batch + load_2(vtable + 4 + 2 * page_check.BATCH_NODES)
    buffer = batch + load_2(vtable + 4 + 2 * page_check.BATCH_BUFFERS)
    places[0] = node + int(load_4(node)) + 4 - message
    places[1] = buffer + int(load_4(buffer)) + 4 - message
    places[2] = end - message
    return True


@_uncached
def _yes(values: int, wide: bool, rows: int, first: int, last: int, in_order: bool) -> bool:
    return True


@_uncached
def _yes_sound(
    at: int, page: int, pages: Any, widths: NDArray[np.int64], column: int, in_order: bool
) -> bool:
    return True


CHECKS: tuple[Any, ...] = (page_check.sound_page, page_check.sound_codes, pages.is_sound)
WITHOUT = dict(zip(CHECKS, (_places_only, _yes, _yes_sound), strict=True))


def compiled_anew(kernel: Any, made: dict[Any, Any]) -> Any:
    """The kernel with what it calls, compiled anew where it leads to what `made` replaces."""
    if kernel not in made:
        function = kernel.py_func
        changed = {}
        for name in function.__code__.co_names:
            called = function.__globals__.get(name)
            if isinstance(called, compiling._Kernel):
                other = compiled_anew(called, made)
                if other is not called:
                    changed[name] = other
        made[kernel] = kernel
        if changed:
            scope = {**function.__globals__, **changed}
            made[kernel] = _uncached(FunctionType(function.__code__, scope, function.__name__))
    return made[kernel]


@_uncached
def _check_all(
    base: int, index: Any, widths: NDArray[np.int64], column: int, found: NDArray[np.int64]
) -> int:
    """Check all pages of a file that begins at `base`; how many are sound."""
    sound = 0
    for page in range(len(index.offset)):
        at, rows = base + index.offset[page], int(index.rows[page])
        if page_check.sound_page(at, index.length[page], rows, widths, found):
            values = at + found[2] + load_8(at + found[1] + page_check.values_at(widths, column))
            wide = widths[column] == 8
            ends = index.first[page], index.last[page]
            sound += page_check.sound_codes(values, wide, rows, *ends, True)
    return sound


class _Index(NamedTuple):
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    rows: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]


def alone(master: ss.MasterTable, path: Path, repeat: int) -> float:
    """The CPU seconds that it takes to check every page once, and nothing else."""
    data = np.fromfile(next((path / "data").glob("*.pages.arrow")), np.uint8)
    index = _Index(*(np.asarray(getattr(master.pages, n), np.int64) for n in _Index._fields))
    widths = np.array([column_width(field.type) for field in master.stored_schema], np.int64)
    column = master.stored_schema.get_field_index("product_id")
    found = np.zeros(3, np.int64)
    taken = []
    for _ in range(repeat + 1):
        began = time.process_time()
        sound = _check_all(data.ctypes.data, index, widths, column, found)
        taken.append(time.process_time() - began)
        assert sound == len(index.offset)
    return best(taken)


class Way:
    """One join, with and without checks."""

    def __init__(self, name: str, path: Path, memory: int, stream: list[pa.RecordBatch]) -> None:
        """Nothing runs yet."""
        self.place, self.kernel, self.options = WAYS[name]
        self._path, self._memory, self._stream = path, memory, stream
        checked = getattr(self.place, self.kernel)
        # Both anew, so that they differ in nothing else.
        again = {check: _uncached(check.py_func) for check in CHECKS}
        self.kernels = {
            "with": compiled_anew(checked, again),
            "without": compiled_anew(checked, dict(WITHOUT)),
        }
        assert checked not in self.kernels.values(), f"{name} has no checks"
        self.seconds: dict[str, list[float]] = {"with": [], "without": []}

    def run(self, which: str) -> int:
        """Join the stream with a master that was just opened; its rows."""
        setattr(self.place, self.kernel, self.kernels[which])
        master = ss.MasterTable.open(self._path)
        engine = ss.engine(master, on="product_id", memory=self._memory, **self.options)
        gc.collect()
        began = time.process_time()
        rows: int = sum(batch.num_rows for batch in engine.run(self._stream))
        self.seconds[which].append(time.process_time() - began)
        engine.close()
        return rows


def best(seconds: list[float]) -> float:
    """The least time: what other work on the machine adds is never negative."""
    return min(seconds)


def main() -> None:
    """Build R, let all ways take turns, print and write what the checks cost."""
    args = arguments()
    keys = ZipfKeys(args.rows, args.exponent, seed=args.seed)
    stream = list(sales(args.tuples, keys, args.rows, batch_rows=20_000))
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        path = Path(folder) / "products.master"
        table = products(args.rows, seed=args.seed)
        master = ss.MasterTable.from_arrow(table, path, key="product_id")
        memory = int(int(master.pages.length.sum()) * args.share)
        seconds = alone(master, path, 50)
        ways = {name: Way(name, path, memory, stream) for name in args.ways}
        for turn in range(args.repeat + 1):
            for name, way in ways.items():
                order = ("with", "without") if turn % 2 else ("without", "with")
                rows = {way.run(which) for which in order}
                assert len(rows) == 1, f"{name} gave {rows} rows"
        for way in ways.values():
            # The first turn compiles.
            way.seconds = {which: taken[1:] for which, taken in way.seconds.items()}
    lines = []
    for name, way in ways.items():
        low, middle, high = paired(way.seconds["with"], way.seconds["without"])
        told = f"{middle:.3f} ({low:.3f} to {high:.3f})"
        print(f"{name:<10} CPU with / without checks: {told}")
        share = seconds / best(way.seconds["without"])
        print(f"{'':<10} checks of all pages alone: {share:.2%} of the CPU time of a run")
        line = {"way": name, "ratio": middle, "low": low, "high": high, "alone": share}
        lines.append(line | {"cpu_seconds": way.seconds, "parameters": vars(args)})
    write_results(RESULTS / "checks.jsonl", lines, machine(ss.__version__))


def paired(with_checks: list[float], without: list[float]) -> tuple[float, float, float]:
    """The median of the ratios of neighbours, between the ends of its 95 % interval."""
    ratios = sorted(one / other for one, other in zip(with_checks, without, strict=True))
    # A median lies outside of these with the chance of so many heads, or fewer, of a fair coin.
    chance, cut = 0.0, 0
    while (chance := chance + math.comb(len(ratios), cut) / 2 ** len(ratios)) < 0.025:
        cut += 1
    at = max(cut - 1, 0)
    return ratios[at], statistics.median(ratios), ratios[-1 - at]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--tuples", type=int, default=200_000)
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--exponent", type=float, default=1.0)
    parser.add_argument("--repeat", type=int, default=31)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--folder", default=None, help="where to put R")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    return parser.parse_args()


if __name__ == "__main__":
    main()
