"""A bursty, self-similar stream: how many tuples come in each step of time.

Naeem et al. 2011, appendix, Figure 9: N virtual streams, the i-th of bandwidth 2^i, are on or off.
How long a stream stays on or off is random and grows with its bandwidth, so there are bursts on
every time scale. A priority queue says which stream switches next. The paper's figure has one flag
for all streams and switches at most one of them in a step. Here each stream has its own flag, and
all that are due switch, or else the queue would lag behind further and further.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from semistream.errors import OptionError
from semistream.workload.zipf import Ints

__all__ = ["BurstySteps", "timed"]

_MOST_STREAMS = 30


class BurstySteps:
    """Tuples per step of time: the bandwidths of the virtual streams that are on, added up.

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
        # In the figure all begin off. Here the stream begins as it is after a long time.
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
        """Steps until the stream switches."""
        return float(self._random.random()) * self._bandwidth[stream]


def timed(
    steps: BurstySteps, rate: float, batches: Callable[[int], pa.RecordBatch], seconds: float
) -> Iterator[tuple[float, pa.RecordBatch]]:
    """A stream that arrives by these steps, at `rate` tuples a second on average.

    `batches(n)` makes the next n tuples. `Engine.run_timed` takes what this yields.
    """
    if not rate > 0:
        raise OptionError(f"rate is {rate}; give tuples a second, more than 0.")
    step = steps.mean / rate
    now = 0.0
    while now < seconds:
        (count,) = steps.counts(1).tolist()
        yield now, batches(count)
        now += step
