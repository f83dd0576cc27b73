"""Steps of MESHJOIN and its kin: partition after partition in one call, in the paper's order.

    arrivals ─► window ◄──probe── rows on the pages of a partition, as they lie ──► result columns
                  └─► tuples leave when they have met all of R, round and round

A call goes on until it needs something that only its caller has; see `steps`.
"""

from __future__ import annotations

from semistream.kernels.compiling import kernel
from semistream.kernels.results import Found, Results
from semistream.kernels.ring import LATEST, POSITION, RING_COUNT, chunk_room
from semistream.kernels.scan_probe import begin_scan_probe, scan_probe
from semistream.kernels.step_reading import announce, read_partition
from semistream.kernels.step_state import (
    CANDIDATES,
    IS_DRY,
    ITERATIONS,
    LEFT,
    PAIRS,
    PARTITION,
    PHASE,
    READS,
    Arriving,
    Relation,
    Step,
    Window,
)
from semistream.kernels.step_tuples import EXPIRE_LATER, NOT_OLDEST, expire, take_chunk_in
from semistream.kernels.steps import BROKEN, FINISHED, NO_ARRIVALS, NO_ROOM, OFFERS, UNREAD

_EXPIRE, _TAKE_IN, _READ, _PROBE = range(4)


@kernel
def _begin_chunk(window: Window, step: Step) -> None:
    """How many tuples may enter now."""
    step.state[LEFT] = chunk_room(window.ring, window.w, len(window.chains.nodes))


@kernel
def _read(window: Window, relation: Relation, step: Step) -> bool:
    """Have the next partition of the scan in memory; False if only the caller can read it."""
    ends, cycle = window.ring.ends, len(window.ring.chunks)
    step.state[PARTITION] = ends[POSITION] % cycle
    if not read_partition(relation, step):
        return False
    ends[POSITION] += 1
    if relation.grain == 1 and ends[LATEST] > ends[POSITION]:
        announce(relation, ends[POSITION] % cycle)
    return True


@kernel
def advance(
    window: Window,
    arriving: Arriving,
    relation: Relation,
    results: Results,
    found: Found,
    step: Step,
) -> int:
    """Go on with the step; returns why it stopped."""
    state, counts, ends = step.state, step.counts, window.ring.ends
    while True:
        phase = state[PHASE]
        if phase == _EXPIRE:
            if counts[ITERATIONS] and (not ends[RING_COUNT] or counts[ITERATIONS] == step.most):
                return FINISHED
            expired = expire(window, results, step)
            if expired == NOT_OLDEST:
                return BROKEN
            if expired == EXPIRE_LATER:
                return NO_ROOM
            _begin_chunk(window, step)
            state[PHASE] = _TAKE_IN
        elif phase == _TAKE_IN:
            take_chunk_in(window, arriving, step)
            if state[LEFT] and not state[IS_DRY]:
                return NO_ARRIVALS
            state[PHASE] = _READ
            if not ends[RING_COUNT]:
                counts[ITERATIONS] += 1
                state[PHASE] = _EXPIRE
        elif phase == _READ:
            if not _read(window, relation, step):
                return UNREAD
            begin_scan_probe(relation, step)
            state[PHASE] = _PROBE
        else:
            is_done = scan_probe(window, relation, results, found, step)
            is_piece = len(step.candidates) > 0 and state[PAIRS] == len(found.slots)
            if not is_done and not is_piece:
                return NO_ROOM
            if is_done:
                counts[ITERATIONS] += 1
                state[PHASE] = _EXPIRE
            offers = state[CANDIDATES] or (state[PAIRS] and counts[READS] >= step.tick)
            state[PAIRS] = 0
            if offers:
                return OFFERS
            state[CANDIDATES] = 0
