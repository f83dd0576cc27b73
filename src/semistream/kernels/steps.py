"""Steps of HYBRIDJOIN and its kin: partition after partition in one call, in the paper's order.

    arrivals ─► free slots          oldest tuple ─► its partition ─► frame
    (take in)   stream table ◄──probe── rows on the page, as they lie ──► result columns
                settled tuples leave; their slots are free for the next arrivals

A call goes on until it needs something that only its caller has: arrivals, room for results, an
observer's opinion, or an error's text. What it has begun stands in `Step.state`, and the next
call goes on from there, also in the middle of a partition.
"""

from __future__ import annotations

import numpy as np

from semistream.kernels.chains import NONE
from semistream.kernels.compiling import kernel
from semistream.kernels.queue import COUNT, FREE_COUNT, OLDEST, oldest_outside
from semistream.kernels.results import Found, Results
from semistream.kernels.settling import settled_codes
from semistream.kernels.step_probe import begin_probe, probe_part, probe_whole
from semistream.kernels.step_reading import announce, read_partition
from semistream.kernels.step_state import (
    BEHIND,
    CANDIDATES,
    IS_DRY,
    ITERATIONS,
    PAIRS,
    PARTITION,
    PHASE,
    READS,
    WANTED,
    Arriving,
    Relation,
    Step,
    Waiting,
    page_range,
)
from semistream.kernels.step_tuples import remove_settled, settle, take_in

FINISHED, NO_ARRIVALS, NO_ROOM, OFFERS, UNREAD, BROKEN = range(6)
"""Why a call ended: the step is over; the caller must act, and then call again; a defect."""
_TAKE_IN, _PINNED, _LOOK_UP, _READ, _PROBE, _PROBE_PART, _OFFER, _REMOVE, _SETTLE = range(9)


@kernel
def _span(relation: Relation, code: int) -> tuple[int, int]:
    """The first partition that may hold rows of a code, and the one behind the last; or 0, 0."""
    first = int(np.searchsorted(relation.last, code, side="left"))
    last = int(np.searchsorted(relation.first, code, side="right")) - 1
    if first > last:
        return 0, 0
    return first // relation.per_partition, last // relation.per_partition + 1


@kernel
def _look_up(waiting: Waiting, relation: Relation, step: Step) -> None:
    """The partitions of the tuple that has waited longest."""
    state = step.state
    state[WANTED] = waiting.chains.nodes[waiting.queue.ends[OLDEST]].code
    state[PARTITION], state[BEHIND] = _span(relation, state[WANTED])


@kernel
def _look_ahead(waiting: Waiting, relation: Relation, step: Step) -> None:
    """Announce the partition that will be read next: arrivals only come behind who waits now.

    Past the operating system's cache there is nobody to announce it to.
    """
    state, following, behind = step.state, step.state[PARTITION] + 1, step.state[BEHIND]
    if following >= behind:
        begin, stop = page_range(relation, state[PARTITION])
        low, high = settled_codes(relation.first, relation.last, begin, stop)
        nodes = waiting.chains.nodes
        slot = oldest_outside(waiting.queue, nodes, low, high, state[WANTED])
        if slot == NONE:
            return
        following, behind = _span(relation, nodes[slot].code)
    if len(relation.pinned) <= following < behind:
        announce(relation, following)


@kernel
def _partition_done(step: Step) -> None:
    """Where to go after the partition under way."""
    state = step.state
    state[PARTITION] += 1
    if state[BEHIND] == NONE:
        state[PHASE] = _PINNED
    else:
        state[PHASE] = _READ if state[PARTITION] < state[BEHIND] else _SETTLE


@kernel
def advance(
    waiting: Waiting,
    arriving: Arriving,
    relation: Relation,
    results: Results,
    found: Found,
    step: Step,
) -> int:
    """Go on with the step; returns why it stopped."""
    state, counts, ends = step.state, step.counts, waiting.queue.ends
    while True:
        phase, partition = state[PHASE], state[PARTITION]
        if phase == _TAKE_IN:
            if counts[ITERATIONS] and (not ends[COUNT] or counts[ITERATIONS] == step.most):
                return FINISHED
            take_in(waiting, arriving, step)
            if ends[FREE_COUNT] and not state[IS_DRY]:
                return NO_ARRIVALS
            state[PARTITION], state[PHASE] = 0, _PINNED
        elif phase == _PINNED:
            state[BEHIND] = NONE
            if partition < len(relation.pinned):
                begin_probe(waiting, relation, step)
                state[PHASE] = _PROBE
            else:
                state[PHASE] = _LOOK_UP
        elif phase == _LOOK_UP:
            if not ends[COUNT]:
                counts[ITERATIONS] += 1
                state[PHASE] = _TAKE_IN
            else:
                _look_up(waiting, relation, step)
                state[PHASE] = _READ if state[BEHIND] else _SETTLE
        elif phase == _READ:
            if counts[READS] == len(step.read):
                return NO_ROOM
            if not read_partition(relation, step):
                return UNREAD
            if relation.grain == 1:
                _look_ahead(waiting, relation, step)
            begin_probe(waiting, relation, step)
            state[PHASE] = _PROBE
        elif phase == _PROBE:
            if not probe_whole(waiting, relation, results, found, step):
                return NO_ROOM
            state[PHASE] = _OFFER if state[BEHIND] == NONE else _PROBE_PART
        elif phase == _PROBE_PART:
            if not probe_part(waiting, relation, results, found, step):
                return NO_ROOM
            state[PHASE] = _OFFER
        elif phase == _OFFER:
            state[PHASE] = _REMOVE
            if state[CANDIDATES] or (state[PAIRS] and counts[READS] >= step.tick):
                return OFFERS
        elif phase == _REMOVE:
            if not remove_settled(waiting, relation, results, step, partition):
                return NO_ROOM
            _partition_done(step)
        else:
            if not settle(waiting, results, step):
                return NO_ROOM
            counts[ITERATIONS] += 1
            state[PHASE] = _TAKE_IN
