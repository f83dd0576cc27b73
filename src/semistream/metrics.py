"""Counters of operations, and how long stream tuples took.

Every algorithm counts what it does (DESIGN: counting is timing). Durations go into histograms
of fixed size, 16 bins per power of two, so that a quantile is right to about 4 % however long
the run. The clock is injected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from semistream.kernels import BINS_PER_OCTAVE, HISTOGRAM_BINS, bin_of

Clock = Callable[[], float]
"""Seconds, from any origin, never running backwards."""


@dataclass(frozen=True)
class Durations:
    """How long something took, in seconds: mean, median and the slowest hundredth."""

    mean: float
    p50: float
    p99: float


class DurationHistogram:
    """Durations in bins of logarithmic width; the sum is exact."""

    def __init__(self) -> None:
        """No durations yet."""
        self.bins: NDArray[np.int64] = np.zeros(HISTOGRAM_BINS, np.int64)
        self._total_micros = 0

    def add(self, seconds: float, count: int) -> None:
        """`count` tuples took `seconds` each. O(1)."""
        micros = int(seconds * 1e6)
        self.bins[min(bin_of(micros), HISTOGRAM_BINS - 1)] += count
        self._total_micros += micros * count

    def add_counted(self, total_micros: int) -> None:
        """A kernel has counted durations into `bins`; this is their sum."""
        self._total_micros += total_micros

    def snapshot(self) -> Durations:
        """Mean, median and 99th percentile so far; zeros when nothing was added."""
        count = int(self.bins.sum())
        if count == 0:
            return Durations(0.0, 0.0, 0.0)
        mean = self._total_micros / count / 1e6
        return Durations(mean, self._quantile(0.50, count), self._quantile(0.99, count))

    def _quantile(self, share: float, count: int) -> float:
        index = int(np.searchsorted(np.cumsum(self.bins), share * count))
        octave, place = divmod(index, BINS_PER_OCTAVE)
        middle = 2.0**octave * (1 + (place + 0.5) / BINS_PER_OCTAVE) - 1
        return middle / 1e6 if index else 0.0


@dataclass(frozen=True)
class Metrics:
    """A frozen snapshot of a run.

    Stream tuples: `arrived` = `joined` + `unmatched` + `deferred` + `waiting`; at the end of a run
    none is deferred or waits. A tuple is joined when it is done: its rows may be out before, and
    the last of them shortly after. `outputs` counts result rows: a tuple that matches three
    master rows gives three.
    """

    algorithm: str
    arrived: int
    joined: int
    unmatched: int
    outputs: int
    iterations: int
    partitions_read: int
    sequential_reads: int
    """Those of `partitions_read` that began where the one before had ended."""
    set_reads: int
    """Those of `partitions_read` that were looked up several at a time, in compiled code."""
    set_bytes: int
    """Those of `bytes_read` that they had."""
    set_codes: int
    """Keys that were looked for in them."""
    pages_read: int
    bytes_read: int
    index_pages_read: int
    probes: int
    hash_probes: int
    """Those of `probes` that were hashed one by one: where R is not read in key order."""
    front_probes: int
    front_chunks: int
    """Chunks of the stream whose tuples the front stage looked up together."""
    partition_probes: int
    """Partitions, or sets of rows found in them, that were joined with waiting tuples."""
    appends: int
    deletes: int
    matches: int
    front_hits: int
    filtered: int
    """Those of `unmatched` that the membership filter kept from waiting."""
    stream_reads: int
    shed: int
    returned: int
    seconds: float
    processing_time: Durations
    waiting_time: Durations
    peak_memory: int
    budget: int

    @property
    def service_rate(self) -> float:
        """Stream tuples finished per second (the papers' μ)."""
        return (self.joined + self.unmatched) / self.seconds if self.seconds > 0 else 0.0

    @property
    def hit_ratio(self) -> float:
        """The share of finished stream tuples that the front stage answered."""
        finished = self.joined + self.unmatched
        return self.front_hits / finished if finished else 0.0

    @property
    def deferred(self) -> int:
        """Stream tuples that were shed and are not yet back."""
        return self.shed - self.returned

    @property
    def waiting(self) -> int:
        """Stream tuples in memory: in the stream buffer, or with the algorithm."""
        return self.arrived - self.joined - self.unmatched - self.deferred

    @property
    def matches_per_partition(self) -> float:
        """Stream tuples matched by a partition read: how well its cost was shared."""
        return self.matches / self.partitions_read if self.partitions_read else 0.0


@dataclass
class Recorder:
    """The counters while a run goes on; the parts add to them."""

    clock: Clock
    arrived: int = 0
    joined: int = 0
    unmatched: int = 0
    outputs: int = 0
    iterations: int = 0
    partitions_read: int = 0
    sequential_reads: int = 0
    set_reads: int = 0
    set_bytes: int = 0
    set_codes: int = 0
    pages_read: int = 0
    bytes_read: int = 0
    index_pages_read: int = 0
    probes: int = 0
    hash_probes: int = 0
    front_probes: int = 0
    front_chunks: int = 0
    partition_probes: int = 0
    appends: int = 0
    deletes: int = 0
    matches: int = 0
    front_hits: int = 0
    filtered: int = 0
    stream_reads: int = 0
    shed: int = 0
    returned: int = 0
    processing: DurationHistogram = field(default_factory=DurationHistogram)
    waiting: DurationHistogram = field(default_factory=DurationHistogram)

    def __post_init__(self) -> None:
        """Start the run's clock."""
        self._started = self.clock()
        self._stopped: float | None = None

    def restart(self) -> None:
        """Another run begins: count from nothing."""
        vars(self).update(vars(Recorder(self.clock)))

    def stop(self) -> None:
        """The run is over: the clock no longer counts."""
        self._stopped = self.clock()

    @property
    def seconds(self) -> float:
        """How long the run has taken so far, or took."""
        return (self.clock() if self._stopped is None else self._stopped) - self._started

    def micros(self) -> int:
        """Microseconds now, even and wrapping at 2**32: four bytes per waiting tuple."""
        return int(self.clock() * 1e6) & 0xFFFFFFFE

    def snapshot(self, algorithm: str, peak_memory: int, budget: int) -> Metrics:
        """What has been counted so far."""
        return Metrics(
            algorithm=algorithm,
            arrived=self.arrived,
            joined=self.joined,
            unmatched=self.unmatched,
            outputs=self.outputs,
            iterations=self.iterations,
            partitions_read=self.partitions_read,
            sequential_reads=self.sequential_reads,
            set_reads=self.set_reads,
            set_bytes=self.set_bytes,
            set_codes=self.set_codes,
            pages_read=self.pages_read,
            bytes_read=self.bytes_read,
            index_pages_read=self.index_pages_read,
            probes=self.probes,
            hash_probes=self.hash_probes,
            front_probes=self.front_probes,
            front_chunks=self.front_chunks,
            partition_probes=self.partition_probes,
            appends=self.appends,
            deletes=self.deletes,
            matches=self.matches,
            front_hits=self.front_hits,
            filtered=self.filtered,
            stream_reads=self.stream_reads,
            shed=self.shed,
            returned=self.returned,
            seconds=self.seconds,
            processing_time=self.processing.snapshot(),
            waiting_time=self.waiting.snapshot(),
            peak_memory=peak_memory,
            budget=budget,
        )
