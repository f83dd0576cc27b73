"""Steps of HYBRIDJOIN and its kin: partition after partition in one call, in the paper's order.

    arrivals ─► free slots          oldest tuple ─► its partition ─► frame
    (take in)   stream table ◄──probe── rows on the page, as they lie ──► result columns
                settled tuples leave; their slots are free for the next arrivals

A call goes on until it needs something that only its caller has: arrivals, room for results, an
observer's opinion, or an error's text. What it has begun stands in `Step.state`, and the next
call goes on from there, also in the middle of a partition.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from semistream.kernels.chains import (
    MATCHED,
    NONE,
    Chains,
    bucket_of,
    insert,
    region_of,
    remove_codes,
    remove_ranges,
)
from semistream.kernels.compiling import kernel
from semistream.kernels.copying import prefetch
from semistream.kernels.pages import code_of, first_row, open_page
from semistream.kernels.queue import COUNT, FREE_COUNT, OLDEST, Links, append, unlink
from semistream.kernels.reading import PageList, read_pages
from semistream.kernels.results import (
    USED_ROWS,
    Found,
    Results,
    put_results,
    put_unmatched,
    scatter,
)
from semistream.kernels.settling import settled_codes
from semistream.kernels.times import finish

Numbers = NDArray[np.int32]
Codes = NDArray[np.int64]

_AHEAD = 8
"""Buckets between asking for a tuple's memory and using it."""

FINISHED, NO_ARRIVALS, NO_ROOM, OFFERS, UNREAD = range(5)
"""Why a call ended: the step is over; the caller must act, and then call again."""

(
    PHASE,
    TAKEN,
    IS_DRY,
    WANTED,
    PARTITION,
    BEHIND,
    BUCKET,
    CODE,
    PAGE,
    ROW,
    SLOT,
    WAITS,
    FIRST_PAGE,
    FIRST_ROW,
    PART_BEGUN,
    PAIRS,
    CANDIDATES,
    REMOVED,
    READ_UNTIL,
    IN_FRAME,
    STATES,
) = range(21)
"""What `Step.state` holds: the phase of the iteration under way, and where in it.

Arrivals taken, and whether no more will come; the code looked up, the partition under way and
the one behind its last (none: it is pinned); the bucket, the first slot of its code, page, row and
slot being paired; the tuples that wait for the code, its first page and row; whether rows that
cross an edge are being joined; pairs and candidates of the partition; whether its tuples are
removed; the page behind the last one read; and the partition that the caller has put into the
frame.
"""
_TAKE_IN, _PINNED, _LOOK_UP, _READ, _PROBE, _PROBE_PART, _OFFER, _REMOVE, _SETTLE = range(9)

(
    ITERATIONS,
    READS,
    SEQUENTIAL,
    PAGES,
    BYTES,
    PROBES,
    PARTITION_PROBES,
    MATCHES,
    APPENDS,
    DELETES,
    LONELY,
    WAITED,
    WAS_FULL,
    COUNTS,
) = range(14)
"""What `Step.counts` holds."""


class Waiting(NamedTuple):
    """The stream table, the arrival queue, and scratch for slots."""

    chains: Chains
    fences: Codes
    bits: int
    queue: Links
    slots: Numbers
    lonely: Numbers


class Arriving(NamedTuple):
    """Tuples that may come in: their codes, and where their columns are and will be kept.

    Addresses and widths in bytes of a column each. `flags` is empty as long as no tuple had a null.
    """

    codes: Codes
    columns: Codes
    kept: Codes
    widths: Codes
    flags: NDArray[np.uint8]
    kept_flags: NDArray[np.uint8]


class Relation(NamedTuple):
    """R: its pages' codes, rows and places, and the frame for a partition of some pages.

    `fields` are the columns of the pages in the frame (see `rows.FIELD`), `pinned` those of the
    partitions that are in memory, the first ones of R: each of them is one page.
    """

    first: Codes
    last: Codes
    rows: Numbers
    file: Numbers
    pages: PageList
    descriptors: Codes
    grain: int
    per_partition: int
    widths: Codes
    code: int
    frame: int
    fields: Any
    pinned: Any
    pinned_rows: Numbers


class Step(NamedTuple):
    """Where a step is, and what it has counted.

    `read` lists the partitions read; codes that `threshold` tuples matched go to `candidates`, and
    an observer is called when so many partitions were read (`tick`) in any case.
    """

    state: Codes
    counts: Codes
    histogram: Codes
    read: Codes
    threshold: float
    tick: int
    candidates: Any
    now: int
    most: int


@kernel
def _take_in(waiting: Waiting, arriving: Arriving, step: Step) -> None:
    """Put arrivals into free slots, as many as there are of both."""
    state, ends = step.state, waiting.queue.ends
    while True:
        at = state[TAKEN]
        count = min(min(ends[FREE_COUNT], len(arriving.codes) - at), len(waiting.slots))
        if count == 0:
            break
        slots = waiting.slots[:count]
        append(waiting.queue, slots)
        codes = arriving.codes[at : at + count]
        insert(waiting.chains, waiting.fences, waiting.bits, codes, slots, step.now)
        for j in range(len(arriving.widths)):
            width = arriving.widths[j]
            scatter(arriving.columns[j] + at * width, width, slots, arriving.kept[j])
        if len(arriving.flags):
            for i in range(count):
                for k in range(arriving.flags.shape[1]):
                    arriving.kept_flags[slots[i], k] = arriving.flags[at + i, k]
        state[TAKEN] = at + count
        step.counts[APPENDS] += count
        if ends[FREE_COUNT] == 0:
            step.counts[WAS_FULL] = 1


@kernel
def _crossed(relation: Relation, edge: int) -> bool:
    """Whether a key has rows on both sides of where page `edge` begins."""
    first, last = relation.first, relation.last
    return 0 < edge < len(first) and last[edge - 1] == first[edge]


@kernel
def _page_range(relation: Relation, partition: int) -> tuple[int, int]:
    first = partition * relation.per_partition
    return first, min(first + relation.per_partition, len(relation.first))


class _Pages(NamedTuple):
    """The pages of the partition under way: columns, rows and last code of each.

    Few arrays, because they go through the innermost calls.
    """

    fields: Any
    rows: Numbers
    last: Codes
    code: int


@kernel
def _pages(relation: Relation, partition: int) -> _Pages:
    """The pages of a partition in memory; a pinned one is one page."""
    begin, stop = _page_range(relation, partition)
    if partition < len(relation.pinned):
        fields = relation.pinned[partition : partition + 1]
        rows = relation.pinned_rows[partition : partition + 1]
        return _Pages(fields, rows, relation.last[stop - 1 : stop], relation.code)
    rows, last = relation.rows[begin:stop], relation.last[begin:stop]
    return _Pages(relation.fields[: stop - begin], rows, last, relation.code)


@kernel
def _seek(pages: _Pages, code: int) -> tuple[int, int]:
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


@kernel
def _pair(state: Codes, nodes: Any, pages: _Pages, found: Found, first: int, count: int) -> int:
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
def _place(relation: Relation, begin: int, page: int, row: int) -> int:
    """The number of a row of a page in its partition."""
    return int(relation.rows[begin : begin + page].sum()) + row


@kernel
def _note_candidate(relation: Relation, step: Step) -> None:
    """Note the rows of the code just paired for the observer, if it is frequent.

    When the observer's time passes it may call other codes frequent, so all are noted then.
    """
    state, at = step.state, step.state[CANDIDATES]
    is_enough = state[WAITS] >= step.threshold or step.counts[READS] >= step.tick
    if not is_enough or at == len(step.candidates):
        return
    begin, stop = _page_range(relation, state[PARTITION])
    last = int(relation.rows[begin:stop].sum())
    if state[PAGE] < len(_pages(relation, state[PARTITION]).rows):
        last = _place(relation, begin, state[PAGE], state[ROW])
    step.candidates[at].frequency = state[WAITS]
    step.candidates[at].first = _place(relation, begin, state[FIRST_PAGE], state[FIRST_ROW])
    step.candidates[at].last = last
    step.candidates[at].number = 0
    state[CANDIDATES] = at + 1


@kernel
def _find_pairs(waiting: Waiting, relation: Relation, found: Found, step: Step) -> int:
    """Pair the tuples that wait for whole codes of a partition; returns how many pairs.

    Far fewer tuples wait in its region than it has rows: they look for their rows. All are
    paired when BUCKET is behind the region's last.
    """
    state, heads, nodes = step.state, waiting.chains.heads, waiting.chains.nodes
    begin, stop = _page_range(relation, state[PARTITION])
    low, high = settled_codes(relation.first, relation.last, begin, stop)
    behind = (state[PARTITION] + 1) << waiting.bits
    has_observer, count = len(step.candidates) > 0, 0
    bucket, first = state[BUCKET], state[CODE]
    pages, address = _pages(relation, state[PARTITION]), nodes.ctypes.data
    while bucket < behind:
        # Ask for the tuples of a later bucket, so that memory is not waited for one by one.
        prefetch(address + nodes.itemsize * heads[min(bucket + _AHEAD, behind - 1)])
        if first == NONE:
            first = heads[bucket]
        while first != NONE:
            if low <= nodes[first].code <= high:
                count = _pair(state, nodes, pages, found, first, count)
                if state[SLOT] != NONE:
                    state[BUCKET], state[CODE] = bucket, first
                    return count
                if has_observer and state[WAITS]:
                    _note_candidate(relation, step)
            first = nodes[first].next_key
        bucket += 1
    state[BUCKET], state[CODE] = behind, NONE
    return count


@kernel
def _put_out(relation: Relation, results: Results, found: Found, step: Step, count: int) -> None:
    """Copy the pairs found into the results."""
    some = Found(found.slots[:count], found.pages[:count], found.rows[:count])
    put_results(results, _pages(relation, step.state[PARTITION]).fields, some)
    step.counts[MATCHES] += count
    step.state[PAIRS] += count


@kernel
def _room_for(results: Results, found: Found) -> Found:
    """The arrays for pairs, as far as there is room for results."""
    most = min(len(found.slots), results.most - results.used[USED_ROWS])
    return Found(found.slots[:most], found.pages[:most], found.rows[:most])


@kernel
def _probe(
    waiting: Waiting, relation: Relation, results: Results, found: Found, step: Step
) -> bool:
    """Join the partition's whole codes with the tuples that wait; False if there is no room."""
    state = step.state
    behind = (state[PARTITION] + 1) << waiting.bits
    while state[BUCKET] < behind:
        some = _room_for(results, found)
        if len(some.slots) == 0:
            return False
        count = _find_pairs(waiting, relation, some, step)
        _put_out(relation, results, some, step, count)
    return True


@kernel
def _is_partial(relation: Relation, partition: int, code: int) -> bool:
    """Whether the partition has rows of a code that crosses one of its edges."""
    begin, stop = _page_range(relation, partition)
    head = _crossed(relation, begin) and relation.first[begin] == code
    return head or (_crossed(relation, stop) and relation.last[stop - 1] == code)


@kernel
def _rows_of(relation: Relation, partition: int, code: int) -> int:
    """How many rows a code has in the partition."""
    pages = _pages(relation, partition)
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
def _begin_probe(waiting: Waiting, relation: Relation, step: Step) -> None:
    """A partition is in memory: count what probing with its whole codes looks at."""
    state, partition = step.state, step.state[PARTITION]
    begin, stop = _page_range(relation, partition)
    whole = int(relation.rows[begin:stop].sum())
    first, last = relation.first[begin], relation.last[stop - 1]
    if _crossed(relation, begin):
        whole -= _rows_of(relation, partition, first)
    if _crossed(relation, stop) and (first != last or not _crossed(relation, begin)):
        whole -= _rows_of(relation, partition, last)
    step.counts[PROBES] += whole
    step.counts[PARTITION_PROBES] += 1
    state[BUCKET], state[CODE], state[SLOT] = partition << waiting.bits, NONE, NONE
    state[PAIRS], state[CANDIDATES], state[REMOVED] = 0, 0, 0
    state[PART_BEGUN] = 0


@kernel
def _probe_part(
    waiting: Waiting, relation: Relation, results: Results, found: Found, step: Step
) -> bool:
    """Join the code looked up if it crosses the partition's edge; False if there is no room."""
    state, chains, code = step.state, waiting.chains, step.state[WANTED]
    if not _is_partial(relation, state[PARTITION], code):
        return True
    if not state[PART_BEGUN]:
        state[PART_BEGUN] = 1
        step.counts[PROBES] += _rows_of(relation, state[PARTITION], code)
        step.counts[PARTITION_PROBES] += 1
    first = chains.heads[bucket_of(region_of(waiting.fences, code), waiting.bits, code)]
    while first != NONE and chains.nodes[first].code != code:
        first = chains.nodes[first].next_key
    while first != NONE:
        some = _room_for(results, found)
        if len(some.slots) == 0:
            return False
        pages = _pages(relation, state[PARTITION])
        count = _pair(state, chains.nodes, pages, some, first, 0)
        _put_out(relation, results, some, step, count)
        if state[SLOT] == NONE:
            break
    return True


@kernel
def _let_go(waiting: Waiting, results: Results, step: Step, slots: Numbers) -> None:
    """Tuples that are out of the table are done; there is room for all of them as results."""
    counts, nodes = step.counts, waiting.chains.nodes
    unlink(waiting.queue, slots)
    lonely, waited = finish(nodes, slots, step.now, step.histogram, waiting.lonely)
    counts[DELETES] += len(slots)
    counts[LONELY] += lonely
    counts[WAITED] += waited
    if results.has_unmatched:
        put_unmatched(results, waiting.lonely[:lonely])


@kernel
def _room(waiting: Waiting, results: Results) -> int:
    """How many tuples may be let go of at once: unmatched ones may have to go out."""
    most = len(waiting.slots)
    return min(most, results.most - results.used[USED_ROWS]) if results.has_unmatched else most


@kernel
def _remove(
    waiting: Waiting, relation: Relation, results: Results, step: Step, partition: int
) -> bool:
    """Let go of the tuples that a partition settles; False if there is no room."""
    state = step.state
    begin, stop = _page_range(relation, partition)
    low, high = settled_codes(relation.first, relation.last, begin, stop)
    regions = np.array([partition], np.int64)
    lows, highs = np.array([low], np.int64), np.array([high], np.int64)
    done = state[REMOVED : REMOVED + 1]
    while done[0] == 0:
        room = _room(waiting, results)
        if room == 0:
            return False
        slots = waiting.slots[:room]
        count = remove_ranges(waiting.chains, waiting.bits, regions, lows, highs, done, slots)
        _let_go(waiting, results, step, slots[:count])
    return True


@kernel
def _settle(waiting: Waiting, results: Results, step: Step) -> bool:
    """Let go of the tuples of the code looked up; False if there is no room."""
    codes = np.array([step.state[WANTED]], np.int64)
    while True:
        room = _room(waiting, results)
        if room == 0:
            return False
        slots = waiting.slots[:room]
        count = remove_codes(waiting.chains, waiting.fences, waiting.bits, codes, slots)
        _let_go(waiting, results, step, slots[:count])
        if count < room:
            return True


@kernel
def _look_up(waiting: Waiting, relation: Relation, step: Step) -> None:
    """The partitions of the tuple that has waited longest."""
    state = step.state
    code = waiting.chains.nodes[waiting.queue.ends[OLDEST]].code
    first = np.searchsorted(relation.last, code, side="left")
    last = np.searchsorted(relation.first, code, side="right") - 1
    state[WANTED], state[PARTITION], state[BEHIND] = code, 0, 0
    if first <= last:
        state[PARTITION] = first // relation.per_partition
        state[BEHIND] = last // relation.per_partition + 1


@kernel
def _read(relation: Relation, step: Step) -> bool:
    """Have the partition under way in memory; False if only the caller can read it."""
    state, counts, partition = step.state, step.counts, step.state[PARTITION]
    if partition < len(relation.pinned):
        return True
    begin, stop = _page_range(relation, partition)
    if state[IN_FRAME] == partition:
        state[IN_FRAME] = NONE
    else:
        descriptor = relation.descriptors[relation.file[begin]]
        read = read_pages(descriptor, begin, stop, relation.frame, relation.grain, relation.pages)
        if read < 0:
            return False
        counts[BYTES] += read
    position = relation.pages.offset[begin] & -relation.grain
    for page in range(begin, stop):
        at = relation.frame + relation.pages.offset[page] - position
        open_page(at, relation.widths, relation.fields[page - begin])
    step.read[counts[READS]] = partition
    counts[READS] += 1
    counts[SEQUENTIAL] += begin == state[READ_UNTIL]
    state[READ_UNTIL] = stop
    counts[PAGES] += stop - begin
    return True


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
            _take_in(waiting, arriving, step)
            if ends[FREE_COUNT] and not state[IS_DRY]:
                return NO_ARRIVALS
            state[PARTITION], state[PHASE] = 0, _PINNED
        elif phase == _PINNED:
            state[BEHIND] = NONE
            if partition < len(relation.pinned):
                _begin_probe(waiting, relation, step)
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
            if not _read(relation, step):
                return UNREAD
            _begin_probe(waiting, relation, step)
            state[PHASE] = _PROBE
        elif phase == _PROBE:
            if not _probe(waiting, relation, results, found, step):
                return NO_ROOM
            state[PHASE] = _OFFER if state[BEHIND] == NONE else _PROBE_PART
        elif phase == _PROBE_PART:
            if not _probe_part(waiting, relation, results, found, step):
                return NO_ROOM
            state[PHASE] = _OFFER
        elif phase == _OFFER:
            state[PHASE] = _REMOVE
            if state[CANDIDATES] or (state[PAIRS] and counts[READS] >= step.tick):
                return OFFERS
        elif phase == _REMOVE:
            if not _remove(waiting, relation, results, step, partition):
                return NO_ROOM
            _partition_done(step)
        else:
            if not _settle(waiting, results, step):
                return NO_ROOM
            counts[ITERATIONS] += 1
            state[PHASE] = _TAKE_IN
