"""Simulation of the queue, for streams that ask for one partition far more than for others.

The steady state assumes that all partitions wait equally long. When one of them has a third of the
stream, its read frees a third of the table at once, and the waits of the others go up and down.
There is no simple formula for that, but it is easy to simulate: all that matters of a tuple is its
partition.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semistream.cost.popularity import Floats, Shares
from semistream.kernels.compiling import kernel

_SLOTS = 8192
"""A larger table is scaled down to so many slots; with fewer, the groups would be too large."""
_ALONE = 64
"""So many of the heaviest partitions are simulated singly, the lighter ones in groups."""
_STEPS = 4096
_FILLINGS = 60
_SEED = 20


def simulated_reads(
    shares: Shares, slots: float, look_ups: int = 1, settled_at_once: float = 0.0
) -> float:
    """Partition reads per tuple that enters; the arguments are those of `steady_state`."""
    light, heavy, factor = _scaled(shares, slots)
    weights = np.append(np.concatenate([light, heavy]), settled_at_once)
    scaled = max(int(slots / factor), 2)
    homes = _drawn(weights, (_FILLINGS + 1) * scaled)
    reads = np.zeros(len(weights), np.int64)
    # A group of light partitions takes the place of so many in a set.
    places = np.append(np.full(len(light), factor), np.ones(len(heavy) + 1))
    tuples = _play(homes, places, scaled, look_ups, reads)
    # With fewer slots a heavy partition is read more often; a group of light ones is not.
    return float(reads[: len(light)].sum() + reads[len(light) :].sum() / factor) / tuples


def _drawn(weights: Floats, tuples: int) -> NDArray[np.int32]:
    """The partitions that tuples fall on, by chance, in proportion to the weights."""
    chance = np.random.RandomState(_SEED).random_sample(tuples)
    ends = np.cumsum(weights / weights.sum())
    # Where to begin to look for a number: its place in a table of equal steps.
    starts = np.searchsorted(ends, np.arange(_STEPS) / _STEPS, side="right").astype(np.int32)
    homes = np.empty(tuples, np.int32)
    _fall(chance, ends, starts, homes)
    return homes


def _scaled(shares: Shares, slots: float) -> tuple[Floats, Floats, float]:
    """Shares of groups of light partitions, of heavy ones, and the factor of scaling down."""
    each = np.repeat(shares.of_one, shares.number.astype(np.int64))
    factor = max(1.0, slots / _SLOTS)
    heavy, light = each[-_ALONE:], each[:-_ALONE]
    groups = max(1, round(len(light) / factor))
    begins = np.unique(np.linspace(0, len(light), groups, endpoint=False).astype(np.int64))
    return np.add.reduceat(light, begins) if len(light) else light, heavy, factor


@kernel
def _fall(
    chance: Floats, ends: Floats, starts: NDArray[np.int32], homes: NDArray[np.int32]
) -> None:
    """Find for each number the first of the ends above it; the last one if none is."""
    last = len(ends) - 1
    for i in range(len(chance)):
        home = min(starts[int(chance[i] * len(starts))], last)
        while home < last and ends[home] <= chance[i]:
            home += 1
        homes[i] = home


@kernel
def _play(
    homes: NDArray[np.int32],
    places: Floats,
    slots: int,
    look_ups: int,
    reads: NDArray[np.int64],
) -> int:
    """Let tuples come and be settled; counts the reads of the second half, returns its tuples.

    `homes` are the partitions that the tuples fall on. The last step may take up to `slots` more
    than the others leave, so `homes` has that many to spare. The last partition is the pinned one:
    its tuples leave at the end of the step.
    """
    pinned, tuples = len(reads) - 1, len(homes) - slots
    oldest = np.full(len(reads), -1, np.int64)
    waiting = np.zeros(len(reads), np.int64)
    arrived = at = half = 0
    free = slots
    while arrived < tuples:
        for _ in range(free):
            home = homes[arrived]
            if home != pinned and oldest[home] < 0:
                oldest[home] = arrived
            waiting[home] += 1
            arrived += 1
        free = waiting[pinned]
        waiting[pinned] = 0
        if half == 0 and arrived > tuples // 2:
            half = arrived
        taken = 0.0
        while taken < look_ups:
            while at < arrived and oldest[homes[at]] != at:
                at += 1
            if at == arrived:
                break
            home = homes[at]
            free += waiting[home]
            waiting[home], oldest[home] = 0, -1
            reads[home] += half > 0
            taken += places[home]
    return int(arrived - half)
