"""The steady state of HYBRIDJOIN, DEMANDJOIN and kin: the partition reads a stream tuple takes.

The papers take the tuples finished per read, w, as proportional to h_S · d / R_t, with a constant
to be measured. It can be derived. Count time in tuples that enter the stream table. A partition
with the share q of them is read when its oldest waiting tuple has become the oldest of all, which
takes about the same time T for every partition: T plays the part of the *characteristic time* in
Che's approximation for caches. After a read, the partition's next tuple comes after 1 / q on
average, and T later it is read again. So

    reads per tuple    r = Σ q / (1 + qT)
    tuples per read    w = 1 + qT
    waiting tuples       = Σ qT (1 + qT/2) / (1 + qT)

DEMANDJOIN reads a partition when the number of its waiting tuples times the age of the first
reaches some level C, the same for all: after (1 + qT) T = C. The same sums hold, with a T of its
own for each partition. Frequent ones are read sooner and rare ones later than with one T for all,
which is fewer reads for as many waiting tuples. No T is longer than its age bound.

T, or C, follows from the number of waiting tuples. The table is full before a read, and the read
frees some of it, so on average the waiting tuples are its slots less half of what a read frees.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from semistream.cost.popularity import Floats, Shares
from semistream.cost.simulation import simulated_reads
from semistream.parts.demand_table import LONGEST_WAIT

_HALVINGS = 32
_MUCH = 0.1
"""If one partition has a larger share, T is not the same for all, so the queue is simulated."""


class SteadyState(NamedTuple):
    """Per tuple that enters the stream table."""

    reads: float
    """Partition reads."""
    longest_wait: float
    """T: how many other tuples enter while the first tuple of a partition waits, on average."""
    waiting: float
    """Tuples in the table, on average."""
    each: Floats
    """Tuples that a read finishes, for each kind of partition."""


def steady_state(
    shares: Shares,
    slots: float,
    look_ups: int = 1,
    settled_at_once: float = 0.0,
    *,
    by_demand: bool = False,
) -> SteadyState:
    """How a full stream table of `slots` works, with these shares of the tuples that enter it.

    `look_ups` partitions are read together. `settled_at_once` is the share of tuples that leave in
    the step in which they come, without a read (X-HYBRIDJOIN's pinned partitions). `by_demand` is
    DEMANDJOIN's order of reads; otherwise the oldest tuple's partition is read.
    """

    def wait_at(level: float) -> Floats | float:
        if not by_demand:
            return level
        return np.minimum(_wait_for_demand(shares, level), LONGEST_WAIT * slots)

    low, high = 0.0, 1.0
    while _room(shares, wait_at(high), slots, look_ups, settled_at_once) > 0 and high < 1e18:
        high *= 4
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _room(shares, wait_at(middle), slots, look_ups, settled_at_once) > 0:
            low = middle
        else:
            high = middle
    wait = wait_at((low + high) / 2)
    reads = _reads(shares, wait)
    if shares.of_one[-1] > _MUCH and not by_demand:
        reads = simulated_reads(shares, slots, look_ups, settled_at_once)
    each = shares.of_one * shares.number
    longest = float(each @ np.broadcast_to(wait, each.shape) / each.sum())
    return SteadyState(reads, longest, _waiting(shares, wait), 1 + shares.of_one * wait)


def _wait_for_demand(shares: Shares, level: float) -> Floats:
    """After how many tuples the demand for each partition reaches a level: (1 + qT) T = C."""
    q = np.maximum(shares.of_one, 1e-15)
    wait: Floats = (np.sqrt(1 + 4 * q * level) - 1) / (2 * q)
    return wait


def _reads(shares: Shares, wait: Floats | float) -> float:
    return float((shares.of_one / (1 + shares.of_one * wait)) @ shares.number)


def _waiting(shares: Shares, wait: Floats | float) -> float:
    x = shares.of_one * wait
    return float((x * (1 + x / 2) / (1 + x)) @ shares.number)


def _room(
    shares: Shares, wait: Floats | float, slots: float, look_ups: int, settled_at_once: float
) -> float:
    """Slots that are still free if T were `wait`; negative when too many tuples would wait."""
    x, reads = shares.of_one * wait, _reads(shares, wait)
    if not reads:
        return -slots
    # Reads free different numbers of slots, so it is half of the mean square, not of the mean.
    squares = float((shares.of_one * (1 + x + x / (1 + x))) @ shares.number)
    freed = np.divide(squares + (look_ups - 1) / reads, 2)
    return float(slots - settled_at_once / reads - freed - _waiting(shares, wait))
