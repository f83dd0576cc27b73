"""Joining a partition of a scan with all tuples of the window, on its pages as they lie in memory.

A window holds tuples for all of R, so the rows look for their tuples. What is found is copied
into the results a few hundred pairs at a time. If there is no room for more, the state says where
to go on.
"""

from __future__ import annotations

import numpy as np

from semistream.kernels.chains import BLOCK, MATCHED, NONE, bucket_of
from semistream.kernels.compiling import kernel
from semistream.kernels.copying import prefetch
from semistream.kernels.pages import code_of
from semistream.kernels.results import Found, Results
from semistream.kernels.step_probe import (
    PartitionPages,
    is_partial,
    least_noted,
    partition_pages,
    put_out,
    room_for,
    row_number,
)
from semistream.kernels.step_state import (
    CANDIDATES,
    HASH_PROBES,
    PAGE,
    PAIRS,
    PARTITION,
    PARTITION_PROBES,
    PROBES,
    ROW,
    SLOT,
    WAITS,
    Relation,
    Step,
    Window,
    page_range,
)


@kernel
def begin_scan_probe(relation: Relation, step: Step) -> None:
    """A partition is in memory: all of its rows will be looked for."""
    state, (begin, stop) = step.state, page_range(relation, step.state[PARTITION])
    rows = int(relation.rows[begin:stop].sum())
    step.counts[PROBES] += rows
    step.counts[HASH_PROBES] += rows
    step.counts[PARTITION_PROBES] += 1
    state[PAGE], state[ROW], state[SLOT], state[WAITS] = 0, 0, NONE, 0
    state[PAIRS], state[CANDIDATES] = 0, 0


@kernel
def _rows_around(pages: PartitionPages, page: int, row: int) -> tuple[int, int]:
    """How many rows before a row, and from it on, have its code; they stand together."""
    code, before, here, at = code_of(pages.fields[page, pages.code], row), 0, page, row
    while here > 0 or at > 0:
        here, at = (here, at - 1) if at else (here - 1, pages.rows[here - 1] - 1)
        if code_of(pages.fields[here, pages.code], at) != code:
            break
        before += 1
    behind, here, at = 1, page, row
    while here + 1 < len(pages.rows) or at + 1 < pages.rows[here]:
        here, at = (here, at + 1) if at + 1 < pages.rows[here] else (here + 1, 0)
        if code_of(pages.fields[here, pages.code], at) != code:
            break
        behind += 1
    return before, behind


@kernel
def _note_row(relation: Relation, pages: PartitionPages, step: Step, page: int, row: int) -> None:
    """Note the rows of a row that WAITS tuples matched, for the observer.

    A code that is not whole here is left out.
    """
    state, at = step.state, step.state[CANDIDATES]
    code = code_of(pages.fields[page, pages.code], row)
    if at == len(step.candidates):
        return
    number = row_number(relation, page_range(relation, state[PARTITION])[0], page, row)
    if at and number < step.candidates[at - 1].last:
        return
    if is_partial(relation, state[PARTITION], code):
        return
    before, behind = _rows_around(pages, page, row)
    step.candidates[at].frequency = state[WAITS]
    step.candidates[at].first = number - before
    step.candidates[at].last = number + behind
    step.candidates[at].number = 0
    state[CANDIDATES] = at + 1


@kernel
def _find_pairs(window: Window, relation: Relation, found: Found, step: Step, piece: int) -> int:
    """Pair rows of the page under way with the tuples that wait for them; returns how many pairs.

    All rows are done when ROW is behind the last, unless the pairs had no more room. The observer
    counts the tuples of a code within `piece` pairs.
    """
    state, heads, nodes = step.state, window.chains.heads, window.chains.nodes
    pages = partition_pages(relation, state[PARTITION])
    page, row, slot, waits, count = state[PAGE], state[ROW], state[SLOT], state[WAITS], 0
    field, rows = pages.fields[page, pages.code], pages.rows[page]
    firsts, least = np.empty(BLOCK, np.int64), least_noted(step)
    heads_at, nodes_at = heads.ctypes.data, nodes.ctypes.data
    while row < rows:
        block = min(BLOCK, rows - row)
        # Ask for all heads of a block, then for their tuples: memory is not waited for one by one.
        for i in range(block):
            firsts[i] = bucket_of(window.chains.starts, 0, code_of(field, row + i))
            prefetch(heads_at + heads.itemsize * firsts[i])
        for i in range(block):
            firsts[i] = heads[firsts[i]]
            prefetch(nodes_at + nodes.itemsize * firsts[i])
        for i in range(block):
            if slot == NONE:
                slot, waits = firsts[i], 0
                code = code_of(field, row + i)
                while slot != NONE and nodes[slot].code != code:
                    slot = nodes[slot].next_key
            while slot != NONE:
                if count == len(found.slots):
                    state[ROW], state[SLOT], state[WAITS] = row + i, slot, waits
                    if state[PAIRS] + count == piece:
                        if waits >= least:
                            _note_row(relation, pages, step, page, row + i)
                        state[WAITS] = 0
                    return count
                nodes[slot].stamp |= MATCHED
                found.slots[count], found.pages[count], found.rows[count] = slot, page, row + i
                count, waits = count + 1, waits + 1
                slot = nodes[slot].next_same
            if waits >= least:
                state[WAITS] = waits
                _note_row(relation, pages, step, page, row + i)
                waits = 0
        row += block
    state[ROW], state[SLOT], state[WAITS] = rows, NONE, 0
    return count


@kernel
def scan_probe(
    window: Window, relation: Relation, results: Results, found: Found, step: Step
) -> bool:
    """Join the partition with all tuples of the window; False if there is no room.

    Or if it is time for the observer, who looks at as many pairs at a time as `found` has room for.
    """
    state, piece = step.state, len(found.slots)
    begin, stop = page_range(relation, state[PARTITION])
    while state[PAGE] < stop - begin:
        some = room_for(results, found)
        if len(step.candidates):
            most = min(len(some.slots), piece - state[PAIRS])
            some = Found(some.slots[:most], some.pages[:most], some.rows[:most])
        if len(some.slots) == 0:
            return False
        put_out(relation, results, some, step, _find_pairs(window, relation, some, step, piece))
        if state[ROW] == relation.rows[begin + state[PAGE]]:
            state[PAGE], state[ROW] = state[PAGE] + 1, 0
    return True
