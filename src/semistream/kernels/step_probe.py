"""Joining a partition with the tuples that wait for it, on its pages as they lie in memory.

Far fewer tuples wait than a partition has rows, so the tuples look for their rows. What is found
is copied into the results a few hundred pairs at a time. If there is no room for more, the state
says where to go on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from semistream.kernels.chains import MATCHED, NONE, ask_for_bucket, bucket_of, region_of
from semistream.kernels.compiling import borrowing_kernel, kernel
from semistream.kernels.pages import code_of, first_row
from semistream.kernels.results import USED_ROWS, Found, Results, put_results
from semistream.kernels.settling import settled_codes
from semistream.kernels.step_state import (
    BUCKET,
    CANDIDATES,
    CODE,
    FIRST_PAGE,
    FIRST_ROW,
    MATCHES,
    PAGE,
    PAIRS,
    PART_BEGUN,
    PARTITION,
    PARTITION_PROBES,
    PROBES,
    READS,
    REMOVED,
    ROW,
    SLOT,
    WAITS,
    WANTED,
    Relation,
    Step,
    Waiting,
    page_range,
)

Numbers = NDArray[np.int32]
Codes = NDArray[np.int64]


@borrowing_kernel
def crossed(relation: Relation, edge: int) -> bool:
    """Whether a key has rows on both sides of where page `edge` begins."""
    first, last = relation.first, relation.last
    return 0 < edge < len(first) and last[edge - 1] == first[edge]


class PartitionPages(NamedTuple):
    """The pages of the partition under way: columns, rows and last code of each.

    Few arrays, because they go through the innermost calls.
    """

    fields: Any
    rows: Numbers
    last: Codes
    code: int


@kernel
def partition_pages(relation: Relation, partition: int) -> PartitionPages:
    """The pages of a partition in memory; a pinned one is one page."""
    begin, stop = page_range(relation, partition)
    if partition < len(relation.pinned):
        fields = relation.pinned[partition : partition + 1]
        rows = relation.pinned_rows[partition : partition + 1]
        return PartitionPages(fields, rows, relation.last[stop - 1 : stop], relation.code)
    rows, last = relation.rows[begin:stop], relation.last[begin:stop]
    return PartitionPages(relation.fields[: stop - begin], rows, last, relation.code)


@borrowing_kernel
def _seek(pages: PartitionPages, code: int) -> tuple[int, int]:
    """The first row of a code, as page of the partition and row there; row NONE if it has none."""
    page = 0
    while page < len(pages.last) and pages.last[page] < code:
        page += 1
    if page == len(pages.last):
        return 0, NONE
    field, rows = pages.fields[page, pages.code], pages.rows[page]
    row = first_row(field, 0, rows, code)
    if row < rows and code_of(field, row) == code:
        return page, row
    return 0, NONE


@borrowing_kernel
def _pair(
    state: Codes, nodes: Any, pages: PartitionPages, found: Found, first: int, count: int
) -> int:
    """Pair the tuples of a code, oldest `first`, with its rows in the partition; returns the pairs.

    `count` pairs are there already. It begins with the code, or goes on with it if SLOT is one
    of its tuples; SLOT is NONE again when all are paired.
    """
    code = nodes[first].code
    page, row, slot, waits = state[PAGE], state[ROW], state[SLOT], state[WAITS]
    if slot == NONE:
        page, row = _seek(pages, code)
        if row == NONE:
            state[WAITS] = 0
            return count
        slot, waits = first, 0
        state[FIRST_PAGE], state[FIRST_ROW] = page, row
    while True:
        is_first = page == state[FIRST_PAGE] and row == state[FIRST_ROW]
        while slot != NONE:
            if count == len(found.slots):
                state[PAGE], state[ROW], state[SLOT], state[WAITS] = page, row, slot, waits
                return count
            nodes[slot].stamp |= MATCHED
            found.slots[count], found.pages[count], found.rows[count] = slot, page, row
            count += 1
            waits += is_first
            slot = nodes[slot].next_same
        row += 1
        if row == pages.rows[page]:
            page, row = page + 1, 0
        if page == len(pages.rows) or code_of(pages.fields[page, pages.code], row) != code:
            break
        slot = first
    state[PAGE], state[ROW], state[SLOT], state[WAITS] = page, row, NONE, waits
    return count


@kernel
def row_number(relation: Relation, begin: int, page: int, row: int) -> int:
    """The number of a row of a page in its partition."""
    return int(relation.rows[begin : begin + page].sum()) + row


@kernel
def least_noted(step: Step) -> float:
    """How many tuples must have matched a code for the observer to look at it; inf without one.

    When the observer's time passes it may call other codes frequent: all are noted then.
    """
    if len(step.candidates) == 0:
        return np.inf
    return 1.0 if step.counts[READS] >= step.tick else max(step.threshold, 1.0)


@kernel
def least_first(candidates: Any) -> None:
    """Put one of the least frequent candidates first."""
    least = 0
    for i in range(len(candidates)):
        if candidates[i].frequency < candidates[least].frequency:
            least = i
    first = candidates[:1].copy()
    candidates[0] = candidates[least]
    candidates[least] = first[0]


@kernel
def room_among(candidates: Any, frequency: float) -> int:
    """Drop the least frequent of candidates without room if this is more; returns how many stay.

    The first is one of the least frequent.
    """
    least, kept = candidates[0].frequency, 0
    if frequency <= least:
        return len(candidates)
    for i in range(len(candidates)):
        if candidates[i].frequency > least:
            candidates[kept] = candidates[i]
            kept += 1
    return kept


@kernel
def _note_candidate(relation: Relation, step: Step) -> None:
    """Note the rows of the code just paired for the observer.

    If there are more codes than have room, the most frequent are noted.
    """
    state, at = step.state, step.state[CANDIDATES]
    if at == len(step.candidates):
        at = room_among(step.candidates, state[WAITS])
        if at == len(step.candidates):
            return
    begin, stop = page_range(relation, state[PARTITION])
    last = int(relation.rows[begin:stop].sum())
    if state[PAGE] < len(partition_pages(relation, state[PARTITION]).rows):
        last = row_number(relation, begin, state[PAGE], state[ROW])
    step.candidates[at].frequency = state[WAITS]
    step.candidates[at].first = row_number(relation, begin, state[FIRST_PAGE], state[FIRST_ROW])
    step.candidates[at].last = last
    step.candidates[at].number = 0
    state[CANDIDATES] = at + 1
    if at + 1 == len(step.candidates):
        least_first(step.candidates)


@kernel
def _find_pairs(waiting: Waiting, relation: Relation, found: Found, step: Step) -> int:
    """Pair the tuples that wait for whole codes of a partition; returns how many pairs.

    Far fewer tuples wait in its region than it has rows: they look for their rows. All are
    paired when BUCKET is behind the region's last.
    """
    state, heads, nodes = step.state, waiting.chains.heads, waiting.chains.nodes
    begin, stop = page_range(relation, state[PARTITION])
    low, high = settled_codes(relation.first, relation.last, begin, stop)
    behind = waiting.chains.starts[state[PARTITION] + 1]
    count, least = 0, least_noted(step)
    bucket, first = state[BUCKET], state[CODE]
    pages = partition_pages(relation, state[PARTITION])
    while bucket < behind:
        ask_for_bucket(waiting.chains, bucket, behind)
        if first == NONE:
            first = heads[bucket]
        while first != NONE:
            if low <= nodes[first].code <= high:
                count = _pair(state, nodes, pages, found, first, count)
                if state[SLOT] != NONE:
                    state[BUCKET], state[CODE] = bucket, first
                    return count
                if state[WAITS] >= least:
                    _note_candidate(relation, step)
            first = nodes[first].next_key
        bucket += 1
    state[BUCKET], state[CODE] = behind, NONE
    return count


@kernel
def put_out(relation: Relation, results: Results, found: Found, step: Step, count: int) -> None:
    """Copy the pairs found into the results."""
    some = Found(found.slots[:count], found.pages[:count], found.rows[:count])
    put_results(results, partition_pages(relation, step.state[PARTITION]).fields, some)
    step.counts[MATCHES] += count
    step.state[PAIRS] += count


@kernel
def room_for(results: Results, found: Found) -> Found:
    """The arrays for pairs, as far as there is room for results."""
    most = min(len(found.slots), results.most - results.used[USED_ROWS])
    return Found(found.slots[:most], found.pages[:most], found.rows[:most])


@kernel
def probe_whole(
    waiting: Waiting, relation: Relation, results: Results, found: Found, step: Step
) -> bool:
    """Join the partition's whole codes with the tuples that wait; False if there is no room."""
    state = step.state
    behind = waiting.chains.starts[state[PARTITION] + 1]
    while state[BUCKET] < behind:
        some = room_for(results, found)
        if len(some.slots) == 0:
            return False
        count = _find_pairs(waiting, relation, some, step)
        put_out(relation, results, some, step, count)
    return True


@kernel
def is_partial(relation: Relation, partition: int, code: int) -> bool:
    """Whether the partition has rows of a code that crosses one of its edges."""
    begin, stop = page_range(relation, partition)
    head = crossed(relation, begin) and relation.first[begin] == code
    return head or (crossed(relation, stop) and relation.last[stop - 1] == code)


@kernel
def _rows_of(relation: Relation, partition: int, code: int) -> int:
    """How many rows a code has in the partition."""
    pages = partition_pages(relation, partition)
    page, row = _seek(pages, code)
    count = 0
    while row != NONE and page < len(pages.rows):
        if code_of(pages.fields[page, pages.code], row) != code:
            break
        count, row = count + 1, row + 1
        if row == pages.rows[page]:
            page, row = page + 1, 0
    return count


@kernel
def begin_probe(waiting: Waiting, relation: Relation, step: Step) -> None:
    """A partition is in memory: count what probing with its whole codes looks at."""
    state, partition = step.state, step.state[PARTITION]
    begin, stop = page_range(relation, partition)
    whole = int(relation.rows[begin:stop].sum())
    first, last = relation.first[begin], relation.last[stop - 1]
    if crossed(relation, begin):
        whole -= _rows_of(relation, partition, first)
    if crossed(relation, stop) and (first != last or not crossed(relation, begin)):
        whole -= _rows_of(relation, partition, last)
    step.counts[PROBES] += whole
    step.counts[PARTITION_PROBES] += 1
    state[BUCKET], state[CODE], state[SLOT] = waiting.chains.starts[partition], NONE, NONE
    state[PAIRS], state[CANDIDATES], state[REMOVED] = 0, 0, 0
    state[PART_BEGUN] = 0


@kernel
def probe_part(
    waiting: Waiting, relation: Relation, results: Results, found: Found, step: Step
) -> bool:
    """Join the code looked up if it crosses the partition's edge; False if there is no room."""
    state, chains, code = step.state, waiting.chains, step.state[WANTED]
    if not is_partial(relation, state[PARTITION], code):
        return True
    if not state[PART_BEGUN]:
        state[PART_BEGUN] = 1
        step.counts[PROBES] += _rows_of(relation, state[PARTITION], code)
        step.counts[PARTITION_PROBES] += 1
    first = chains.heads[bucket_of(chains.starts, region_of(waiting.fences, code), code)]
    while first != NONE and chains.nodes[first].code != code:
        first = chains.nodes[first].next_key
    while first != NONE:
        some = room_for(results, found)
        if len(some.slots) == 0:
            return False
        pages = partition_pages(relation, state[PARTITION])
        count = _pair(state, chains.nodes, pages, some, first, 0)
        put_out(relation, results, some, step, count)
        if state[SLOT] == NONE:
            break
    return True
