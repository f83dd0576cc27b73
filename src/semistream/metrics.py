"""Metrics of a run: its counters, and how long stream tuples took.

Durations go into histograms of fixed size, 16 bins per power of two, so that a quantile is right to
about 4 % however long the run. The clock is injected.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import FrozenInstanceError, dataclass, field, fields
from numbers import Real
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from semistream.counters import Counters
from semistream.errors import OptionError
from semistream.kernels import BINS_PER_OCTAVE, HISTOGRAM_BINS, bin_of

Clock = Callable[[], float]
"""Seconds, from any origin, never running backwards."""
LATEST: Final = 1e12
"""No time is farther from 0, in seconds: microseconds are counted in 64 bits."""


@dataclass(frozen=True)
class Durations:
    """How long something took, in seconds: mean, median and the slowest hundredth."""

    mean: float
    p50: float
    p99: float
    bins: tuple[tuple[int, int], ...] = field(default=(), repr=False)
    """The histogram behind them: which bins have how many tuples."""

    @classmethod
    def merge(cls, parts: Iterable[Durations]) -> Durations:
        """The durations of all tuples of all parts."""
        histogram = DurationHistogram()
        for part in parts:
            histogram.add_all(part)
        return histogram.snapshot()

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Durations:
        """From JSON, as `dataclasses.asdict` gives it."""
        return cls(**{**record, "bins": tuple((place, count) for place, count in record["bins"])})


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

    def add_all(self, other: Durations) -> None:
        """Add the tuples of another histogram."""
        for place, count in other.bins:
            self.bins[place] += count
        self._total_micros += round(other.mean * 1e6 * sum(count for _, count in other.bins))

    def snapshot(self) -> Durations:
        """Mean, median and 99th percentile so far; zeros when nothing was added."""
        places = np.flatnonzero(self.bins)
        if not len(places):
            return Durations(0.0, 0.0, 0.0)
        counts = self.bins[places]
        sums = np.cumsum(counts)
        median, slow = places[np.searchsorted(sums, np.array([0.50, 0.99]) * sums[-1])].tolist()
        mean = self._total_micros / int(sums[-1]) / 1e6
        bins = tuple(zip(places.tolist(), counts.tolist(), strict=True))
        return Durations(mean, _middle(median), _middle(slow), bins)


def _middle(place: int) -> float:
    """The duration in the middle of a bin, in seconds."""
    octave, step = divmod(place, BINS_PER_OCTAVE)
    return (2.0**octave * (1 + (step + 0.5) / BINS_PER_OCTAVE) - 1) / 1e6 if place else 0.0


@dataclass(unsafe_hash=True)
class Metrics(Counters[int]):
    """A frozen snapshot of a run.

    Stream tuples: `arrived` = `joined` + `unmatched` + `left_out` + `deferred` + `waiting`; at the
    end of a run none is deferred or waits. A tuple is joined when it is done: its rows may be out
    before, and the last of them shortly after.
    """

    algorithm: str
    seconds: float
    processing_time: Durations
    """From when a tuple began to wait to when it was done; 0 if the front stage answered it."""
    waiting_time: Durations
    """From when a tuple arrived to when it was taken from the stream buffer."""
    peak_memory: int
    """The most bytes that were held at a time."""
    budget: int
    """The memory that was given. `Engine.memory()["budget"]` is that of the plan in use, which may
    be less if the engine retunes itself."""

    def __setattr__(self, name: str, value: object) -> None:
        """Set each field once; a dataclass cannot freeze counters that a `Recorder` also has."""
        if name in vars(self):
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super().__setattr__(name, value)

    @classmethod
    def merge(cls, runs: Iterable[Metrics]) -> Metrics:
        """Several runs, at least one, as one.

        Counters and seconds are added up, so a rate is per second of a run's own time, even if runs
        went on at the same time. Durations are those of all tuples of all runs, as if one
        histogram had counted them. Peak and budget are the largest of any run. The algorithm is
        the last run's.
        """
        runs = list(runs)
        sums = {name: sum(getattr(run, name) for run in runs) for name in runs[0].counts()}
        return cls(
            **sums,
            algorithm=runs[-1].algorithm,
            seconds=sum(run.seconds for run in runs),
            processing_time=Durations.merge(run.processing_time for run in runs),
            waiting_time=Durations.merge(run.waiting_time for run in runs),
            peak_memory=max(run.peak_memory for run in runs),
            budget=max(run.budget for run in runs),
        )

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Metrics:
        """From JSON, as `dataclasses.asdict` gives it; whatever else it has is left out."""
        known = {each.name: record[each.name] for each in fields(cls) if each.name in record}
        times = {name: Durations.of(known[name]) for name in ("processing_time", "waiting_time")}
        return cls(**known | times)

    @property
    def service_rate(self) -> float:
        """Stream tuples finished per second (the papers' μ)."""
        return (self.joined + self.unmatched) / self.seconds if self.seconds > 0 else 0.0

    @property
    def hit_ratio(self) -> float:
        """The share of finished stream tuples that were answered from memory.

        By the front stage, or in place, in pages that the operating system held.
        """
        finished = self.joined + self.unmatched
        return (self.front_hits + self.in_place_probes) / finished if finished else 0.0

    @property
    def deferred(self) -> int:
        """Stream tuples that were shed and are not yet back."""
        return self.shed - self.returned

    @property
    def waiting(self) -> int:
        """Stream tuples in memory: in the stream buffer, or with the algorithm."""
        return self.arrived - self.joined - self.unmatched - self.left_out - self.deferred

    def _repr_html_(self) -> str:
        """Tables and a picture, for notebooks."""
        from semistream.metrics_picture import metrics_html

        return metrics_html(self)

    @property
    def matches_per_partition(self) -> float:
        """Stream tuples matched by a partition read: how well its cost was shared."""
        return self.matches / self.partitions_read if self.partitions_read else 0.0


def _time_of(clock: object) -> float:
    """What the clock says; `OptionError` if it is none."""
    now: Any = math.nan
    if callable(clock):
        with contextlib.suppress(TypeError):
            now = clock()
    if isinstance(now, Real) and abs(float(now)) <= LATEST:
        return float(now)
    raise OptionError(
        f"clock={clock!r} must be a function that gives a time in seconds, such as "
        f"time.perf_counter; it gives {now!r}."
    )


@dataclass
class Recorder(Counters[int]):
    """The counters while a run goes on; the parts add to them."""

    clock: Clock
    processing: DurationHistogram = field(default_factory=DurationHistogram)
    waiting: DurationHistogram = field(default_factory=DurationHistogram)

    def __post_init__(self) -> None:
        """Start the run's clock."""
        self._started = _time_of(self.clock)
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
            **self.counts(),
            algorithm=algorithm,
            seconds=self.seconds,
            processing_time=self.processing.snapshot(),
            waiting_time=self.waiting.snapshot(),
            peak_memory=peak_memory,
            budget=budget,
        )
