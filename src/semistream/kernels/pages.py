"""Pages used as they lie in memory: many at once, without decoding them one by one.

A page is an Arrow IPC message. Where its buffers begin stands in its metadata, a flatbuffer
whose shape is known; reading that directly takes less than a microsecond, and then a few dozen
pages are probed, and their rows gathered, in one call. Only pages whose checksum is right come
here, so what is read is what the writer wrote.

    | ffffffff | size | metadata: Message → RecordBatch → nodes, buffers | body: buffers |
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from semistream.kernels.chains import MATCHED, NONE, Chains, region_of
from semistream.kernels.compiling import kernel
from semistream.kernels.copying import (
    SPILL,
    copy_1,
    copy_2,
    copy_4,
    copy_8,
    copy_16,
    load_1,
    load_2,
    load_4,
    load_8,
)
from semistream.kernels.queue import OLDEST, Links
from semistream.kernels.rows import value_offset

_PREFIX = 8
_MESSAGE_HEADER, _BATCH_ROWS, _BATCH_NODES, _BATCH_BUFFERS = 2, 0, 1, 2
_PAIR = 16
"""Bytes of a node (rows, nulls) and of a buffer (begin, length)."""

Numbers = NDArray[np.int32]
Codes = NDArray[np.int64]


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
def whole_rows(field: Any, rows: int, begins_before: bool, ends_behind: bool) -> tuple[int, int]:
    """The rows (first, behind last) whose keys neither begin before the page nor end behind it."""
    start, stop = 0, rows
    if begins_before:
        first = code_of(field, 0)
        while start < stop and code_of(field, start) == first:
            start += 1
    if ends_behind:
        last = code_of(field, rows - 1)
        while stop > start and code_of(field, stop - 1) == last:
            stop -= 1
    return start, stop


@kernel
def open_pages(
    memory: int,
    begins: Codes,
    widths: NDArray[np.int64],
    fields: Any,
    code: int,
    crosses_in: NDArray[np.bool_],
    crosses_out: NDArray[np.bool_],
    starts: Codes,
    stops: Codes,
) -> None:
    """Find the columns of several pages, and their rows start..stop that are of whole keys.

    The pages' messages begin at `begins` from address `memory` on; a page that is none has
    `stops` -1. Column `code` holds the rows' codes.
    """
    for i in range(len(begins)):
        rows = open_page(memory + begins[i], widths, fields[i])
        starts[i], stops[i] = 0, -1
        if rows > 0:
            starts[i], stops[i] = whole_rows(fields[i, code], rows, crosses_in[i], crosses_out[i])


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
def probe_pages(
    chains: Chains,
    bits: int,
    regions: Codes,
    fields: Any,
    code: int,
    starts: Codes,
    stops: Codes,
    cursor: NDArray[np.int64],
    slots: Numbers,
    pages: Numbers,
    rows: Numbers,
    mark: bool,
) -> int:
    """Pair the tuples that wait in the pages' regions with the pages' rows start..stop.

    Column `code` holds the rows' codes. The pairs of a code come together. `cursor` is
    (next page, next bucket of its region, first slot of the code under way or NONE, its next
    row, next slot). Returns how many pairs were written; all are when cursor[0] is behind the
    last page.
    """
    written = 0
    page, bucket, first, row, slot = cursor[0], cursor[1], cursor[2], cursor[3], cursor[4]
    while page < len(regions):
        field, start, stop = fields[page, code], starts[page], stops[page]
        bucket = max(bucket, regions[page] << bits)
        while bucket < (regions[page] + 1) << bits and start < stop:
            if first == NONE:
                first = chains.heads[bucket]
                if first != NONE:
                    row, slot = _first_row(field, start, stop, chains.nodes[first].code), first
            while first != NONE:
                wanted = chains.nodes[first].code
                while row < stop and code_of(field, row) == wanted:
                    while slot != NONE:
                        if written == len(slots):
                            cursor[0], cursor[1], cursor[2] = page, bucket, first
                            cursor[3], cursor[4] = row, slot
                            return written
                        if mark:
                            chains.nodes[slot].entered |= MATCHED
                        slots[written], pages[written], rows[written] = slot, page, row
                        written += 1
                        slot = chains.nodes[slot].next_same
                    row += 1
                    slot = first
                first = chains.nodes[first].next_key
                if first != NONE:
                    row, slot = _first_row(field, start, stop, chains.nodes[first].code), first
            bucket += 1
        page += 1
        bucket = 0
    cursor[0], cursor[1], cursor[2] = page, 0, NONE
    return written


@kernel
def oldest_regions(
    links: Links, nodes: Any, fences: Codes, marks: NDArray[np.uint8], out: Codes, most_steps: int
) -> int:
    """The regions of the longest-waiting tuples, each once, oldest first; marks them.

    Regions that are marked already are passed over. Looks at `most_steps` tuples at most.
    """
    found = 0
    slot = links.ends[OLDEST]
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
def codes_at(fields: Any, code: int, pages: Numbers, rows: Numbers, out: Codes) -> None:
    """The codes of some rows, which column `code` holds."""
    for i in range(len(rows)):
        out[i] = code_of(fields[pages[i], code], rows[i])


@kernel
def add_lengths(
    fields: Any, columns: Codes, pages: Numbers, rows: Numbers, out: NDArray[np.float64]
) -> None:
    """Add the bytes of some rows' values of varying size."""
    for i in range(len(rows)):
        for j in range(len(columns)):
            field, row = fields[pages[i], columns[j]], rows[i]
            out[i] += value_offset(field, row + 1) - value_offset(field, row)


@kernel
def take_fixed(fields: Any, columns: Codes, pages: Numbers, rows: Numbers, out: Codes) -> None:
    """Gather columns of fixed width, each to its address in `out`."""
    for j in range(len(columns)):
        column, to = columns[j], out[j]
        width = fields[0, column].width
        for i in range(len(rows)):
            at = fields[pages[i], column].values + rows[i] * width
            if width == 8:
                copy_8(to + 8 * i, at)
            elif width == 4:
                copy_4(to + 4 * i, at)
            elif width == 2:
                copy_2(to + 2 * i, at)
            else:
                for k in range(width):
                    copy_1(to + i * width + k, at + k)


@kernel
def take_bits(
    fields: Any, column: int, pages: Numbers, rows: Numbers, valid: bool, out: NDArray[np.bool_]
) -> None:
    """Gather a column of booleans, or (`valid`) which values of any column are there."""
    for i in range(len(rows)):
        field = fields[pages[i], column]
        at = field.valid if valid else field.values
        if at:
            out[i] = (load_1(at + (rows[i] >> 3)) >> (rows[i] & 7)) & 1 != 0
        else:
            out[i] = valid


@kernel
def take_offsets(
    fields: Any, columns: Codes, pages: Numbers, rows: Numbers, offsets: NDArray[np.int32]
) -> None:
    """The Arrow offsets of gathered columns of varying size, a row of `offsets` for each."""
    for j in range(len(columns)):
        offsets[j, 0] = 0
        for i in range(len(rows)):
            field, row = fields[pages[i], columns[j]], rows[i]
            size = value_offset(field, row + 1) - value_offset(field, row)
            offsets[j, i + 1] = offsets[j, i] + size


@kernel
def take_bytes(
    fields: Any,
    columns: Codes,
    pages: Numbers,
    rows: Numbers,
    offsets: NDArray[np.int32],
    out: Codes,
) -> None:
    """The bytes of those columns, to their addresses; `SPILL` bytes behind each are touched."""
    for j in range(len(columns)):
        for i in range(len(rows)):
            field = fields[pages[i], columns[j]]
            at = field.values + value_offset(field, rows[i])
            to = out[j] + offsets[j, i]
            for k in range(0, offsets[j, i + 1] - offsets[j, i], SPILL):
                copy_16(to + k, at + k)


@kernel
def frequent_in_pages(
    fields: Any,
    code_column: int,
    starts: Codes,
    stops: Codes,
    pages: Numbers,
    rows: Numbers,
    threshold: float,
    found: Any,
) -> int:
    """Codes that at least `threshold` waiting tuples matched, from pairs that come code by code.

    As `front.frequent_codes`, over several pages.
    """
    written = 0
    i = 0
    while i < len(rows) and written < len(found):
        page, row = pages[i], rows[i]
        behind = i + 1
        while behind < len(rows) and rows[behind] == row and pages[behind] == page:
            behind += 1
        if behind - i >= threshold:
            field = fields[page, code_column]
            code = code_of(field, row)
            first, last = row, row + 1
            while first > starts[page] and code_of(field, first - 1) == code:
                first -= 1
            while last < stops[page] and code_of(field, last) == code:
                last += 1
            found[written].frequency = behind - i
            found[written].first = first
            found[written].last = last
            found[written].page = page
            written += 1
            while behind < len(rows) and pages[behind] == page and first <= rows[behind] < last:
                behind += 1
        i = behind
    return written
