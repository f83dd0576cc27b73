"""Steps of INLJ: look-up after look-up in one call, in the order of the arrivals.

    arrivals ─► their pages, one after the other ─► rows on the page, as they lie ─► result columns

Neighbouring tuples that need the same pages are a run: they share a read. A call goes on until it
needs something that only its caller has; see `steps`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from semistream.kernels.chains import NONE
from semistream.kernels.compiling import kernel
from semistream.kernels.pages import code_of, first_row
from semistream.kernels.results import Found, Results
from semistream.kernels.step_probe import is_partial, put_out, room_for
from semistream.kernels.step_reading import read_partition
from semistream.kernels.step_state import (
    BEHIND,
    CANDIDATES,
    FIRST_ROW,
    LEFT,
    PAGE,
    PARTITION,
    PHASE,
    PROBES,
    READS,
    ROW,
    SLOT,
    TAKEN,
    WAITS,
    Relation,
    Step,
)
from semistream.kernels.steps import FINISHED, NO_ROOM, OFFERS, UNREAD

_RUN, _READ, _MATCH = range(3)


class Asking(NamedTuple):
    """Tuples to look up: their codes, and the first and last page of each.

    `missed` is for those that find no row. `frequency` is how often their codes came of late; it
    is empty if nobody wants to know.
    """

    codes: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    missed: NDArray[np.bool_]
    frequency: NDArray[np.float64]


@kernel
def _begin_run(asking: Asking, step: Step) -> None:
    """The tuples that need the same pages as the next one; they end before LEFT."""
    state, at = step.state, step.state[TAKEN]
    first, last = asking.first[at], asking.last[at]
    stop = at + 1
    while stop < len(asking.codes) and asking.first[stop] == first and asking.last[stop] == last:
        stop += 1
    state[LEFT], state[PARTITION], state[BEHIND] = stop, first, last + 1


@kernel
def _read(relation: Relation, step: Step) -> bool:
    """Have the page under way in memory; it is not read again if it was the last one."""
    state = step.state
    if state[PAGE] != state[PARTITION]:
        state[PAGE] = NONE
        if not read_partition(relation, step):
            return False
        state[PAGE] = state[PARTITION]
    state[SLOT], state[ROW], state[FIRST_ROW] = state[TAKEN], NONE, NONE
    state[CANDIDATES], state[WAITS] = 0, 0
    step.counts[PROBES] += state[LEFT] - state[TAKEN]
    return True


@kernel
def _seek(relation: Relation, page: int, code: int) -> int:
    """The first row of a code on the page, or the row behind the last."""
    field, rows = relation.fields[0, relation.code], relation.rows[page]
    row = 0
    if relation.in_order:
        row = first_row(field, 0, rows, code)
        return row if row < rows and code_of(field, row) == code else rows
    while row < rows and code_of(field, row) != code:
        row += 1
    return row


@kernel
def _note(asking: Asking, relation: Relation, step: Step, row: int) -> None:
    """Note the rows of the tuple just paired, up to `row`, for the observer: see `scan_probe`.

    WAITS says afterwards that there was a code that came more than once.
    """
    state, at, first = step.state, step.state[CANDIDATES], step.state[FIRST_ROW]
    code, frequency = asking.codes[state[SLOT]], asking.frequency[state[SLOT]]
    if frequency == 0.0:
        return
    state[WAITS] = 1
    is_enough = frequency >= step.threshold or step.counts[READS] >= step.tick
    if not is_enough or is_partial(relation, state[PARTITION], code):
        return
    for i in range(at):
        if step.candidates[i].first == first:
            return
    if at < len(step.candidates):
        step.candidates[at].frequency = frequency
        step.candidates[at].first, step.candidates[at].last = first, row
        step.candidates[at].number = 0
        state[CANDIDATES] = at + 1


@kernel
def _find_pairs(asking: Asking, relation: Relation, found: Found, step: Step) -> int:
    """Pair the tuples of the run, from SLOT on, with their rows on the page; how many pairs."""
    state, page, count = step.state, step.state[PARTITION], 0
    field, rows = relation.fields[0, relation.code], relation.rows[page]
    while state[SLOT] < state[LEFT]:
        at, row = state[SLOT], state[ROW]
        code = asking.codes[at]
        if row == NONE:
            row = _seek(relation, page, code)
            state[FIRST_ROW] = row
        while row < rows and code_of(field, row) == code:
            if count == len(found.slots):
                state[ROW] = row
                return count
            found.slots[count], found.pages[count], found.rows[count] = at, 0, row
            asking.missed[at] = False
            count, row = count + 1, row + 1
        if len(asking.frequency) and row > state[FIRST_ROW]:
            _note(asking, relation, step, row)
        state[SLOT], state[ROW] = at + 1, NONE
    return count


@kernel
def _match(asking: Asking, relation: Relation, results: Results, found: Found, step: Step) -> bool:
    """Join the run with the page; False if there is no room."""
    while step.state[SLOT] < step.state[LEFT]:
        some = room_for(results, found)
        if len(some.slots) == 0:
            return False
        put_out(relation, results, some, step, _find_pairs(asking, relation, some, step))
    return True


@kernel
def advance(asking: Asking, relation: Relation, results: Results, found: Found, step: Step) -> int:
    """Go on with the look-ups; returns why they stopped."""
    state, counts = step.state, step.counts
    while True:
        if state[PHASE] == _RUN:
            if state[TAKEN] == len(asking.codes):
                return FINISHED
            _begin_run(asking, step)
            state[PHASE] = _READ
        elif state[PHASE] == _READ:
            if state[PARTITION] >= state[BEHIND]:
                state[TAKEN], state[PHASE] = state[LEFT], _RUN
                continue
            if counts[READS] == len(step.read):
                return NO_ROOM
            if not _read(relation, step):
                return UNREAD
            state[PHASE] = _MATCH
        else:
            if not _match(asking, relation, results, found, step):
                return NO_ROOM
            state[PARTITION] += 1
            state[PHASE] = _READ
            if state[CANDIDATES] or (state[WAITS] and counts[READS] >= step.tick):
                return OFFERS
