"""What a read of R costs on this disk: by size, in a row and at random, cached and direct."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from semistream.relation import Frame, MasterTable

_PAGES = (1, 4, 16)
_READS = 150
_SEED = 20
_LEAST = 1e-6


@dataclass(frozen=True)
class ReadCost:
    """Reads of one size in one way."""

    io: str
    pages: int
    size: int
    """Bytes of a read."""
    sequential: bool
    median: float
    """Seconds, decoding and checksums included."""
    p90: float


def copying(io: str) -> str:
    """A way to read in which every page is read: what is found in place has a price of its own."""
    return "unmapped" if io == "buffered" else io


class Stopwatch:
    """Seconds of a read or a join since it was made: of the CPU, or with direct I/O by the clock.

    By the clock, waiting for the disk counts, and so does what other work on the machine takes.
    """

    def __init__(self, io: str) -> None:
        """Start it."""
        self._now = time.perf_counter if io == "direct" else time.process_time
        self._started = self._now()

    def seconds(self) -> float:
        """So far."""
        return max(self._now() - self._started, _LEAST)


def read_costs(master: MasterTable) -> Iterator[ReadCost]:
    """Time reads of several sizes, each in a row and at random."""
    for io in ("buffered", "direct"):
        for pages in _PAGES:
            for sequential in (True, False):
                yield _timed(master, io, min(pages, master.page_count), sequential)


def _timed(master: MasterTable, io: str, pages: int, sequential: bool) -> ReadCost:
    places = np.arange(0, master.page_count - pages + 1, pages)
    if not sequential:
        places = np.random.default_rng(_SEED).permutation(places)
    with master.reader(io) as reader:
        frame = Frame(reader.frame_bytes(pages))
        taken = []
        for number in range(_READS):
            watch = Stopwatch(io)
            reader.read(int(places[number % len(places)]), pages, frame)
            taken.append(watch.seconds())
        size = reader.bytes_read // _READS
    median, p90 = np.quantile(taken, [0.5, 0.9])
    return ReadCost(io, pages, size, sequential, float(median), float(p90))
