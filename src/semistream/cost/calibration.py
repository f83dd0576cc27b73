"""Calibration: the cost factors of this machine, measured in about two minutes.

Reads are timed by themselves: by size, in a row and at random. All other prices come from whole
joins: some sixty short runs, each doing much of something else, are counted and timed, and the
factors are those that explain the times best. So a factor includes all that its operation brings
with it in this engine, and a read that another thread does meanwhile is not counted twice. Some of
the joins have rows of ten columns, others of two.

With direct I/O the time is that of the clock, so the machine must be idle. Through the page cache
no disk is waited for, and it is the CPU time of all threads: a worker of Spark has one core for
them. So other work on the machine changes the factors little.

Some operations always come together: an append and its delete, a result row and its stream tuple.
No run tells their prices apart, so they are measured as one price, which is divided in the
proportions of the shipped factors. The price of a byte comes from the reads; the runs hardly
change it.
"""

from __future__ import annotations

import json
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.algorithms import fixed_engine
from semistream.cost.factors import CostFactors, factors_path, shipped_factors
from semistream.cost.pricing import in_background
from semistream.cost.read_costs import ReadCost, Stopwatch, copying, read_costs
from semistream.counters import FACTORS, operations
from semistream.metrics import Metrics
from semistream.relation import Frame, MasterTable
from semistream.relation.storage import CODECS, PACKED, Packing, compressed
from semistream.workload import ZipfKeys, products, sales
from semistream.workload.zipf import scattered

Floats = NDArray[np.float64]

_ROWS, _BATCH, _SEED = 300_000, 10_000, 20
_NARROW_REST = 112
"""Bytes of the second column of rows that have two: they are as wide as the others."""
_SMALL_PAGE = 16 << 10
_REPEAT = 3
_WARM = 3
"""A run of such a part of the tuples comes before each: nothing is opened or compiled then."""
_EXPANDED = 500
"""Pages that are decompressed, to time it."""
_PULL, _PULLS = 0.15, {"byte_read": 1.0, "column": 0.02}
"""How much the price known beforehand weighs against one run. Reads by themselves tell that of a
byte best, and runs with two columns and with ten that of a column."""
_OVERLAP = 0.7
"""How much of the shorter is hidden if reads and joins go on at the same time, by the clock."""
_ROUNDS_OF_FIT = 8
"""After so many, what is hidden in each run no longer changes."""
_LEAST_REST = 0.1
"""What is left of a run's time beside its bytes, at least: others may have been read meanwhile."""
_LEAST = 1e-10
"""Seconds of an operation: a price of 0 could not be divided in proportion."""
_TOGETHER = {"delete": "append", "stream_read": "output"}
"""Operations that come with another one in every run: the runs give one price for the two."""
_NOT_MEASURED = ("page_read", "shed")
"""A page costs nothing beside its bytes, and no run sheds."""
_MEASURED = {
    factor: (factor, *(other for other, first in _TOGETHER.items() if first == factor))
    for factor in FACTORS
    if factor not in (*_TOGETHER, *_NOT_MEASURED)
}
"""The factors that the runs tell apart, each with those that share its price."""

Run = tuple[str, str, float, int, int, dict[str, Any]]
_RUNS: tuple[Run, ...] = (
    ("inlj", "key", 0.0, 2_000, 2, {}),
    ("inlj", "given", 1.0, 2_000, 2, {}),
    ("cinlj", "key", 1.0, 4_000, 2, {}),
    ("meshjoin", "key", 0.0, 30_000, 2, {"partition_pages": 2}),
    ("meshjoin", "key", 0.0, 100_000, 8, {}),
    ("rmeshjoin", "given", 1.0, 100_000, 8, {"partition_pages": 8}),
    ("hybridjoin", "key", 0.0, 40_000, 1, {"look_ups": 0, "partition_pages": 1}),
    ("hybridjoin", "key", 1.0, 100_000, 4, {"look_ups": 0, "partition_pages": 4}),
    ("hybridjoin", "key", 0.0, 100_000, 8, {"look_ups": 0, "partition_pages": 2}),
    ("hybridjoin", "key", 1.0, 60_000, 2, {"look_ups": 0, "partition_pages": 8}),
    ("hybridjoin", "key", 0.0, 150_000, 12, {"look_ups": 0, "partition_pages": 32}),
    ("hybridjoin", "key", 0.0, 40_000, 1, {"look_ups": 8, "partition_pages": 1}),
    ("hybridjoin", "key", 1.0, 100_000, 4, {"look_ups": 32, "partition_pages": 1}),
    ("hybridjoin", "key", 0.5, 100_000, 4, {"look_ups": 4, "partition_pages": 4}),
    ("hybridjoin", "key", 0.0, 300_000, 8, {"look_ups": 32, "partition_pages": 1}),
    ("hybridjoin", "key", 1.0, 150_000, 12, {"look_ups": 32, "partition_pages": 8}),
    ("hybridjoin", "key", 0.0, 2_000, 12, {"look_ups": 128, "partition_pages": 1}),
    ("hybridjoin", "key", 0.0, 2_000, 12, {"look_ups": 64, "partition_pages": 4}),
    ("hybridjoin", "given", 0.5, 60_000, 4, {"partition_pages": 2}),
    ("xhybridjoin", "given", 0.5, 60_000, 2, {"partition_pages": 2, "pinned_partitions": 1}),
    ("xhybridjoin", "given", 1.0, 150_000, 3, {"partition_pages": 1, "pinned_partitions": 6}),
    ("xhybridjoin", "key", 0.0, 100_000, 4, {}),
    ("xhybridjoin", "key", 0.0, 50_000, 4, {"partition_pages": 1, "pinned_partitions": 12}),
    ("oxhybridjoin", "given", 1.0, 150_000, 8, {"partition_pages": 4, "pinned_partitions": 8}),
    ("oxhybridjoin", "key", 0.5, 300_000, 120, {"pinned_partitions": 1 << 20}),
    ("oxhybridjoin", "key", 0.0, 60_000, 2, {}),
    ("oxhybridjoin", "given", 0.5, 60_000, 2, {}),
    ("oxhybridjoin", "narrow", 0.0, 60_000, 2, {}),
    ("cmeshjoin", "narrow", 1.0, 60_000, 2, {}),
    ("chybridjoin", "key", 1.0, 200_000, 8, {"front_percent": 25}),
    ("chybridjoin", "key", 1.0, 60_000, 2, {"look_ups": 0, "partition_pages": 4}),
    ("chybridjoin", "key", 1.5, 300_000, 8, {"front_percent": 25}),
    ("chybridjoin", "key", 1.5, 200_000, 2, {"front_percent": 25}),
    ("demandjoin", "key", 0.0, 200_000, 4, {"partition_pages": 2}),
    ("demandjoin", "key", 0.0, 800_000, 8, {"partition_pages": 1}),
    ("demandjoin", "key", 0.0, 100_000, 2, {}),
    ("demandjoin", "given", 1.0, 20_000, 4, {}),
    ("chybridjoin", "given", 1.0, 100_000, 8, {"partition_pages": 2}),
    ("cmeshjoin", "key", 1.2, 150_000, 8, {"partition_pages": 4, "front_percent": 25}),
    ("inlj", "narrow", 0.0, 2_000, 2, {}),
    ("meshjoin", "narrow", 0.0, 30_000, 2, {"partition_pages": 2}),
    ("hybridjoin", "narrow", 0.0, 40_000, 1, {"look_ups": 0, "partition_pages": 1}),
    ("hybridjoin", "narrow", 1.0, 100_000, 4, {"look_ups": 0, "partition_pages": 4}),
    ("hybridjoin", "narrow", 0.0, 40_000, 1, {"look_ups": 8, "partition_pages": 1}),
    ("hybridjoin", "narrow", 0.0, 40_000, 1, {"look_ups": 16, "partition_pages": 1}),
    ("hybridjoin", "narrow", 1.0, 300_000, 12, {"look_ups": 32, "partition_pages": 8}),
    ("xhybridjoin", "narrow", 0.0, 100_000, 4, {}),
    ("oxhybridjoin", "narrow", 0.5, 300_000, 120, {"pinned_partitions": 1 << 20}),
    ("chybridjoin", "narrow", 1.0, 200_000, 8, {"front_percent": 25}),
    ("chybridjoin", "narrow", 0.5, 200_000, 8, {"front_percent": 25}),
    ("chybridjoin", "narrow", 1.5, 200_000, 2, {"front_percent": 25}),
    ("demandjoin", "narrow", 0.0, 100_000, 2, {}),
    ("demandjoin", "narrow", 0.0, 40_000, 1, {"look_ups": 16, "partition_pages": 1}),
    ("demandjoin", "narrow", 0.0, 800_000, 4, {"partition_pages": 8}),
    ("demandjoin", "narrow", 0.0, 3_000_000, 48, {"partition_pages": 128}),
    ("hybridjoin", "narrow", 0.0, 3_000_000, 48, {"partition_pages": 64, "look_ups": 4}),
    ("xhybridjoin", "narrow", 1.0, 3_000_000, 48, {"partition_pages": 64, "pinned_partitions": 1}),
    ("hybridjoin", "narrow", 1.0, 3_000_000, 48, {"look_ups": 0, "partition_pages": 64}),
    ("hybridjoin", "narrow", 0.0, 3_000_000, 96, {"partition_pages": 64, "look_ups": 4}),
)
"""Algorithm, master, exponent, tuples, memory in MB, and sizes.

The last ones have more tuples waiting than the processor's caches hold.
"""
_IN_PLACE: Run = ("hybridjoin", "key", 0.5, 300_000, 8, {})
"""With the pages in memory."""


@dataclass(frozen=True)
class Calibration:
    """Cost factors as measured, how much they varied, and the reads by size."""

    io: str
    factors: CostFactors
    spread: dict[str, float]
    """The standard deviation of each factor over the repetitions, divided by the factor."""
    reads: tuple[ReadCost, ...]
    unexplained: float
    """How far the factors miss the runs they were found from, on average."""
    seconds: float

    def save(self, path: Path | None = None) -> Path:
        """Keep the factors for this user, where `known_factors` finds them."""
        path = path or factors_path(self.io)
        path.parent.mkdir(parents=True, exist_ok=True)
        at = time.strftime("%Y-%m-%d")
        content = {
            "source": f"measured on {platform.node()} ({platform.machine()}, {self.io}) on {at}",
            "factors": asdict(self.factors),
            "spread": self.spread,
            "unexplained": self.unexplained,
            "reads": [asdict(read) for read in self.reads],
        }
        path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
        return path


def calibrate(
    io: str,
    folder: Path | None = None,
    progress: Callable[[str, float], None] = lambda _, __: None,
    rounds: int | None = None,
) -> Calibration:
    """Measure the factors; `folder` is on the disk that is meant, by default a temporary one.

    `progress` is called with what comes next, and the share of the work that is done.
    """
    repeat = rounds or _REPEAT
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=folder, prefix="semistream-") as name:
        masters = calibration_masters(Path(name))
        progress("reads", 0.0)
        reads = tuple(read_costs(masters["key"]))
        measured = []
        for number in range(repeat):
            round_of = f"joins, round {number + 1} of {repeat}"
            # The reads take about as long as a round.
            begun = (number + 1) / (repeat + 1)
            measured.append(
                timed_joins(
                    masters, io, partial(_told, progress, round_of, begun, 1 / (repeat + 1))
                )
            )
        expanding = {f"{codec}_byte": _per_expanded_byte(masters["key"], codec) for codec in CODECS}
    found = calibration_of(io, measured, reads, time.perf_counter() - started)
    return replace(found, factors=replace(found.factors, **expanding))


def calibration_of(
    io: str, rounds: Sequence[list[Metrics]], reads: tuple[ReadCost, ...], seconds: float
) -> Calibration:
    """The factors that explain the measured rounds; measuring them took `seconds`."""
    byte = _per_byte([read for read in reads if read.io == io])
    usual = replace(shipped_factors(io).factors, overlap=_OVERLAP if io == "direct" else 0.0)
    found = [_factors(measured, byte, usual)[0] for measured in rounds]
    # What disturbs a run now and then will disturb a join as often.
    usually = [sorted(same, key=lambda m: m.seconds) for same in zip(*rounds, strict=True)]
    median = [same[len(same) // 2] for same in usually]
    together, unexplained = _factors(median, byte, usual)
    spread = {
        name: float(np.std([asdict(f)[name] for f in found]) / value) if value else 0.0
        for name, value in asdict(together).items()
    }
    return Calibration(io, together, spread, reads, unexplained, seconds)


def _told(
    progress: Callable[[str, float], None], what: str, begun: float, share: float, done: float
) -> None:
    """Tell a share of a round as a share of the whole."""
    progress(what, begun + share * done)


def timed_joins(
    masters: dict[str, MasterTable], io: str, progress: Callable[[float], None] = lambda _: None
) -> list[Metrics]:
    """One round of the joins that factors are found from; tells the share that is done."""
    measured = []
    for number, run in enumerate(_RUNS):
        progress(number / len(_RUNS))
        measured.append(_measured(masters, run, copying(io)))
    return measured + ([_measured(masters, _IN_PLACE, io)] if io != copying(io) else [])


def calibration_masters(folder: Path) -> dict[str, MasterTable]:
    """The master tables of these joins: in key order, as given, and narrow.

    The last one has two columns, and smaller pages, which tell a read from its bytes.
    """
    table = products(_ROWS, seed=_SEED)
    by_rank = table.take(pa.array(scattered(np.arange(_ROWS), _ROWS, _SEED)))
    rest = np.zeros(_ROWS, f"S{_NARROW_REST}")
    narrow = pa.table(
        {"product_id": table["product_id"], "rest": pa.array(rest, pa.binary(_NARROW_REST))}
    )
    options: dict[str, Any] = {"key": "product_id"}
    small = options | {"page_bytes": _SMALL_PAGE}
    return {
        "key": MasterTable.from_arrow(table, folder / "key", **options),
        "given": MasterTable.from_arrow(by_rank, folder / "given", layout="given", **options),
        "narrow": MasterTable.from_arrow(narrow, folder / "narrow", **small),
    }


def _measured(masters: dict[str, MasterTable], run: Run, io: str) -> Metrics:
    """One run, counted and timed; its stream is made, and the engine is warm, before."""
    algorithm, master, exponent, tuples, megabytes, options = run
    batches = list(sales(tuples, ZipfKeys(_ROWS, exponent, _SEED), _ROWS, batch_rows=_BATCH))
    memory = megabytes << 20
    some = fixed_engine(
        masters[master], algorithm=algorithm, on="product_id", memory=memory, io=io, **options
    )
    _exhaust(some.run(batches[: -(-len(batches) // _WARM)]))
    watch = Stopwatch(io)
    _exhaust(some.run(batches))
    taken = watch.seconds()
    some.close()
    return replace(some.metrics(), seconds=taken)


def _exhaust(batches: Iterator[pa.RecordBatch]) -> None:
    for _ in batches:
        pass


def _per_byte(reads: list[ReadCost]) -> float:
    """What each further byte of a read costs."""
    slope = np.polyfit([read.size for read in reads], [read.median for read in reads], 1)[0]
    return max(float(slope), 1e-12)


def _per_expanded_byte(master: MasterTable, codec: str) -> float:
    """What each byte of a page costs that is decompressed."""
    with master.reader("unmapped") as reader:
        frame = Frame(reader.frame_bytes(1))
        (rows,) = reader.read(0, 1, frame)
        page = bytes(frame.view[: master.pages.length.item(0)])
        packing = Packing.learned(rows) if codec == PACKED else None
    if packing is not None:
        block = packing.packed(page, master.pages.rows.item(0))
        expand = partial(packing.unpacked, memoryview(block), len(page))
    else:
        expand = partial(pa.Codec(codec).decompress, compressed(page, codec), len(page))
    expand()
    watch = Stopwatch("buffered")
    for _ in range(_EXPANDED):
        expand()
    return watch.seconds() / _EXPANDED / len(page)


def _factors(
    measured: list[Metrics], byte: float, shipped: CostFactors
) -> tuple[CostFactors, float]:
    """The factors that explain the seconds best, and by how much they miss on average."""
    usually = replace(shipped, byte_read=byte)
    known = {name: max(price, _LEAST) for name, price in zip(FACTORS, usually.prices, strict=True)}
    columns = [FACTORS.index(name) for name in _MEASURED]
    counts = np.array([operations(metrics) for metrics in measured], np.float64)[:, columns]
    behind = np.array([in_background(metrics) for metrics in measured])[:, columns]
    seconds = np.array([m.seconds for m in measured])
    together = np.array([sum(known[name] for name in names) for names in _MEASURED.values()])
    # This machine may be faster or slower as a whole than that of the shipped factors.
    measured_alone = np.array([name == "byte_read" for name in _MEASURED])
    bytes_ = (counts * together)[:, measured_alone].sum(axis=1)
    rest = np.maximum(seconds - bytes_, _LEAST_REST * seconds)
    others = _seen(counts, together, behind, shipped.overlap) @ np.where(
        measured_alone, 0.0, together
    )
    usual = together * np.where(measured_alone, 1.0, float(np.median(rest / others)))
    pull = np.array([_PULLS.get(name, _PULL) for name in _MEASURED])
    prices, expected = usual, seconds
    for _ in range(_ROUNDS_OF_FIT):
        seen = _seen(counts, prices, behind, shipped.overlap)
        # Prices that the runs cannot tell apart are pulled to the shipped proportions. A share of
        # what is expected: with shares of what was measured, slow runs would weigh too little.
        pulled = np.vstack([seen / expected[:, None], np.diag(pull / usual)])
        prices = least_squares(pulled, np.concatenate([seconds / expected, pull]))
        expected = _seen(counts, prices, behind, shipped.overlap) @ prices
    missed = float(np.abs(expected / seconds - 1).mean())
    found = {
        name: float(known[name] * price / before)
        for names, price, before in zip(_MEASURED.values(), prices, together, strict=True)
        for name in names
    }
    return replace(shipped, page_read=0.0, **found), missed


def _seen(counts: Floats, prices: Floats, behind: Floats, overlap: float) -> Floats:
    """The operations of each run without those that others hide, at these prices.

    `behind` is the share of each that threads do while the join goes on.
    """
    parts = counts * prices
    is_hidden = (parts * behind).sum(axis=1) <= (parts * (1 - behind)).sum(axis=1)
    hidden: Floats = np.where(is_hidden[:, None], behind, 1 - behind)
    return counts * (1 - overlap * hidden)


def least_squares(matrix: Floats, wanted: Floats, rounds: int = 20_000) -> Floats:
    """X >= 0 that makes matrix · x closest to `wanted`, by one coordinate after the other.

    >>> least_squares(np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([2.0, 1.0])).round(3).tolist()
    [1.5, 0.0]
    """
    scale = np.sqrt((matrix**2).sum(axis=0))
    scale[scale == 0] = 1.0
    matrix = matrix / scale
    products_, aims = matrix.T @ matrix, matrix.T @ wanted
    x = np.zeros(matrix.shape[1])
    for _ in range(rounds // len(x)):
        for i in range(len(x)):
            if products_[i, i]:
                x[i] = max(0.0, x[i] + (aims[i] - products_[i] @ x) / products_[i, i])
    found: Floats = x / scale
    return found
