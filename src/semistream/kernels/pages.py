"""Pages used as they lie in memory: many at once, without decoding them one by one.

A page is an Arrow IPC message. Where its buffers begin stands in its metadata, a flatbuffer
whose shape is known; reading that directly takes less than a microsecond. So dozens of
partitions are read in one call, and of each only the rows that somebody waits for are kept.
Only pages whose checksum is right come here, so what is read is what the writer wrote.

    | ffffffff | size | metadata: Message → RecordBatch → nodes, buffers | body: buffers |
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from semistream.kernels.chains import MATCHED, NONE, Chains, bucket_of, region_of
from semistream.kernels.compiling import kernel
from semistream.kernels.copying import load_2, load_4, load_8
from semistream.kernels.queue import Links
from semistream.kernels.reading import PageList, read_stretch
from semistream.kernels.rows import granules_of, put_row

GRANULES, ROWS, DONE, PAGES, STRETCHES, BYTES = range(6)
"""What `Found.used` counts: granules and rows of memory, codes that are done; pages of the run
under way; stretches and bytes that were read."""
USED: Final = 6

_PREFIX = 8
_MESSAGE_HEADER, _BATCH_ROWS, _BATCH_NODES, _BATCH_BUFFERS = 2, 0, 1, 2
_PAIR = 16
"""Bytes of a node (rows, nulls) and of a buffer (begin, length)."""

_SPARE = 2
"""Granules behind the last row that copying may touch."""

Numbers = NDArray[np.int32]
Codes = NDArray[np.int64]


class Layout(NamedTuple):
    """How pages' columns are found, and rows laid out: see `rows.FIELD` and `row_arena`.

    `widths` are of all columns of a page, of which `code` has the codes and `columns` are laid
    out.
    """

    widths: Codes
    code: int
    columns: Codes
    head: int
    flags: int


class Ranges(NamedTuple):
    """Of some regions, the codes low..high that each settles, first..last being on its pages."""

    low: Codes
    high: Codes
    first: Codes
    last: Codes


class Found(NamedTuple):
    """The rows of some codes, laid out one after the other in `memory`, from `starts` on.

    `counts` says how many rows each code has; `ends` where the codes of each region end.
    """

    codes: Codes
    ends: Codes
    counts: Numbers
    waits: Numbers
    starts: Codes
    memory: Codes
    nulls: NDArray[np.bool_]
    used: Codes


@kernel
def _field(table: int, number: int) -> int:
    """Where a field of a flatbuffer table stands; 0 if it is not there."""
    vtable = table - load_4(table)
    if 4 + 2 * number >= load_2(vtable):
        return 0
    offset = load_2(vtable + 4 + 2 * number)
    return table + offset if offset else 0


@kernel
def _target(reference: int) -> int:
    """What a flatbuffer reference points at."""
    return reference + load_4(reference)


@kernel
def open_page(message: int, widths: NDArray[np.int64], fields: Any) -> int:
    """Find the columns of the page at address `message`; returns its rows, or -1.

    `fields` (see `rows.FIELD`) has an entry per column, and `widths` is theirs.
    """
    root = message + _PREFIX
    header = _field(_target(root), _MESSAGE_HEADER)
    if load_4(message) != -1 or header == 0:
        return -1
    batch = _target(header)
    rows, nodes, buffers = (
        _field(batch, _BATCH_ROWS),
        _field(batch, _BATCH_NODES),
        _field(batch, _BATCH_BUFFERS),
    )
    if rows == 0 or nodes == 0 or buffers == 0:
        return -1
    node, buffer = _target(nodes) + 4, _target(buffers) + 4
    body = root + load_4(message + 4)
    for j in range(len(widths)):
        fields[j].first = 0
        fields[j].width = widths[j]
        fields[j].valid = body + load_8(buffer) if load_8(node + 8) else 0
        fields[j].offsets = body + load_8(buffer + _PAIR) if widths[j] < 0 else 0
        buffer += 2 * _PAIR if widths[j] < 0 else _PAIR
        fields[j].values = body + load_8(buffer)
        buffer += _PAIR
        node += _PAIR
    return load_8(rows)


@kernel
def code_of(field: Any, row: int) -> int:
    """The code of a row, from its page's code column of eight or four bytes."""
    if field.width == 8:
        return load_8(field.values + 8 * row)
    return load_4(field.values + 4 * row)


@kernel
def _first_row(field: Any, start: int, stop: int, code: int) -> int:
    """The first of a page's ascending rows start..stop whose code is not below `code`."""
    low, high = start, stop
    while low < high:
        middle = (low + high) >> 1
        if code_of(field, middle) < code:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def regions_from(
    links: Links,
    slot: int,
    nodes: Any,
    fences: Codes,
    marks: NDArray[np.uint8],
    out: Codes,
    most_steps: int,
) -> int:
    """The regions of the tuple in `slot` and of newer ones, each once; marks them.

    Regions that are marked already are passed over. Looks at `most_steps` tuples at most.
    """
    found = 0
    for _ in range(most_steps):
        if slot == NONE or found == len(out):
            break
        region = region_of(fences, nodes[slot].code)
        if not marks[region]:
            marks[region] = 1
            out[found] = region
            found += 1
        slot = links.links[slot].newer
    return found


@kernel
def wanted_codes(
    chains: Chains,
    bits: int,
    regions: Codes,
    ranges: Ranges,
    codes: Codes,
    ends: Codes,
    on_pages: NDArray[np.bool_],
) -> int:
    """The codes that wait in some regions; returns of how many regions, for want of room.

    Those of region i end before `ends[i]`, and `on_pages[i]` says whether its pages can have
    one of them. A code that its partition does not settle is left out. Of the first region, as
    many codes are taken as there is room for.
    """
    written = 0
    for i in range(len(regions)):
        begun = written
        on_pages[i] = False
        for bucket in range(regions[i] << bits, (regions[i] + 1) << bits):
            slot = chains.heads[bucket]
            while slot != NONE:
                code = chains.nodes[slot].code
                if ranges.low[i] <= code <= ranges.high[i]:
                    if written == len(codes):
                        ends[i] = written
                        return i if begun else 1
                    codes[written] = code
                    written += 1
                    on_pages[i] |= ranges.first[i] <= code <= ranges.last[i]
                slot = chains.nodes[slot].next_key
        ends[i] = written
    return len(regions)


@kernel
def _find_code(
    layout: Layout, fields: Any, page_rows: Codes, pages: int, found: Found, i: int
) -> bool:
    """Lay out all rows of the i-th code that are on the first `pages` pages; False: no room."""
    code, page = found.codes[i], 0
    while page + 1 < pages and code_of(fields[page, layout.code], page_rows[page] - 1) < code:
        page += 1
    row = _first_row(fields[page, layout.code], 0, page_rows[page], code)
    used, count = found.used[GRANULES], found.used[ROWS]
    words = found.memory.view(np.int32)
    while True:
        if row == page_rows[page]:
            page, row = page + 1, 0
        if page == pages or code_of(fields[page, layout.code], row) != code:
            break
        length = granules_of(fields[page], layout.columns, row, layout.head)
        if used + length > len(found.memory) - _SPARE or count == len(found.starts):
            return False
        words[2 * used + 1] = length
        put_row(
            found.memory,
            used,
            fields[page],
            layout.columns,
            row,
            layout.head,
            layout.flags,
            found.nulls,
        )
        found.starts[count] = used
        used, count, row = used + length, count + 1, row + 1
    found.counts[i] = count - found.used[ROWS]
    found.used[GRANULES], found.used[ROWS] = used, count
    return True


@kernel
def find_rows(
    stretches: Any,
    begin: int,
    is_read: bool,
    frame: int,
    grain: int,
    pages: PageList,
    layout: Layout,
    fields: Any,
    page_rows: Codes,
    found: Found,
) -> int:
    """Read stretches, from `begin` on, and lay out the rows of the wanted codes.

    `is_read`: the first is in the frame, which is at address `frame`. Returns the stretch that
    could not be read, or how many there are. What was done is in `found.used`; when not all
    rows have room, the codes from `found.used[DONE]` on are not done.
    """
    used = found.used
    for i in range(begin, len(stretches)):
        stretch = stretches[i]
        if i > begin or not is_read:
            read = read_stretch(stretch, frame, grain, pages)
            if read < 0:
                return i
            used[BYTES] += read
        if i == 0 or stretches[i - 1].run != stretch.run:
            used[PAGES] = 0
        for page in range(stretch.first, stretch.stop):
            at = frame + stretch.place + pages.offset[page] - stretch.position
            rows = open_page(at, layout.widths, fields[used[PAGES]])
            if rows < 0:
                return i
            page_rows[used[PAGES]] = rows
            used[PAGES] += 1
        used[STRETCHES] = i + 1
        if i + 1 == len(stretches) or stretches[i + 1].run != stretch.run:
            first = found.ends[stretch.run - 1] if stretch.run else 0
            for code in range(first, found.ends[stretch.run]):
                if not _find_code(layout, fields, page_rows, used[PAGES], found, code):
                    used[DONE] = code
                    return len(stretches)
    return len(stretches)


@kernel
def pair_found(
    chains: Chains,
    fences: Codes,
    bits: int,
    found: Found,
    cursor: Codes,
    slots: Numbers,
    rows: Numbers,
    mark: bool,
) -> int:
    """Pair the tuples that wait for codes, before the one that is not done, with their rows.

    Notes in `found.waits` how many tuples wait for each code. `cursor` is (next code, its first
    row, its next row, next slot or NONE). Returns how many pairs were written; all are when
    cursor[0] is behind the last code.
    """
    written = 0
    at, first, row, slot = cursor[0], cursor[1], cursor[2], cursor[3]
    while at < found.used[DONE]:
        code = found.codes[at]
        head = chains.heads[bucket_of(region_of(fences, code), bits, code)]
        while head != NONE and chains.nodes[head].code != code:
            head = chains.nodes[head].next_key
        if slot == NONE:
            slot = head
            found.waits[at] = 0
        while row < first + found.counts[at] and slot != NONE:
            if written == len(slots):
                cursor[0], cursor[1], cursor[2], cursor[3] = at, first, row, slot
                return written
            if mark:
                chains.nodes[slot].entered |= MATCHED
            slots[written], rows[written] = slot, row
            written += 1
            if row == first:
                found.waits[at] += 1
            slot = chains.nodes[slot].next_same
            if slot == NONE:
                row += 1
                slot = head if row < first + found.counts[at] else NONE
        first += found.counts[at]
        row = first
        slot = NONE
        at += 1
    cursor[0] = at
    return written
