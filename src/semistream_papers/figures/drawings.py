"""Drawings: figures that need no run, of MESHJOIN's equations and of the streams."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Final

import numpy as np

from semistream.workload import ZipfKeys
from semistream_papers.equations.meshjoin import (
    meshjoin_eq1_memory,
    meshjoin_eq1_w,
    meshjoin_eq2_loop,
    meshjoin_eq6_w,
)
from semistream_papers.runs.platforms import RAW_DISK
from semistream_papers.workloads.bursty import BurstySteps
from semistream_papers.workloads.integral_zipf import IntegralZipfKeys

__all__ = ["DRAWINGS", "Lines"]

Lines = dict[str, list[tuple[float, float]]]
"""Points by label."""

_ROWS: Final = 3_500_000
_ROW: Final = 120
_PAGE: Final = 4096
_PAGES: Final = _ROWS * _ROW / _PAGE
_TUPLE: Final = 20
_FUDGE: Final = 2.3
"""With it a waiting tuple takes 50 bytes, its pointer included, as in this engine."""
_SEED: Final = 2011


def _sizes() -> list[float]:
    """Pages of the disk buffer."""
    return [float(b) for b in np.geomspace(1, 4_000, 40).round()]


def _io(b: float) -> float:
    c = RAW_DISK.factors
    return (c.sequential_read or 0.0) + b * _PAGE * c.byte_read


def _sigma(b: float, w: float) -> float:
    return w / (b * _PAGE / _ROW)


def meshjoin_memory() -> Lines:
    """Memory for some rates, over b (Eq. 1 and 6)."""
    found: Lines = {}
    for rate in (3_500.0, 6_000.0, 15_000.0):
        points = []
        for b in _sizes():
            w = meshjoin_eq6_w(rate, b, _PAGE, _ROW, 0.0, _io(b), RAW_DISK.factors)
            memory = meshjoin_eq1_memory(b, w, _PAGES, _PAGE, _TUPLE, _FUDGE)
            points.append((b * _PAGE / 1e3, memory / 1e6))
        found[f"{rate:,.0f} tuples/s"] = points
    return found


def meshjoin_rate() -> Lines:
    """The rate for some memories, over b (Eq. 1 to 3)."""
    found: Lines = {}
    for memory in (4e6, 10e6, 21e6):
        points = []
        for b in _sizes():
            w = meshjoin_eq1_w(memory, b, _PAGES, _PAGE, _TUPLE, _FUDGE)
            if w > 0:
                c = RAW_DISK.factors
                loop = meshjoin_eq2_loop(b, w, _PAGE, _ROW, _sigma(b, w), _io(b), c)
                points.append((b * _PAGE / 1e3, w / loop))
        found[f"{memory / 1e6:g} MB"] = points
    return found


def page_use() -> Lines:
    """How many of a million stream tuples ask for each of 16,000 pages of R."""
    pages, per_page = 16_000, 125
    ranks = ZipfKeys(pages * per_page, 1.0, _SEED).ranks(1_000_000)
    return {"R in order of frequency": _thinned(np.bincount(ranks // per_page, minlength=pages))}


def zipf() -> Lines:
    """Sales of each of 10,000 products, by rank, exactly and by the papers' generator."""
    ranks = {
        "exact": ZipfKeys(10_000, 1.0, _SEED).ranks(1_000_000),
        "by inverse integral": IntegralZipfKeys(10_000, 1.0, _SEED).ranks(1_000_000),
    }
    return {label: _thinned(np.bincount(some, minlength=10_000)) for label, some in ranks.items()}


def bursty() -> Lines:
    """Tuples in each of the first 4,000 steps, and the mean of 100 steps at a time."""
    counts = BurstySteps(_SEED).counts(4_000)
    means = counts.reshape(-1, 100).mean(axis=1)
    return {
        "each step": [(float(i), float(n)) for i, n in enumerate(counts)],
        "mean of 100": [(100.0 * i + 50, float(n)) for i, n in enumerate(means)],
    }


def _thinned(counts: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[tuple[float, float]]:
    """Counts by rank: each of the first hundred, then means over stretches that grow."""
    edges = np.unique(np.geomspace(1, len(counts) + 1, 200).astype(np.int64))
    return [
        (float(np.sqrt(a * (b - 1))), float(counts[a - 1 : b - 1].mean()))
        for a, b in pairwise(edges.tolist())
    ]


DRAWINGS: Final[dict[str, Callable[[], Lines]]] = {
    "meshjoin memory": meshjoin_memory,
    "meshjoin rate": meshjoin_rate,
    "page use": page_use,
    "zipf": zipf,
    "bursty": bursty,
}
"""By the name that a figure carries."""
