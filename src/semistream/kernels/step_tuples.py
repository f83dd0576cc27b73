"""Tuples that begin and cease to wait in the course of a step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semistream.kernels.chains import (
    insert,
    remove_codes,
    remove_oldest_of_code,
    remove_ranges,
)
from semistream.kernels.compiling import kernel
from semistream.kernels.queue import FREE_COUNT, append, unlink
from semistream.kernels.results import USED_ROWS, Results, put_unmatched, scatter
from semistream.kernels.ring import POSITION, ring_append, ring_expire, ring_free
from semistream.kernels.settling import settled_codes
from semistream.kernels.step_state import (
    APPENDS,
    DELETES,
    LEFT,
    LONELY,
    REMOVED,
    TAKEN,
    WAITED,
    WANTED,
    WAS_FULL,
    Arriving,
    Relation,
    Step,
    Waiting,
    Window,
    page_range,
)
from semistream.kernels.times import finish

Numbers = NDArray[np.int32]

EXPIRED, EXPIRE_LATER, NOT_OLDEST = range(3)
"""What letting go of expired tuples came to: done; no room; a younger tuple would go first."""


@kernel
def _put(waiting: Waiting | Window, arriving: Arriving, step: Step, slots: Numbers) -> None:
    """Put the next arrivals under slots that were given out for them."""
    at, count = step.state[TAKEN], len(slots)
    codes = arriving.codes[at : at + count]
    insert(waiting.chains, waiting.fences, codes, slots, step.now)
    for j in range(len(arriving.widths)):
        width = arriving.widths[j]
        scatter(arriving.columns[j] + at * width, width, slots, arriving.kept[j])
    if len(arriving.flags):
        for i in range(count):
            for k in range(arriving.flags.shape[1]):
                arriving.kept_flags[slots[i], k] = arriving.flags[at + i, k]
    step.state[TAKEN] = at + count
    step.counts[APPENDS] += count


@kernel
def take_in(waiting: Waiting, arriving: Arriving, step: Step) -> None:
    """Put arrivals into free slots, as many as there are of both."""
    state, ends = step.state, waiting.queue.ends
    while True:
        left = len(arriving.codes) - state[TAKEN]
        count = min(min(ends[FREE_COUNT], left), len(waiting.slots))
        if count == 0:
            break
        slots = waiting.slots[:count]
        append(waiting.queue, slots)
        _put(waiting, arriving, step, slots)
        if ends[FREE_COUNT] == 0:
            step.counts[WAS_FULL] = 1


@kernel
def take_chunk_in(window: Window, arriving: Arriving, step: Step) -> None:
    """Put arrivals into a scan's window, as many as may still enter now."""
    state, ring = step.state, window.ring
    while True:
        left = len(arriving.codes) - state[TAKEN]
        count = min(min(state[LEFT], left), len(window.slots))
        if count == 0:
            break
        slots = window.slots[:count]
        ring_append(ring, slots)
        _put(window, arriving, step, slots)
        state[LEFT] -= count
        # Equal chunks that fill the window leave fewer slots over than there are chunks.
        if ring_free(ring) < len(ring.chunks):
            step.counts[WAS_FULL] = 1


@kernel
def _finish(waiting: Waiting | Window, results: Results, step: Step, slots: Numbers) -> None:
    """Tuples that are out of the table are done; there is room for all of them as results."""
    counts, nodes = step.counts, waiting.chains.nodes
    lonely, waited = finish(nodes, slots, step.now, step.histogram, waiting.lonely)
    counts[DELETES] += len(slots)
    counts[LONELY] += lonely
    counts[WAITED] += waited
    if results.has_unmatched:
        put_unmatched(results, waiting.lonely[:lonely])


@kernel
def _room(waiting: Waiting | Window, results: Results) -> int:
    """How many tuples may be let go of at once: unmatched ones may have to go out."""
    most = len(waiting.slots)
    return min(most, results.most - results.used[USED_ROWS]) if results.has_unmatched else most


@kernel
def remove_settled(
    waiting: Waiting, relation: Relation, results: Results, step: Step, partition: int
) -> bool:
    """Let go of the tuples that a partition settles; False if there is no room."""
    state = step.state
    begin, stop = page_range(relation, partition)
    low, high = settled_codes(relation.first, relation.last, begin, stop)
    regions = np.array([partition], np.int64)
    lows, highs = np.array([low], np.int64), np.array([high], np.int64)
    done = state[REMOVED : REMOVED + 1]
    while done[0] == 0:
        room = _room(waiting, results)
        if room == 0:
            return False
        slots = waiting.slots[:room]
        count = remove_ranges(waiting.chains, regions, lows, highs, done, slots)
        unlink(waiting.queue, slots[:count])
        _finish(waiting, results, step, slots[:count])
    return True


@kernel
def settle(waiting: Waiting, results: Results, step: Step) -> bool:
    """Let go of the tuples of the code looked up; False if there is no room."""
    codes = np.array([step.state[WANTED]], np.int64)
    while True:
        room = _room(waiting, results)
        if room == 0:
            return False
        slots = waiting.slots[:room]
        count = remove_codes(waiting.chains, waiting.fences, codes, slots)
        unlink(waiting.queue, slots[:count])
        _finish(waiting, results, step, slots[:count])
        if count < room:
            return True


@kernel
def expire(window: Window, results: Results, step: Step) -> int:
    """Let go of the tuples that have met all of R: EXPIRED, or why not all of them."""
    place = window.ring.ends[POSITION] % len(window.ring.chunks)
    while window.ring.chunks[place]:
        room = _room(window, results)
        if room == 0:
            return EXPIRE_LATER
        slots = window.slots[:room]
        slots = slots[: ring_expire(window.ring, slots)]
        if not remove_oldest_of_code(window.chains, window.fences, slots):
            return NOT_OLDEST
        _finish(window, results, step, slots)
    return EXPIRED
