"""A bursty, self-similar stream: so many tuples in each step of time.

Naeem et al. 2011, appendix, Figure 9: N virtual streams, the i-th of bandwidth 2^i, are on or off.
How long one stays so is random and grows with its bandwidth, so that there are bursts on every
time scale. A priority queue says which one turns over next. The figure has one flag `on` for all
and turns at most one stream over a step; here each stream has its own flag, and all that are due
turn over, else the queue would lag behind ever further.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from semistream.errors import OptionError
from semistream.workload.zipf import Floats, Ints

__all__ = ["BurstySteps", "hurst_exponent", "timed"]

_MOST_STREAMS = 30
_FEWEST_BLOCKS = 16


class BurstySteps:
    """Tuples per step of time, as the virtual streams that are on give them.

    Example:
        >>> steps = BurstySteps(seed=1)
        >>> steps.counts(5).tolist()
        [1384, 1386, 1382, 1376, 1378]
        >>> steps.mean
        1023.0
    """

    def __init__(self, seed: int, streams: int = 10) -> None:
        if not 1 <= streams <= _MOST_STREAMS:
            raise OptionError(f"streams is {streams}; give 1 to {_MOST_STREAMS} virtual streams.")
        if seed < 0:
            raise OptionError(f"seed is {seed}; give a whole number of at least 0.")
        self._random = np.random.default_rng(seed)
        self._bandwidth: list[int] = [2**i for i in range(1, streams + 1)]
        # Not all off, as in the figure: the stream is to be what it is after a long time.
        self._on = (self._random.random(streams) < 0.5).tolist()
        self._step = 0
        self._queue = [(self._stay(i), i) for i in range(streams)]
        heapq.heapify(self._queue)

    @property
    def mean(self) -> float:
        """Tuples per step in the long run: each stream is on half of the time."""
        return sum(self._bandwidth) / 2

    def counts(self, steps: int) -> Ints:
        """Tuples in each of the next steps. O(steps × log streams)."""
        found = np.empty(steps, np.int64)
        total = sum(width for width, on in zip(self._bandwidth, self._on, strict=True) if on)
        for number in range(steps):
            self._step += 1
            while self._queue[0][0] < self._step:
                due, stream = heapq.heappop(self._queue)
                self._on[stream] = not self._on[stream]
                total += self._bandwidth[stream] * (1 if self._on[stream] else -1)
                heapq.heappush(self._queue, (due + self._stay(stream), stream))
            found[number] = total
        return found

    def _stay(self, stream: int) -> float:
        """Steps until the stream turns over."""
        return float(self._random.random()) * self._bandwidth[stream]


def timed(
    steps: BurstySteps, rate: float, batches: Callable[[int], pa.RecordBatch], seconds: float
) -> Iterator[tuple[float, pa.RecordBatch]]:
    """A stream that arrives by these steps, at `rate` tuples a second on average.

    `batches` makes the next n tuples. What comes is what `Engine.run_timed` takes.
    """
    if not rate > 0:
        raise OptionError(f"rate is {rate}; give tuples a second, more than 0.")
    step = steps.mean / rate
    now = 0.0
    while now < seconds:
        (count,) = steps.counts(1).tolist()
        yield now, batches(count)
        now += step


def hurst_exponent(counts: Ints) -> float:
    """How self-similar a series is: 0.5 for independent counts, towards 1 for lasting bursts.

    By aggregated variance: the variance of means over m steps falls as m^(2H-2).
    """
    if len(counts) < 2 * _FEWEST_BLOCKS:
        raise OptionError(
            f"{len(counts)} counts tell no Hurst exponent: give at least {2 * _FEWEST_BLOCKS}."
        )
    lengths = 2 ** np.arange(0, max(1, (len(counts) // _FEWEST_BLOCKS).bit_length()))
    variances: Floats = np.array([_block_means(counts, m).var() for m in lengths.tolist()])
    slope = np.polyfit(np.log(lengths), np.log(variances), 1)[0]
    return float(1 + slope / 2)


def _block_means(counts: Ints, length: int) -> Floats:
    whole = len(counts) // length * length
    means: Floats = counts[:whole].reshape(-1, length).mean(axis=1)
    return means
